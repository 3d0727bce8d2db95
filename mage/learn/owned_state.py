"""Sharded optimizer state: every rank owns the masters and moments of whole tensors.

All ranks sum the gradients. Each rank makes the optimizer step of its own tensors and
sends the new weights to the others, so the weights equal those of replicated ranks bit for bit.
A checkpoint holds the whole state and loads at any number of ranks.
"""

from collections.abc import Mapping

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

    @torch.no_grad()
    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite every tensor with that of its owner."""
        for rank in range(self.ranks.size):
            names = [name for name, owner in self.owners.items() if owner == rank]
            for bucket in make_buckets([tensors[name] for name in names]):
                flat = torch.cat([one.flatten() for one in bucket])
                self.ranks.send_tensor(flat, rank)
                parts = flat.split([one.numel() for one in bucket])
                for one, part in zip(bucket, parts, strict=True):
                    one.copy_(part.view_as(one))

    def gather_state(
        self, masters: Mapping[str, Tensor], states: Mapping[str, Mapping[str, Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Masters and moments of all tensors, on the CPU of rank 0; other ranks take part only."""
        # The names of the moments. A rank that owns no tensor learns them from another rank.
        own_keys = next((tuple(state) for state in states.values() if state), ())
        keys = next((found for found in self.ranks.gather(own_keys) if found), ())
        moments: dict[str, Tensor] = {}
        for key in keys:
            for name, master in masters.items():
                like = torch.zeros((), device=master.device) if key == "step" else master
                moments |= self._from_owner(f"{name}.{key}", name, states[name].get(key), like)
        weights: dict[str, Tensor] = {}
        for name, master in masters.items():
            weights |= self._from_owner(name, name, master, master)
        return weights, moments

    def _from_owner(
        self, key: str, name: str, value: Tensor | None, like: Tensor
    ) -> dict[str, Tensor]:
        """Send the owner's value to all ranks; rank 0 returns it under `key`, the others nothing.

        `like` gives shape and dtype where the value is not held.
        """
        held = value if self.owns(name) else None
        held = torch.empty_like(like).contiguous() if held is None else held.detach().contiguous()
        self.ranks.send_tensor(held, self.owners[name])
        return {key: held.cpu()} if self.ranks.is_main else {}


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
