"""From logits to tokens.

The random number of a token is a hash of (seed, position), so a reply does not depend on its
batch. The returned logprob is that of the distribution that was sampled from: temperature, top-k
and top-p included, renormalised. At temperature 0 it is the model's own logprob.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling options of each row of a batch; `index` counts the tokens of the reply."""

    seed: Array
    index: Array
    temperature: Array
    top_p: Array
    top_k: Array


def uniform(seed: Array, index: Array) -> Array:
    """Numbers in (0, 1) from seed and index (the splitmix64 generator at any position)."""
    with np.errstate(over="ignore"):
        state = _mix(seed.astype(np.uint64)) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        bits = _mix(state) >> np.uint64(41)
    return ((bits.astype(np.float64) + 0.5) / 2**23).astype(np.float32)


def _mix(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed


def sample(logits: torch.Tensor, choices: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their logprobs, one per row of `logits` [rows, vocabulary]."""
    logits = logits.float()
    greedy = choices.temperature == 0
    if (choices.temperature != 1).any():
        logits = logits / _column(np.where(greedy, 1, choices.temperature), logits)
    cut = np.flatnonzero(((choices.top_k > 0) | (choices.top_p < 1)) & ~greedy)
    if len(cut):
        rows, top_k = (
            torch.from_numpy(cut).to(logits.device),
            _column(choices.top_k[cut], logits, torch.int64),
        )
        logits = logits.index_copy(
            0,
            rows,
            truncate(
                logits[rows], torch.ones_like(top_k), top_k, _column(choices.top_p[cut], logits)
            ),
        )
    probabilities = logits.softmax(-1)
    summed = probabilities.cumsum(-1)
    # Scaled by the actual sum, so that rounding never points past the last possible token.
    point = _column(uniform(choices.seed, choices.index), logits) * summed[:, -1:]
    tokens = torch.searchsorted(summed, point, right=True).clamp_(max=logits.shape[-1] - 1)
    if greedy.any():
        tokens = torch.where(
            _column(greedy, logits, torch.bool), logits.argmax(-1, keepdim=True), tokens
        )
    return tokens[:, 0], probabilities.gather(-1, tokens)[:, 0].log()


def truncate(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Logits with everything outside top-k and top-p set to -inf, at `temperature`.

    Top-p applies to what top-k keeps. All options are columns; top_k = 0 and top_p = 1 change
    nothing.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    kept = (rank < top_k) | (top_k == 0)
    shares = (ordered / temperature).masked_fill(~kept, float("-inf")).softmax(-1)
    kept &= (shares.cumsum(-1) - shares < top_p) | (top_p >= 1)
    return torch.full_like(logits, float("-inf")).scatter_(
        -1, order, ordered.masked_fill(~kept, float("-inf"))
    )


def _column(numbers: Array, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(numbers).to(like.device, dtype)[:, None]
