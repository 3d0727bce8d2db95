"""From logits to tokens. The random number of a token is a hash of (seed, position), so a reply depends on nobody else.

The returned logprob is that of the distribution that was sampled from: temperature, top-k and top-p included and
renormalised. At temperature 0, where that distribution is a point, it is the model's own logprob.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Choices:
    """How each row of a batch is sampled; `index` counts the tokens of the reply."""

    seed: Array
    index: Array
    temperature: Array
    top_p: Array
    top_k: Array


def uniform(seed: Array, index: Array) -> Array:
    """Numbers in (0, 1) from seed and index alone (the splitmix64 generator, entered at any place)."""
    with np.errstate(over="ignore"):
        state = _mix(seed.astype(np.uint64)) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mix(state) >> np.uint64(41)
    return ((bits.astype(np.float64) + 0.5) / 2**23).astype(np.float32)


def _mix(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed


def sample(logits: torch.Tensor, choices: Choices) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their logprobs, one a row of `logits` [rows, vocabulary]."""
    logits = logits.float()
    greedy = choices.temperature == 0
    if (choices.temperature != 1).any():
        logits = logits / _column(np.where(greedy, 1, choices.temperature), logits)
    probabilities = logits.softmax(-1)
    cut = np.flatnonzero(((choices.top_k > 0) | (choices.top_p < 1)) & ~greedy)
    if len(cut):
        rows = torch.from_numpy(cut).to(logits.device)
        probabilities[rows] = _truncate(probabilities[rows], choices.top_k[cut], choices.top_p[cut])
    summed = probabilities.cumsum(-1)
    # Scaled by the actual sum: rounding can then never point past the last possible token.
    point = _column(uniform(choices.seed, choices.index), logits) * summed[:, -1:]
    tokens = torch.searchsorted(summed, point, right=True).clamp_(max=logits.shape[-1] - 1)
    if greedy.any():
        tokens = torch.where(_column(greedy, logits, torch.bool), logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], probabilities.gather(-1, tokens)[:, 0].log()


def _truncate(probabilities: torch.Tensor, top_k: Array, top_p: Array) -> torch.Tensor:
    """Keep the top_k likeliest tokens, of these the fewest that reach top_p, and renormalise."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    limit = _column(np.where(top_k > 0, top_k, probabilities.shape[-1]), probabilities, torch.int64)
    ordered = ordered * (torch.arange(probabilities.shape[-1], device=probabilities.device) < limit)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    ordered = ordered * (ordered.cumsum(-1) - ordered < _column(top_p, probabilities))
    ordered = ordered / ordered.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)


def _column(numbers: Array, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(numbers).to(like.device, dtype)[:, None]
