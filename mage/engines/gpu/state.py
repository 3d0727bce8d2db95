"""State of the sequences on a GPU. A decode step needs only the list of slots from the host."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from mage.engines.pool import BLOCK


class Tuning(NamedTuple):
    """How an attention kernel divides its work: `lines` of queries and `keys` per tile, and so on.

    With fewer than `programs` programs, the keys of a sequence are split among several.
    """

    lines: int = 128
    keys: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 512


DECODE = Tuning(lines=16, keys=BLOCK)
PREFILL = Tuning(lines=128, warps=8)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceState:
    """One entry per slot: newest token, number of keys, place in the reply, sampling options.

    `spare` is a slot that no sequence uses; batches are padded with it.
    """

    token: torch.Tensor
    filled: torch.Tensor
    index: torch.Tensor
    seed: torch.Tensor
    top_k: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    spare: int

    @classmethod
    def make(cls, slots: int, device: torch.device) -> "DeviceState":
        token, filled, index, seed, top_k = torch.zeros(
            5, slots + 1, dtype=torch.int64, device=device
        )
        temperature, top_p = torch.ones(2, slots + 1, device=device)
        return cls(token, filled, index, seed, top_k, temperature, top_p, slots)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """New tokens in blocks of at most `width` neighbours of one sequence.

    A block has the flat rows start .. start + count; the first is at `position` of `slot`. A
    padding block has a negative or zero count: -count rows without a sequence.
    """

    start: torch.Tensor
    count: torch.Tensor
    slot: torch.Tensor
    position: torch.Tensor
    width: int
