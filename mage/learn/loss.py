"""The loss of the paper with its diagnostics.

Every term is a SUM over tokens divided by a given normaliser (all reply tokens of the optimizer
step), so the losses of micro-batches add up to the loss of the whole batch exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
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


class Scores(NamedTuple):
    """What the network says about a micro-batch, all at the sampling temperature."""

    logprobs: Tensor  # of the reply tokens
    entropies: Tensor  # over the vocabulary at the reply tokens
    choices: Tensor  # entropies among the legal moves, where these diverge


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


def token_logprobs(
    hidden: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    *,
    temperature: float,
    at_once: int | None = None,
    entropy_learns: bool = False,
) -> tuple[Tensor, Tensor]:
    """Logprob of each target and the entropy of its distribution, from hidden states [T, width].

    The entropy has a gradient with `entropy_learns` only. Logits are computed in pieces, and again
    in the backward pass, so they are never all in memory.
    """
    bias = getattr(head, "bias", None)
    length = max(
        1, (at_once or LOGITS_AT_ONCE.get(hidden.device.type, 2**24)) // head.weight.shape[0]
    )
    if len(targets) <= length and hidden.device.type == "cpu":
        logprobs, entropies, _ = _score_logits(head(hidden), targets, temperature, entropy_learns)
        return logprobs, entropies
    scored: tuple[Tensor, Tensor] = _Scored.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, bias, targets, temperature, length, entropy_learns
    )
    return scored


class _Scored(torch.autograd.Function):
    """`_score_logits` of hidden @ weight.T + bias, in pieces. Only the log-sum-exps are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        length: int,
        entropy_learns: bool,
    ) -> tuple[Tensor, Tensor]:
        score = _compiled(_score_logits, hidden.device.type)
        pieces = [
            score(linear(states, weight, bias), wanted, temperature)
            for states, wanted in _pieces(length, hidden, targets)
        ]
        logprobs, entropies, sums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        kept = (entropies,) if entropy_learns else ()
        ctx.save_for_backward(hidden, weight, bias, targets, sums, *kept)
        ctx.temperature, ctx.length = temperature, length
        if not entropy_learns:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, sums, *kept = ctx.saved_tensors
        logits_gradient = _compiled(_logits_gradient, hidden.device.type)
        entropy_gradient = _compiled(_entropy_gradient, hidden.device.type)
        of_entropy = [*kept, gradients[1]] if kept else []
        grad_hidden = torch.empty_like(hidden)
        # With LoRA the head is frozen and needs no gradient.
        grad_weight = (
            torch.zeros_like(weight, dtype=sums.dtype) if ctx.needs_input_grad[1] else None
        )
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=sums.dtype)
        start = 0
        for states, wanted, exponents, grad_output, *entropy in _pieces(
            ctx.length, hidden, targets, sums, gradients[0], *of_entropy
        ):
            logits = linear(states, weight, bias)
            grad_logits = logits_gradient(logits, wanted, exponents, grad_output, ctx.temperature)
            if kept:
                grad_logits += entropy_gradient(logits, exponents, *entropy, ctx.temperature)
            grad_hidden[start : start + len(states)] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ states
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0, dtype=sums.dtype)
            start += len(states)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _pieces(length: int, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(part.split(length) for part in rows), strict=True)


def _score_logits(
    logits: Tensor, targets: Tensor, temperature: float, entropy_learns: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the targets, entropies, and log-sum-exps, one of each per row."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    sums = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1) - sums
    with torch.set_grad_enabled(entropy_learns and torch.is_grad_enabled()):
        entropies = sums - ((wide - sums[:, None]).exp() * wide).sum(-1)
    return chosen, entropies, sums


def _logits_gradient(
    logits: Tensor, targets: Tensor, sums: Tensor, grad_output: Tensor, temperature: float
) -> Tensor:
    """Gradient of the target logprobs, weighted with the incoming gradient, for the logits."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    slope = is_target.to(wide.dtype) - (wide - sums[:, None]).exp()
    return (slope * (grad_output / temperature)[:, None]).to(logits.dtype)


def _entropy_gradient(
    logits: Tensor, sums: Tensor, entropies: Tensor, grad_output: Tensor, temperature: float
) -> Tensor:
    """Gradient of the entropies, weighted with the incoming gradient: -p (log p + H)."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = wide - sums[:, None]
    slope = -logprobs.exp() * (logprobs + entropies[:, None])
    return (slope * (grad_output / temperature)[:, None]).to(logits.dtype)


@cache
def _compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Compiled on CUDA: one kernel instead of eight passes over the logits."""
    return compiled(function, dynamic=True) if device == "cuda" else function


def choice_entropies(
    hidden: Tensor, head: torch.nn.Module, tokens: Tensor, *, temperature: float
) -> Tensor:
    """Entropy among the tokens [places, tokens] where legal moves diverge, padded with -1."""
    real = tokens >= 0
    logits = torch.einsum("cd,ckd->ck", hidden, head.weight[tokens.clamp(min=0)])
    if getattr(head, "bias", None) is not None:
        logits = logits + head.bias[tokens.clamp(min=0)]
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = logits.masked_fill(~real, -1e9).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


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
) -> tuple[Tensor, BatchSums]:
    """Loss of one micro-batch and the sums for its diagnostics.

    The bonus `entropy` is over legal moves: the sum of the choices is, by the chain rule, an
    unbiased estimate of the entropy of the whole action. An entropy over the vocabulary rewards
    illegal tokens, until most moves are illegal; `options.token_entropy` is the weight of that one,
    which the published code uses. `reference` holds the logprobs of the KL reference.
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
                "reflection_entropy": (scores.entropies * replies.on_reflection).sum(),
                "clipped": cut.sum(),
                "approx_kl": (ratio - 1 - log_ratio).sum(),
                "ratio": ratio.sum(),
                "mismatch": difference.abs().sum(),
                "ratio_max": ratio.max(),
            },
        )
