"""The learner: it turns samples into optimizer steps.

It shares its module with the engine that plays. So it switches the attention on entry and back on
exit, and it keeps the model in eval mode: with dropout, sampler and learner would differ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn import checkpoint
from mage.learn.fully_sharded import EmptyBatch, FullySharded, idle_rows, scored_by, whole
from mage.learn.gradient_sum import GradientSum
from mage.learn.loss import BatchSums, Sums, choice_entropies, policy_loss, read, token_logprobs
from mage.learn.minibatches import cut, split
from mage.learn.owned_state import OwnedState, collect_state
from mage.learn.pack.attention import (
    attending,
    best_layout,
    check_packable,
    exchange_rate,
    hidden_states,
    trie_exchange_rate,
)
from mage.learn.pack.compilation import compile_clock
from mage.learn.pack.layers import line_length
from mage.learn.pack.packing import (
    Layout,
    Packed,
    pack_forest,
    pack_rows,
    pack_trie,
    plan_forests,
    plan_rows,
    plan_tries,
)
from mage.learn.pack.tries import Row, prepare
from mage.learn.shared_batches import cut_shared, split_shared
from mage.learn.trainable import (
    Adapters,
    AllWeights,
    Trainable,
    factors_of_weights,
    make_trainable,
)
from mage.learn.update_metrics import Metrics, Step, measure_update
from mage.ranks.ranks import Ranks
from mage.seeds import derive
from mage.types import Sample


class Learner:
    """Trains `model` in place. `module` is the same object; the engine plays with it.

    With `kl`, the reference is the model at construction: build the learner from the starting
    weights, then `load` a checkpoint. `start` is the adapter folder that `model` was loaded from.
    `layout` is for tests; the default suits the device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        options: LearnOptions,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        total_updates: int = 1,
        ranks: Ranks | None = None,
        start: Path | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.options, self.seed = options, seed
        self.temperature, self.total_updates = temperature, total_updates
        self.ranks = ranks or Ranks()
        self.module: PreTrainedModel = model.eval()
        self.layout: Layout = layout or best_layout(model, options)
        if self.layout != "rows":
            check_packable(model)
            rate = trie_exchange_rate if self.layout == "trie" else exchange_rate
            self._exchange = rate(model)
        self.trainable = self._make_trainable(start)
        self._network, self._score_network = self.module, self._score
        if isinstance(self.trainable, FullySharded):
            self._network = self.trainable.network
            self._score_network = scored_by(self._network, self._score)
        self._masters = self.trainable.masters
        self._owned = self._divide_optimizer()
        self._sum = self._make_sum()
        self._optimizer = torch.optim.AdamW(
            [master for name, master in self._masters.items() if self._owns(name)],
            lr=options.lr,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def _make_trainable(self, start: Path | None) -> Trainable:
        if self.options.shard == "full" and self.ranks.has_group:
            return FullySharded(self.module, self.ranks, reference=self.options.kl > 0)
        return make_trainable(self.module, self.options, seed=self.seed, start=start)

    def _divide_optimizer(self) -> OwnedState | None:
        """With learn.shard = "optimizer": the tensors whose state this rank holds."""
        if self.options.shard != "optimizer" or not self.ranks.has_group:
            return None
        owned = OwnedState(self._masters, self.ranks)
        if isinstance(self.trainable, AllWeights):
            self.trainable.drop_masters(owned.owns)
        return owned

    def _make_sum(self) -> GradientSum | None:
        """The sum of gradients over the ranks; FSDP makes its own."""
        if not self.ranks.has_group or isinstance(self.trainable, FullySharded):
            return None
        return GradientSum(self.ranks, list(self._masters.values()))

    @property
    def is_sharded(self) -> bool:
        """Whether saving needs all ranks."""
        return self._owned is not None or isinstance(self.trainable, FullySharded)

    def _owns(self, name: str) -> bool:
        return self._owned is None or self._owned.owns(name)

    def compilations(self) -> dict[str, float]:
        """On a GPU: the number and seconds of the compilations of this process so far."""
        if self.module.device.type != "cuda":
            return {}
        clock = compile_clock()
        return {"compilations": clock.count, "compile": clock.seconds}

    @contextmanager
    def reporting(self, report: Callable[[str], None]) -> Iterator[None]:
        """Send a line to `report` whenever a compilation starts inside the context."""
        on_gpu = self.module.device.type == "cuda"
        with compile_clock().reporting(report) if on_gpu else nullcontext():
            yield

    def update(self, samples: Sequence[Sample], *, entropy: float, update: int) -> Metrics:
        """One update from new samples: `epochs` x `minibatches` optimizer steps."""
        if not self.ranks.total(len(samples)):
            raise UserError("an update needs at least one sample")
        rows = prepare(samples)
        lr = self.options.lr_at(update, self.total_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        reference = self.logprobs(rows, reference=True) if self.options.kl else None
        proximal = self.logprobs(rows) if self.options.importance_cap is not None else None
        steps = []
        for epoch in range(self.options.epochs):
            for batch in self._minibatches(rows, derive(self.seed, "minibatches", update, epoch)):
                sums, computed = self.accumulate(
                    batch, entropy=entropy, reference=reference, proximal=proximal
                )
                steps.append(Step(sums, computed, *self._descend()))
        return measure_update(rows, steps, self.options, self.ranks, lr=lr, entropy=entropy)

    def _minibatches(self, rows: Sequence[Row], seed: int) -> list[list[Row]]:
        """The rows of each optimizer step of an epoch. All workers get the same number of steps."""
        limit = self.options.minibatch_rows
        parts = ceil(self.ranks.total(len(rows)) / limit) if limit else self.options.minibatches
        if self.ranks.deals_members:
            return (cut_shared if limit else split_shared)(rows, parts, seed, self.ranks)
        return (cut if limit else split)(rows, parts, seed)

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> torch.Tensor:
        """Logprobs of all reply tokens under the policy or the frozen reference, by token index."""
        found = torch.empty(
            sum(len(row.sample.reply_ids) for row in rows),
            dtype=self._real,
            device=self.module.device,
        )
        with (
            self.trainable.reference() if reference else nullcontext(self.module) as model,
            torch.no_grad(),
            attending(model, self.layout),
        ):
            for packed in self.pack(rows):
                found[packed.terms.index] = self._score(model, packed)[0]
        return found

    def pack(self, rows: Sequence[Row]) -> Iterable[Packed]:
        """Group rows into micro-batches."""
        where: dict[str, Any] = {"dtype": self.module.dtype, "device": self.module.device}
        limit = self.options.tokens_at_once
        if self.layout == "rows":
            return (pack_rows(batch, **where) for batch in plan_rows(rows, micro_tokens=limit))
        sizes: dict[str, Any] = {
            "micro_tokens": limit,
            "exchange": self._exchange,
            "tree_tokens": self.options.tree_tokens,
        }
        if self.layout == "forest":
            return (pack_forest(batch, **where) for batch in plan_forests(rows, **sizes))
        pad = partial(line_length, micro_tokens=limit, device=self.module.device)
        return (pack_trie(batch, **where, pad=pad) for batch in plan_tries(rows, **sizes))

    def _score(
        self, model: PreTrainedModel, packed: Packed
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logprobs and entropies of the reply tokens, and entropies among legal moves."""
        learns = torch.is_grad_enabled()
        recompute = bool(self.options.recompute) and learns
        factors = factors_of_weights(self.trainable) if learns else None
        hidden, head, terms = (
            hidden_states(model, packed, recompute=recompute, factors=factors),
            model.get_output_embeddings(),
            packed.terms,
        )
        logprobs, entropies = token_logprobs(
            hidden.index_select(0, terms.parents), head, terms.targets, temperature=self.temperature
        )
        choices = choice_entropies(
            hidden.index_select(0, terms.choice_parents),
            head,
            terms.choice_tokens,
            temperature=self.temperature,
        )
        return logprobs, entropies, choices

    @property
    def _real(self) -> torch.dtype:
        return torch.float64 if self.module.dtype == torch.float64 else torch.float32

    def accumulate(
        self,
        rows: Sequence[Row],
        *,
        entropy: float,
        reference: torch.Tensor | None = None,
        proximal: torch.Tensor | None = None,
    ) -> tuple[Sums, int]:
        """Add the gradient of these rows, which form one optimizer step, in micro-batches."""
        normaliser = self.ranks.total(sum(len(row.sample.reply_ids) for row in rows))
        given = {
            name: values
            for name, values in (("reference", reference), ("proximal", proximal))
            if values is not None
        }
        readings, computed = list[BatchSums](), 0
        with attending(self._network, self.layout):
            for packed, is_last in _mark_last(self._batches(rows)):
                if isinstance(packed, EmptyBatch):
                    packed.take_part(self._score_network)
                    continue
                logprobs, entropies, choices = self._score_network(self._network, packed)
                own = {name: values[packed.terms.index] for name, values in given.items()}
                loss, reading = policy_loss(
                    logprobs,
                    entropies,
                    choices,
                    packed.terms,
                    self.options,
                    entropy=entropy,
                    normaliser=normaliser,
                    **own,
                )
                self._backward(loss, is_last)
                readings.append(reading)
                computed += packed.tokens
        return read(readings), computed

    def _batches(self, rows: Sequence[Row]) -> Iterable[Packed | EmptyBatch]:
        """The micro-batches of a step; sharded ranks all take part in the same number of them."""
        if not isinstance(self.trainable, FullySharded):
            return self.pack(rows)
        own = list(self.pack(rows))
        missing = max(self.ranks.gather(len(own))) - len(own)
        return [*own, *[EmptyBatch(next(iter(self.pack(idle_rows()))))] * missing]

    def _backward(self, loss: torch.Tensor, is_last: bool) -> None:
        """Add the gradient of a micro-batch; in the last one, complete gradients are sent."""
        if isinstance(self.trainable, FullySharded):
            (loss * self.ranks.size).backward()  # FSDP takes the mean over the ranks
            return
        if self._sum is not None and is_last:
            with self.trainable.watching(self._sum.ready):
                loss.backward()
        else:
            loss.backward()
        self.trainable.collect()

    def _descend(self) -> tuple[float, bool]:
        """Make an optimizer step. Returns the gradient norm and whether it was finite.

        A step with an infinite or NaN gradient is skipped.
        """
        if self._sum is not None:
            self._sum.finish()
        norm = float(whole(clip_grad_norm_(self._masters.values(), self.options.grad_clip)))
        finite = norm < float("inf")
        if finite:
            self._optimizer.step()
            self._publish()
        self.module.zero_grad(set_to_none=True)
        for master in self._masters.values():
            master.grad = None
        return norm, finite

    def _publish(self) -> None:
        """Bring the new weights into the module, on all ranks."""
        if self._owned is not None and isinstance(self.trainable, Adapters):
            self._owned.share(self._masters)
        self.trainable.publish()
        if self._owned is not None and isinstance(self.trainable, AllWeights):
            self._owned.share(self.trainable.weights())

    def save(self, folder: Path, *, update: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint with the whole state of the learner.

        With a sharded optimizer all ranks must call this; rank 0 writes.
        """
        states = {
            name: self._optimizer.state.get(master, {}) for name, master in self._masters.items()
        }
        weights, moments = collect_state(self._masters, states, self._owned)
        if isinstance(self.trainable, FullySharded):
            weights, moments = (
                {name: whole(value).cpu() for name, value in held.items()}
                for held in (weights, moments)
            )
        if not self.ranks.is_main:
            return checkpoint.place(folder, update)
        adapter = isinstance(self.trainable, Adapters)
        return checkpoint.save(
            folder, checkpoint.Checkpoint(update, weights, adapter, moments, state)
        )

    def load(self, path: Path, weights_only: bool = False) -> checkpoint.Checkpoint:
        """Load a checkpoint. All later updates equal those of an uninterrupted run.

        `weights_only` is for play: the optimizer starts from zero.
        """
        found = checkpoint.load(path, weights_only)
        expected = {name: master.shape for name, master in self._masters.items()}
        if expected != {name: value.shape for name, value in found.weights.items()}:
            kind = "adapters" if found.adapter else "weights"
            raise UserError(
                f"checkpoint {path} holds {kind} whose shapes differ from this run's: it belongs "
                "to another model or another learn.lora_rank; use the recipe it was written with"
            )
        for name, master in self._masters.items():
            self.trainable.set_master(name, found.weights[name])
            self._optimizer.state.pop(master, None)
        for key, value in found.optimizer.items():
            name, _, moment = key.rpartition(".")
            if self._owns(name):
                master = self._masters[name]
                if isinstance(self.trainable, FullySharded):
                    value = self.trainable.place_moment(name, value)
                self._optimizer.state[master][moment] = value.to(master.device)
        self.trainable.publish()
        return found


def _mark_last(
    batches: Iterable[Packed | EmptyBatch],
) -> Iterator[tuple[Packed | EmptyBatch, bool]]:
    """The micro-batches, each with whether it is the last one."""
    waiting: Packed | EmptyBatch | None = None
    for batch in batches:
        if waiting is not None:
            yield waiting, False
        waiting = batch
    if waiting is not None:
        yield waiting, True
