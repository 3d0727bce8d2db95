"""Matrix products of a decode step: cuBLAS, kernels of ours, and kernels that read 8 bits.

    python -m benchmarks.products --out products.json                # on a Hopper GPU
    python -m benchmarks.products --rows 64 --products down --tune   # other ways to divide the work
    python -m benchmarks.products --shapes tiny --rows 2             # a test on a CPU

Each product is computed once for every layer of the shape, with different weights, in one CUDA
graph, so that no weight is still in the cache of the GPU. A time contains what follows the product
in the model: silu(gate) * up of `gate_up`; sum and norm of `out` and `down`. `--tune` changes one
choice of `Tiles` after the other and keeps what is faster.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.cache import device, free, print_and_write, seconds_of
from benchmarks.steps import SHAPES
from mage.engines.gpu.loop import operations
from mage.engines.gpu.small_weights import SmallWeight, make_small, round_weight
from mage.engines.gpu.state import Tiles, tiles_for
from mage.models.shapes import ModelShape

PRODUCTS = ("qkv", "out", "gate_up", "down")
SUMMED = ("out", "down")
WAYS = ("cublas", "ours", "int8")
# One choice after the other; words and warps go together.
CHOICES: tuple[tuple[dict[str, int], ...], ...] = (
    tuple(
        {"words": words, "warps": warps}
        for words, warps in ((32, 4), (64, 4), (64, 8), (128, 4), (128, 8))
    ),
    tuple({"splits": splits} for splits in (1, 2, 3, 4, 6, 8)),
    tuple({"stages": stages} for stages in (2, 3, 4, 5, 6)),
    tuple({"ahead": ahead} for ahead in (0, 1, 2, 4)),
)


def size_of(shape: ModelShape, name: str) -> tuple[int, int]:
    """Outputs and inputs of a product."""
    heads = shape.heads * shape.head_size
    return {
        "qkv": (heads + 2 * shape.kv_heads * shape.head_size, shape.hidden),
        "out": (shape.hidden, heads),
        "gate_up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }[name]


class Case:
    """A product of all layers with `rows` rows, and how long one takes."""

    def __init__(self, shape: ModelShape, name: str, rows: int) -> None:
        self.name, self.rows = name, rows
        self.words, self.depth = size_of(shape, name)
        torch.manual_seed(0)
        self.weights = [self._draw(self.words, self.depth) for _ in range(shape.layers)]
        self.small = [_round(weight) for weight in self.weights]
        self.hidden, self.input = self._draw(rows, self.words), self._draw(rows, self.depth)
        self.norm = self._draw(self.words)

    def _draw(self, *sizes: int) -> Tensor:
        dtype = torch.bfloat16 if device() == "cuda" else torch.float32
        return torch.randn(sizes, device=device(), dtype=dtype) / sizes[-1] ** 0.5

    def has(self, way: str) -> bool:
        """Whether there is this way: not every shape has a copy in 8 bits."""
        return way != "int8" or self.small[0] is not None

    def bytes_read(self, way: str) -> int:
        """Of the weights of one layer."""
        small = self.small[0] if way == "int8" else None
        return sum(one.nbytes for one in small or (self.weights[0],))

    def tiles(self, way: str) -> Tiles | None:
        """How the engine divides it; None: cuBLAS computes it."""
        if way == "cublas":
            return None
        gated, summed = self.name == "gate_up", self.name in SUMMED
        words = self.words // (2 if gated else 1)
        return tiles_for(
            self.rows, words, self.depth, gated=gated, summed=summed, small=way == "int8"
        )

    @torch.no_grad()
    def seconds(self, way: str, tiles: Tiles | None) -> float:
        ops = operations(torch.device(device()))
        small = self.small if way == "int8" else [None] * len(self.small)

        def compute() -> None:
            for weight, copy in zip(self.weights, small, strict=True):
                self._compute(ops, weight, copy)

        if device() == "cpu":
            return seconds_of(compute, rounds=1, repeats=1) / len(small)
        with mock.patch.object(import_module("mage.engines.gpu.kernels"), "_tiles") as chosen:
            chosen.return_value = tiles
            compute()  # compiles
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                compute()
        return seconds_of(graph.replay) / len(small)

    def _compute(self, ops: Any, weight: Tensor, small: SmallWeight | None) -> None:
        if self.name in SUMMED:
            ops.add_project_norm(self.hidden, self.input, weight, None, self.norm, 1e-6, small)
        elif self.name == "gate_up":
            ops.project_gated(self.input, weight, None, small)
        else:
            ops.project(self.input, weight, None, small)


def _round(weight: Tensor) -> SmallWeight | None:
    small = make_small(weight)
    if small is not None:
        round_weight(weight, small)
    return small


def measure_case(case: Case, ways: Sequence[str]) -> dict[str, Any]:
    """Microseconds of each way, and how many bytes of weights it reads in a second."""
    record: dict[str, Any] = {"case": f"{case.name} {case.words} x {case.depth}, {case.rows} rows"}
    for way in ways:
        seconds = case.seconds(way, case.tiles(way))
        record[f"{way}_us"] = 1e6 * seconds
        record[f"{way}_tb_per_s"] = case.bytes_read(way) / seconds / 1e12
    return record


def tune(case: Case, way: str) -> dict[str, Any]:
    """The best tiles that were found for a product, beside the engine's."""
    given = case.tiles(way)
    words = case.words // (2 if case.name == "gate_up" else 1)

    def fits(tiles: Tiles) -> bool:
        parts = case.depth // tiles.depth if case.name in SUMMED else 1
        return words % tiles.words == 0 and tiles.splits <= parts

    def seconds(tiles: Tiles) -> float | None:
        with suppress(*_resource_errors()):
            return case.seconds(way, tiles)
        return None

    start = given or Tiles(64, 128 if case.depth % 128 == 0 else 64, stages=3)
    best, least, tried = improve(start, seconds, fits)
    record = {"tuned": f"{case.name}, {case.rows} rows, {way}", "tried": tried}
    record["engine"] = "cuBLAS" if given is None else str(tuple(given))
    return record | {"best": str(tuple(best)), "best_us": least and 1e6 * least}


def improve(
    start: Tiles, seconds: Callable[[Tiles], float | None], fits: Callable[[Tiles], bool]
) -> tuple[Tiles, float | None, int]:
    """The fastest tiles found, their time, and how many were tried; without a time they cannot run.

    It changes one choice after the other.
    """
    best, least, tried = start, seconds(start), 1
    for choices in CHOICES:
        for choice in choices:
            tiles = best._replace(**choice)
            if tiles == best or not fits(tiles):
                continue
            took, tried = seconds(tiles), tried + 1
            if took is not None and (least is None or took < least):
                best, least = tiles, took
    return best, least, tried


def _resource_errors() -> tuple[type[Exception], ...]:
    """Of tiles that need more registers or shared memory than there are."""
    if device() == "cpu":
        return ()
    from triton.runtime.errors import OutOfResources

    return (OutOfResources,)


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    cases = product(given.shapes.split(","), given.products.split(","), given.rows.split(","))
    for shape, name, rows in cases:
        case = Case(SHAPES[shape], name, int(rows))
        ways = [way for way in given.ways.split(",") if case.has(way)]
        yield {"shape": shape} | measure_case(case, ways)
        for way in ways:
            if given.tune and way != "cublas":
                yield tune(case, way)
        del case
        free()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", default="qwen3-4b", help=", ".join(SHAPES))
    parser.add_argument("--products", default=",".join(PRODUCTS), help=", ".join(PRODUCTS))
    parser.add_argument("--rows", default="16,64,128", help="numbers of rows")
    parser.add_argument("--ways", default=",".join(WAYS), help=", ".join(WAYS))
    parser.add_argument("--tune", action="store_true", help="try other ways to divide the work")
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    given = parser.parse_args(words)
    print_and_write(measure(given), given.out)


if __name__ == "__main__":
    main()
