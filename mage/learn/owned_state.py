"""Sharded optimizer state: every rank owns the masters and moments of whole tensors.

All ranks sum the gradients as before. Each rank makes the optimizer step of its own tensors and
sends the new weights to the others, so the weights equal those of replicated ranks bit for bit.
A checkpoint holds the whole state and loads at any number of ranks.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mage.ranks.ranks import Ranks, make_buckets


class OwnedState:
    """Which rank owns which tensor."""

    def __init__(self, masters: Mapping[str, Tensor], ranks: Ranks) -> None:
        self.ranks = ranks
        self.owners = assign_owners(
            {name: one.numel() for name, one in masters.items()}, ranks.size
        )

    def owns(self, name: str) -> bool:
        return self.owners[name] == self.ranks.rank

    def share(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite every tensor with that of its owner."""
        for rank in range(self.ranks.size):
            names = [name for name, owner in self.owners.items() if owner == rank]
            for bucket in make_buckets([tensors[name] for name in names]):
                flat = torch.cat([one.detach().flatten() for one in bucket])
                self.ranks.send_tensor(flat, rank)
                if rank != self.ranks.rank:
                    _copy_back(flat, bucket)

    def collect(
        self, tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """All tensors with their names, on the CPU of rank 0; other ranks take part only.

        `tensors` holds those that this rank owns; `like` gives shape and dtype of the others.
        """
        for name, owner in self.owners.items():
            own = tensors.get(name) if self.owns(name) else None
            held = _empty(like[name]) if own is None else own.detach().contiguous()
            self.ranks.send_tensor(held, owner)
            if self.ranks.is_main:
                yield name, held.cpu()


def collect_state(
    masters: Mapping[str, Tensor],
    states: Mapping[str, Mapping[str, Tensor]],
    owned: OwnedState | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Masters and moments of all tensors; with a sharded optimizer on rank 0 only.

    `states` are AdamW's moments by the name of the tensor, empty before the first step.
    """
    if owned is None:
        return dict(masters), {
            f"{name}.{key}": value for name, own in states.items() for key, value in own.items()
        }
    weights = dict(owned.collect(masters, masters))
    keys = next((tuple(own) for own in states.values() if own), ())
    keys = next((found for found in owned.ranks.gather(keys) if found), ())
    scalars = {name: torch.zeros((), device=one.device) for name, one in masters.items()}
    moments: dict[str, Tensor] = {}
    for key in keys:
        own = {name: state.get(key) for name, state in states.items()}
        found = owned.collect(own, scalars if key == "step" else masters)
        moments |= {f"{name}.{key}": value for name, value in found}
    return weights, moments


def assign_owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The owner of every tensor: the largest first, each to the rank with the least so far.

    >>> assign_owners({"a": 1, "b": 5, "c": 4}, 2)
    {'a': 1, 'b': 0, 'c': 1}
    """
    loads = [0] * ranks
    owners: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return {name: owners[name] for name in sizes}


def placeholder(master: Tensor) -> Tensor:
    """A tensor that has the shape of a master and can hold its gradient, but stores one value."""
    empty = torch.zeros((), dtype=master.dtype, device=master.device)
    return torch.nn.Parameter(empty.expand(master.shape))


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


@torch.no_grad()
def _copy_back(flat: Tensor, bucket: list[Tensor]) -> None:
    for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
        one.copy_(part.view_as(one))
