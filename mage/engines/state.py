"""What a GPU keeps of the sequences it works on, so that a decode step needs nothing from the host but who takes part."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

BLOCK = 64  # keys that decoding reads at once; what sequences share is counted, and read together, in whole blocks


class Tuning(NamedTuple):
    """How an attention kernel divides its work: `lines` of queries and `keys` a tile, warps and stages of a program; with fewer than
    `programs` of them the keys of a sequence are split among several."""

    lines: int = 128
    keys: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 512


DECODE = Tuning(lines=16, keys=BLOCK)
PREFILL = Tuning(lines=128, warps=8)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """One entry a slot: the newest token, how many keys are there, the place in the reply, and how to sample. `spare` is a slot
    that belongs to nobody: batches are filled up with it."""

    token: torch.Tensor
    filled: torch.Tensor
    index: torch.Tensor
    seed: torch.Tensor
    top_k: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    spare: int

    @classmethod
    def make(cls, slots: int, device: torch.device) -> "Sequences":
        token, filled, index, seed, top_k = torch.zeros(
            5, slots + 1, dtype=torch.int64, device=device
        )
        temperature, top_p = torch.ones(2, slots + 1, device=device)
        return cls(token, filled, index, seed, top_k, temperature, top_p, slots)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """New tokens in blocks of at most `width` neighbours of one sequence: flat rows start .. start + count, the first of them at
    `position` of `slot`. A block of padding has no keys: -count rows that belong to nobody, or none."""

    start: torch.Tensor
    count: torch.Tensor
    slot: torch.Tensor
    position: torch.Tensor
    width: int
