"""Decode steps: products and overlapping kernels of ours against cuBLAS and separate kernels.

    python -m benchmarks.steps --out steps.json                       # on a Hopper GPU
    python -m benchmarks.steps --shapes smollm2-135m --counts 8,64    # another shape
    python -m benchmarks.steps --shapes tiny --counts 2 --keys 8      # a test on a CPU

A model with random weights decodes one token of `count` sequences with `keys` random keys each: the
time of one replay of the engine's graph, sampling included. The ways are measured in turn;
"equal": thirty repeats of the step gave the same logits in every bit.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.cache import (
    TINY,
    device,
    endless,
    free,
    make_engine,
    print_and_write,
    random_model,
    seconds_of,
)
from benchmarks.vllm import FORMATS
from mage.agent.chat import Chat
from mage.engines.local import LocalEngine
from mage.models.base import find_model
from mage.models.shapes import PRESETS

SHAPES = PRESETS | {"tiny": TINY}
# Modules whose kernels may overlap the one before them; products of our own are among them.
MODULES = ("kernels", "attend_kernels", "product_kernels")
WAYS = ("separate", "ours", *MODULES)
REPEATS = 30
ROOM = 256  # tokens of a sequence beside its keys: every repeat adds one


def kernels_of(way: str) -> ExitStack:
    """`separate`: no kernel overlaps another, and cuBLAS computes all products.

    `ours`: as in the engine. The name of a module: only its kernels overlap.
    """
    stack = ExitStack()
    if device() == "cuda":
        for name in MODULES:
            if way not in ("ours", name):
                module = import_module(f"mage.engines.gpu.{name}")
                stack.enter_context(mock.patch.object(module, "overlaps", return_value=False))
    return stack


class Step:
    """The decode step of `count` sequences with `keys` keys each, as the engine launches it."""

    def __init__(self, engine: LocalEngine, count: int, keys: int) -> None:
        assert engine.loop is not None, "the engine runs ahead"
        self.engine, self.loop = engine, engine.loop
        self.count, self.keys, self.logits = count, keys, torch.zeros(0)
        self.loop._logits = self._keep(self.loop.head)  # type: ignore[method-assign]
        self._fill()
        self.loop._enlist(np.arange(count), count, (0, 0))

    def _keep(self, head: torch.nn.Module) -> Any:
        """The engine's logits, also kept where a replayed graph writes them."""

        def logits(hidden: torch.Tensor, slots: torch.Tensor, cut: bool) -> torch.Tensor:
            found: torch.Tensor = head(hidden)
            if not len(self.logits):
                self.logits = torch.zeros_like(found)
            self.logits.copy_(found)
            return found

        return logits

    def _fill(self) -> None:
        """Random keys and values."""
        torch.manual_seed(0)
        pool = self.engine.pool
        if pool.scales is None:
            pool.store.normal_()
        else:
            pool.store.random_(64, 192)
            pool.scales.fill_(-6.0)

    def begin(self) -> None:
        state = self.loop.state
        state.filled.fill_(self.keys)
        state.index.zero_()
        state.token.copy_(torch.arange(len(state.token), device=state.token.device) % 97 + 5)

    @torch.no_grad()
    def __call__(self) -> None:
        self.loop._run(
            ("decode", self.count, 1, False), lambda: self.loop._decode(self.count, 1, False)
        )

    def repeats_are_equal(self) -> bool:
        """Whether the same step gives the same logits again, in every bit."""
        found = []
        for _ in range(REPEATS):
            self.begin()
            self()
            found.append(self.logits.clone())
        return all(bool(torch.equal(found[0], one)) for one in found)


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    chat = endless(Chat.load(find_model("embedded")))
    for name in given.shapes.split(","):
        model = random_model(SHAPES[name], Qwen3ForCausalLM, Qwen3Config)
        for formats, count in product(given.formats.split(","), map(int, given.counts.split(","))):
            make = partial(make_engine, model, chat, formats)
            case = {"shape": name, "formats": formats}
            yield case | measure_case(make, count, given.keys, given.ways)
            free()
        del model
        free()


def measure_case(
    make: Callable[..., LocalEngine], count: int, keys: int, ways: str
) -> dict[str, Any]:
    """Milliseconds of the ways, the gains over the first, and how far the logits are from its."""
    record: dict[str, Any] = {"case": f"{count} x {keys} keys"}
    logits = []
    names = ways.split(",")
    for way in names:
        with kernels_of(way):
            step = Step(make(slots=count, context=keys + ROOM), count, keys)
            record[f"{way}_equal"] = step.repeats_are_equal()
            logits.append(step.logits.float().clone())
            step.begin()
            record[f"{way}_ms"] = 1e3 * seconds_of(step)
            del step
            free()
    for way, found in zip(names[1:], logits[1:]):
        record[f"{way}_gain"] = record[f"{names[0]}_ms"] / record[f"{way}_ms"]
        record[f"{way}_distance"] = float((logits[0] - found).norm() / logits[0].norm())
    return record


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", default="qwen3-4b", help=", ".join(SHAPES))
    parser.add_argument("--formats", default=",".join(FORMATS), help=", ".join(FORMATS))
    parser.add_argument("--counts", default="16,64,128", help="numbers of sequences")
    parser.add_argument("--ways", default="separate,ours", help=", ".join(WAYS))
    parser.add_argument("--keys", type=int, default=1024, help="keys of a sequence")
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    given = parser.parse_args(words)
    print_and_write(measure(given), given.out)


if __name__ == "__main__":
    main()
