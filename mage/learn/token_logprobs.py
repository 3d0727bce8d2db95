"""What the network says about reply tokens: logprobs and entropies from hidden states.

Logits are the largest tensors of a step. A GPU, and a CPU with many tokens, computes them in
pieces, and again in the backward pass, so they are never all in memory.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from mage.learn.pack.compilation import compiled

# Logits of a piece: 2**24 float32 values are 64 MB.
LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}


def token_logprobs(
    hidden: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    *,
    temperature: float,
    entropy_learns: bool = False,
) -> tuple[Tensor, Tensor]:
    """Logprob of each target and the entropy of its distribution, from hidden states [T, width].

    The entropy has a gradient with `entropy_learns` only.
    """
    bias = getattr(head, "bias", None)
    at_once = LOGITS_AT_ONCE.get(hidden.device.type, 2**24)
    length = max(1, at_once // head.weight.shape[0])
    if len(targets) <= length and hidden.device.type == "cpu":
        logprobs, entropies, _ = _score_logits(head(hidden), targets, temperature, entropy_learns)
        return logprobs, entropies
    given = (hidden, head.weight, bias, targets, temperature, length)
    learns = torch.is_grad_enabled() and hidden.requires_grad
    if learns and hidden.device.type == "cuda" and not (entropy_learns or _head_learns(head)):
        return _ScoredWithSlopes.apply(*given)  # type: ignore[no-untyped-call, no-any-return]
    return _Scored.apply(*given, entropy_learns)  # type: ignore[no-untyped-call, no-any-return]


def _head_learns(head: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in head.parameters())


class _ScoredWithSlopes(torch.autograd.Function):
    """`_Scored` for a head without gradient, with two products instead of three.

    The gradient of a token's logprob for its hidden state is known in the forward pass, up to one
    factor per token. So the logits are computed once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        length: int,
    ) -> tuple[Tensor, Tensor]:
        score = _score_with_slopes
        if hidden.is_cuda and hidden.dtype != torch.float64:
            from mage.learn.head_kernel import score_with_slopes as score  # needs Triton
        slopes, pieces, start = torch.empty_like(hidden), [], 0
        for states, wanted in _pieces(length, hidden, targets):
            logits = linear(states, weight, bias)
            pieces.append(score(logits, wanted, temperature))  # logits are now their gradients
            torch.mm(logits, weight, out=slopes[start : start + len(states)])
            start += len(states)
        logprobs, entropies = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        grad_hidden = (slopes * gradients[0][:, None]).to(slopes.dtype)
        return grad_hidden, None, None, None, None, None


class _Scored(torch.autograd.Function):
    """`_score_logits` of hidden @ weight.T + bias, in pieces. No logits are kept."""

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
        logprobs, entropies, log_sums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, log_sums, entropies)
        ctx.temperature, ctx.length = temperature, length
        ctx.entropy_learns = entropy_learns
        if not entropy_learns:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropies = gradients
        hidden, weight, bias, targets, log_sums, entropies = ctx.saved_tensors
        logits_gradient = _compiled(_logits_gradient, hidden.device.type)
        entropy_gradient = _compiled(_entropy_gradient, hidden.device.type)
        grad_hidden = torch.empty_like(hidden)
        # With LoRA the head is frozen and needs no gradient.
        grad_weight = (
            torch.zeros_like(weight, dtype=log_sums.dtype) if ctx.needs_input_grad[1] else None
        )
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=log_sums.dtype)
        start = 0
        for states, wanted, log_sum, entropy, grad_logprob, grad_entropy in _pieces(
            ctx.length, hidden, targets, log_sums, entropies, grad_logprobs, grad_entropies
        ):
            logits = linear(states, weight, bias)
            grad_logits = logits_gradient(logits, wanted, log_sum, grad_logprob, ctx.temperature)
            if ctx.entropy_learns:
                grad_logits += entropy_gradient(
                    logits, log_sum, entropy, grad_entropy, ctx.temperature
                )
            grad_hidden[start : start + len(states)] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ states
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0, dtype=log_sums.dtype)
            start += len(states)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _score_with_slopes(
    logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """As `head_kernel.score_with_slopes`: the logits are overwritten by their gradients."""
    logprobs, entropies, log_sums = _score_logits(logits, targets, temperature)
    ones = torch.ones_like(log_sums)
    logits.copy_(_logits_gradient(logits, targets, log_sums, ones, temperature))
    return logprobs, entropies


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Logits at a temperature, in float32 at least."""
    return (logits if logits.dtype == torch.float64 else logits.float()) / temperature


def _pieces(length: int, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(part.split(length) for part in rows), strict=True)


def _score_logits(
    logits: Tensor, targets: Tensor, temperature: float, entropy_learns: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the targets, entropies, and log-sum-exps, one of each per row."""
    wide = _scaled(logits, temperature)
    log_sums = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1) - log_sums
    with torch.set_grad_enabled(entropy_learns and torch.is_grad_enabled()):
        entropies = log_sums - ((wide - log_sums[:, None]).exp() * wide).sum(-1)
    return chosen, entropies, log_sums


def _logits_gradient(
    logits: Tensor, targets: Tensor, log_sums: Tensor, grad_output: Tensor, temperature: float
) -> Tensor:
    """Gradient of the target logprobs, weighted with the incoming gradient, for the logits."""
    wide = _scaled(logits, temperature)
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    slope = is_target.to(wide.dtype) - (wide - log_sums[:, None]).exp()
    return (slope * (grad_output / temperature)[:, None]).to(logits.dtype)


def _entropy_gradient(
    logits: Tensor, log_sums: Tensor, entropies: Tensor, grad_output: Tensor, temperature: float
) -> Tensor:
    """Gradient of the entropies, weighted with the incoming gradient: -p (log p + H)."""
    wide = _scaled(logits, temperature)
    logprobs = wide - log_sums[:, None]
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
    wide = _scaled(logits, temperature)
    logprobs = wide.masked_fill(~real, -1e9).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)
