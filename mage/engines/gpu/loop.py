"""The engine's loop on a GPU: decode steps replayed from CUDA graphs, one step ahead of the host.

    host     admit and schedule n | upload and launch n | read n - 1 | replies, games | admit ..
    device   step n - 1 ..................| step n: prefill graph, then decode graph ............

All inputs of a step are on the device: newest tokens, lengths, seeds and sampling options by slot
(`state.py`). The host uploads the sequences that join or take part, launches the step, and only
then reads the results of the step BEFORE. So it waits at most once per step, and the GPU stays busy
while replies are parsed and games advance. A sequence whose end is noticed one step late has
decoded one token too many, which is dropped. Graphs are recorded once per batch size and stay
valid, because weights, cache and buffers keep their addresses. On a CPU the same functions run
without graphs, for tests.

A step first prefills the prompts that join (`prefill.py`): their keys are stored, and complete ones
get their first reply token. Then every complete sequence decodes one token: its newest token in,
the next one out. `DeviceState` advances on the device, so a decode needs only the list of slots.
With drafts (`mage.engines.drafts`) it is several tokens in and up to as many out: the device drafts
and accepts them, and the host learns their number when it reads the results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from mage.engines.drafts import Drafts
from mage.engines.gpu import reference_ops
from mage.engines.gpu.prefill import Joining, PrefillBuffer, at_least, to_device
from mage.engines.gpu.state import PREFILL, PREFILL_INT8, DeviceState
from mage.engines.pool import BLOCK, KeyValuePool, Scales
from mage.engines.sampling import truncate
from mage.models.recording import recording

Array = np.ndarray[Any, Any]
# From queries, keys, values, their scales if they are in 8 bits, and the factor of scores.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Scales | None, float], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSlots:
    """The slots and positions of the tokens of one step, and their attention function.

    `wanted`: in a prefill, the rows whose hidden states are needed, the last ones of prompts.
    """

    ops: ModuleType
    pool: KeyValuePool
    slots: torch.Tensor
    positions: torch.Tensor
    attention: Attend
    wanted: torch.Tensor | None = None

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
        scales = self.pool.layer_scales(layer)
        query = self.ops.rotate_and_store(
            together,
            heads,
            rope,
            norms,
            epsilon,
            self.slots,
            self.positions,
            keys,
            values,
            scales,
        )
        return self.attention(query, keys, values, scales, scaling)

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
        scales = self.pool.layer_scales(layer)
        reference_ops.store((self.slots, self.positions), key, value, keys, values, scales)
        return self.attention(
            query.contiguous(),
            keys,
            values,
            scales,
            query.shape[-1] ** -0.5 if scaling is None else scaling,
        )


# From token ids, positions and places to the hidden states of the wanted rows, or of all rows.
Forward = Callable[[torch.Tensor, torch.Tensor, TokenSlots], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class StepInFlight:
    """A launched step: the slots that get a token, in order, and the buffers of the results.

    `drafted`: tokens that are there only if drafts before them were right; else they are -1.
    """

    slots: Array
    drafted: Array
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
        context: int,
        drafts: Drafts,
    ) -> None:
        self.forward, self.head, self.pool, self.ops, self.slots = forward, head, pool, ops, slots
        self.device = pool.device
        self.on_gpu = self.device.type == "cuda"
        self.state = DeviceState.make(slots, self.device)
        lines = (PREFILL_INT8 if pool.small else PREFILL).lines
        width = max(1, lines * int(pool.store.shape[4]) // heads)
        self.buffer = PrefillBuffer(max_tokens, slots, width, self.device)
        self.sizes = _sizes(slots)
        self.rows = torch.full((self.sizes[-1],), slots, dtype=torch.int64, device=self.device)
        self.shared = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.drafts = drafts
        # For drafts, the tokens of a slot, stored where their keys are.
        self.tokens = torch.zeros(
            slots + 1, context if drafts.number else 0, dtype=torch.int64, device=self.device
        )
        self.answers = torch.zeros(
            2, 2, slots * (1 + drafts.number), dtype=torch.int32, device=self.device
        )
        self.graphs: dict[tuple[Any, ...], Any] = {}
        self.memory = torch.cuda.graph_pool_handle() if self.on_gpu else None
        self.taking_part: tuple[Array, tuple[int, int]] = (np.zeros(0, np.int64), (0, 0))

    def launch(
        self, joining: Joining | None, decoding: Array, shared: int, cut: bool
    ) -> StepInFlight:
        """Prefill `joining`, then decode one token or more of every slot in `decoding`.

        A slot may be in both. All sequences have their first `shared` tokens in common. `cut`:
        some of them sample with top-k or top-p.
        """
        answers = []
        joined, width = np.zeros(0, np.int64), 1
        if joining is not None:
            key = self.buffer.upload(joining)
            self._run(("prefill", *key, cut), lambda: self._prefill(*key, cut))
            joined = joining.slots[joining.ready]
            answers.append((self.answers[0], len(joined)))
        if len(decoding):
            size = at_least(self.sizes, len(decoding))
            self._enlist(decoding, size, (int(decoding[0]), shared // BLOCK * BLOCK))
            # Top-k and top-p sort all logits of the step, which drafts would multiply.
            width = 1 if cut else self.drafts.width(size)
            self._run(("decode", size, width, cut), lambda: self._decode(size, width, cut))
            answers.append((self.answers[1], len(decoding) * width))
        rows = np.arange(-len(joined), len(decoding) * width)
        return StepInFlight(
            np.concatenate((joined, np.repeat(decoding, width))),
            (rows > 0) & (rows % width > 0),
            [(self._to_host(found[:, :count]), count) for found, count in answers if count],
            self._record_event(),
        )

    def forget_graphs(self) -> None:
        """Drop all graphs, because the model's structure or the address of the pool has changed.

        New graphs get a new memory pool: PyTorch does not accept a pool whose graphs are gone.
        """
        self.graphs.clear()
        self.memory = torch.cuda.graph_pool_handle() if self.on_gpu else None

    def copy_tokens(self, source: int, target: int, start: int, end: int) -> None:
        """As `KeyValuePool.copy` does with keys."""
        if self.drafts.number:
            self.tokens[target, start:end] = self.tokens[source, start:end]

    def _decode(self, size: int, width: int, cut: bool) -> None:
        slots = owners = self.rows[:size]
        if width > 1:
            ids, owners, positions = self.ops.draft(
                slots, self.state, self.tokens, self.drafts.tokens, width
            )
        else:
            ids = self.state.token.index_select(0, slots)
            positions = self.state.filled.index_select(0, slots)
        self._keep_tokens(owners, positions, ids)

        def attend(
            query: torch.Tensor,
            keys: torch.Tensor,
            values: torch.Tensor,
            scales: Scales | None,
            scaling: float,
        ) -> torch.Tensor:
            found: torch.Tensor = self.ops.attend_decode(
                query, keys, values, slots, self.state.filled, self.shared, scaling, scales,
                width=width,
            )  # fmt: skip
            return found

        places = TokenSlots(self.ops, self.pool, owners, positions, attend)
        hidden = self.forward(ids, positions, places)
        logits = self._logits(hidden, owners, cut)
        answers = self.answers[1][:, : size * width]
        self.ops.choose(logits, slots, self.state, answers, True, width)
        if width > 1:
            self.ops.accept(ids, slots, self.state, self.tokens.shape[1], answers, width)

    def _prefill(self, length: int, count: int, cut: bool) -> None:
        words, blocks, (temperature, top_p) = self.buffer.views(length, count)
        for name in ("filled", "index", "seed", "top_k"):
            getattr(self.state, name).index_copy_(0, words.slot, getattr(words, name))
        self.state.temperature.index_copy_(0, words.slot, temperature)
        self.state.top_p.index_copy_(0, words.slot, top_p)

        def attend(
            query: torch.Tensor,
            keys: torch.Tensor,
            values: torch.Tensor,
            scales: Scales | None,
            scaling: float,
        ) -> torch.Tensor:
            found: torch.Tensor = self.ops.attend_blocks(
                query, keys, values, blocks, scaling, scales
            )
            return found

        self._keep_tokens(words.owner, words.position, words.ids)
        places = TokenSlots(self.ops, self.pool, words.owner, words.position, attend, words.row)
        hidden = self.forward(words.ids, words.position, places)
        logits = self._logits(hidden, words.slot, cut)
        self.ops.choose(logits, words.slot, self.state, self.answers[0][:, :count], False)

    def _keep_tokens(self, slots: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        if self.drafts.number:
            self.tokens.index_put_((slots, positions), ids)

    def _logits(self, hidden: torch.Tensor, slots: torch.Tensor, cut: bool) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden)
        if not cut:
            return logits
        temperature, top_k, top_p = (
            part[slots][:, None]
            for part in (self.state.temperature, self.state.top_k, self.state.top_p)
        )
        greedy = temperature == 0  # nothing is cut then: its logprob is the model's own
        return truncate(
            logits.float(),
            temperature.masked_fill(greedy, 1.0),
            top_k.masked_fill(greedy, 0),
            top_p.masked_fill(greedy, 1.0),
        )

    def _enlist(self, decoding: Array, size: int, shared: tuple[int, int]) -> None:
        before, ours = self.taking_part
        if shared != ours:
            to_device(self.shared, np.array(shared))
        padded = np.full(size, self.slots)
        padded[: len(decoding)] = decoding
        if not np.array_equal(before, padded):
            to_device(self.rows[:size], padded)
        self.taking_part = (padded, shared)

    def _to_host(self, found: torch.Tensor) -> torch.Tensor:
        if not self.on_gpu:
            return found.clone()
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        return host.copy_(found, non_blocking=True)

    def _record_event(self) -> Any:
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
        """Record a graph whose memory belongs to this loop."""
        graph: Any = torch.cuda.CUDAGraph()
        with recording(), torch.cuda.graph(graph, pool=self.memory):
            body()
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
