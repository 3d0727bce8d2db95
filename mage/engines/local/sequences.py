"""The open sequences of the local engine: their state in arrays indexed by slot.

The Python cost of a step depends only on the sequences that join or finish. For all others,
lengths, seeds and options are in these arrays.
"""

from typing import Any, NamedTuple

import numpy as np

from mage.agent.chat import Chat
from mage.engines.gpu.prefill import Joining
from mage.engines.local.slots import Slots
from mage.engines.sampling import SamplingBatch
from mage.engines.stops import StopTable
from mage.types import Completion, Finish, Request

Array = np.ndarray[Any, Any]


class Work(NamedTuple):
    """The slots of one step and the number of new tokens of each.

    `hold`: sequences that decode wait, because prompts are left over for the next step.
    """

    slots: Array
    new: Array
    hold: bool


class OpenSequences:
    """Opens, schedules, extends and completes sequences; the engine computes their tokens.

    Of the tokens of a slot, `slots.filled` have keys, `known` have been read, and `ahead` more are
    being computed.
    """

    def __init__(self, chat: Chat, slots: Slots, context: int, vocabulary: int) -> None:
        self.chat, self.slots, self.context = chat, slots, context
        self.ends = StopTable(chat, vocabulary)
        count = slots.count
        self.requests: list[Request | None] = [None] * count
        self.known, self.prompt, self.limit, self.ahead, self.lease = np.zeros((5, count), np.int64)
        self.seed, self.top_k, self.stop = np.zeros((3, count), np.int64)
        self.temperature, self.top_p = np.ones((2, count), np.float32)
        self.logprobs = np.zeros((count, context), np.float32)
        self.active = np.zeros(count, bool)
        self.prefix = np.zeros(0, np.int64)  # common prefix of all active sequences

    def open(self, slot: int, request: Request) -> None:
        length = len(request.prompt_ids)
        self.requests[slot], self.active[slot] = request, True
        self.known[slot] = self.prompt[slot] = length
        self.ahead[slot], self.lease[slot] = 0, self.lease[slot] + 1
        self.limit[slot] = min(length + request.max_tokens, self.context)
        self.seed[slot], self.stop[slot] = _signed(request.seed), self.ends.kind(request.stop)
        self.temperature[slot], self.top_p[slot] = request.temperature, request.top_p
        self.top_k[slot] = request.top_k

    def uncomputed(self) -> Array:
        """The number of tokens of each slot that have no key yet."""
        return self.known + self.ahead - self.slots.filled

    def schedule(self, most: int, crowded: bool, on_device: bool) -> Work:
        """Work for about `most` tokens: first the decodes by slot, then the shortest prompts.

        A GPU decodes many sequences almost as fast as few. So in the device loop no sequence
        decodes while prompts are left over for the next step.
        """
        active = np.flatnonzero(self.active & (self.known + self.ahead < self.limit))
        new = self.uncomputed()[active]
        decodes, prefills = active[new == 1], active[new > 1]
        new = new[new > 1]
        order = np.argsort(new, kind="stable")
        prefills, new = prefills[order], new[order]
        room = most if on_device else max(most - len(decodes), 1)
        hold = on_device and len(prefills) > 0 and (crowded or int(new.sum()) > room)
        if hold:
            decodes = decodes[:0]
        new = np.minimum(new, np.maximum(room - (np.cumsum(new) - new), 0))
        started = new > 0
        return Work(
            np.concatenate([decodes, prefills[started]]),
            np.concatenate([np.ones(len(decodes), np.int64), new[started]]),
            hold,
        )

    def choices(self, slots: Array, later: "Array | int" = 0) -> SamplingBatch:
        """The sampling options of the next token of these slots, or of one `later` by so many."""
        index = self.known[slots] - self.prompt[slots] + later
        return SamplingBatch(
            self.seed[slots], index, self.temperature[slots], self.top_p[slots], self.top_k[slots]
        )

    def joining(self, slots: Array, filled: Array, new: Array) -> Joining:
        """The prompts that the device loop prefills next."""
        owner, offsets = np.repeat(slots, new), np.cumsum(new) - new
        ids = self.slots.tokens[owner, np.arange(len(owner)) + np.repeat(filled - offsets, new)]
        ready = filled + new == self.known[slots] + self.ahead[slots]
        return Joining(slots, filled, new, ready, ids, self.choices(slots))

    def shared(self, joined: Array) -> int:
        """Length of the common prefix of all active sequences; `joined` are the new ones."""
        if len(joined) and len(joined) == int(self.active.sum()):
            self.prefix = self.slots.tokens[joined[0], : self.prompt[joined[0]]].copy()
        for slot in joined.tolist():
            prefix = self.prefix[: self.prompt[slot]]
            differs = prefix != self.slots.tokens[slot, : len(prefix)]
            self.prefix = prefix[: differs.argmax()] if differs.any() else prefix
        return len(self.prefix)

    def append(self, slots: Array, tokens: Array, logprobs: Array) -> list[tuple[int, Finish]]:
        """Store sampled tokens and return the sequences that end with them.

        Only rows that may have ended are inspected one by one.
        """
        known = self.known[slots]
        self.slots.tokens[slots, known] = tokens
        self.logprobs[slots, known] = logprobs
        self.known[slots] = known = known + 1
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

    def ending(self, slot: int, before: int) -> Array:
        """The tokens of a reply, after the last ones of its prompt."""
        start = max(int(self.prompt[slot]) - before, 0)
        return self.slots.tokens[slot, start : self.known[slot]]

    def complete(
        self, slot: int, finish: Finish, policy_version: int
    ) -> tuple[Request, Completion]:
        """Close a sequence; its slot is free for another one."""
        request, ids = self._request(slot), self._reply(slot)
        logprobs = tuple(self.logprobs[slot, self.prompt[slot] : self.known[slot]].tolist())
        self.requests[slot], self.active[slot] = None, False
        self.slots.release(slot)
        text = self.chat.decode(ids)
        return request, Completion(ids, logprobs, text, finish, policy_version)

    def _request(self, slot: int) -> Request:
        request = self.requests[slot]
        assert request is not None, "an active slot has a request"
        return request

    def _reply(self, slot: int) -> tuple[int, ...]:
        return tuple(self.slots.tokens[slot, self.prompt[slot] : self.known[slot]].tolist())

    def _stops(self, slot: int) -> bool:
        text = self.chat.decode(self._reply(slot))
        return any(stop in text for stop in self._request(slot).stop)


def _signed(seed: int) -> int:
    """Any integer as a signed 64-bit number, for numpy."""
    seed &= 2**64 - 1
    return seed - 2**64 if seed >= 2**63 else seed
