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


class Tiles(NamedTuple):
    """How a matrix product of few rows divides its work.

    A program computes `words` outputs for all rows, from one of `splits` parts of the inputs, in
    steps of `depth` inputs. `ahead`: steps whose weights are asked for before the inputs are ready.
    """

    words: int
    depth: int
    splits: int = 1
    warps: int = 4
    stages: int = 5
    ahead: int = 1


# A product with fewer weights is left to cuBLAS from 17 rows on. On an H200 SmolLM2-135M's steps of
# 64 and 128 rows were slower with ours and overlap together (the products alone: not measured).
SMALL = 2_000_000


def tiles_for(
    rows: int, words: int, depth: int, *, gated: bool = False, summed: bool = False
) -> Tiles | None:
    """How to divide a product of `rows` with weights [words, depth]; None where cuBLAS is better.

    Found on an H200 with Qwen3-4B's and Qwen2.5-1.5B's shapes; SmolLM2-135M's are `SMALL`.
    `gated`: two products of the same inputs. `summed`: parts of the inputs may be summed later, so
    that all multiprocessors work.
    """
    if rows > 128 or words % 64 or depth % 64 or (rows > 64 and not summed):
        return None
    if rows > 16 and words * depth < SMALL:
        return None
    step = 128 if depth % 128 == 0 else 64
    if gated and rows > 16:
        return Tiles(32, step, stages=3)
    splits = max(1, min(round(120 * 64 / words), depth // step // 2)) if summed else 1
    return Tiles(64, step, splits, stages=5 if rows <= 64 else 4)


def overlap_pays(rows: int, numbers: int) -> bool:
    """Whether kernels over `rows` of so many numbers should start while the one before runs.

    SmolLM2-135M's steps (576 numbers) of 16 rows get faster by it, those of 32 to 128 rows slower.
    """
    return rows <= 16 or numbers >= 1024


PREFILL = Tuning(lines=128, warps=8)
PREFILL_INT8 = Tuning(lines=64)


def decode_tuning(programs: int, small: bool, deep: bool) -> Tuning:
    """How to divide decode attention with so many pairs of a sequence and a key head.

    Found on an H200 with 64 sequences of 1,536 keys, 128 of 1,024 and 512 of 576, each with 8 key
    heads of 128 numbers. `small`: keys in 8 bits. `deep`: a multiprocessor has memory for one more
    stage; 104 KB are needed, and many cards have 99.
    """
    if small:
        return Tuning(lines=16, keys=BLOCK, warps=2 if programs >= 4096 else 4)
    return Tuning(lines=16, keys=BLOCK, stages=4 if deep and programs <= 512 else 3)


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
