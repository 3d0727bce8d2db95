"""Matrix products of a decode step: cuBLAS and kernels of ours.

    python -m benchmarks.products --out products.json                # on a Hopper GPU
    python -m benchmarks.products --rows 64 --products down --tune   # try other tiles
    python -m benchmarks.products --shapes tiny --rows 2             # a test on a CPU

Each product is computed once for every layer of the shape, with different weights, in one CUDA
graph, so that no weight is still in the cache of the GPU. A time contains what follows the product
in the model: silu(gate) * up of `gate_up`; sum and norm of `out` and `down`. `--tune` changes one
group of choices of `Tiles` after the other and keeps what is faster; all candidates of a group are
first compiled side by side, in other processes.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
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
from mage.engines.gpu.state import Tiles, tiles_for
from mage.models.shapes import ModelShape

PRODUCTS = ("qkv", "out", "gate_up", "down")
SUMMED = ("out", "down")
WAYS = ("cublas", "ours")
# One group after the other. Words, warps and stages together decide registers and memory.
CHOICES: tuple[tuple[dict[str, int], ...], ...] = (
    tuple(
        {"words": words, "warps": warps, "stages": stages}
        for words, warps in ((32, 4), (64, 4), (64, 8), (128, 4), (128, 8))
        for stages in (2, 3, 4, 5, 6)
    ),
    tuple({"splits": splits} for splits in (1, 2, 3, 4, 6, 8)),
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


def divided(tiles: Tiles | None) -> Any:
    """A context in which all products are divided this way; None: cuBLAS computes them."""
    return mock.patch.object(
        import_module("mage.engines.gpu.kernels"), "_tiles", return_value=tiles
    )


class Case:
    """A product of all layers with `rows` rows, and how long one takes."""

    def __init__(self, shape: ModelShape, name: str, rows: int) -> None:
        self.name, self.rows = name, rows
        self.words, self.depth = size_of(shape, name)
        torch.manual_seed(0)
        self.weights = [self._draw(self.words, self.depth) for _ in range(shape.layers)]
        self.hidden, self.input = self._draw(rows, self.words), self._draw(rows, self.depth)
        self.norm = self._draw(self.words)

    def _draw(self, *sizes: int) -> Tensor:
        dtype = torch.bfloat16 if device() == "cuda" else torch.float32
        return torch.randn(sizes, device=device(), dtype=dtype) / sizes[-1] ** 0.5

    def tiles(self) -> Tiles | None:
        """How the engine divides it; None: cuBLAS computes it."""
        gated, summed = self.name == "gate_up", self.name in SUMMED
        words = self.words // (2 if gated else 1)
        return tiles_for(self.rows, words, self.depth, gated=gated, summed=summed)

    @torch.no_grad()
    def seconds(self, tiles: Tiles | None) -> float:
        ops = operations(torch.device(device()))

        def compute() -> None:
            for weight in self.weights:
                self._compute(ops, weight)

        if device() == "cpu":
            return seconds_of(compute, rounds=1, repeats=1) / len(self.weights)
        with divided(tiles):
            compute()  # compiles
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                compute()
        return seconds_of(graph.replay) / len(self.weights)

    @torch.no_grad()
    def compile(self, tiles: Tiles) -> None:
        """Compute the product of one layer with these tiles, so that its kernel is in the cache."""
        ops = operations(torch.device(device()))
        with divided(tiles):
            self._compute(ops, self.weights[0])

    def _compute(self, ops: Any, weight: Tensor) -> None:
        if self.name in SUMMED:
            ops.add_project_norm(self.hidden, self.input, weight, None, self.norm, 1e-6)
        elif self.name == "gate_up":
            ops.project_gated(self.input, weight, None)
        else:
            ops.project(self.input, weight, None)


def measure_case(case: Case, ways: Sequence[str]) -> dict[str, Any]:
    """Microseconds of each way, and how many bytes of weights it reads in a second."""
    record: dict[str, Any] = {"case": f"{case.name} {case.words} x {case.depth}, {case.rows} rows"}
    tiles = {"cublas": None, "ours": case.tiles()}
    for way in ways:
        seconds = case.seconds(tiles[way])
        record[f"{way}_us"] = 1e6 * seconds
        record[f"{way}_tb_per_s"] = case.weights[0].nbytes / seconds / 1e12
    return record


def tune(case: Case, prepare: Callable[[list[Tiles]], None]) -> dict[str, Any]:
    """The best tiles that were found for a product, beside the engine's."""
    given = case.tiles()
    words = case.words // (2 if case.name == "gate_up" else 1)

    def fits(tiles: Tiles) -> bool:
        parts = case.depth // tiles.depth if case.name in SUMMED else 1
        return words % tiles.words == 0 and tiles.splits <= parts

    def seconds(tiles: Tiles) -> float | None:
        with suppress(*_resource_errors()):
            return case.seconds(tiles)
        return None

    start = given or Tiles(64, 128 if case.depth % 128 == 0 else 64, stages=3)
    best, found = improve(start, seconds, fits, prepare)
    record: dict[str, Any] = {"tuned": f"{case.name}, {case.rows} rows"}
    record |= {"tried": len(found), "engine": "cuBLAS" if given is None else str(tuple(given))}
    ranked = sorted((1e6 * took, tuple(tiles)) for tiles, took in found.items() if took)
    record |= {"best": str(tuple(best)), "best_us": ranked[0][0] if ranked else None}
    return record | {"first": "; ".join(f"{took:.1f} {tiles}" for took, tiles in ranked[:5])}


def improve(
    start: Tiles,
    seconds: Callable[[Tiles], float | None],
    fits: Callable[[Tiles], bool],
    prepare: Callable[[list[Tiles]], None] = lambda tiles: None,
) -> tuple[Tiles, dict[Tiles, float | None]]:
    """The fastest tiles, and the times of all that were tried; None: they cannot run.

    One group of choices is tried after the other, from the best tiles so far. `prepare` gets all
    candidates of a group before the first one is timed.
    """
    prepare([start])
    best, found = start, {start: seconds(start)}
    for choices in CHOICES:
        tiles = dict.fromkeys(best._replace(**choice) for choice in choices)
        new = [one for one in tiles if one not in found and fits(one)]
        prepare(new)
        for one in new:
            found[one] = seconds(one)
        best = min(found, key=lambda one: found[one] or float("inf"))
    return best, found


def compile_in(
    pool: Executor | None, shape: ModelShape, name: str, rows: int, tiles: list[Tiles]
) -> None:
    """Compile the kernels of these tiles side by side."""
    if pool is not None:
        list(pool.map(partial(_compile, shape, name, rows), tiles))


def _compile(shape: ModelShape, name: str, rows: int, tiles: Tiles) -> None:
    with suppress(*_resource_errors()):
        Case(replace(shape, layers=1), name, rows).compile(tiles)


def compilers() -> Any:
    """Processes that compile; none without a GPU."""
    if device() == "cpu":
        return nullcontext()
    workers = max(1, (os.cpu_count() or 1) - 2)
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


def _resource_errors() -> tuple[type[Exception], ...]:
    """Of tiles that need more registers or shared memory than there are."""
    if device() == "cpu":
        return ()
    from triton.runtime.errors import OutOfResources

    return (OutOfResources,)


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    cases = product(given.shapes.split(","), given.products.split(","), given.rows.split(","))
    with compilers() if given.tune else nullcontext() as pool:
        for shape, name, rows in cases:
            case = Case(SHAPES[shape], name, int(rows))
            yield {"shape": shape} | measure_case(case, given.ways.split(","))
            if given.tune:
                prepare = partial(compile_in, pool, SHAPES[shape], name, int(rows))
                yield {"shape": shape} | tune(case, prepare)
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
