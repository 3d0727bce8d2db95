"""What the optimizer changes: all weights, or low-rank adapters (LoRA).

Adapters are not modules here. The weight of a layer is W = W0 + scale * B A. It is written into the
module after every change of A and B, so sampler and learner compute one plain model at full speed.
The compiled layers of the learner give A and B their gradient (`low_rank.py`). Other layouts and
architectures compute the gradient of W, which is then projected onto A and B. The adapter files
have the format of PEFT.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.fully_sharded import FullySharded
from mage.learn.owned_state import placeholder
from mage.learn.pack.low_rank import Factors
from mage.models.adapters import linear_layers, read_adapters
from mage.models.base import base_of
from mage.seeds import derive

_AT_ONCE = 2**25  # weights of layers that are updated together: 128 MB in float32


class AllWeights:
    """Every weight, with a float32 master copy if the module has half precision.

    Most optimizer steps are too small for half precision.
    """

    def __init__(self, model: PreTrainedModel, *, reference: bool = False) -> None:
        self.model = model
        self.masters = {
            name: _master(value) for name, value in model.named_parameters() if value.requires_grad
        }
        self._dropped: set[str] = set()
        self._reference = copy.deepcopy(model).eval().requires_grad_(False) if reference else None

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradient of a micro-batch to the masters, in float32 to keep small terms."""
        for name, master in self.masters.items():
            _collect_one(master, self.model.get_parameter(name))

    @contextmanager
    def watching(self, ready: Callable[[Tensor], None]) -> Iterator[None]:
        """Around a backward pass: collect every gradient when it is complete and report it."""

        def watch(parameter: Tensor, master: Tensor) -> Any:
            def collect(parameter: Tensor) -> None:
                _collect_one(master, parameter)
                ready(master)

            return parameter.register_post_accumulate_grad_hook(collect)

        masters = self.masters.items()
        with _hooks([watch(self.model.get_parameter(name), master) for name, master in masters]):
            yield

    def drop_masters(self, owns: Callable[[str], bool]) -> None:
        """Free the float32 copies of the weights that another rank owns."""
        for name, master in self.masters.items():
            if not owns(name) and master is not self.model.get_parameter(name):
                self.masters[name] = placeholder(master)
                self._dropped.add(name)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the module."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and name not in self._dropped:
                parameter.copy_(master)

    def weights(self) -> dict[str, Tensor]:
        """The weights of the module, by the names of their masters."""
        return {name: self.model.get_parameter(name) for name in self.masters}

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        """Set a weight: its master, or the weight itself if another rank owns the master."""
        dropped = name in self._dropped
        (self.model.get_parameter(name) if dropped else self.masters[name]).copy_(value)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start, with its own weights."""
        assert self._reference is not None, "a KL coefficient makes a reference"
        yield self._reference


class Adapters:
    """A and B of every linear layer except the output head.

    They start with B = 0 (no change), or with the values of a PEFT folder (`start`). `direct`:
    the compiled layers compute the gradients of A and B, not that of W (`factors_of_weights`).
    """

    direct = True  # faster at 4 B (docs/performance.md)

    def __init__(
        self,
        model: PreTrainedModel,
        rank: int,
        alpha: float,
        *,
        seed: int = 0,
        start: Path | None = None,
    ) -> None:
        self.model, self.rank, self.alpha = model, rank, alpha
        model.requires_grad_(False)
        names = linear_layers(model)
        values = (
            read_adapters(start, model, names, rank, alpha)
            if start
            else _fresh(model, names, rank, seed)
        )
        base = _base_weights(model, names, start)
        self._stacks = [
            _Stack(model, some, values, base, alpha / rank) for some in _alike(model, names)
        ]
        self.masters = {
            name: value for stack in self._stacks for name, value in stack.masters.items()
        }
        self.factors = {
            weight: factors for stack in self._stacks for weight, factors in stack.factors()
        }
        self.publish()

    @torch.no_grad()
    def collect(self) -> None:
        """Project the gradient of a micro-batch onto A and B."""
        for stack in self._stacks:
            stack.collect()

    @contextmanager
    def watching(self, ready: Callable[[Tensor], None]) -> Iterator[None]:
        """Around a backward pass: report gradients of A and B as soon as they are complete."""
        direct = [
            master.register_post_accumulate_grad_hook(ready) for master in self.masters.values()
        ]
        with _hooks([*direct, *(hook for stack in self._stacks for hook in stack.watch(ready))]):
            yield

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        self.masters[name].copy_(value)

    def publish(self) -> None:
        """Write W0 + scale * B A into the module."""
        for stack in self._stacks:
            stack.write(stack.down, stack.up)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start. On exit the module holds the policy again."""
        for stack in self._stacks:
            stack.write(*stack.start)
        try:
            yield self.model
        finally:
            self.publish()


class _Stack:
    """Layers of one shape with their A and B stacked, so a step takes few kernels.

    The optimizer's parameters are views of the stacks, so layers keep their names.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        names: list[str],
        values: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        scale: float,
    ) -> None:
        self.scale = scale
        self.weights = [
            model.get_parameter(f"{name}.weight").requires_grad_(True) for name in names
        ]
        self.base = torch.stack([base[name].to(model.device, model.dtype) for name in names])
        self.down, self.up = (
            torch.stack([values[key(name)] for name in names]) for key in (_down, _up)
        )
        self.start = self.down.clone(), self.up.clone()
        self._parts = [
            [torch.nn.Parameter(part) for part in stack] for stack in (self.down, self.up)
        ]
        self.masters = {
            key(name): part
            for key, parts in zip((_down, _up), self._parts, strict=True)
            for name, part in zip(names, parts, strict=True)
        }

    def factors(self) -> Iterator[tuple[Tensor, Factors]]:
        for weight, down, up in zip(self.weights, *self._parts, strict=True):
            yield weight, Factors(down, up, self.scale)

    def collect(self) -> None:
        given = [weight.grad for weight in self.weights]
        if not any(gradient is not None for gradient in given):
            return
        whole = [
            torch.zeros_like(weight) if gradient is None else gradient
            for gradient, weight in zip(given, self.weights, strict=True)
        ]
        gradient = torch.stack(whole).to(self.down.dtype)
        for parts, slope in zip(
            self._parts, (self.up.mT @ gradient, gradient @ self.down.mT), strict=True
        ):
            slope.mul_(self.scale)
            if parts[0].grad is not None:
                torch._foreach_add_([part.grad for part in parts], list(slope))
                continue
            for part, own in zip(parts, slope, strict=True):
                part.grad = own
        for weight in self.weights:
            weight.grad = None

    def watch(self, ready: Callable[[Tensor], None]) -> list[Any]:
        """Hooks that project the gradients when the last weight of the stack has its own."""
        missing = set(map(id, self.weights))

        def note(weight: Tensor) -> None:
            missing.discard(id(weight))
            if missing:
                return
            with torch.no_grad():
                self.collect()
            for master in self.masters.values():
                ready(master)

        return [weight.register_post_accumulate_grad_hook(note) for weight in self.weights]

    @torch.no_grad()
    def write(self, down: Tensor, up: Tensor) -> None:
        torch._foreach_copy_(
            self.weights, list(torch.baddbmm(self.base.to(down.dtype), up, down, alpha=self.scale))
        )


def _alike(model: PreTrainedModel, names: list[str]) -> list[list[str]]:
    """Names of layers of equal shape, in pieces whose float32 copy takes little memory."""
    found: dict[torch.Size, list[str]] = {}
    for name in names:
        found.setdefault(model.get_parameter(f"{name}.weight").shape, []).append(name)
    pieces = {shape: max(1, _AT_ONCE // shape.numel()) for shape in found}
    return [
        some[first : first + pieces[shape]]
        for shape, some in found.items()
        for first in range(0, len(some), pieces[shape])
    ]


def _down(name: str) -> str:
    return f"{name}.lora_A.weight"


def _up(name: str) -> str:
    return f"{name}.lora_B.weight"


Trainable = AllWeights | Adapters | FullySharded


def factors_of_weights(trainable: Trainable) -> dict[Tensor, Factors] | None:
    """A and B by weight; None unless adapters are trained and get their gradient directly."""
    return trainable.factors if isinstance(trainable, Adapters) and trainable.direct else None


def make_trainable(
    model: PreTrainedModel, options: LearnOptions, *, seed: int = 0, start: Path | None = None
) -> Trainable:
    """All weights, or LoRA adapters if `lora_rank` is set."""
    if not options.lora_rank:
        return AllWeights(model, reference=options.kl > 0)
    alpha = 2.0 * options.lora_rank if options.lora_alpha is None else options.lora_alpha
    return Adapters(model, options.lora_rank, alpha, seed=seed, start=start)


def _fresh(model: PreTrainedModel, names: list[str], rank: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(derive(seed, "adapters"))
    real = torch.float64 if model.dtype == torch.float64 else torch.float32
    found: dict[str, Tensor] = {}
    for name in names:
        out, into = model.get_parameter(f"{name}.weight").shape
        bound = 1 / math.sqrt(into)
        down = torch.empty(rank, into, dtype=real).uniform_(-bound, bound, generator=generator)
        for key, value in (("lora_A", down), ("lora_B", torch.zeros(out, rank, dtype=real))):
            found[f"{name}.{key}.weight"] = value.to(model.device)
    return found


def _base_weights(
    model: PreTrainedModel, names: list[str], start: Path | None
) -> dict[str, Tensor]:
    """The weights without adapters: the module's own, unless it was loaded with adapters.

    They are not copied here; `_Stack` copies them, layer by layer.
    """
    if start is None:
        return {name: model.get_parameter(f"{name}.weight").detach() for name in names}
    wanted, base = {f"{name}.weight": name for name in names}, base_of(start)
    found = {
        wanted[key]: value
        for path in sorted(base.glob("*.safetensors"))
        for key, value in load_file(path).items()
        if key in wanted
    }
    if set(found) != set(names):
        raise UserError(f"{base} does not hold all weights that the adapters of {start} change")
    return found


@torch.no_grad()
def _collect_one(master: Tensor, parameter: Tensor) -> None:
    """Move the gradient of a half-precision weight to its master."""
    if parameter is not master and parameter.grad is not None:
        gradient = parameter.grad.to(master.dtype)
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None


@contextmanager
def _hooks(handles: list[Any]) -> Iterator[None]:
    """Hooks that are removed on exit."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _master(parameter: torch.nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().float())
