"""What the optimizer changes, and how it reaches the module that plays. Here: all weights."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from mage.config.errors import UserError
from mage.learn.checkpoint import Checkpoint
from mage.learn.checkpoint import load as load_checkpoint
from mage.learn.owned_state import OwnedState, placeholder
from mage.learn.pack.graphs import LayerGraphs
from mage.learn.pack.low_rank import Factors
from mage.learn.pack.packing import Packed
from mage.learn.pack.tries import Row
from mage.models.architecture import PreTrainedModel
from mage.ranks.ranks import Ranks

Result = TypeVar("Result", bound=Iterable[Tensor])
Pack = Callable[[Sequence[Row]], Iterable[Packed]]
Score = Callable[[PreTrainedModel, Packed], Result]
State = tuple[dict[str, Tensor], dict[str, Tensor]]  # masters, and AdamW's moments


class Trainable(ABC):
    """The optimizer's parameters (`masters`, by name), and how they reach the module that plays.

    `model` plays, `network` is trained: the same object, unless all weights are sharded. `factors`
    are A and B of each weight if the compiled layers give them the gradient. `graphs` are these
    layers as CUDA graphs, if learn.graphs asks for them.
    """

    graphs: LayerGraphs | None = None
    factors: Mapping[Tensor, Factors] | None = None
    ownership: OwnedState | None = None  # with learn.shard = "optimizer"
    _reference: PreTrainedModel | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = self.network = model
        self.masters: dict[str, Tensor] = {}

    @abstractmethod
    def add_gradient(self) -> None:
        """Add the gradient of a micro-batch to the masters."""

    @abstractmethod
    def write_to_model(self) -> None:
        """Write the masters into the module that plays."""

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start."""
        assert self._reference is not None, "a KL coefficient makes a reference"
        yield self._reference

    @property
    def is_sharded(self) -> bool:
        """Whether `state` needs all ranks."""
        return self.ownership is not None

    def shard_optimizer(self, ranks: Ranks) -> None:
        """Divide the optimizer's state among the ranks."""
        self.ownership = OwnedState(self.masters, ranks)

    def owns(self, name: str) -> bool:
        """Whether this rank makes the optimizer step of a master."""
        return self.ownership is None or self.ownership.owns(name)

    def forward_passes(
        self, rows: Sequence[Row], pack: Pack, score: Score[Result]
    ) -> Iterator[tuple[Packed, Result]]:
        """The micro-batches of an optimizer step, each with its scores."""
        for packed in pack(rows):
            yield packed, score(self.network, packed)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.add_gradient()

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum the gradients of a step over the ranks."""
        if ranks.has_group:
            ranks.sum_gradients(self.masters.values())

    def clip_gradients(self, most: float) -> Tensor:
        """Scale the gradients down to this norm; returns the norm that they had."""
        return clip_grad_norm_(self.masters.values(), most)

    def after_step(self) -> None:
        """After an optimizer step: bring the new weights into the module, on all ranks."""
        self.write_to_model()

    def state(self, optimizer: torch.optim.Optimizer) -> State:
        """All masters and moments. If `is_sharded`, all ranks must call this; rank 0 gets them."""
        states = {name: optimizer.state.get(one, {}) for name, one in self.masters.items()}
        if self.ownership is not None:
            return self.ownership.gather_state(self.masters, states)
        moments = {f"{n}.{key}": value for n, own in states.items() for key, value in own.items()}
        return dict(self.masters), moments

    def load(self, path: Path, weights_only: bool = False) -> Checkpoint:
        """Write the weights or adapters of a checkpoint into masters and model, and return it.

        `weights_only` is for play: it is returned without the moments.
        """
        found = load_checkpoint(path, weights_only)
        expected = {name: master.shape for name, master in self.masters.items()}
        if expected != {name: value.shape for name, value in found.weights.items()}:
            kind = "adapters" if found.adapter else "weights"
            raise UserError(
                f"checkpoint {path} holds {kind} whose shapes differ from this run's: it belongs "
                "to another model or another learn.lora_rank; use the recipe it was written with"
            )
        for name, value in found.weights.items():
            self.set_master(name, value)
        self.write_to_model()
        return found

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
    def add_gradient(self) -> None:
        """Add the gradient of a micro-batch to the masters, in float32 to keep small terms."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and parameter.grad is not None:
                gradient = parameter.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def shard_optimizer(self, ranks: Ranks) -> None:
        """Divide the optimizer's state; frees the float32 copies that another rank owns."""
        super().shard_optimizer(ranks)
        for name, master in self.masters.items():
            if not self.owns(name) and master is not self.model.get_parameter(name):
                self.masters[name] = placeholder(master)
                self._dropped.add(name)

    @torch.no_grad()
    def write_to_model(self) -> None:
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and name not in self._dropped:
                parameter.copy_(master)

    def after_step(self) -> None:
        self.write_to_model()
        if self.ownership is not None:
            self.ownership.broadcast(
                {name: self.model.get_parameter(name) for name in self.masters}
            )

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        """Set a weight: its master, or the weight itself if another rank owns the master."""
        dropped = name in self._dropped
        (self.model.get_parameter(name) if dropped else self.masters[name]).copy_(value)


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The reference of the KL term: the model as it is now."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _master(parameter: torch.nn.Parameter) -> Tensor:
    """The parameter itself if it has float32 or more, otherwise a float32 copy of it."""
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().float())
