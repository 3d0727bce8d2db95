"""Imitation: cross-entropy on given replies. Shared prompts are computed once, as in RL."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from mage.learn.pack.attention import attending, hidden_states
from mage.learn.pack.packer import Packer
from mage.learn.pack.packing import Layout, Packed
from mage.learn.pack.tries import prepare
from mage.learn.token_logprobs import choice_entropies, token_logprobs
from mage.learn.trainable import Trainable
from mage.models.architecture import PreTrainedModel
from mage.types import Sample

TREE_TOKENS = 512  # of a forest; a trie is split where that saves time


def imitate(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    trainable: Trainable,
    *,
    micro_tokens: int = 8192,
    layout: Layout = "forest",
    recompute: bool = False,
) -> list[Tensor]:
    """One optimizer step towards the replies.

    Returns the losses of the micro-batches. Their sum is the mean loss per reply token; they stay
    on the device, so that the host can prepare the next step before it reads them. `recompute`:
    keep only the layers' inputs for the backward pass. `trainable` is what the optimizer changes.
    """
    losses = []
    tokens = sum(len(sample.reply_ids) for sample in samples)
    with attending(model, layout):
        for packed in _packer(model, layout, micro_tokens)(prepare(samples)):
            hidden = hidden_states(
                model,
                packed,
                recompute=recompute,
                factors=trainable.factors,
                graphs=trainable.graphs,
            )
            loss = -_logprobs(model, hidden, packed, temperature=1.0).sum() / tokens
            trainable.backward(loss)
            losses.append(loss.detach())
    clip_grad_norm_(trainable.masters.values(), 1.0)
    optimizer.step()
    trainable.write_to_model()
    optimizer.zero_grad(set_to_none=True)
    return losses


@torch.no_grad()
def action_entropy(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
    layout: Layout = "forest",
) -> float:
    """Entropy among the legal moves along the given replies, mean over the samples (nats).

    By the chain rule it equals the entropy of the move if the given replies and the model are both
    uniform over the legal moves.
    """
    total, head = 0.0, model.get_output_embeddings()
    with attending(model, layout):
        for packed in _packer(model, layout, micro_tokens)(prepare(samples)):
            places, tokens = packed.replies.choice_parents, packed.replies.choice_tokens
            hidden = hidden_states(model, packed).index_select(0, places)
            total += float(choice_entropies(hidden, head, tokens, temperature=temperature).sum())
    return total / len(samples)


@torch.no_grad()
def reply_logprobs(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    temperature: float = 1.0,
    tree_tokens: int = TREE_TOKENS,
    micro_tokens: int = 8192,
    layout: Layout = "forest",
) -> list[float]:
    """Log probability of every sample's whole reply."""
    rows = prepare(samples)
    tokens = torch.zeros(sum(len(sample.reply_ids) for sample in samples), dtype=torch.float64)
    with attending(model, layout):
        for packed in _packer(model, layout, micro_tokens, tree_tokens)(rows):
            logprobs = _logprobs(model, hidden_states(model, packed), packed, temperature)
            tokens[packed.replies.index.cpu()] = logprobs.double().cpu()
    return [
        float(tokens[row.offset : row.offset + len(row.sample.reply_ids)].sum()) for row in rows
    ]


def _logprobs(model: PreTrainedModel, hidden: Tensor, packed: Packed, temperature: float) -> Tensor:
    states, head = hidden.index_select(0, packed.replies.parents), model.get_output_embeddings()
    return token_logprobs(states, head, packed.replies.targets, temperature=temperature)[0]


def _packer(
    model: PreTrainedModel, layout: Layout, micro_tokens: int, tree_tokens: int = TREE_TOKENS
) -> Packer:
    """The packer of a layout. A trie ignores `tree_tokens`: it is split where that saves time."""
    return Packer(model, layout, micro_tokens, None if layout == "trie" else tree_tokens)
