"""Imitation: cross-entropy on given replies, packed like reinforcement learning so that shared prompts cost once."""

from collections.abc import Sequence

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from mage.learn.attention import FOREST, attending, hidden_states
from mage.learn.loss import score
from mage.learn.packing import pack_forest, plan_forests, prepare
from mage.types import Sample


def imitate(model: PreTrainedModel, optimizer: torch.optim.Optimizer, samples: Sequence[Sample], *, tree_tokens: int = 512, micro_tokens: int = 8192) -> float:
    """One optimizer step towards the replies; returns the mean loss a reply token."""
    rows, total = prepare(samples), 0.0
    tokens = sum(len(sample.reply_ids) for sample in samples)
    with attending(model, FOREST):
        for trees in plan_forests(rows, tree_tokens=tree_tokens, micro_tokens=micro_tokens):
            packed = pack_forest(trees, dtype=model.dtype, device=model.device)
            hidden = hidden_states(model, packed).index_select(0, packed.terms.parents)
            logprobs, _ = score(hidden, model.get_output_embeddings(), packed.terms.targets, temperature=1.0)
            loss = -logprobs.sum() / tokens
            loss.backward()
            total += loss.item()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total
