"""Attention of the local engine: keys and values go into the slot pool; a query sees its own slot.

A step is ONE flat row of tokens: first the decode tokens (one per sequence, ordered by slot), then
the prompts being prefilled. Linear layers see no padding; only attention is grouped. Decoding is
limited by reading keys. So a group attends over a VIEW of the pool where its slots are dense, and
the common prefix of its sequences (the rules) is read once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from mage.config.errors import UserError
from mage.engines.gpu.loop import TokenSlots
from mage.engines.pool import KeyValuePool
from mage.models.architecture import fixed_length

NAME = "mage_slots"
DENSE = 0.5  # share of used slots from which a view is faster than a gather
SHARED = 32  # common tokens from which reading them once is worth a second kernel
PREFILL = 64  # most prompts padded together
AREA = 1_000_000  # most entries of their mask, so that it stays in the processor's cache
ROUND = 16  # key lengths are rounded up to this, so that masks are aligned

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Flat rows start..end, one query each. `rows` are their places in a view; None = all of it.

    The first `shared` tokens are equal in all sequences; their keys are read from slot `first`.
    """

    start: int
    end: int
    first: int
    slots: "slice | torch.Tensor"
    span: int
    rows: torch.Tensor | None
    shared: int
    length: int
    mask: torch.Tensor

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        heads, kv_heads, size = query.shape[1], keys.shape[2], query.shape[2]
        # Query heads that share a key head become query positions, so keys are read once for all.
        query = query.reshape(-1, kv_heads, heads // kv_heads, size)
        if self.shared:
            found = self._attend_in_two(query, keys, values, scaling)
        else:
            found = self._pick(
                scaled_dot_product_attention(
                    *self._own(query, keys, values), attn_mask=self._mask(query), scale=scaling
                )
            )
        return found.reshape(-1, heads, size)

    def _attend_in_two(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention over the shared and the own keys, joined by their log-sum-exps."""
        own, own_sum = _attend_and_sum(
            *self._own(query, keys, values), attn_mask=self._mask(query), scale=scaling
        )
        count, kv_heads, together, size = query.shape
        side_by_side = query.transpose(0, 1).reshape(1, kv_heads, count * together, size)
        begin = (self.first, slice(self.shared))
        found, found_sum = _attend_and_sum(
            side_by_side,
            keys[begin].transpose(0, 1)[None],
            values[begin].transpose(0, 1)[None],
            scale=scaling,
        )
        found = found.reshape(kv_heads, count, together, size).transpose(0, 1)
        found_sum = found_sum.reshape(kv_heads, count, together).transpose(0, 1)
        weight = torch.sigmoid(self._pick(own_sum) - found_sum)[..., None].to(found.dtype)
        return torch.lerp(found, self._pick(own), weight)

    def _own(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.rows is not None:
            query = query.new_zeros(self.span, *query.shape[1:]).index_copy_(0, self.rows, query)
        own = slice(self.shared, self.length)
        return query, _of_slots(keys[:, own], self.slots), _of_slots(values[:, own], self.slots)

    def _mask(self, query: torch.Tensor) -> torch.Tensor:
        return self.mask.expand(-1, query.shape[1], query.shape[2], -1)

    def _pick(self, found: torch.Tensor) -> torch.Tensor:
        return found if self.rows is None else found.index_select(0, self.rows)


# The only CPU attention kernel that also returns the log-sum-exps, which joining two parts needs.
_attend_and_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def _of_slots(rows: torch.Tensor, slots: "slice | torch.Tensor") -> torch.Tensor:
    """[slots, length, heads, size] -> [these slots, heads, length, size]; a view for a slice."""
    # `index_select` copies whole rows and is several times faster than indexing with a tensor.
    chosen = rows[slots] if isinstance(slots, slice) else rows.index_select(0, slots)
    return chosen.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """Flat rows start..end: prompts of similar length, padded to one rectangle.

    `pad` gathers the rectangle, `unpad` gathers the flat rows back.
    """

    start: int
    end: int
    slots: "slice | torch.Tensor"
    length: int
    pad: torch.Tensor
    unpad: torch.Tensor
    mask: torch.Tensor

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        heads, kv_heads, size = query.shape[1], keys.shape[2], query.shape[2]
        found = scaled_dot_product_attention(
            query.index_select(0, self.pad).view(len(self.mask), -1, heads, size).transpose(1, 2),
            _of_slots(keys[:, : self.length], self.slots),
            _of_slots(values[:, : self.length], self.slots),
            attn_mask=self.mask,
            scale=scaling,
            enable_gqa=heads != kv_heads,
        )
        return found.transpose(1, 2).reshape(-1, heads, size).index_select(0, self.unpad)


@dataclass(frozen=True, slots=True)
class Plan:
    """The slot and position of every token of one step, and its attention groups."""

    pool: KeyValuePool
    write: torch.Tensor
    groups: tuple[DecodeGroup | PrefillGroup, ...]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Store the new keys and values of a layer, then attend; tensors: [tokens, heads, size]."""
        keys, values = self.pool.layer(layer)
        self.pool.write(keys, self.write, key)
        self.pool.write(values, self.write, value)
        found = [
            group.attend(query[group.start : group.end], keys, values, scaling)
            for group in self.groups
        ]
        return found[0] if len(found) == 1 else torch.cat(found)


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    plan: Plan | TokenSlots,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Called by every layer; tensors are [1, heads, tokens, size]."""
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    return plan.attend(module.layer_idx, query, key, value, scaling)[None], None


@contextmanager
def attending(model: torch.nn.Module, config: Any) -> Iterator[None]:
    """Use the engine's attention and eval mode inside the context; restore both on exit."""
    from transformers import AttentionInterface  # slow to load

    AttentionInterface.register(NAME, slot_attention)
    before = config._attn_implementation
    training = [module for module in model.modules() if module.training] if model.training else []
    config._attn_implementation = NAME
    for module in training:
        module.training = False
    try:
        yield
    finally:
        config._attn_implementation = before
        for module in training:
            module.training = True


def check_full_attention(config: Any, context: int) -> None:
    """Refuse models with sliding windows shorter than the context or other kinds of attention."""
    layers = getattr(config, "layer_types", None)
    kinds = set(layers or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UserError(
            f"the local engine supports full attention only; {config.model_type} has layers of "
            f"kind {sorted(kinds)}"
        )
    window = None if layers else getattr(config, "sliding_window", None)
    if window is not None and window < context:
        raise UserError(
            f"{config.model_type} sees the last {window} tokens only (sliding_window), and the "
            f"local engine supports full attention: set engines.context to {window} or less"
        )
    limit = fixed_length(config)
    if limit is not None and limit < context:
        raise UserError(
            f"{config.model_type} encodes positions in another way in texts of more than {limit} "
            f"tokens (rope_type), which the local engine cannot: set engines.context to {limit} or "
            "less, or use another model"
        )


def decode_groups(
    slots: Integers, lengths: Integers, size: int, pool: KeyValuePool, tokens: Integers
) -> list[DecodeGroup]:
    """Split the decode rows, ordered by slot, into groups; `lengths` counts the new key as well."""
    parts = [slice(start, start + size) for start in range(0, len(slots), size)]
    return [_decode_group(part.start, slots[part], lengths[part], pool, tokens) for part in parts]


def _decode_group(
    start: int, slots: Integers, lengths: Integers, pool: KeyValuePool, tokens: Integers
) -> DecodeGroup:
    count, first = len(slots), int(slots[0])
    span = int(slots[-1]) - first + 1
    length = min(_round_up(int(lengths.max())), pool.length)
    shared = (
        _shared(tokens, slots, int(lengths.min()) - 1)
        if pool.device.type == "cpu" and count > 1
        else 0
    )
    where: slice | torch.Tensor = slice(first, first + span)
    rows = None
    if count < DENSE * span:
        where, span = pool.on_device(slots), count
    elif count < span:
        rows = pool.on_device(slots - first)
        spread = np.full(span, shared + 1)  # an unused slot attends to one key, to avoid NaN
        spread[slots - first] = lengths
        lengths = spread
    last = pool.on_device(lengths - shared - 1)[:, None]
    mask = pool.causal_mask(last, length - shared)[:, None]
    return DecodeGroup(start, start + count, first, where, span, rows, shared, length, mask)


def _shared(tokens: Integers, slots: Integers, most: int) -> int:
    """Length of the common prefix of these slots, in whole blocks; 0 if it is short."""
    differs = (tokens[slots, :most] != tokens[slots[0], :most]).any(0)
    common = int(differs.argmax()) if differs.any() else most
    return common // ROUND * ROUND if common >= SHARED else 0


def prefill_groups(
    start: int, slots: Integers, filled: Integers, new: Integers, pool: KeyValuePool
) -> list[PrefillGroup]:
    """Split sequences, ordered by their number of new tokens, into groups of flat rows."""
    groups: list[PrefillGroup] = []
    low = 0
    while low < len(slots):
        part = slice(low, low + _together(new[low:], int((filled + new).max())))
        groups.append(_prefill_group(start, slots[part], filled[part], new[part], pool))
        low, start = part.stop, groups[-1].end
    return groups


def _together(new: Integers, length: int) -> int:
    """How many of the next sequences, shortest first, form one rectangle."""
    count = min(PREFILL, len(new))
    while count > 1 and count * int(new[count - 1]) * length > AREA:
        count //= 2
    return count


def _prefill_group(
    start: int, slots: Integers, filled: Integers, new: Integers, pool: KeyValuePool
) -> PrefillGroup:
    width, total = int(new.max()), int(new.sum())
    length = min(_round_up(int((filled + new).max())), pool.length)
    offsets = np.cumsum(new) - new
    steps = np.arange(width)
    pad = np.minimum(offsets[:, None] + steps, total - 1)
    unpad = np.flatnonzero(steps < new[:, None])
    # Padding queries see the keys up to their own position; their results are dropped.
    last = pool.on_device(np.minimum(filled[:, None] + steps, length - 1))
    where = slice(int(slots[0]), int(slots[0]) + 1) if len(slots) == 1 else pool.on_device(slots)
    return PrefillGroup(
        start,
        start + total,
        where,
        length,
        pool.on_device(pad.ravel()),
        pool.on_device(unpad),
        pool.causal_mask(last, length)[:, None],
    )


def _round_up(length: int) -> int:
    return -(-length // ROUND) * ROUND
