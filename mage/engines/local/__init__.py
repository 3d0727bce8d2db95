"""The in-process engine: a transformers model shared with the learner, with continuous batching.

One step is one flat forward pass over the new tokens of all open sequences: the next token of those
that decode, and the uncached part of the prompts that join. For example, with three sequences
(# is a token whose keys are in the pool, o is a new one):

    slot 0    ########o         decodes: its newest token is at position 8
    slot 1    #####o            decodes: position 5
    slot 2    ###ooooooo        prefills: positions 3 to 9, after a cached prefix of three tokens
    flat row  o o ooooooo       nine tokens; linear layers see no padding, attention sees groups
    sampled   ^ ^       ^       one token for every sequence whose tokens all have keys now

`_step` admits requests to slots (`slots.py`), schedules the new tokens (`sequences.py`), computes
them (`forward.py`, `attention.py`), samples, and completes the sequences that end. On a GPU
`gpu/loop.py` runs the steps one ahead of the host. With drafts a sequence that decodes has several
new tokens (`mage.engines.drafts`).
"""

import re
import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast
from weakref import WeakMethod

import numpy as np
import torch
from pydantic import Field

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.engines.base import Engine
from mage.engines.drafts import LONGEST, Drafts, propose, usual_number
from mage.engines.gpu.loop import DeviceLoop, Forward, StepInFlight, TokenSlots, operations
from mage.engines.local.attention import (
    DecodeGroup,
    Plan,
    PrefillGroup,
    attending,
    check_full_attention,
    decode_groups,
    prefill_groups,
)
from mage.engines.local.forward import plain_decoder
from mage.engines.local.sequences import Array, OpenSequences, Work
from mage.engines.local.slots import Slots
from mage.engines.own_logits import HALF_GAP, NEEDED, check_own_logits
from mage.engines.pool import affordable_slots, make_pool
from mage.engines.sampling import sample
from mage.models.architecture import is_known
from mage.models.loading import pick_cache
from mage.models.shapes import check_cache
from mage.types import Completion, Finish, Request


@dataclass(slots=True)
class Stats:
    """Counts since the engine was built."""

    steps: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of the drafted ones
    seconds: float = 0.0
    waited: float = 0.0  # part of `seconds`: waiting for the GPU


class LocalEngine(Engine):
    """Completes requests with `model`, whose weights it only reads.

    It computes or caches up to `slots` sequences of at most `context` tokens (prompt and reply). A
    step computes at most about `max_batch_tokens` tokens, so long prompts take several steps.
    `run_ahead`: launch a step from CUDA graphs before the tokens of the last one are read; the
    default is True on a GPU. `cache`: keys and values in the model's format or in 8 bits. `drafts`:
    tokens guessed and checked per sequence and step, in steps of few sequences; the default is 4 on
    a GPU for a small model.
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
        cache: Annotated[
            Literal["model", "int8"],
            Field(description="format of keys and values; int8: 8 bits, for 1 B or more on a GPU"),
        ] = "model",
        drafts: Annotated[
            int | None,
            Field(
                description="tokens guessed from known text and checked per step; 0: none; "
                "default: 4 on a GPU below 2 B parameters"
            ),
        ] = None,
    ) -> None:
        if slots < 1 or context < 2 or max_batch_tokens < 1 or (drafts or 0) < 0:
            raise UserError(
                f"slots={slots}, context={context}, max_batch_tokens={max_batch_tokens}, "
                f"drafts={drafts}: the smallest allowed values are 1, 2, 1 and 0"
            )
        self.model, self.chat = model, chat
        self.context, self.max_batch_tokens = context, max_batch_tokens
        causal_lm: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.backbone, self.head = causal_lm.get_decoder(), causal_lm.get_output_embeddings()
        self.config = self.backbone.config
        check_full_attention(self.config, context)
        self.device = self.head.weight.device
        ahead = self.device.type == "cuda" if run_ahead is None else run_ahead
        parameters = sum(weight.numel() for weight in causal_lm.parameters())
        check_cache(cache, parameters)
        self.rounds = pick_cache(cache, self.device) == "int8"
        if self.rounds and not ahead:
            raise UserError('engines.cache = "int8" needs engines.run_ahead = true')
        self.ops = operations(self.device) if ahead else None
        self.decoder = plain_decoder(model, context, self.ops)
        self.pool = make_pool(
            self.config,
            (slots + ahead, context),
            self.backbone.get_input_embeddings().weight.dtype,
            self.device,
            small=self.rounds,
        )
        slots = affordable_slots(slots, context, self.pool)
        self.pool.most = (slots + ahead, context)
        self._split_biases()
        self.slots = Slots(slots, context, share=prefix_cache)
        self.stats = Stats()
        self.queue: deque[Request] = deque()
        self.answered: list[tuple[Request, Completion]] = []
        self.sequences = OpenSequences(chat, self.slots, context, self.head.weight.shape[0])
        self.capacity = slots
        self.group_size = 256 if self.device.type == "cpu" else slots
        if drafts is None:
            drafts = usual_number(parameters, self.device) if ahead else 0
        self.drafts = Drafts(drafts, self.device)
        self.loop = self._make_loop(slots) if ahead else None
        self.flight: tuple[StepInFlight, Array] | None = None
        # Some models scale their logits, and some do not take another attention. Llama, Qwen2 and
        # Qwen3 are known and not tried.
        if not (is_known(causal_lm) or causal_lm.training) and context > NEEDED:
            self._check_head(causal_lm)
            check_own_logits(self, causal_lm, "the local engine")
            self.stats = Stats()

    @torch.no_grad()
    def _check_head(self, model: Any) -> None:
        """Engine and learner multiply the last hidden state by the head, over all tokens."""
        ids = torch.arange(8, device=self.device)[None] % self.head.weight.shape[0]
        own = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        state = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        gap = float((own - self.head(state).float().log_softmax(-1)).abs().max())
        if not model._supports_attention_backend or not gap < HALF_GAP:
            raise UserError(
                f"{type(model).__name__} computes attention or logits in a way of its own, which "
                f"the local engine does not (logits differ by {gap:.3g}): use another model"
            )

    def _split_biases(self) -> None:
        """Large biases of keys are not stored in 8 bits; only the plain decoder leaves them out."""
        if not self.rounds:
            return
        if self.decoder is not None:
            self.decoder.split_biases(self.pool)
        elif any(re.search(r"k_proj.*bias$", name) for name, _ in self.model.named_parameters()):
            raise UserError(
                'engines.cache = "int8" is for plain models here, because the keys of this one '
                "have a bias, and it has adapters or modules of its own: remove the option"
            )

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
            context=self.context,
            drafts=self.drafts,
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
        self.answered += self._complete(self._land())
        self.policy_version = policy_version
        self._clear()
        if self.loop is not None:
            self.pool.reserve(self.slots.count + 1, self.context)  # freed by `release`
        if self.decoder is None or not self.decoder.is_current(self.model):
            # An adapter module was added or a weight was replaced.
            before, self.decoder = self.decoder, plain_decoder(self.model, self.context, self.ops)
            if self.loop is not None and self.decoder is not before:
                self.loop.forget_graphs()
        self._split_biases()

    def empty_cache(self) -> None:
        self.answered += self._complete(self._land())
        self._clear()

    def _clear(self) -> None:
        self.slots.clear()
        self.drafts.clear()

    def release(self) -> None:
        """Free the key/value pool and the graphs that use it, so that learning has the memory.

        The cache is empty after every update anyway. On a CPU the pool is small and stays.
        """
        if self.loop is None:
            return
        self.answered += self._complete(self._land())
        if self.sequences.active.any():
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
        work = self.sequences.schedule(self.max_batch_tokens, crowded, self.loop is not None)
        finished: list[tuple[int, Finish]] = []
        if self.loop is not None:
            flight = self._launch(self.loop, work)
            finished = self._land()
            self.flight = flight
        elif len(work.slots):
            finished = self._advance(work)
        answered += self._complete(finished)
        self.stats.steps += 1
        self.stats.seconds += time.perf_counter() - started
        return answered

    def _admit(self) -> bool:
        """Assign slots to queued requests.

        A request whose prefix is being computed for another one waits a step and copies it.
        Returns whether more requests could have a slot if this step had room for their tokens.
        """
        waiting = []
        open_tokens = self.sequences.uncomputed()[self.sequences.active]
        budget = self.max_batch_tokens - int(open_tokens.sum())
        while self.queue and self.slots.available and budget > 0:
            request = self.queue.popleft()
            lease = self.slots.lease(request.prompt_ids)
            if lease is None:
                waiting.append(request)
                continue
            self.sequences.open(lease.slot, request)
            self.pool.reserve(lease.slot + 1, len(request.prompt_ids))
            if lease.kept < lease.reused:
                self.pool.copy(lease.source, lease.slot, lease.kept, lease.reused)
                if self.loop is not None:
                    self.loop.copy_tokens(lease.source, lease.slot, lease.kept, lease.reused)
            self.stats.reused_tokens += lease.reused
            budget -= len(request.prompt_ids) - lease.reused
        crowded = bool(self.queue) and self.slots.available > 0
        self.queue.extendleft(reversed(waiting))
        return crowded

    def _launch(self, loop: DeviceLoop, work: Work) -> tuple[StepInFlight, Array] | None:
        """Launch the next step: prefill prompts, then decode all complete ones unless on hold."""
        slots, new, hold = work
        if not len(slots):
            return None
        state, filled = self.sequences, self.slots.filled[slots]
        computed = state.known[slots] + state.ahead[slots]
        joins = (new > 1) | (computed == state.prompt[slots])
        joining = state.joining(slots[joins], filled[joins], new[joins]) if joins.any() else None
        self.slots.filled[slots] = filled + new
        for slot in slots[joins].tolist():
            self.slots.commit(slot)
        self.stats.prefilled_tokens += int(new[joins].sum())
        first = slots[joins & (filled + new == computed)]  # they get their first reply token
        state.ahead[first] += 1
        more = state.known[first] + state.ahead[first] < state.limit[first]
        going_on = first[more & (not hold)]
        # The key of a token that is not read yet: until then the token equals none of a prompt.
        self.slots.tokens[going_on, state.known[going_on]] = -1
        self.slots.filled[going_on] += 1
        decoding = np.concatenate([slots[~joins], going_on])
        state.ahead[decoding] += 1
        cut = bool(((state.top_k[slots] > 0) | (state.top_p[slots] < 1)).any())
        flight = loop.launch(joining, decoding, state.shared(slots[joins]), cut)
        return flight, state.lease[flight.slots]

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
        state = self.sequences
        ours = (state.lease[flight.slots] == lease) & state.active[flight.slots]
        self._count(ours & flight.drafted, tokens >= 0)
        np.subtract.at(state.ahead, flight.slots[ours & ~flight.drafted], 1)
        ours &= tokens >= 0
        return self._append(flight.slots[ours], tokens[ours], logprobs[ours], flight.drafted[ours])

    def _count(self, drafted: Array, kept: Array) -> None:
        numbers = int(drafted.sum()), int((drafted & kept).sum())
        self.stats.drafted_tokens += numbers[0]
        self.stats.accepted_tokens += numbers[1]
        self.drafts.count(*numbers)

    def _append(
        self, slots: Array, tokens: Array, logprobs: Array, drafted: Array
    ) -> list[tuple[int, Finish]]:
        """Store sampled tokens; returns the finished sequences.

        A sequence that joined or whose drafts were right has several tokens in one step. Each
        counts only if those before it did not end the reply. The token before a `drafted` one has
        its key.
        """
        order = np.argsort(slots, kind="stable")
        number = np.empty(len(slots), np.int64)  # of the token among those of its sequence
        number[order] = np.arange(len(slots)) - np.searchsorted(slots[order], slots[order])
        finished, over = list[tuple[int, Finish]](), np.zeros(self.slots.count, bool)
        for turn in range(int(number.max(initial=-1)) + 1):
            now = number == turn
            if finished:
                over[[slot for slot, _ in finished]] = True
                now &= ~over[slots]
            self.slots.filled[slots[now & drafted]] += 1
            self.stats.generated_tokens += int(now.sum())
            finished += self.sequences.append(slots[now], tokens[now], logprobs[now])
        return finished

    def _complete(self, finished: list[tuple[int, Finish]]) -> list[tuple[Request, Completion]]:
        if self.drafts.number and finished:
            self.drafts.add(
                np.concatenate([self.sequences.ending(slot, LONGEST) for slot, _ in finished])
            )
        return [self.sequences.complete(*one, self.policy_version) for one in finished]

    def _on_device(
        self, ids: torch.Tensor, positions: torch.Tensor, places: TokenSlots
    ) -> torch.Tensor:
        """Hidden states for the device loop, of the rows that it wants."""
        if self.decoder is not None:
            return self.decoder.on_device(ids, positions, places)
        hidden = self._modules(ids, positions, places)
        return hidden if places.wanted is None else hidden.index_select(0, places.wanted)

    def _modules(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan | TokenSlots
    ) -> torch.Tensor:
        """Hidden states by the modules of transformers, with the attention of this engine."""
        with attending(self.model, self.config):
            output = self.backbone(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=plan
            )
        return cast("torch.Tensor", output.last_hidden_state[0])

    def _advance(self, work: Work) -> list[tuple[int, Finish]]:
        """Compute the new tokens and sample complete sequences; returns the finished ones."""
        state, (slots, new, drafts) = self.sequences, self._draft(work)
        filled = self.slots.filled[slots]
        self.pool.reserve(0, int((filled + new + drafts).max()))
        hidden = self._forward(slots, filled, new + drafts)
        self.slots.filled[slots] = filled = filled + new
        joining = state.known[slots] == state.prompt[slots]
        for slot in slots[joining].tolist():
            self.slots.commit(slot)
        self.stats.prefilled_tokens += int(new[joining | (new > 1)].sum())
        ready = filled == state.known[slots]
        last = (np.cumsum(new + drafts) - 1 - drafts)[ready]  # row of the newest token of each
        slots, count = slots[ready], 1 + drafts[ready]
        owner, first = np.repeat(slots, count), np.cumsum(count) - count
        later = np.arange(len(owner)) - np.repeat(first, count)
        rows = self.pool.on_device(np.repeat(last, count) + later)
        found = sample(self.head(hidden.index_select(0, rows)), state.choices(owner, later))
        tokens, logprobs = (part.cpu().numpy() for part in found)
        wrong = self.slots.tokens[owner, state.known[owner] + later - 1] != np.roll(tokens, 1)
        misses = np.cumsum(wrong & (later > 0))
        kept = misses == np.repeat(misses[first], count)
        self._count(later > 0, kept)
        return self._append(owner[kept], tokens[kept], logprobs[kept], later[kept] > 0)

    def _draft(self, work: Work) -> tuple[Array, Array, Array]:
        """Slots, their new tokens, and how many are drafted, by the number of tokens to compute.

        Drafted tokens are written behind the known ones. Large batches get none.
        """
        state, slots, new = self.sequences, work.slots, work.new
        drafts, known = np.zeros_like(new), state.known[slots]
        decodes = (new == 1) & (self.slots.filled[slots] + 1 == known)
        number = self.drafts.width(int(decodes.sum())) - 1
        if not (number and decodes.any()):
            return slots, new, drafts
        texts = self.slots.tokens[slots[decodes], : known[decodes].max()]
        guesses = propose(
            torch.from_numpy(texts),
            torch.from_numpy(known[decodes] - 1),
            self.drafts.tokens[: self.drafts.used].cpu(),
            number,
        ).numpy()
        drafts[decodes] = np.minimum(number, state.limit[slots] - known - 1)[decodes]
        row, place = np.nonzero(np.arange(number) < drafts[decodes][:, None])
        where = slots[decodes][row], known[decodes][row] + place
        self.slots.tokens[where] = guesses[row, place]
        order = np.lexsort((slots, new + drafts))
        return slots[order], new[order], drafts[order]

    def _forward(self, slots: Array, filled: Array, new: Array) -> torch.Tensor:
        """Hidden states [tokens, hidden] of the flat row."""
        offsets = np.cumsum(new) - new
        positions = np.arange(new.sum()) + np.repeat(filled - offsets, new)
        owner = np.repeat(slots, new)
        ids = self.pool.on_device(self.slots.tokens[owner, positions])
        write = self.pool.on_device(owner * self.pool.length + positions)
        compute = self._modules if self.decoder is None else self.decoder
        return compute(ids, self.pool.on_device(positions), self._plan(slots, filled, new, write))

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

    def call(ids: torch.Tensor, positions: torch.Tensor, places: TokenSlots) -> torch.Tensor:
        alive = method()
        assert alive is not None, "an engine outlives its loop"
        return alive(ids, positions, places)

    return call
