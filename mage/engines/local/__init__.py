"""The in-process engine: a transformers model shared with the learner, with continuous batching.

One step is one flat forward pass over the new tokens of all open sequences: the next token of those
that decode, and the uncached part of the prompts that join. `sequences.py` keeps their state. On a
GPU `gpu/loop.py` runs the steps one ahead of the host.
"""

import time
from collections import deque
from typing import Annotated, Any, cast
from weakref import WeakMethod

import numpy as np
import torch
from pydantic import Field

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.engines.base import Engine
from mage.engines.gpu.loop import DeviceLoop, Forward, Joining, Places, StepInFlight, operations
from mage.engines.local.attention import (
    DecodeGroup,
    Plan,
    PrefillGroup,
    attending,
    check_full_attention,
    decode_groups,
    prefill_groups,
    register,
)
from mage.engines.local.forward import plain_decoder
from mage.engines.local.sequences import Array, Sequences, Stats
from mage.engines.local.slots import Slots
from mage.engines.pool import affordable_slots, make_pool
from mage.engines.sampling import sample
from mage.engines.stops import StopTable
from mage.types import Completion, Finish, Request


class LocalEngine(Sequences, Engine):
    """Completes requests with `model`, whose weights it only reads.

    It computes or caches up to `slots` sequences of at most `context` tokens (prompt and reply). A
    step computes at most about `max_batch_tokens` tokens, so long prompts take several steps.
    `run_ahead`: launch a step from CUDA graphs before the tokens of the last one are read; the
    default is True on a GPU.
    """

    context: int

    def __init__(
        self,
        model: torch.nn.Module,
        chat: Chat,
        *,
        slots: Annotated[
            int, Field(description="sequences that are computed or cached at once")
        ] = 1024,
        context: Annotated[
            int, Field(description="largest number of tokens of a prompt and its reply")
        ] = 2048,
        prefix_cache: Annotated[
            bool, Field(description="keep the keys and values of finished prompts for reuse")
        ] = True,
        max_batch_tokens: Annotated[
            int, Field(description="tokens per step, about; longer prompts take several steps")
        ] = 8192,
        run_ahead: Annotated[
            bool | None,
            Field(description="launch a step before the last one is read; default: on a GPU"),
        ] = None,
    ) -> None:
        if slots < 1 or context < 2 or max_batch_tokens < 1:
            raise UserError(
                f"slots={slots}, context={context}, max_batch_tokens={max_batch_tokens}: "
                "the smallest allowed values are 1, 2 and 1"
            )
        self.model, self.chat = model, chat
        self.context, self.max_batch_tokens = context, max_batch_tokens
        causal_lm: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.backbone, self.head = causal_lm.get_decoder(), causal_lm.get_output_embeddings()
        self.config = self.backbone.config
        check_full_attention(self.config)
        self.attention = register()
        self.device = self.head.weight.device
        ahead = self.device.type == "cuda" if run_ahead is None else run_ahead
        self.ops = operations(self.device) if ahead else None
        self.decoder = plain_decoder(model, context, self.ops)
        slots = affordable_slots(slots, context, self.config, self.backbone, self.device)
        self.pool = make_pool(
            self.config,
            (slots + ahead, context),
            self.backbone.get_input_embeddings().weight.dtype,
            self.device,
        )
        self.slots = Slots(slots, context, share=prefix_cache)
        self.stats = Stats()
        self.queue: deque[Request] = deque()
        self.answered: list[tuple[Request, Completion]] = []
        self._make_arrays(slots)
        self.ends = StopTable(chat, self.head.weight.shape[0])
        self.capacity = slots
        self.group_size = 256 if self.device.type == "cpu" else slots
        self.loop = self._make_loop(slots) if ahead else None
        self.flight: tuple[StepInFlight, Array] | None = None
        self.prefix = np.zeros(0, np.int64)  # common prefix of all active sequences

    def _make_loop(self, slots: int) -> DeviceLoop:
        assert self.ops is not None, "the loop needs operations"
        self.pool.reserve(slots + 1, self.context)
        return DeviceLoop(
            _weakly(self._on_device),
            self.head,
            self.pool,
            heads=self.config.num_attention_heads,
            slots=slots,
            max_tokens=self.max_batch_tokens + slots,
            ops=self.ops,
        )

    def submit(self, request: Request) -> None:
        if (
            len(request.prompt_ids) >= self.context
            or request.max_tokens < 1
            or not request.prompt_ids
        ):
            refused = Completion((), (), "", "overflow", self.policy_version)
            self.answered.append((request, refused))
        else:
            self.queue.append(request)

    def refresh(self, policy_version: int) -> None:
        """Empty the cache; the keys of open sequences are computed again."""
        self.answered += [self._complete(slot, finish) for slot, finish in self._land()]
        self.policy_version = policy_version
        self.slots.clear()
        if self.loop is not None:
            self.pool.reserve(self.slots.count + 1, self.context)  # freed by `release`
        if self.decoder is None or not self.decoder.is_current(self.model):
            # An adapter module was added or a weight was replaced.
            before, self.decoder = self.decoder, plain_decoder(self.model, self.context, self.ops)
            if self.loop is not None and self.decoder is not before:
                self.loop.forget_graphs()

    def release(self) -> None:
        """Free the key/value pool and the graphs that use it, so that learning has the memory.

        The cache is empty after every update anyway. On a CPU the pool is small and stays.
        """
        if self.loop is None:
            return
        self.answered += [self._complete(slot, finish) for slot, finish in self._land()]
        if self.active.any():
            return  # open sequences need their keys
        self.slots.clear()
        self.loop.forget_graphs()
        self.pool.release()

    def spent(self) -> dict[str, float]:
        return {"engine": self.stats.seconds, "gpu_wait": self.stats.waited}

    def step(self) -> list[tuple[Request, Completion]]:
        with torch.inference_mode():
            return self._step()

    def _step(self) -> list[tuple[Request, Completion]]:
        started = time.perf_counter()
        answered, self.answered = self.answered, []
        self.slots.clock += 1
        crowded = self._admit()
        slots, new, hold = self._schedule(crowded)
        finished: list[tuple[int, Finish]] = []
        if self.loop is not None:
            flight = self._launch(slots, new, hold)
            finished = self._land()
            self.flight = flight
        elif len(slots):
            finished = self._advance(slots, new)
        answered += [self._complete(slot, finish) for slot, finish in finished]
        self.stats.steps += 1
        self.stats.seconds += time.perf_counter() - started
        return answered

    def _admit(self) -> bool:
        """Assign slots to queued requests.

        A request whose prefix is being computed for another one waits a step and copies it.
        Returns whether more requests could have a slot if this step had room for their tokens.
        """
        waiting = []
        budget = self.max_batch_tokens - int(
            (self.known + self.ahead - self.slots.filled)[self.active].sum()
        )
        while self.queue and self.slots.available and budget > 0:
            request = self.queue.popleft()
            lease = self.slots.lease(request.prompt_ids)
            if lease is None:
                waiting.append(request)
                continue
            self._open(lease.slot, request)
            if lease.kept < lease.reused:
                self.pool.copy(lease.source, lease.slot, lease.kept, lease.reused)
            self.stats.reused_tokens += lease.reused
            budget -= len(request.prompt_ids) - lease.reused
        crowded = bool(self.queue) and self.slots.available > 0
        self.queue.extendleft(reversed(waiting))
        return crowded

    def _launch(self, slots: Array, new: Array, hold: bool) -> tuple[StepInFlight, Array] | None:
        """Launch the next step: prefill prompts, then decode all complete ones unless `hold`."""
        assert self.loop is not None, "for the device loop"
        if not len(slots):
            return None
        filled = self.slots.filled[slots]
        joins = (new > 1) | (self.known[slots] + self.ahead[slots] == self.prompt[slots])
        joining = self._joining(slots[joins], filled[joins], new[joins]) if joins.any() else None
        self.slots.filled[slots] = filled + new
        complete = filled + new == self.known[slots] + self.ahead[slots]
        for slot in slots[joins].tolist():
            self.slots.commit(slot)
        self.stats.prefilled_tokens += int(new[joins].sum())
        first = slots[joins & complete]
        self.ahead[first] += 1
        going_on = first[(self.known[first] + self.ahead[first] < self.limit[first]) & (not hold)]
        self.slots.filled[going_on] += 1
        decoding = np.concatenate([slots[~joins], going_on])
        self.ahead[decoding] += 1
        cut = bool(((self.top_k[slots] > 0) | (self.top_p[slots] < 1)).any())
        flight = self.loop.launch(joining, decoding, self._shared(slots[joins]), cut)
        return flight, self.lease[flight.slots]

    def _joining(self, slots: Array, filled: Array, new: Array) -> Joining:
        owner, offsets = np.repeat(slots, new), np.cumsum(new) - new
        ids = self.slots.tokens[owner, np.arange(len(owner)) + np.repeat(filled - offsets, new)]
        ready = filled + new == self.known[slots] + self.ahead[slots]
        options = (self.seed[slots], self.top_k[slots], self.temperature[slots], self.top_p[slots])
        return Joining(
            slots, filled, new, ready, self.known[slots] - self.prompt[slots], *options, ids
        )

    def _shared(self, joined: Array) -> int:
        """Length of the common prefix of all active sequences; `joined` are the new ones."""
        if len(joined) and len(joined) == int(self.active.sum()):
            self.prefix = self.slots.tokens[joined[0], : self.prompt[joined[0]]].copy()
        for slot in joined.tolist():
            prefix = self.prefix[: self.prompt[slot]]
            differs = prefix != self.slots.tokens[slot, : len(prefix)]
            self.prefix = prefix[: differs.argmax()] if differs.any() else prefix
        return len(self.prefix)

    def _land(self) -> list[tuple[int, Finish]]:
        """Read the tokens of the launched step; returns the finished sequences.

        Tokens of sequences that have ended since are dropped.
        """
        if self.flight is None:
            return []
        (flight, lease), self.flight = self.flight, None
        before = time.perf_counter()
        tokens, logprobs = flight.wait()
        self.stats.waited += time.perf_counter() - before
        finished: list[tuple[int, Finish]] = []
        # A sequence that joined has two tokens in one step. The second counts only if the first
        # did not end the reply.
        second = np.zeros(len(lease), bool)
        second[
            np.setdiff1d(np.arange(len(lease)), np.unique(flight.slots, return_index=True)[1])
        ] = True
        for part in (~second, second):
            ours = part & (self.lease[flight.slots] == lease) & self.active[flight.slots]
            ours &= ~np.isin(flight.slots, [slot for slot, _ in finished])
            slots = flight.slots[ours]
            self.ahead[slots] -= 1
            finished += self._append(slots, tokens[ours], logprobs[ours])
        return finished

    def _on_device(
        self, ids: torch.Tensor, positions: torch.Tensor, places: Places
    ) -> torch.Tensor:
        if self.decoder is not None:
            return self.decoder.on_device(ids, positions, places)
        with attending(self.model, self.config, self.attention):
            output = self.backbone(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=places
            )
        return cast("torch.Tensor", output.last_hidden_state[0])

    def _advance(self, slots: Array, new: Array) -> list[tuple[int, Finish]]:
        """Compute the new tokens and sample complete sequences; returns the finished ones."""
        filled = self.slots.filled[slots]
        self.pool.reserve(0, int((filled + new).max()))
        hidden = self._forward(slots, filled, new)
        self.slots.filled[slots] = filled = filled + new
        joining = self.known[slots] == self.prompt[slots]
        for slot in slots[joining].tolist():
            self.slots.commit(slot)
        self.stats.prefilled_tokens += int(new[joining | (new > 1)].sum())
        ready = filled == self.known[slots]
        rows = self.pool.on_device(np.flatnonzero(np.repeat(ready, new) & _is_last(new)))
        tokens, logprobs = sample(
            self.head(hidden.index_select(0, rows)), self._choices(slots[ready])
        )
        return self._append(slots[ready], tokens.cpu().numpy(), logprobs.cpu().numpy())

    def _forward(self, slots: Array, filled: Array, new: Array) -> torch.Tensor:
        offsets = np.cumsum(new) - new
        positions = np.arange(new.sum()) + np.repeat(filled - offsets, new)
        owner = np.repeat(slots, new)
        ids = self.pool.on_device(self.slots.tokens[owner, positions])
        plan = self._plan(
            slots, filled, new, self.pool.on_device(owner * self.pool.length + positions)
        )
        places = self.pool.on_device(positions)
        if self.decoder is not None:
            return self.decoder(ids, places, plan)
        with attending(self.model, self.config, self.attention):
            output = self.backbone(
                input_ids=ids[None], position_ids=places[None], use_cache=False, plan=plan
            )
        return output.last_hidden_state[0]

    def _plan(self, slots: Array, filled: Array, new: Array, write: torch.Tensor) -> Plan:
        decodes = int((new == 1).argmin()) if (new != 1).any() else len(new)
        groups: list[DecodeGroup | PrefillGroup] = []
        groups += decode_groups(
            slots[:decodes], filled[:decodes] + 1, self.group_size, self.pool, self.slots.tokens
        )
        groups += prefill_groups(
            decodes, slots[decodes:], filled[decodes:], new[decodes:], self.pool
        )
        return Plan(self.pool, write, tuple(groups))


def _weakly(forward: Forward) -> Forward:
    """The method without a strong reference to its engine.

    A reference cycle would keep a deleted engine and its pool until the garbage collector runs.
    """
    method = WeakMethod(forward)

    def call(ids: torch.Tensor, positions: torch.Tensor, places: Places) -> torch.Tensor:
        alive = method()
        assert alive is not None, "an engine outlives its loop"
        return alive(ids, positions, places)

    return call


def _is_last(new: Array) -> Array:
    last = np.zeros(int(new.sum()), bool)
    last[np.cumsum(new) - 1] = True
    return last
