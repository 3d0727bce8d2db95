"""All weights with FSDP2: masters, gradients and moments are divided among the ranks.

The learner trains a sharded float32 copy of the model, layer by layer (torch's `fully_shard`). The
engine keeps a dense copy in the model's own precision, which gets the new weights after every step.
So play needs no messages, and a rank holds 2 bytes per parameter and 16 / ranks more.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from mage.learn.pack.packing import Packed
from mage.learn.pack.tries import Row, prepare
from mage.ranks.ranks import Ranks
from mage.types import Sample, TurnRef

Score = Callable[..., tuple[Tensor, Tensor, Tensor]]


class FullySharded:
    """Every weight, divided among the ranks. `network` is trained, `model` plays."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks, *, reference: bool = False) -> None:
        self.model = model
        self.network = _shard(model, ranks)
        self.masters: dict[str, Tensor] = dict(self.network.named_parameters())
        self._reference = copy.deepcopy(model).eval().requires_grad_(False) if reference else None

    def collect(self) -> None:
        """The backward pass has already summed the gradients over the ranks."""

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the weights into the module that plays; all ranks must call this."""
        for name, master in self.masters.items():
            self.model.get_parameter(name).copy_(whole(master))

    def set_master(self, name: str, value: Tensor) -> None:
        master = self.masters[name]
        assert isinstance(master, DTensor), "all weights of the network are sharded"
        given = value.to(master.device, master.dtype)
        with torch.no_grad():
            master.copy_(distribute_tensor(given, master.device_mesh, master.placements))

    def place_moment(self, name: str, value: Tensor) -> Tensor:
        """A moment of a checkpoint, divided as its master is; the step count stays whole."""
        master = self.masters[name]
        assert isinstance(master, DTensor), "all weights of the network are sharded"
        if value.shape != master.shape:
            return value.to(master.device)
        return distribute_tensor(value.to(master.device), master.device_mesh, master.placements)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start, with its own weights."""
        assert self._reference is not None, "a KL coefficient makes a reference"
        yield self._reference


def _shard(model: PreTrainedModel, ranks: Ranks) -> PreTrainedModel:
    half = model.dtype not in (torch.float32, torch.float64)
    network = copy.deepcopy(model)
    network = network.float() if half else network
    given: dict[str, Any] = {"mesh": init_device_mesh(model.device.type, (ranks.size,))}
    if half:
        given["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=model.dtype, reduce_dtype=torch.float32
        )
    for layer in network.get_decoder().layers:
        fully_shard(layer, **given)
    fully_shard(network, **given)
    return network


def scored_by(network: PreTrainedModel, score: Score) -> Score:
    """`score(network, packed)` as a forward pass of the sharded network."""

    def forward(self: PreTrainedModel, packed: Any) -> tuple[Tensor, Tensor, Tensor]:
        return score(self, packed)

    network.score_packed = forward.__get__(network)
    register_fsdp_forward_method(network, "score_packed")
    return lambda _, packed: network.score_packed(packed)


@dataclass(frozen=True, slots=True)
class EmptyBatch:
    """A micro-batch without effect, for a rank that has fewer of them than another rank."""

    packed: Packed

    def take_part(self, score: Score) -> None:
        """A forward and a backward pass with gradient zero."""
        logprobs, entropies, choices = score(None, self.packed)
        (0.0 * (logprobs.sum() + entropies.sum() + choices.sum())).backward()


def idle_rows() -> list[Row]:
    """The rows of an idle micro-batch: one sample of two tokens."""
    where = TurnRef(0, 0, 0, 0, "")
    return prepare([Sample((0,), (0,), (0.0,), 0.0, (), "play", where)])


def whole(value: Tensor) -> Tensor:
    """The whole of a sharded tensor; all ranks must call this."""
    return value.full_tensor() if isinstance(value, DTensor) else value
