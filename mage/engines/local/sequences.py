"""The open sequences of the local engine: their state in arrays indexed by slot.

The Python cost of a step depends only on the sequences that join or finish. For all others,
lengths, seeds and options are in these arrays.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mage.agent.chat import Chat
from mage.engines.gpu.loop import DeviceLoop
from mage.engines.local.slots import Slots
from mage.engines.pool import KeyValuePool
from mage.engines.sampling import SamplingBatch
from mage.engines.stops import StopTable
from mage.types import Completion, Finish, Request

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Stats:
    """Counts since the engine was built."""

    steps: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    waited: float = 0.0  # part of `seconds`: waiting for the GPU


class Sequences:
    """Opens, schedules, extends and completes sequences; `LocalEngine` computes their tokens.

    `known` tokens of a slot have been read, and `ahead` more are being computed.
    """

    chat: Chat
    policy_version: int
    context: int
    max_batch_tokens: int
    slots: Slots
    pool: KeyValuePool
    ends: StopTable
    stats: Stats
    loop: DeviceLoop | None

    def _make_arrays(self, slots: int) -> None:
        """State of the sequences, indexed by slot."""
        self.requests: list[Request | None] = [None] * slots
        self.known, self.prompt, self.limit, self.ahead, self.lease = (
            np.zeros(slots, np.int64) for _ in range(5)
        )
        self.seed, self.top_k, self.stop = (np.zeros(slots, np.int64) for _ in range(3))
        self.temperature, self.top_p = np.ones(slots, np.float32), np.ones(slots, np.float32)
        self.logprobs = np.zeros((slots, self.context), np.float32)
        self.active = np.zeros(slots, bool)

    def _open(self, slot: int, request: Request) -> None:
        length = len(request.prompt_ids)
        self.requests[slot], self.active[slot] = request, True
        self.known[slot] = self.prompt[slot] = length
        self.ahead[slot], self.lease[slot] = 0, self.lease[slot] + 1
        self.limit[slot] = min(length + request.max_tokens, self.context)
        self.seed[slot], self.stop[slot] = _signed(request.seed), self.ends.kind(request.stop)
        self.temperature[slot], self.top_p[slot], self.top_k[slot] = (
            request.temperature,
            request.top_p,
            request.top_k,
        )
        self.pool.reserve(slot + 1, length)

    def _schedule(self, crowded: bool) -> tuple[Array, Array, bool]:
        """Slots to work on and the number of tokens of each: decodes by slot, then short prompts.

        A GPU decodes many sequences almost as fast as few. So on a GPU no sequence decodes (third
        result) while prompts are left over for the next step.
        """
        active = np.flatnonzero(self.active & (self.known + self.ahead < self.limit))
        new = (self.known + self.ahead - self.slots.filled)[active]
        decodes, prefills = active[new == 1], active[new > 1]
        new = new[new > 1]
        order = np.argsort(new, kind="stable")
        prefills, new = prefills[order], new[order]
        room = (
            self.max_batch_tokens
            if self.loop is not None
            else max(self.max_batch_tokens - len(decodes), 1)
        )
        hold = self.loop is not None and len(prefills) > 0 and (crowded or int(new.sum()) > room)
        if hold:
            decodes = decodes[:0]
        new = np.minimum(new, np.maximum(room - (np.cumsum(new) - new), 0))
        started = new > 0
        return (
            np.concatenate([decodes, prefills[started]]),
            np.concatenate([np.ones(len(decodes), np.int64), new[started]]),
            hold,
        )

    def _choices(self, slots: Array) -> SamplingBatch:
        index = self.known[slots] - self.prompt[slots]
        return SamplingBatch(
            self.seed[slots], index, self.temperature[slots], self.top_p[slots], self.top_k[slots]
        )

    def _append(self, slots: Array, tokens: Array, logprobs: Array) -> list[tuple[int, Finish]]:
        """Store the sampled tokens; only rows that may have ended are inspected one by one."""
        known = self.known[slots]
        self.slots.tokens[slots, known] = tokens
        self.logprobs[slots, known] = logprobs
        self.known[slots] = known = known + 1
        self.stats.generated_tokens += len(slots)
        ended = self.ends.is_end[tokens]
        suspect = self.ends.may_stop[self.stop[slots], tokens]
        full = known >= self.limit[slots]
        finished: list[tuple[int, Finish]] = []
        for row in np.flatnonzero(ended | suspect | full):
            slot = int(slots[row])
            if suspect[row] and not ended[row] and self._stops(slot):
                finished.append((slot, "stop"))
            elif ended[row] or full[row]:
                finished.append((slot, "eos" if ended[row] else "length"))
        return finished

    def _reply(self, slot: int) -> tuple[int, ...]:
        return tuple(self.slots.tokens[slot, self.prompt[slot] : self.known[slot]].tolist())

    def _stops(self, slot: int) -> bool:
        request = self.requests[slot]
        assert request is not None, "an active slot has a request"
        text = self.chat.decode(self._reply(slot))
        return any(stop in text for stop in request.stop)

    def _complete(self, slot: int, finish: Finish) -> tuple[Request, Completion]:
        request = self.requests[slot]
        assert request is not None, "an active slot has a request"
        ids = self._reply(slot)
        logprobs = tuple(self.logprobs[slot, self.prompt[slot] : self.known[slot]].tolist())
        self.requests[slot], self.active[slot] = None, False
        self.slots.release(slot)
        return request, Completion(
            ids, logprobs, self.chat.decode(ids), finish, self.policy_version
        )


def _signed(seed: int) -> int:
    """Any integer as a signed 64-bit number, for numpy."""
    seed &= 2**64 - 1
    return seed - 2**64 if seed >= 2**63 else seed
