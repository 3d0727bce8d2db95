"""What the optimizer changes: all weights, or low-rank adapters (LoRA).

Adapters are not modules here. The weight of a layer is W = W0 + scale * B A. It is written into the
module after every change of A and B, so sampler and learner compute one plain model at full speed.
The compiled layers of the learner give A and B their gradient (`low_rank.py`). Other layouts and
architectures compute the gradient of W, which is then projected onto A and B. The adapter files
have the format of PEFT.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.owned_state import OwnedState, placeholder
from mage.learn.pack.low_rank import Factors
from mage.learn.pack.packing import Packed
from mage.learn.pack.tries import Row
from mage.models.adapters import adapter_config, linear_layers, read_adapters
from mage.models.base import base_of
from mage.ranks.ranks import Ranks
from mage.seeds import derive

Result = TypeVar("Result", bound=Iterable[Tensor])
Pack = Callable[[Sequence[Row]], Iterable[Packed]]
Score = Callable[[PreTrainedModel, Packed], Result]
State = tuple[dict[str, Tensor], dict[str, Tensor]]  # masters, and AdamW's moments
_AT_ONCE = 2**25  # weights of layers that are updated together: 128 MB in float32


class Trainable(ABC):
    """The optimizer's parameters (`masters`, by name), and how they reach the module that plays.

    `model` plays, `network` is trained: the same object, unless all weights are sharded. `factors`
    are A and B of each weight if the compiled layers give them the gradient.
    """

    factors: Mapping[Tensor, Factors] | None = None
    owned: OwnedState | None = None  # with learn.shard = "optimizer"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = self.network = model
        self.masters: dict[str, Tensor] = {}

    @abstractmethod
    def collect(self) -> None:
        """Add the gradient of a micro-batch to the masters."""

    @abstractmethod
    def publish(self) -> None:
        """Write the masters into the module that plays."""

    @abstractmethod
    def reference(self) -> AbstractContextManager[PreTrainedModel]:
        """The model as it was at the start."""

    @property
    def is_sharded(self) -> bool:
        """Whether `state` needs all ranks."""
        return self.owned is not None

    def divide(self, ranks: Ranks) -> None:
        """Divide the optimizer's state among the ranks."""
        self.owned = OwnedState(self.masters, ranks)

    def owns(self, name: str) -> bool:
        """Whether this rank makes the optimizer step of a master."""
        return self.owned is None or self.owned.owns(name)

    def forward_passes(
        self, rows: Sequence[Row], pack: Pack, score: Score[Result]
    ) -> Iterator[tuple[Packed, Result]]:
        """The micro-batches of an optimizer step, each with its scores."""
        for packed in pack(rows):
            yield packed, score(self.network, packed)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.collect()

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum the gradients of a step over the ranks."""
        if ranks.has_group:
            ranks.sum_gradients(self.masters.values())

    def share(self) -> None:
        """After an optimizer step: bring the new weights into the module, on all ranks."""
        self.publish()

    def state(self, optimizer: torch.optim.Optimizer) -> State:
        """All masters and moments. If `is_sharded`, all ranks must call this; rank 0 gets them."""
        states = {name: optimizer.state.get(one, {}) for name, one in self.masters.items()}
        if self.owned is not None:
            return self.owned.collect(self.masters, states)
        moments = {f"{n}.{key}": value for n, own in states.items() for key, value in own.items()}
        return dict(self.masters), moments

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        """Overwrite a master, for example with the value of a checkpoint."""
        self.masters[name].copy_(value)

    def place_moment(self, name: str, value: Tensor) -> Tensor:
        """A moment of a checkpoint, where the optimizer needs it."""
        return value.to(self.masters[name].device)


class AllWeights(Trainable):
    """Every weight, with a float32 master copy if the module has half precision.

    Most optimizer steps are too small for half precision.
    """

    def __init__(self, model: PreTrainedModel, *, reference: bool = False) -> None:
        super().__init__(model)
        self.masters = {
            name: _master(value) for name, value in model.named_parameters() if value.requires_grad
        }
        self._dropped: set[str] = set()  # masters that another rank owns
        self._reference = frozen_copy(model) if reference else None

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradient of a micro-batch to the masters, in float32 to keep small terms."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and parameter.grad is not None:
                gradient = parameter.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def divide(self, ranks: Ranks) -> None:
        """Divide the optimizer's state; frees the float32 copies that another rank owns."""
        super().divide(ranks)
        for name, master in self.masters.items():
            if not self.owns(name) and master is not self.model.get_parameter(name):
                self.masters[name] = placeholder(master)
                self._dropped.add(name)

    @torch.no_grad()
    def publish(self) -> None:
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and name not in self._dropped:
                parameter.copy_(master)

    def share(self) -> None:
        self.publish()
        if self.owned is not None:
            self.owned.share({name: self.model.get_parameter(name) for name in self.masters})

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        """Set a weight: its master, or the weight itself if another rank owns the master."""
        dropped = name in self._dropped
        (self.model.get_parameter(name) if dropped else self.masters[name]).copy_(value)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        assert self._reference is not None, "a KL coefficient makes a reference"
        yield self._reference


class Adapters(Trainable):
    """A and B of every linear layer except the output head.

    They start with B = 0 (no change) and the scale 2, or with the values and the scale of a PEFT
    folder (`start`). `direct`: the compiled layers compute the gradients of A and B, not that of W.
    """

    direct = True  # faster at 4 B (docs/performance.md)

    def __init__(
        self, model: PreTrainedModel, rank: int, *, seed: int = 0, start: Path | None = None
    ) -> None:
        super().__init__(model)
        config = adapter_config(start) if start else {"r": rank, "lora_alpha": 2.0 * rank}
        if config["r"] != rank:
            raise UserError(
                f"the adapters in {start} need learn.lora_rank = {config['r']}, not {rank}"
            )
        self.rank, self.alpha = rank, float(config["lora_alpha"])
        model.requires_grad_(False)
        names = linear_layers(model)
        values = read_adapters(start, model, names) if start else _fresh(model, names, rank, seed)
        base = _base_weights(model, names, start)
        scale = self.alpha / rank
        self._stacks = [_Stack(model, some, values, base, scale) for some in _alike(model, names)]
        self.masters = {
            name: value for stack in self._stacks for name, value in stack.masters.items()
        }
        if self.direct:
            self.factors = dict(pair for stack in self._stacks for pair in stack.factors())
        self.publish()

    @torch.no_grad()
    def collect(self) -> None:
        """Project the gradient of a micro-batch onto A and B."""
        for stack in self._stacks:
            stack.collect()

    def publish(self) -> None:
        """Write W0 + scale * B A into the module."""
        for stack in self._stacks:
            stack.write(stack.down, stack.up)

    def share(self) -> None:
        if self.owned is not None:
            self.owned.share(self.masters)
        self.publish()

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


def make_trainable(
    model: PreTrainedModel, options: LearnOptions, *, seed: int = 0, start: Path | None = None
) -> Trainable:
    """All weights, or LoRA adapters if `lora_rank` is set."""
    if not options.lora_rank:
        return AllWeights(model, reference=options.kl > 0)
    return Adapters(model, options.lora_rank, seed=seed, start=start)


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


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The reference of the KL term: the model as it is now."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _master(parameter: torch.nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().float())
