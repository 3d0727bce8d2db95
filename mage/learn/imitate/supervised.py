"""Imitation: cross-entropy on given replies. Shared prompts are computed once, as in RL."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from mage.learn.loss import choice_entropies, token_logprobs
from mage.learn.pack.attention import attending, hidden_states, trie_exchange_rate
from mage.learn.pack.layers import line_length
from mage.learn.pack.packing import (
    Layout,
    Packed,
    pack_forest,
    pack_rows,
    pack_trie,
    plan_forests,
    plan_rows,
    plan_tries,
)
from mage.learn.pack.tries import Row, prepare
from mage.learn.trainable import AllWeights, Trainable, factors_of_weights
from mage.types import Sample


def imitate(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    *,
    tree_tokens: int = 512,
    micro_tokens: int = 8192,
    packed: bool = True,
    layout: Layout | None = None,
    recompute: bool = False,
    trainable: Trainable | None = None,
) -> float:
    """One optimizer step towards the replies; returns the mean loss per reply token.

    `layout` overrides `packed`. `recompute`: keep only the layers' inputs for the backward pass.
    `trainable` is what the optimizer changes; the default is all weights of the model.
    """
    layout = layout or ("forest" if packed else "rows")
    trainable = trainable or AllWeights(model)
    factors, total = factors_of_weights(trainable), 0.0
    tokens = sum(len(sample.reply_ids) for sample in samples)
    with attending(model, layout):
        for batch in _pack(model, prepare(samples), tree_tokens, micro_tokens, layout):
            hidden = hidden_states(model, batch, recompute=recompute, factors=factors)
            logprobs, _ = token_logprobs(
                hidden.index_select(0, batch.terms.parents),
                model.get_output_embeddings(),
                batch.terms.targets,
                temperature=1.0,
            )
            loss = -logprobs.sum() / tokens
            loss.backward()
            trainable.collect()
            total += loss.item()
    clip_grad_norm_(trainable.masters.values(), 1.0)
    optimizer.step()
    trainable.publish()
    optimizer.zero_grad(set_to_none=True)
    return total


@torch.no_grad()
def action_entropy(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    temperature: float = 1.0,
    tree_tokens: int = 512,
    micro_tokens: int = 8192,
    packed: bool = True,
) -> float:
    """Entropy among the legal moves along the given replies, mean over the samples (nats).

    By the chain rule it equals the entropy of the move if the given replies and the model are both
    uniform over the legal moves.
    """
    total = 0.0
    layout: Layout = "forest" if packed else "rows"
    with attending(model, layout):
        for batch in _pack(model, prepare(samples), tree_tokens, micro_tokens, layout):
            hidden = hidden_states(model, batch).index_select(0, batch.terms.choice_parents)
            total += float(
                choice_entropies(
                    hidden,
                    model.get_output_embeddings(),
                    batch.terms.choice_tokens,
                    temperature=temperature,
                ).sum()
            )
    return total / len(samples)


@torch.no_grad()
def reply_logprobs(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    temperature: float = 1.0,
    tree_tokens: int = 512,
    micro_tokens: int = 8192,
    packed: bool = True,
    layout: Layout | None = None,
) -> list[float]:
    """Log probability of every sample's whole reply. `layout` overrides `packed`."""
    rows = prepare(samples)
    found = torch.zeros(sum(len(sample.reply_ids) for sample in samples), dtype=torch.float64)
    layout = layout or ("forest" if packed else "rows")
    with attending(model, layout):
        for batch in _pack(model, rows, tree_tokens, micro_tokens, layout):
            hidden = hidden_states(model, batch).index_select(0, batch.terms.parents)
            logprobs, _ = token_logprobs(
                hidden, model.get_output_embeddings(), batch.terms.targets, temperature=temperature
            )
            found[batch.terms.index.cpu()] = logprobs.double().cpu()
    return [
        float(found[row.offset : row.offset + len(row.sample.reply_ids)].sum())
        for row in sorted(rows, key=lambda row: row.offset)
    ]


def _pack(
    model: PreTrainedModel, rows: Sequence[Row], tree_tokens: int, micro_tokens: int, layout: Layout
) -> Iterator[Packed]:
    where: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
    if layout == "trie":
        tries = plan_tries(rows, micro_tokens=micro_tokens, exchange=trie_exchange_rate(model))
        pad = partial(line_length, micro_tokens=micro_tokens, device=model.device)
        return (pack_trie(batch, **where, pad=pad) for batch in tries)
    if layout == "forest":
        trees = plan_forests(rows, tree_tokens=tree_tokens, micro_tokens=micro_tokens)
        return (pack_forest(batch, **where) for batch in trees)
    return (pack_rows(batch, **where) for batch in plan_rows(rows, micro_tokens=micro_tokens))
