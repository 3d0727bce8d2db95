"""The loss as the paper states it, with its diagnostics beside it. Everything is a SUM over tokens divided by a given
normaliser (all reply tokens of the optimizer step), so that micro-batches add up to the whole batch exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import torch
from torch.nn.functional import linear

from mage.config.sections import LearnOptions
from mage.learn.packing import Terms

# exp(20) is 5e8: beyond it a ratio says nothing more, and an overflow would turn a zero gradient into NaN.
LARGEST_LOG_RATIO = 20.0
# Logits held at once: 2**24 float32 are 64 MB. A micro-batch that needs more recomputes them in the backward pass.
LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}


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
        added = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Sums(**added | {"ratio_max": max(self.ratio_max, other.ratio_max)})


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums of one micro-batch, those that the device computes still there: to ask for them would make the host wait."""

    tokens: int
    plays: int
    measured: torch.Tensor


def read(readings: Sequence[Reading]) -> Sums:
    """The sums of some micro-batches, or of none; here the host waits, once."""
    rows = torch.stack([reading.measured for reading in readings]).tolist() if readings else []
    return sum(
        (
            Sums(reading.tokens, reading.plays, *row)
            for reading, row in zip(readings, rows, strict=True)
        ),
        Sums(),
    )


def token_logprobs(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    targets: torch.Tensor,
    *,
    temperature: float,
    at_once: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob of each target, and the entropy of its distribution as a figure, from the hidden states that predict them [T, width].

    The logits of all of them are never there at once: a piece at a time, and again in the backward pass.
    """
    bias = getattr(head, "bias", None)
    length = max(
        1, (at_once or LOGITS_AT_ONCE.get(hidden.device.type, 2**24)) // head.weight.shape[0]
    )
    if len(targets) <= length and hidden.device.type == "cpu":
        logprobs, entropies, _ = _look(head(hidden), targets, temperature)
        return logprobs, entropies.detach()
    return _Scored.apply(hidden, head.weight, bias, targets, temperature, length)  # type: ignore[no-any-return,no-untyped-call]


class _Scored(torch.autograd.Function):
    """`_look` at hidden @ weight.T + bias, piece by piece. Between the passes only the sums of exponentials are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        length: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        look = _compiled(_look, hidden.device.type)
        pieces = [
            look(linear(states, weight, bias), wanted, temperature)
            for states, wanted in _pieces(length, hidden, targets)
        ]
        logprobs, entropies, sums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, sums)
        ctx.temperature, ctx.length = temperature, length
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, sums = ctx.saved_tensors
        slope = _compiled(_slope, hidden.device.type)
        own = torch.empty_like(hidden)
        total = torch.zeros_like(weight, dtype=sums.dtype)
        shift = None if bias is None else torch.zeros_like(bias, dtype=sums.dtype)
        done = 0
        for states, wanted, exponents, above in _pieces(
            ctx.length, hidden, targets, sums, gradients[0]
        ):
            steep = slope(linear(states, weight, bias), wanted, exponents, above, ctx.temperature)
            own[done : done + len(states)] = steep @ weight
            total += steep.t() @ states
            if shift is not None:
                shift += steep.sum(0, dtype=sums.dtype)
            done += len(states)
        return (
            own,
            total.to(weight.dtype),
            None if shift is None else shift.to(weight.dtype),
            None,
            None,
            None,
        )


def _pieces(length: int, *rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(part.split(length) for part in rows), strict=True)


def _look(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs of the targets, entropies, and the logarithms of the sums of exponentials, a row each."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    sums = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1) - sums
    with torch.no_grad():
        entropies = sums - ((wide - sums[:, None]).exp() * wide).sum(-1)
    return chosen, entropies, sums


def _slope(
    logits: torch.Tensor,
    targets: torch.Tensor,
    sums: torch.Tensor,
    above: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """How the chosen logprobs, each weighed with the gradient from above, change with the logits."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return (
        (is_target.to(wide.dtype) - (wide - sums[:, None]).exp()) * (above / temperature)[:, None]
    ).to(logits.dtype)


@cache
def _compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """On CUDA one kernel instead of eight passes over the logits."""
    return torch.compile(function, dynamic=True) if device == "cuda" else function


def choice_entropies(
    hidden: torch.Tensor, head: torch.nn.Module, tokens: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Entropy among the tokens that legal moves part into [places, tokens], filled up with -1; gradients flow."""
    real = tokens >= 0
    logits = torch.einsum("cd,ckd->ck", hidden, head.weight[tokens.clamp(min=0)])
    if getattr(head, "bias", None) is not None:
        logits = logits + head.bias[tokens.clamp(min=0)]
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = logits.masked_fill(~real, -1e9).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def policy_objective(
    ratio: torch.Tensor, advantages: torch.Tensor, options: LearnOptions
) -> tuple[torch.Tensor, torch.Tensor]:
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
) -> tuple[torch.Tensor, Reading]:
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
        objective = objective * (proximal - terms.old_logprobs).exp().clamp(
            max=options.importance_cap
        )
    policy = -objective.sum()
    bonus = choices.sum()
    kl = (
        low_variance_kl(logprobs, reference).sum()
        if reference is not None
        else torch.zeros_like(policy)
    )
    loss = (policy + options.kl * kl - entropy * bonus) / normaliser
    with torch.no_grad():
        measured = torch.stack((
            terms.on_reflection.sum(dtype=policy.dtype), policy, kl, bonus, (entropies * terms.on_reflection).sum(), cut.sum(), (ratio - 1 - log_ratio).sum(),
            ratio.sum(), (logprobs - terms.old_logprobs).abs().sum(), ratio.max(),
        ))  # fmt: skip
    return loss, Reading(len(terms), terms.plays, measured)
