"""The loss of the paper with its diagnostics.

Every term is a SUM over tokens divided by a given normaliser (all reply tokens of the optimizer
step), so the losses of micro-batches add up to the loss of the whole batch exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import torch
from torch.nn.functional import linear

from mage.config.sections import LearnOptions
from mage.learn.pack.compilation import compiled
from mage.learn.pack.packing import ReplyTokens

# exp(20) is 5e8. A larger ratio carries no information, and an overflow turns a zero gradient
# into NaN.
LARGEST_LOG_RATIO = 20.0
# Logits held at once: 2**24 float32 values are 64 MB. A larger micro-batch recomputes its logits
# in the backward pass.
LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums for the diagnostics, added over micro-batches; `ratio_max` is a maximum."""

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
class BatchSums:
    """The sums of one micro-batch. `measured` stays on the device, so the host does not wait."""

    tokens: int
    plays: int
    measured: torch.Tensor


def read(readings: Sequence[BatchSums]) -> Sums:
    """Add up the sums of micro-batches; the host waits for the device here, once."""
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
    """Logprob of each target and the entropy of its distribution, from hidden states [T, width].

    The entropy has no gradient. Logits are computed in pieces, and again in the backward pass, so
    they are never all in memory.
    """
    bias = getattr(head, "bias", None)
    length = max(
        1, (at_once or LOGITS_AT_ONCE.get(hidden.device.type, 2**24)) // head.weight.shape[0]
    )
    if len(targets) <= length and hidden.device.type == "cpu":
        logprobs, entropies, _ = _score_logits(head(hidden), targets, temperature)
        return logprobs, entropies.detach()
    scored: tuple[torch.Tensor, torch.Tensor] = _Scored.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, bias, targets, temperature, length
    )
    return scored


class _Scored(torch.autograd.Function):
    """`_score_logits` of hidden @ weight.T + bias, in pieces. Only the log-sum-exps are kept."""

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
        look = _compiled(_score_logits, hidden.device.type)
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
        slope = _compiled(_logits_gradient, hidden.device.type)
        own = torch.empty_like(hidden)
        # With LoRA the head is frozen and needs no gradient.
        total = torch.zeros_like(weight, dtype=sums.dtype) if ctx.needs_input_grad[1] else None
        shift = None if bias is None else torch.zeros_like(bias, dtype=sums.dtype)
        done = 0
        for states, wanted, exponents, above in _pieces(
            ctx.length, hidden, targets, sums, gradients[0]
        ):
            steep = slope(linear(states, weight, bias), wanted, exponents, above, ctx.temperature)
            own[done : done + len(states)] = steep @ weight
            if total is not None:
                total += steep.t() @ states
            if shift is not None:
                shift += steep.sum(0, dtype=sums.dtype)
            done += len(states)
        return (
            own,
            None if total is None else total.to(weight.dtype),
            None if shift is None else shift.to(weight.dtype),
            None,
            None,
            None,
        )


def _pieces(length: int, *rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(part.split(length) for part in rows), strict=True)


def _score_logits(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs of the targets, entropies, and log-sum-exps, one of each per row."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    sums = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1) - sums
    with torch.no_grad():
        entropies = sums - ((wide - sums[:, None]).exp() * wide).sum(-1)
    return chosen, entropies, sums


def _logits_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    sums: torch.Tensor,
    above: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Gradient of the target logprobs, weighted with the incoming gradient, for the logits."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return (
        (is_target.to(wide.dtype) - (wide - sums[:, None]).exp()) * (above / temperature)[:, None]
    ).to(logits.dtype)


@cache
def _compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Compiled on CUDA: one kernel instead of eight passes over the logits."""
    return compiled(function, dynamic=True) if device == "cuda" else function


def choice_entropies(
    hidden: torch.Tensor, head: torch.nn.Module, tokens: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Entropy among the tokens [places, tokens] where legal moves diverge, padded with -1."""
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
    """PPO's clipped objective per token, and the tokens that the clip removes from the gradient.

    min(r A, clip(r, 1 - c, 1 + c) A); for A < 0 never below `dual_clip` A (Ye et al. 2020, eq. 5).
    Without that bound one token whose probability rose by accident could outweigh the batch.
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
    """e^d - d - 1 with d = reference - logprob: never negative, zero if equal (Schulman's k3)."""
    difference = (reference - logprobs).clamp(max=LARGEST_LOG_RATIO)
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    choices: torch.Tensor,
    terms: ReplyTokens,
    options: LearnOptions,
    *,
    entropy: float,
    normaliser: float,
    reference: torch.Tensor | None = None,
    proximal: torch.Tensor | None = None,
) -> tuple[torch.Tensor, BatchSums]:
    """Loss of one micro-batch and the sums for its diagnostics.

    The entropy bonus is over legal moves: the sum of `choices` is, by the chain rule, an unbiased
    estimate of the entropy of the whole action. An entropy over the vocabulary rewards illegal
    tokens, until most moves are illegal. `proximal` holds the learner's own logprobs before the
    update: if given, the ratio is taken to them, and the difference from the sampler becomes a
    truncated importance weight.
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
        sums = (
            terms.on_reflection.sum(dtype=policy.dtype),
            policy,
            kl,
            bonus,
            (entropies * terms.on_reflection).sum(),
            cut.sum(),
            (ratio - 1 - log_ratio).sum(),
            ratio.sum(),
            (logprobs - terms.old_logprobs).abs().sum(),
            ratio.max(),
        )
        return loss, BatchSums(len(terms), terms.plays, torch.stack(sums))
