"""The learner: it turns samples into optimizer steps.

    update = for each mini-batch:    pack -> score -> loss -> backward,  then one optimizer step

It shares its module with the engine that plays. So it switches the attention on entry and back on
exit, and it keeps the model in eval mode: with dropout, sampler and learner would differ.

On a GPU the host does not wait for a step: it packs and launches the next one meanwhile. Norms and
sums stay on the device until the end of the update, and the optimizer itself skips a step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil
from pathlib import Path
from typing import Any

import torch

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn import checkpoint
from mage.learn.adapters import Adapters, make_trainable
from mage.learn.logits_check import check_logits
from mage.learn.loss import BatchSums, Scores, add_up, policy_loss
from mage.learn.minibatches import cut_by_rows, split_by_unit
from mage.learn.pack.attention import attending, hidden_states
from mage.learn.pack.compilation import compile_clock
from mage.learn.pack.packer import Packer, best_layout, check_packable
from mage.learn.pack.packing import Layout, Packed
from mage.learn.pack.tries import Row, prepare
from mage.learn.token_logprobs import choice_entropies, token_logprobs
from mage.learn.trainable import Trainable
from mage.learn.update_metrics import Metrics, Step, measure_update
from mage.models.architecture import PreTrainedModel, is_known, trying
from mage.ranks.ranks import Ranks
from mage.seeds import derive
from mage.types import Sample

_SKIPPING = ("cpu", "cuda")  # devices whose fused AdamW skips a step


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
        self.pack = Packer(model, self.layout, options.tokens_at_once, options.tree_tokens)
        self.trainable = self._make_trainable(start)
        self._masters = self.trainable.masters
        self._optimizer = torch.optim.AdamW(
            [master for name, master in self._masters.items() if self.trainable.owns(name)],
            lr=options.lr,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=True,
        )
        if not is_known(model):
            packed = "set learn.packed = false, or " if options.packed else ""
            with trying(model, "the learner", f"{packed}use another model"):
                check_logits(model, self.logprobs, temperature)

    def _make_trainable(self, start: Path | None) -> Trainable:
        shard = self.options.shard if self.ranks.has_group else "none"
        if shard == "full":
            from mage.learn.fully_sharded import FullySharded  # slow to load

            with self.ranks.undivided():
                return FullySharded(self.module, self.ranks, reference=self.options.kl > 0)
        trainable = make_trainable(self.module, self.options, seed=self.seed, start=start)
        if shard == "optimizer":
            trainable.shard_optimizer(self.ranks)
        return trainable

    # -- an update

    def update(self, samples: Sequence[Sample], *, entropy: float, update: int) -> Metrics:
        """One update from new samples: `epochs` x `minibatches` optimizer steps.

        `entropy` is the coefficient of the entropy bonus.
        """
        if not self.ranks.total(len(samples)):
            raise UserError("an update needs at least one sample")
        rows = prepare(samples)
        lr = self.options.lr_at(update, self.total_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        reference = self.logprobs(rows, reference=True) if self.options.kl else None
        launched = []
        for epoch in range(self.options.epochs):
            for batch in self._minibatches(rows, derive(self.seed, "minibatches", update, epoch)):
                sums, computed = self.accumulate(batch, entropy=entropy, reference=reference)
                launched.append((sums, computed, self._step()))
        steps = [Step(add_up(sums), computed, float(norm)) for sums, computed, norm in launched]
        return measure_update(rows, steps, self.options, self.ranks, lr=lr, entropy=entropy)

    def _minibatches(self, rows: Sequence[Row], seed: int) -> list[list[Row]]:
        """The rows of each optimizer step of an epoch. All workers get the same number of steps."""
        limit = self.options.minibatch_rows
        parts = ceil(self.ranks.total(len(rows)) / limit) if limit else self.options.minibatches
        # Ranks that play whole groups divide their own rows, each for itself.
        sharing = self.ranks if self.ranks.deals_members else Ranks()
        if limit:
            return cut_by_rows(rows, parts, seed, sharing)
        return split_by_unit(rows, parts, seed, sharing)

    def accumulate(
        self, rows: Sequence[Row], *, entropy: float, reference: torch.Tensor | None = None
    ) -> tuple[list[BatchSums], int]:
        """Add the gradient of these rows, which form one optimizer step, in micro-batches.

        Returns their sums for the metrics and the number of tokens that the network computed.
        """
        normaliser = self.ranks.total(sum(len(row.sample.reply_ids) for row in rows))
        sums, computed = list[BatchSums](), 0
        passes = self.trainable.forward_passes(rows, self.pack, self._score)
        with attending(self.trainable.network, self.layout):
            for packed, scores in passes:
                loss, batch_sums = policy_loss(
                    scores,
                    packed.replies,
                    self.options,
                    entropy=entropy,
                    normaliser=normaliser,
                    reference=None if reference is None else reference[packed.replies.index],
                )
                self.trainable.backward(loss)
                sums.append(batch_sums)
                computed += packed.tokens
        return sums, computed

    def _score(self, model: PreTrainedModel, packed: Packed) -> Scores:
        """What `model` says about the reply tokens of a micro-batch."""
        learns = torch.is_grad_enabled()
        hidden = hidden_states(
            model,
            packed,
            recompute=bool(self.options.recompute) and learns,
            factors=self.trainable.factors if learns else None,
            graphs=self.trainable.graphs if learns else None,
        )
        head, replies = model.get_output_embeddings(), packed.replies
        logprobs, entropies = token_logprobs(
            hidden.index_select(0, replies.parents),
            head,
            replies.targets,
            temperature=self.temperature,
            entropy_learns=learns and self.options.token_entropy > 0,
        )
        choices = choice_entropies(
            hidden.index_select(0, replies.choice_parents),
            head,
            replies.choice_tokens,
            temperature=self.temperature,
        )
        return Scores(logprobs, entropies, choices)

    def _step(self) -> torch.Tensor:
        """Make an optimizer step. Returns the gradient norm, on the device.

        A step with an infinite or NaN gradient changes nothing. The optimizer itself skips it if
        `found_inf` is 1; on other devices (MPS) it ignores this number, so the host looks.
        """
        self.trainable.sum_gradients(self.ranks)
        norm = self.trainable.clip_gradients(self.options.grad_clip)
        finite = norm.isfinite()
        self._optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        if norm.device.type in _SKIPPING or finite:
            self._optimizer.step()
            self.trainable.after_step()
        self.module.zero_grad(set_to_none=True)
        for master in self._masters.values():
            master.grad = None
        return norm

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> torch.Tensor:
        """Logprobs of all reply tokens under the policy or the frozen reference, by token index."""
        real = torch.float64 if self.module.dtype == torch.float64 else torch.float32
        tokens = sum(len(row.sample.reply_ids) for row in rows)
        logprobs = torch.empty(tokens, dtype=real, device=self.module.device)
        with (
            self.trainable.reference() if reference else nullcontext(self.module) as model,
            torch.no_grad(),
            attending(model, self.layout),
        ):
            for packed in self.pack(rows):
                logprobs[packed.replies.index] = self._score(model, packed).logprobs
        return logprobs

    # -- checkpoints

    @property
    def is_sharded(self) -> bool:
        """Whether saving needs all ranks."""
        return self.trainable.is_sharded

    def save(self, folder: Path, *, update: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint with the whole state of the learner.

        If `is_sharded`, all ranks must call this; rank 0 writes.
        """
        weights, moments = self.trainable.state(self._optimizer)
        if not self.ranks.is_main:
            return checkpoint.place(folder, update)
        adapter = isinstance(self.trainable, Adapters)
        return checkpoint.save(
            folder, checkpoint.Checkpoint(update, weights, adapter, moments, state)
        )

    def load(self, path: Path) -> checkpoint.Checkpoint:
        """Load a checkpoint. All later updates equal those of an uninterrupted run."""
        with self.ranks.undivided():  # weights in parts are sent to their ranks
            found = self.trainable.load(path)
        for master in self._masters.values():
            self._optimizer.state.pop(master, None)
        for key, value in found.optimizer.items():
            name, _, moment = key.rpartition(".")
            if self.trainable.owns(name):
                placed = self.trainable.place_moment(name, value)
                self._optimizer.state[self._masters[name]][moment] = placed
        return found

    # -- compilation

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
