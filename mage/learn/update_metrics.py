"""The learner's metrics of one update, over all its optimizer steps and all ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from mage.config.sections import LearnOptions
from mage.learn.loss import Sums
from mage.learn.pack.tries import Row
from mage.ranks.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one update. Means are over the reply tokens of all steps unless stated otherwise.

    `kl` is None without a reference. `action_entropy` is the entropy among the legal moves, mean
    over play samples; `reflect_entropy` is per reflection token. `mismatch` is the mean of
    |logprob - sampler's logprob| in the first step, before any change. `computed_tokens` is the
    number of tokens the network computed, `row_tokens` the number without packing.
    """

    policy_loss: float
    kl: float | None
    action_entropy: float
    reflect_entropy: float
    clip_fraction: float
    approx_kl: float
    ratio_mean: float
    ratio_max: float
    mismatch: float
    gradient_norm: float
    lr: float
    entropy_coefficient: float
    steps: int
    skipped_steps: int
    samples: int
    reply_tokens: int
    computed_tokens: int
    row_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step of this rank."""

    sums: Sums
    computed: int  # tokens
    norm: float

    @property
    def made(self) -> bool:
        """A step whose gradient is not finite is skipped."""
        return isfinite(self.norm)


def measure_update(
    rows: Sequence[Row],
    steps: Sequence[Step],
    options: LearnOptions,
    ranks: Ranks,
    *,
    lr: float,
    entropy: float,
) -> Metrics:
    """The metrics of the steps that were made from the rows of all ranks."""
    own = sum((step.sums for step in steps), Sums())
    shares = ranks.gather((steps[0].sums, own, _sizes(rows, steps, options)))
    first = sum((share[0] for share in shares), Sums())
    total = sum((share[1] for share in shares), Sums())
    sizes = sum((share[2] for share in shares), Counter[str]())
    norms = [step.norm for step in steps if step.made]
    return Metrics(
        policy_loss=total.policy / total.tokens,
        kl=total.kl / total.tokens if options.kl else None,
        action_entropy=total.action_entropy / max(1.0, total.plays),
        reflect_entropy=total.reflect_entropy / max(1.0, total.reflection_tokens),
        clip_fraction=total.clipped / total.tokens,
        approx_kl=total.approx_kl / total.tokens,
        ratio_mean=total.ratio / total.tokens,
        ratio_max=total.ratio_max,
        mismatch=first.mismatch / first.tokens,
        gradient_norm=sum(norms) / max(1, len(norms)),
        lr=lr,
        entropy_coefficient=entropy,
        steps=len(steps),
        skipped_steps=len(steps) - len(norms),
        samples=sizes["samples"],
        reply_tokens=sizes["reply_tokens"],
        computed_tokens=sizes["computed_tokens"],
        row_tokens=sizes["row_tokens"],
    )


def _sizes(rows: Sequence[Row], steps: Sequence[Step], options: LearnOptions) -> Counter[str]:
    """The numbers of this rank, by the names in `Metrics`."""
    return Counter(
        samples=len(rows),
        reply_tokens=sum(len(row.sample.reply_ids) for row in rows),
        computed_tokens=sum(step.computed for step in steps),
        row_tokens=sum(len(row.ids) for row in rows) * options.epochs,
    )
