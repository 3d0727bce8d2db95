"""All weights with FSDP2: masters, gradients and moments are divided among the ranks.

The learner trains a sharded float32 copy of the model, layer by layer (torch's `fully_shard`). The
engine keeps a dense copy in the model's own precision, which gets the new weights after every step.
So play needs no messages, and a rank holds 2 bytes per parameter and 16 / ranks more; the reference
of a KL term is another dense copy.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from mage.learn.pack.packing import Packed
from mage.learn.pack.tries import Row, prepare
from mage.learn.trainable import Pack, Result, Score, State, Trainable, frozen_copy
from mage.models.architecture import PreTrainedModel
from mage.ranks.ranks import Ranks
from mage.types import Sample


class FullySharded(Trainable):
    """Every weight, divided among the ranks. `network` is trained, `model` plays."""

    is_sharded = True

    def __init__(self, model: PreTrainedModel, ranks: Ranks, *, reference: bool = False) -> None:
        super().__init__(model)
        self.ranks = ranks
        self.network = _shard(model, ranks)
        self.masters = dict(self.network.named_parameters())
        self._reference = frozen_copy(model) if reference else None

    def forward_passes(
        self, rows: Sequence[Row], pack: Pack, score: Score[Result]
    ) -> Iterator[tuple[Packed, Result]]:
        """A pass needs all ranks: one that has fewer of its own takes part in those of others."""
        own = list(pack(rows))
        missing = max(self.ranks.gather(len(own))) - len(own)
        for packed in own:
            yield packed, self.network.run(score, packed)
        for _ in range(missing):  # with their backward pass: the caller must not count them
            (idle,) = pack(_idle_rows())
            self.backward(0.0 * sum(part.sum() for part in self.network.run(score, idle)))

    def backward(self, loss: Tensor) -> None:
        """Add the gradient. FSDP takes the mean over the ranks; the gradient is a sum."""
        (loss * self.ranks.size).backward()  # type: ignore[no-untyped-call]

    # FSDP adds the gradients of a micro-batch and sums them over the ranks in the backward pass.

    def add_gradient(self) -> None:
        """Nothing is left to do."""

    def sum_gradients(self, ranks: Ranks) -> None:
        """Nothing is left to do."""

    def clip_gradients(self, most: float) -> Tensor:
        return _whole(super().clip_gradients(most))

    @torch.no_grad()
    def write_to_model(self) -> None:
        """Copy the weights into the module that plays; all ranks must call this."""
        for name, master in self.masters.items():
            self.model.get_parameter(name).copy_(_whole(master))

    def state(self, optimizer: torch.optim.Optimizer) -> State:
        weights, moments = super().state(optimizer)
        return (
            {name: _whole(value).cpu() for name, value in weights.items()},
            {name: _whole(value).cpu() for name, value in moments.items()},
        )

    @torch.no_grad()
    def set_master(self, name: str, value: Tensor) -> None:
        self.masters[name].copy_(self._distribute(name, value.to(self.masters[name].dtype)))

    def place_moment(self, name: str, value: Tensor) -> Tensor:
        """A moment of a checkpoint, divided as its master is; the step count stays whole."""
        if value.shape != self.masters[name].shape:
            return super().place_moment(name, value)
        return self._distribute(name, value)

    def _distribute(self, name: str, value: Tensor) -> Tensor:
        master = self.masters[name]
        assert isinstance(master, DTensor), "all weights of the network are sharded"
        return distribute_tensor(value.to(master.device), master.device_mesh, master.placements)


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
    network.run = _run.__get__(network)
    register_fsdp_forward_method(network, "run")
    return network


def _run(network: PreTrainedModel, score: Callable[..., Any], packed: Packed) -> Any:
    """A forward pass for FSDP: it gathers the weights of each layer before it is used."""
    return score(network, packed)


def _idle_rows() -> list[Row]:
    """The rows of a micro-batch without effect: one sample of two tokens."""
    return prepare([Sample.to_score((0,), (0,))])


def _whole(value: Tensor) -> Tensor:
    """The whole of a sharded tensor; all ranks must call this."""
    return value.full_tensor() if isinstance(value, DTensor) else value
