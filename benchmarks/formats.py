"""Error of log-probabilities if the matrix products of a model have inputs in 8 bits.

    python -m benchmarks.formats smollm2 qwen2.5-1.5b
    python -m benchmarks.formats embedded --tokens 256    # a test

Real weights in float32 on a CPU: both inputs of every product but the head's are rounded, as a GPU
would do it with products in 8 bits, and the products are computed exactly. The text is a page of
docs/. One token is drawn at every place of it from the model itself. Printed: the mean and the 99th
percentile of |logprob with rounding - logprob without|, and the mean KL divergence, without the
first 64 places. PPO's clip ends at ratios of .8 and 1.2, so at differences of about .2.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cache import DOCS, print_and_write
from mage.agent.chat import Chat
from mage.models.base import find_model
from mage.models.loading import load_model

Round = Callable[[Tensor], Tensor]
FIRST = 64  # places that are not counted
GROUP = 128  # numbers with one scale


def in_bfloat16(numbers: Tensor) -> Tensor:
    return numbers.bfloat16().float()


def in_e4m3(numbers: Tensor) -> Tensor:
    """8-bit floats with one scale for a row."""
    scale = numbers.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (numbers / scale).to(torch.float8_e4m3fn).float() * scale


def in_e4m3_groups(numbers: Tensor) -> Tensor:
    """8-bit floats with one scale for 128 numbers of a row, if they divide it."""
    if numbers.shape[-1] % GROUP:
        return in_e4m3(numbers)
    return in_e4m3(numbers.unflatten(-1, (-1, GROUP))).flatten(-2)


def in_int8(numbers: Tensor) -> Tensor:
    """8-bit integers with one scale for a row."""
    scale = numbers.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (numbers / scale).round() * scale


FORMATS: dict[str, Round] = {
    "bfloat16": in_bfloat16,
    "8-bit floats, a scale for a row": in_e4m3,
    "8-bit floats, a scale for 128 numbers": in_e4m3_groups,
    "8-bit integers, a scale for a row": in_int8,
}


@contextmanager
def rounded(layers: Sequence[nn.Linear], kind: Round) -> Iterator[None]:
    """Round weights and inputs of these layers."""
    kept = [layer.weight.data for layer in layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: (kind(inputs[0]),)) for layer in layers
    ]
    try:
        for layer in layers:
            layer.weight.data = kind(layer.weight.data)
        yield
    finally:
        for layer, weight, hook in zip(layers, kept, hooks, strict=True):
            layer.weight.data = weight
            hook.remove()


@torch.no_grad()
def measure(name: str, tokens: int) -> Iterator[dict[str, Any]]:
    """One record for every format."""
    path = find_model(name)
    model: Any = load_model(path, "float32", "cpu")
    text = (DOCS / "worlds.md").read_text()
    ids = torch.tensor([Chat.load(path).encode(text)[:tokens]])
    layers = [one for one in model.get_decoder().modules() if isinstance(one, nn.Linear)]

    def shares() -> Tensor:
        found: Tensor = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        return found[FIRST:]

    true = shares()
    drawn = torch.multinomial(true.exp(), 1, generator=torch.Generator().manual_seed(0))
    for kind, rounding in FORMATS.items():
        with rounded(layers, rounding):
            found = shares()
        gap = (found - true).gather(1, drawn).abs()
        yield {
            "model": Path(name).name,
            "inputs": kind,
            "mean": float(gap.mean()),
            "p99": float(gap.quantile(0.99)),
            "divergence": float((true.exp() * (true - found)).sum(-1).mean()),
        }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="names or folders")
    parser.add_argument("--tokens", type=int, default=1024, help="of the text")
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    given = parser.parse_args(words)
    print_and_write(
        (one for name in given.models for one in measure(name, given.tokens)), given.out
    )


if __name__ == "__main__":
    main()
