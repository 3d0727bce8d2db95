"""The loss of the paper with its diagnostics.

Every term is a SUM over tokens divided by a given normaliser (all reply tokens of the optimizer
step), so the losses of micro-batches add up to the loss of the whole batch exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from mage.config.sections import LearnOptions
from mage.learn.pack.packing import ReplyTokens

# exp(20) is 5e8. A larger ratio carries no information, and an overflow turns a zero gradient
# into NaN.
LARGEST_LOG_RATIO = 20.0


class Scores(NamedTuple):
    """What the network says about a micro-batch, all at the sampling temperature."""

    logprobs: Tensor  # of the reply tokens
    entropies: Tensor  # over the vocabulary at the reply tokens
    choices: Tensor  # entropies among the legal moves, where these diverge


def policy_objective(
    ratio: Tensor, advantages: Tensor, options: LearnOptions
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective per token, and the tokens that the clip removes from the gradient.

    min(r A, clip(r, 1 - c, 1 + c) A); for A < 0 never below `dual_clip` A (Ye et al. 2020, eq. 5).
    Without that bound one token whose probability rose by accident could outweigh the batch.
    """
    plain = ratio * advantages
    clipped = ratio.clamp(1 - options.clip, 1 + options.clip) * advantages
    objective = torch.minimum(plain, clipped)
    cut = clipped < plain
    if options.dual_clip is not None:
        floor = options.dual_clip * advantages
        beyond = (advantages < 0) & (objective < floor)
        objective, cut = torch.where(beyond, floor, objective), cut | beyond
    return objective, cut


def low_variance_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """e^d - d - 1 with d = reference - logprob: never negative, zero if equal (Schulman's k3)."""
    difference = (reference - logprobs).clamp(max=LARGEST_LOG_RATIO)
    return difference.exp() - difference - 1


def policy_loss(
    scores: Scores,
    replies: ReplyTokens,
    options: LearnOptions,
    *,
    entropy: float,
    normaliser: float,
    reference: Tensor | None = None,
) -> tuple[Tensor, "BatchSums"]:
    """Loss of one micro-batch and the sums for its diagnostics.

    `entropy` is the coefficient of a bonus over legal moves: the sum of the choices is, by the
    chain rule, an unbiased estimate of the entropy of the whole action. An entropy over the
    vocabulary rewards illegal tokens, until most moves are illegal; `options.token_entropy` is the
    weight of that one, which the published code uses. `reference` holds the logprobs of the KL
    reference.
    """
    difference = scores.logprobs - replies.old_logprobs
    log_ratio = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    objective, cut = policy_objective(ratio, replies.advantages, options)
    policy, bonus = -objective.sum(), scores.choices.sum()
    kl = torch.zeros_like(policy)
    if reference is not None:
        kl = low_variance_kl(scores.logprobs, reference).sum()
    loss = policy + options.kl * kl - entropy * bonus
    if options.token_entropy:
        loss = loss - options.token_entropy * scores.entropies.sum()
    loss = loss / normaliser
    with torch.no_grad():
        return loss, BatchSums.of(
            {"tokens": len(replies), "plays": replies.plays},
            {
                "reflection_tokens": replies.on_reflection.sum(dtype=policy.dtype),
                "policy": policy,
                "kl": kl,
                "action_entropy": bonus,
                "reflect_entropy": (scores.entropies * replies.on_reflection).sum(),
                "clipped": cut.sum(),
                "approx_kl": (ratio - 1 - log_ratio).sum(),
                "ratio": ratio.sum(),
                "mismatch": difference.abs().sum(),
                "ratio_max": ratio.max(),
            },
        )


# --- Sums for the metrics -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums for the diagnostics, added over micro-batches; `ratio_max` is a maximum."""

    tokens: float = 0.0
    plays: float = 0.0
    reflection_tokens: float = 0.0
    policy: float = 0.0
    kl: float = 0.0
    action_entropy: float = 0.0
    reflect_entropy: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    ratio: float = 0.0
    mismatch: float = 0.0
    ratio_max: float = 0.0

    def __add__(self, other: Self) -> "Sums":
        added = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Sums(**added | {"ratio_max": max(self.ratio_max, other.ratio_max)})


@dataclass(frozen=True, slots=True)
class BatchSums:
    """The sums of one micro-batch, by the names in `Sums`.

    `measured` stays on the device, so the host does not wait.
    """

    counted: dict[str, int]
    names: tuple[str, ...]
    measured: Tensor

    @classmethod
    def of(cls, counted: dict[str, int], measured: dict[str, Tensor]) -> "BatchSums":
        return cls(counted, tuple(measured), torch.stack(list(measured.values())))


def add_up(batches: Sequence[BatchSums]) -> Sums:
    """Add up the sums of micro-batches; the host waits for the device here, once."""
    rows = torch.stack([batch.measured for batch in batches]).tolist() if batches else []
    total = Sums()
    for batch, row in zip(batches, rows, strict=True):
        total += Sums(**batch.counted, **dict(zip(batch.names, row, strict=True)))
    return total
