"""The engine's loop on a GPU: decode steps replayed from CUDA graphs, one step ahead of the host.

All inputs of a step are on the device: newest tokens, lengths, seeds and sampling options by slot
(`state.py`). The host uploads the sequences that join or take part, launches the step, and only
then reads the results of the step BEFORE. So it waits at most once per step, and the GPU stays busy
while replies are parsed and games advance. A sequence whose end is noticed one step late has
decoded one token too many, which is dropped. Graphs are recorded once per batch size and stay
valid, because weights, cache and buffers keep their addresses. On a CPU the same functions run
without graphs, for tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from mage.engines.gpu import reference_ops
from mage.engines.gpu.state import BLOCK, PREFILL, Blocks, DeviceState
from mage.engines.pool import KeyValuePool
from mage.engines.sampling import truncate

Array = np.ndarray[Any, Any]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
WORDS = ("slot", "row", "filled", "index", "seed", "top_k")


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The slots and positions of the tokens of one step, and their attention function."""

    ops: ModuleType
    pool: KeyValuePool
    slots: torch.Tensor
    positions: torch.Tensor
    look: Attend

    def mix(
        self,
        layer: int,
        together: torch.Tensor,
        heads: int,
        rope: Any,
        norms: Any,
        epsilon: float,
        scaling: float,
    ) -> torch.Tensor:
        """Attention of a layer from queries, keys and values [tokens, heads + 2 kv heads, size]."""
        keys, values = self.pool.layer(layer)
        query = self.ops.rotate_and_store(
            together, heads, rope, norms, epsilon, self.slots, self.positions, keys, values
        )
        return self.look(query, keys, values, scaling)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """The same for a transformers module, which has already applied the rotation."""
        keys, values = self.pool.layer(layer)
        keys[self.slots, self.positions] = key
        values[self.slots, self.positions] = value
        return self.look(
            query.contiguous(),
            keys,
            values,
            query.shape[-1] ** -0.5 if scaling is None else scaling,
        )


Forward = Callable[[torch.Tensor, torch.Tensor, Places], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Joining:
    """DeviceState with `new` tokens to prefill, the first of them at position `start`.

    DeviceState whose prompt is then complete (`ready`) get their first reply token. Every array but
    `ids` has one entry per sequence.
    """

    slots: Array
    start: Array
    new: Array
    ready: Array
    index: Array
    seed: Array
    top_k: Array
    temperature: Array
    top_p: Array
    ids: Array


@dataclass(frozen=True, slots=True, eq=False)
class StepInFlight:
    """A launched step: the slots that get a token, in order, and the buffers of the results."""

    slots: Array
    answers: list[tuple[torch.Tensor, int]]
    landed: Any

    def wait(self) -> tuple[Array, Array]:
        """Wait for the results; returns tokens and logprobs."""
        if self.landed is not None:
            self.landed.synchronize()
        found = [np.asarray(buffer[:, :count]) for buffer, count in self.answers]
        tokens, bits = np.concatenate(found, 1) if found else np.zeros((2, 0), np.int32)
        return tokens.astype(np.int64), bits.view(np.float32)


class DeviceLoop:
    """Launches steps of `forward` and `head` over the sequences in the slots of `pool`."""

    def __init__(
        self,
        forward: Forward,
        head: torch.nn.Module,
        pool: KeyValuePool,
        *,
        heads: int,
        slots: int,
        max_tokens: int,
        ops: ModuleType,
    ) -> None:
        self.forward, self.head, self.pool, self.ops, self.slots = forward, head, pool, ops, slots
        self.device = pool.device
        self.on_gpu = self.device.type == "cuda"
        self.state = DeviceState.make(slots, self.device)
        self.width = max(1, PREFILL.lines * int(pool.store.shape[4]) // heads)
        self.sizes = _sizes(slots)
        self.entries = _powers(16, slots, 4)
        self.lengths = _powers(64, max_tokens, 2)
        most = (
            3 * self.lengths[-1]
            + 4 * self._blocks(self.lengths[-1], self.entries[-1])
            + len(WORDS) * self.entries[-1]
        )
        self.words = torch.zeros(most, dtype=torch.int64, device=self.device)
        self.reals = torch.ones(2, self.entries[-1], device=self.device)
        self.rows = torch.full((self.sizes[-1],), slots, dtype=torch.int64, device=self.device)
        self.shared = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.answers = torch.zeros(
            2, 2, max(self.sizes[-1], self.entries[-1]), dtype=torch.int32, device=self.device
        )
        self.graphs: dict[tuple[Any, ...], Any] = {}
        self.memory = torch.cuda.graph_pool_handle() if self.on_gpu else None
        self.taking_part: tuple[Array, tuple[int, int]] = (np.zeros(0, np.int64), (0, 0))

    def launch(
        self, joining: Joining | None, decoding: Array, shared: int, cut: bool
    ) -> StepInFlight:
        """Prefill `joining`, then decode one token of every slot in `decoding`.

        A slot may be in both. All sequences have their first `shared` tokens in common. `cut`:
        some of them sample with top-k or top-p.
        """
        answers = []
        slots = [np.zeros(0, np.int64)]
        if joining is not None:
            key = self._upload(joining)
            self._run(("prefill", *key, cut), lambda: self._prefill(*key, cut))
            slots.append(joining.slots[joining.ready])
            answers.append((self.answers[0], len(slots[-1])))
        if len(decoding):
            size = _at_least(self.sizes, len(decoding))
            self._enlist(decoding, size, (int(decoding[0]), shared // BLOCK * BLOCK))
            self._run(("decode", size, cut), lambda: self._decode(size, cut))
            slots.append(decoding)
            answers.append((self.answers[1], len(decoding)))
        return StepInFlight(
            np.concatenate(slots),
            [(self._home(found[:, :count]), count) for found, count in answers if count],
            self._mark(),
        )

    def forget_graphs(self) -> None:
        """Drop all graphs, because the model's structure or the address of the pool has changed.

        New graphs get a new memory pool: PyTorch does not accept a pool whose graphs are gone.
        """
        self.graphs.clear()
        self.memory = torch.cuda.graph_pool_handle() if self.on_gpu else None

    def _decode(self, size: int, cut: bool) -> None:
        slots = self.rows[:size]
        positions = self.state.filled.index_select(0, slots)

        def look(
            query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            found: torch.Tensor = self.ops.attend_decode(
                query, keys, values, slots, self.state.filled, self.shared, scaling
            )
            return found

        hidden = self.forward(
            self.state.token.index_select(0, slots),
            positions,
            Places(self.ops, self.pool, slots, positions, look),
        )
        self.ops.choose(
            self._logits(hidden, slots, cut), slots, self.state, self.answers[1][:, :size], True
        )

    def _prefill(self, length: int, count: int, cut: bool) -> None:
        parts = self.words.split(self._layout(length, count))[:-1]
        ids, positions, slots = parts[:3]
        blocks = Blocks(parts[3], parts[4], parts[5], parts[6], self.width)
        entry = dict(zip(WORDS, parts[7:], strict=True))
        for name in WORDS[2:]:
            getattr(self.state, name).index_copy_(0, entry["slot"], entry[name])
        self.state.temperature.index_copy_(0, entry["slot"], self.reals[0, :count])
        self.state.top_p.index_copy_(0, entry["slot"], self.reals[1, :count])

        def look(
            query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            found: torch.Tensor = self.ops.attend_blocks(query, keys, values, blocks, scaling)
            return found

        hidden = self.forward(
            ids, positions, Places(self.ops, self.pool, slots, positions, look)
        ).index_select(0, entry["row"])
        self.ops.choose(
            self._logits(hidden, entry["slot"], cut),
            entry["slot"],
            self.state,
            self.answers[0][:, :count],
            False,
        )

    def _logits(self, hidden: torch.Tensor, slots: torch.Tensor, cut: bool) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden)
        if not cut:
            return logits
        temperature, top_k, top_p = (
            part[slots][:, None]
            for part in (self.state.temperature, self.state.top_k, self.state.top_p)
        )
        return truncate(
            logits.float(), torch.where(temperature == 0, 1.0, temperature), top_k, top_p
        )

    def _layout(self, length: int, count: int) -> list[int]:
        sizes = [length] * 3 + [self._blocks(length, count)] * 4 + [count] * len(WORDS)
        return [*sizes, len(self.words) - sum(sizes)]

    def _blocks(self, length: int, count: int) -> int:
        return length // self.width + count + 1

    def _upload(self, joining: Joining) -> tuple[int, int]:
        """Write the joining sequences into the buffers of the smallest bucket; returns its key."""
        new = joining.new
        length, count = _at_least(self.lengths, int(new.sum())), _at_least(self.entries, len(new))
        words = [np.zeros(size, np.int64) for size in self._layout(length, count)[:-1]]
        ids, positions, slots, starts, counts, block_slots, block_positions, *entries = words
        total = int(new.sum())
        offsets = np.cumsum(new) - new
        ids[:total] = joining.ids
        positions[:total] = np.arange(total) + np.repeat(joining.start - offsets, new)
        slots[:total], slots[total:] = np.repeat(joining.slots, new), self.slots
        pieces = -(-new // self.width)
        nth = (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * self.width
        used = slice(0, len(nth))
        starts[used] = np.repeat(offsets, pieces) + nth
        counts[used] = np.minimum(np.repeat(new, pieces) - nth, self.width)
        block_slots[used], block_positions[used] = (
            np.repeat(joining.slots, pieces),
            np.repeat(joining.start, pieces) + nth,
        )
        padding = np.arange(total, length, self.width)
        unused = slice(len(nth), len(nth) + len(padding))
        starts[unused], counts[unused] = padding, padding - np.minimum(padding + self.width, length)
        ready = joining.ready
        given = (
            joining.slots,
            offsets + new - 1,
            joining.start + new,
            joining.index,
            joining.seed,
            joining.top_k,
        )
        entries[0][:] = self.slots
        for entry, values in zip(entries, given, strict=True):
            entry[: int(ready.sum())] = values[ready]
        reals = np.ones((2, count), np.float32)
        reals[0, : int(ready.sum())], reals[1, : int(ready.sum())] = (
            joining.temperature[ready],
            joining.top_p[ready],
        )
        flat = np.concatenate(words)
        self._send(self.words[: len(flat)], flat)
        self._send(self.reals[:, :count], reals)
        return length, count

    def _enlist(self, decoding: Array, size: int, shared: tuple[int, int]) -> None:
        before, ours = self.taking_part
        if shared != ours:
            self._send(self.shared, np.array(shared))
        padded = np.full(size, self.slots)
        padded[: len(decoding)] = decoding
        if not np.array_equal(before, padded):
            self._send(self.rows[:size], padded)
        self.taking_part = (padded, shared)

    def _send(self, target: torch.Tensor, numbers: Array) -> None:
        source = torch.from_numpy(np.ascontiguousarray(numbers)).to(target.dtype)
        target.copy_(source.pin_memory() if self.on_gpu else source, non_blocking=True)

    def _home(self, found: torch.Tensor) -> torch.Tensor:
        if not self.on_gpu:
            return found.clone()
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        return host.copy_(found, non_blocking=True)

    def _mark(self) -> Any:
        if not self.on_gpu:
            return None
        event: Any = torch.cuda.Event()
        event.record()
        return event

    def _run(self, key: tuple[Any, ...], body: Callable[[], None]) -> None:
        """Replay the graph of this key.

        The first call runs without a graph and the second records it, so kernel compilation and
        rare sizes are not recorded.
        """
        graph = self.graphs.get(key)
        if not self.on_gpu or graph is None:
            self.graphs[key] = False
            return body()
        if graph is False:
            graph = self.graphs[key] = self._record(body)
        graph.replay()
        return None

    def _record(self, body: Callable[[], None]) -> Any:
        """Record a graph whose memory belongs to this loop, the cuBLAS workspace included.

        PyTorch keeps one cuBLAS workspace per stream, and all recordings share a stream. Without
        the first clear, the graph would use the workspace in the memory pool of the engine that
        recorded first; that memory is freed when somebody clears workspaces (torch.compile does).
        After the first clear, the workspace comes from this pool. After the second clear, nobody
        else uses it.
        """
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(graph, pool=self.memory):
            body()
        torch._C._cuda_clearCublasWorkspaces()
        return graph


def operations(device: torch.device) -> ModuleType:
    """Triton kernels on CUDA; the same functions in plain PyTorch elsewhere."""
    if device.type == "cuda":
        from mage.engines.gpu import kernels  # Triton is installed with the CUDA build only

        return kernels
    return reference_ops


def _sizes(most: int) -> list[int]:
    """1, 2, 4, .. 32, then two sizes per doubling: little padding and few graphs."""
    sizes = [
        size
        for power in range(15)
        for size in ((2**power, 3 * 2 ** (power - 1)) if power >= 5 else (2**power,))
        if size < most
    ]
    return [*sizes, most]


def _powers(first: int, most: int, factor: int) -> list[int]:
    sizes = []
    while first < most:
        sizes.append(first)
        first *= factor
    return [*sizes, most]


def _at_least(sizes: list[int], needed: int) -> int:
    return next(size for size in sizes if size >= needed)
