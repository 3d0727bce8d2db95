"""From rows to micro-batches: which layout suits a model and its device, and how far to split."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.pack.layers import line_length
from mage.learn.pack.packing import Layout, Packed, pack_forest, pack_rows, pack_trie
from mage.learn.pack.plans import plan_forests, plan_rows, plan_tries
from mage.learn.pack.tries import Row
from mage.models.architecture import PreTrainedModel, fixed_length


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs rows for a model, at most about `micro_tokens` tokens at a time.

    `tree_tokens`: the largest tree that is not split; None = where splitting saves time.
    """

    model: PreTrainedModel
    layout: Layout
    micro_tokens: int
    tree_tokens: int | None = None

    def __call__(self, rows: Sequence[Row]) -> Iterator[Packed]:
        where: dict[str, Any] = {"dtype": self.model.dtype, "device": self.model.device}
        sizes: dict[str, Any] = {"micro_tokens": self.micro_tokens, "tree_tokens": self.tree_tokens}
        check_lengths(self.model, rows, self.layout)
        if self.layout == "trie":
            pad = partial(line_length, micro_tokens=self.micro_tokens, device=self.model.device)
            tries = plan_tries(rows, **sizes, pairs_per_token=trie_pairs_per_token(self.model))
            return (pack_trie(batch, **where, pad=pad) for batch in tries)
        if self.layout == "forest":
            forests = plan_forests(rows, **sizes, pairs_per_token=pairs_per_token(self.model))
            return (pack_forest(batch, **where) for batch in forests)
        lines = plan_rows(rows, micro_tokens=self.micro_tokens)
        return (pack_rows(batch, **where) for batch in lines)


def best_layout(model: PreTrainedModel, options: LearnOptions) -> Layout:
    """A trie on CUDA, where attention skips empty blocks; a forest where masks are dense."""
    if not options.packed:
        return "rows"
    return "trie" if model.device.type == "cuda" else "forest"


def short_layout(options: LearnOptions) -> Layout:
    """The layout for rows with short prompts: a forest is enough on every device."""
    return "forest" if options.packed else "rows"


def check_packable(model: PreTrainedModel) -> None:
    """Raise unless every layer has full attention with a mask that can be replaced.

    Windows or recurrent states do not pack.
    """
    name, kinds = type(model).__name__, set(getattr(model.config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        raise UserError(
            f"{name} has layers of kind {sorted(kinds)}, but packed training needs full attention: "
            "set learn.packed = false"
        )
    if not model._supports_attention_backend:
        raise UserError(
            f"{name} computes its attention without the attention interface of transformers, but "
            "packed training needs it: set learn.packed = false"
        )


def check_lengths(model: PreTrainedModel, rows: Sequence[Row], layout: Layout) -> None:
    """Raise if a row is longer than the window of the model's attention or its fixed positions.

    The window is checked for packed rows of a model that does not list the kinds of its layers;
    `check_packable` checks the others. Some models encode the positions of longer texts otherwise.
    """
    config, name = model.config, type(model).__name__
    longest = max((len(row.ids) for row in rows), default=0)
    packed = layout != "rows" and not getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if packed else None
    if window is not None and longest > window:
        raise UserError(
            f"{name} sees the last {window} tokens only (sliding_window), and a row has "
            f"{longest}: set engines.context to {window} or less, or learn.packed = false"
        )
    limit = fixed_length(config)
    if limit is not None and longest > limit:
        raise UserError(
            f"{name} encodes positions in another way in texts of more than {limit} tokens "
            f"(rope_type), and a row has {longest}: set engines.context to {limit} or less"
        )


def pairs_per_token(model: PreTrainedModel) -> float:
    """Number of query-key pairs that cost as much as one token outside attention.

    6 operations per weight and token, 14 per pair and channel (two products forward, five
    backward). Norms and activations about double the cost of a token (measured on a CPU with 64
    channels).
    """
    config = model.config
    weights = sum(value.numel() for value in model.get_decoder().layers.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 6 * weights / (14 * config.num_hidden_layers * config.num_attention_heads * head)


def trie_pairs_per_token(model: PreTrainedModel) -> float:
    """The same for a trie with FlexAttention on a GPU, from the weights of one layer.

    With 3.5 M weights a layer (SmolLM2-135M) trees of about 2,048 tokens with a common prefix of
    250 tokens were fastest, which is 8,192 pairs per token. The linear layers' time grows with
    the weights; the time of the longest sum over queries does not.
    """
    layers = model.get_decoder().layers
    return 8192 * sum(value.numel() for value in layers[0].parameters()) / 3.54e6
