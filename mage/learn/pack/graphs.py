"""The layers of a small model as recorded CUDA graphs.

A micro-batch of SmolLM2-135M takes about two thousand kernels, and launching them takes the host
longer than computing them takes the GPU. A graph is one launch: there is one for the forward pass
and one for the backward pass of each length, and micro-batches have few lengths. Head, loss and
optimizer stay as they are. CUDA only, with the direct gradients of adapters.

All graphs share one pool of memory, because they run one after the other. It keeps the activations
of the longest micro-batch for good, and the memory plan counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mage.config.errors import DeviceError
from mage.learn.pack.layers import run_layers, trie_mask
from mage.learn.pack.low_rank import Factors
from mage.models.recording import recording


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """Two graphs, and the tensors with which they exchange numbers."""

    given: tuple[Tensor, Tensor, Tensor]  # token ids, positions, ends
    hidden: Tensor
    gradient: Tensor  # of `hidden`
    forward: Any
    backward: Any


class LayerGraphs:
    """Computes what `run_layers` does, and adds gradients to `.grad` of A and B.

    The first micro-batch of a length runs without graphs, so that kernels are compiled; the second
    one records. Single rows can be longer than `most` tokens; they run without graphs.
    """

    def __init__(self, backbone: Any, factors: Mapping[Tensor, Factors], most: int) -> None:
        self._backbone, self._factors, self._most = backbone, factors, most
        self._weights = list(backbone.parameters())
        self._trained = [side for one in factors.values() for side in (one.down, one.up)]
        self._sums: list[Tensor] = []
        # A gradient function needs an input that has a gradient.
        self._anchor = torch.zeros((), device=self._trained[0].device, requires_grad=True)
        self._compiled = set[int]()  # lengths
        self._forget()

    def _forget(self) -> None:
        """Drop all graphs and their memory."""
        self._pairs: dict[int, _Pair] = {}  # by length
        self._pool = torch.cuda.graph_pool_handle()
        self._places = self._addresses()

    def _addresses(self) -> list[int]:
        """Graphs read the weights at the addresses that they had when recording."""
        return [one.data_ptr() for one in (*self._weights, *self._trained)]

    def __call__(self, ids: Tensor, positions: Tensor, ends: Tensor) -> Tensor:
        """Last hidden states [tokens, width], with gradient."""
        if self._places != self._addresses():
            self._compiled.clear()  # weights side by side are another version
            self._forget()
        self._begin_sums()
        length = len(ids)
        if length not in self._compiled or length > self._most:
            self._compiled.add(length)
            return self._run(ids, positions, ends, self._factors)
        if length not in self._pairs:
            self._pairs[length] = self._record(ids, positions, ends)
        found: Tensor = _Replay.apply(  # type: ignore[no-untyped-call]
            self._anchor, self._pairs[length], ids, positions, ends
        )
        return found

    def _begin_sums(self) -> None:
        """At the first micro-batch of a step: gradients are added up in tensors that stay."""
        if self._sums and self._trained[0].grad is self._sums[0]:
            return
        self._sums = self._sums or [torch.zeros_like(one) for one in self._trained]
        torch._foreach_zero_(self._sums)
        for one, gradient in zip(self._trained, self._sums, strict=True):
            if one.grad is not None:
                gradient.add_(one.grad)
            one.grad = gradient

    def _run(
        self, ids: Tensor, positions: Tensor, ends: Tensor, factors: Mapping[Tensor, Factors]
    ) -> Tensor:
        return run_layers(self._backbone, ids, positions, trie_mask(ends), factors=factors)

    def _record(self, *given: Tensor) -> _Pair:
        """Record the graphs of one length.

        They compute with parameters that share the memory of A and B. Autograd keeps a node for
        every parameter while any graph with it is alive, here that of the micro-batch before, and
        such a node belongs to the stream on which it was made. This would end the recording.

        Memory of a shorter length does not serve a longer one, so that one begins a new pool, in
        which the shorter ones are recorded again.
        """
        if any(shorter < len(given[0]) for shorter in self._pairs):
            self._forget()
        ids, positions, ends = (one.clone() for one in given)
        factors = {weight: _same_memory(one) for weight, one in self._factors.items()}
        trained = [side for one in factors.values() for side in (one.down, one.up)]
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        try:
            with recording():
                with torch.cuda.graph(forward, pool=self._pool):
                    hidden = self._run(ids, positions, ends, factors)
                gradient = torch.zeros_like(hidden)
                with torch.cuda.graph(backward, pool=self._pool):
                    found = torch.autograd.grad(hidden, trained, gradient)
                    torch._foreach_add_(self._sums, found)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise DeviceError(
                f"the layers could not be recorded as CUDA graphs ({str(error).splitlines()[0]}): "
                "set learn.graphs = false"
            ) from error
        del found  # its memory is that of the graphs
        return _Pair((ids, positions, ends), hidden.detach(), gradient, forward, backward)


def _same_memory(one: Factors) -> Factors:
    """New parameters with the numbers of these."""
    return one._replace(down=torch.nn.Parameter(one.down.data), up=torch.nn.Parameter(one.up.data))


class _Replay(torch.autograd.Function):
    """The pair of graphs of one length as one operation."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pair: _Pair, *given: Tensor) -> Tensor:
        for kept, one in zip(pair.given, given, strict=True):
            kept.copy_(one)
        pair.forward.replay()
        ctx.pair = pair
        return pair.hidden.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.pair.gradient.copy_(gradients[0])
        ctx.pair.backward.replay()
        return None, None, None, None, None
