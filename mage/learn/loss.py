"""The loss as the paper states it, with its diagnostics beside it. Everything is a SUM over tokens divided by a given
normaliser (all reply tokens of the optimizer step), so that micro-batches add up to the whole batch exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch.utils.checkpoint import checkpoint

from mage.learn.packing import Terms
from mage.options import LearnOptions

# exp(20) is 5e8: beyond it a ratio says nothing more, and an overflow would turn a zero gradient into NaN.
LARGEST_LOG_RATIO = 20.0
# Logits held at once: 2**24 float32 are 64 MB. A micro-batch that needs more recomputes them in the backward pass.
LOGITS_AT_ONCE = 2**24


@dataclass(frozen=True, slots=True)
class Sums:
    """What the diagnostics are made of, added over micro-batches; `ratio_max` is a maximum."""

    tokens: float = 0.0
    plays: float = 0.0
    reflection_tokens: float = 0.0
    policy: float = 0.0
    kl: float = 0.0
    action_entropy: float = 0.0
    reflection_entropy: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    ratio: float = 0.0
    mismatch: float = 0.0
    ratio_max: float = 0.0

    def __add__(self, other: Self) -> "Sums":
        added = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Sums(**added | {"ratio_max": max(self.ratio_max, other.ratio_max)})


def score(
    hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, *, temperature: float, at_once: int = LOGITS_AT_ONCE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob of each target, and the entropy of its distribution as a figure, from the hidden states that predict them [T, width]."""
    pieces = list(_pieces(hidden, head, targets, temperature, at_once))
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _pieces(
    hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, temperature: float, at_once: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    length = max(1, at_once // head.weight.shape[0])
    recompute = len(targets) > length and torch.is_grad_enabled()
    for states, wanted in zip(hidden.split(length), targets.split(length), strict=True):
        if recompute:
            yield checkpoint(_score_piece, states, head, wanted, temperature, use_reentrant=False)
        else:
            yield _score_piece(states, head, wanted, temperature)


def _score_piece(hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = logits.log_softmax(-1)
    with torch.no_grad():
        entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropies


def choice_entropies(hidden: torch.Tensor, head: torch.nn.Module, tokens: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Entropy among the tokens that legal moves part into [places, tokens], filled up with -1; gradients flow."""
    real = tokens >= 0
    logits = torch.einsum("cd,ckd->ck", hidden, head.weight[tokens.clamp(min=0)])
    if getattr(head, "bias", None) is not None:
        logits = logits + head.bias[tokens.clamp(min=0)]
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = logits.masked_fill(~real, -1e9).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def policy_objective(ratio: torch.Tensor, advantages: torch.Tensor, options: LearnOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped objective per token, and which tokens the clip has taken out of the gradient.

    min(r A, clip(r, 1 - c, 1 + c) A); for A < 0 never below `dual_clip` A (Ye et al. 2020, eq. 5), or else one token
    that the policy has come to like by accident would outweigh the batch.
    """
    high = options.clip if options.clip_high is None else options.clip_high
    plain = ratio * advantages
    clipped = ratio.clamp(1 - options.clip, 1 + high) * advantages
    objective = torch.minimum(plain, clipped)
    cut = clipped < plain
    if options.dual_clip is not None:
        floor = options.dual_clip * advantages
        beyond = (advantages < 0) & (objective < floor)
        objective, cut = torch.where(beyond, floor, objective), cut | beyond
    return objective, cut


def low_variance_kl(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """e^d - d - 1 with d = reference - logprob: never negative, zero where they agree (Schulman's k3)."""
    difference = (reference - logprobs).clamp(max=LARGEST_LOG_RATIO)
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    choices: torch.Tensor,
    terms: Terms,
    options: LearnOptions,
    *,
    entropy: float,
    normaliser: float,
    reference: torch.Tensor | None = None,
    proximal: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Sums]:
    """Loss of one micro-batch and the sums for its diagnostics.

    The bonus is the entropy among legal moves: `choices` summed, by the chain rule an unbiased estimate of the entropy of
    the whole action. An entropy over the vocabulary would pay for illegal tokens, and does so until most moves are
    illegal. `proximal` are the learner's own logprobs before the update: where they are given, the ratio
    is taken to them and what the sampler saw otherwise becomes a truncated importance weight.
    """
    old = terms.old_logprobs if proximal is None else proximal
    log_ratio = (logprobs - old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    objective, cut = policy_objective(ratio, terms.advantages, options)
    if proximal is not None:
        objective = objective * (proximal - terms.old_logprobs).exp().clamp(max=options.importance_cap)
    policy = -objective.sum()
    bonus = choices.sum()
    kl = low_variance_kl(logprobs, reference).sum() if reference is not None else torch.zeros_like(policy)
    loss = (policy + options.kl * kl - entropy * bonus) / normaliser
    with torch.no_grad():
        measured = torch.stack((
            policy, kl, bonus, (entropies * terms.on_reflection).sum(), cut.sum(), (ratio - 1 - log_ratio).sum(),
            ratio.sum(), (logprobs - terms.old_logprobs).abs().sum(), ratio.max(),
        ))  # fmt: skip
    return loss, Sums(len(terms), terms.plays, int(terms.on_reflection.sum()), *measured.tolist())
