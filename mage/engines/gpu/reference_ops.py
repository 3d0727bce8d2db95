"""The functions of `kernels.py` in plain PyTorch, for any device; tests compare both."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from mage.engines.drafts import propose
from mage.engines.gpu.state import Blocks, DeviceState
from mage.engines.pool import LARGEST, SMALLEST, ZERO, Scales
from mage.engines.sampling import uniform


def project(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer: rows @ weight^T + bias."""
    return linear(rows, weight, bias)


def project_gated(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """silu(gate) * up of a linear layer whose outputs are gate and up side by side."""
    return gated(linear(rows, weight, bias))


def add_project_norm(
    hidden: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor, epsilon: float
) -> Tensor:
    """Add a linear layer of `rows` to `hidden` in place; returns the norm of the sum."""
    hidden.addmm_(rows, weight.t())
    return rms_norm(hidden if bias is None else hidden.add_(bias), norm, epsilon)


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`hidden` [.., width] divided by its root mean square, times `weight`."""
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [rows, gate and up side by side]."""
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


def rotate_and_store(
    together: Tensor, heads: int, rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None, epsilon: float, slots: Tensor, positions: Tensor,
    keys: Tensor, values: Tensor, scales: Scales | None = None,
) -> Tensor:  # fmt: skip
    """Rotated queries of `together` [rows, heads + 2 kv heads, size]; stores keys and values."""
    query, key, value = together.split((heads, keys.shape[2], keys.shape[2]), 1)
    if norms is not None:
        query, key = rms_norm(query, norms[0], epsilon), rms_norm(key, norms[1], epsilon)
    cos, sin = (table.index_select(0, positions)[:, None] for table in rope)
    store((slots, positions), rotate(key, cos, sin), value, keys, values, scales)
    return rotate(query, cos, sin)


def store(
    where: tuple[Tensor, Tensor],
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    scales: Scales | None,
) -> None:
    """Write keys and values [tokens, kv heads, size] to slots and positions."""
    if scales is None:
        keys[where], values[where] = key, value
        return
    rows = torch.stack((key, value)).float()
    scale = (rows.abs().amax(-1).clamp(min=SMALLEST) / LARGEST).log2().half()
    small = (rows * torch.exp2(-scale.float())[..., None] + (ZERO + 0.5)).floor()
    keys[where], values[where] = small.to(torch.uint8)
    slots, positions = where
    scales.pairs[slots, :, positions] = scale.movedim(0, -1)


def rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """rotate_half of transformers: rolling by half maps (a, b) to (b, a); `sin` has the signs."""
    return torch.addcmul(rows * cos, rows.roll(rows.shape[-1] // 2, -1), sin)


def attend_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    filled: Tensor,
    shared: Tensor,
    scaling: float,
    scales: Scales | None = None,
    width: int = 1,
) -> Tensor:
    """Row r attends to the first filled[slots[r]] + 1 keys of its slot.

    The first shared[1] of them are read from slot shared[0]. With `width` rows per sequence, each
    row sees one key more than the row before.
    """
    query = query.view(-1, width, *query.shape[1:])
    place = torch.arange(keys.shape[1], device=keys.device)
    owner = torch.where(place < shared[1], shared[0], slots[:, None])
    seen = place <= (filled[slots][:, None] + torch.arange(width, device=keys.device))[..., None]
    where = owner, place
    if scales is None:
        found = _attend(query, keys[where], values[where], seen, scaling)
    else:
        found = _attend(query.float(), *_read(keys, values, where, scales), seen, scaling)
    return found.flatten(0, 1).to(query.dtype)


def attend_blocks(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Blocks,
    scaling: float,
    scales: Scales | None = None,
) -> Tensor:
    """Blocks of new tokens of a sequence; each token attends to its slot's keys up to its own."""
    out = torch.zeros_like(query)
    place = torch.arange(keys.shape[1], device=keys.device)
    for start, count, slot, position in torch.stack(
        (blocks.start, blocks.count, blocks.slot, blocks.position), 1
    ).tolist():
        if count > 0:
            seen = place <= position + torch.arange(count, device=keys.device)[:, None]
            asked = query[None, start : start + count]
            if scales is None:
                read = keys[slot], values[slot]
            else:
                where, asked = (torch.full_like(place, slot), place), asked.float()
                read = _read(keys, values, where, scales)
            out[start : start + count] = _attend(
                asked, read[0][None], read[1][None], seen[None], scaling
            )[0]
    return out


def _read(
    keys: Tensor, values: Tensor, where: tuple[Tensor, Tensor], scales: Scales
) -> tuple[Tensor, Tensor]:
    """Keys and values [.., kv heads, size] at slots and places, in float32."""
    slots, places = where
    scale = torch.exp2(scales.pairs[slots, :, places].float())
    key, value = (cache[where].float() - ZERO for cache in (keys, values))
    key *= scale[..., :1]
    bias = scales.bias[places].float().expand(*key.shape[:-1], -1)
    key.scatter_add_(-1, scales.channels.expand_as(bias), bias)
    return key, value * scale[..., 1:]


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scaling: float) -> Tensor:
    """[rows, queries, heads, size] and [rows, length, kv heads, size]; mask `seen`."""
    query, keys, values = (part.transpose(1, 2) for part in (query, keys, values))
    return scaled_dot_product_attention(
        query, keys, values, attn_mask=seen[:, None], scale=scaling, enable_gqa=True
    ).transpose(1, 2)


def draft(
    slots: Tensor, state: DeviceState, tokens: Tensor, recent: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Newest and drafted tokens, `width` rows per sequence, with their slots and positions.

    Rows beyond the context belong to the spare slot.
    """
    newest = state.filled[slots]
    texts = tokens[slots].scatter(1, newest[:, None], state.token[slots][:, None])
    ids = torch.cat((state.token[slots][:, None], propose(texts, newest, recent, width - 1)), 1)
    positions = newest[:, None] + torch.arange(width, device=slots.device)
    inside = positions < tokens.shape[1]
    owners = torch.where(inside, slots[:, None], state.spare)
    return ids.flatten(), owners.flatten(), torch.where(inside, positions, 0).flatten()


def accept(
    ids: Tensor, slots: Tensor, state: DeviceState, context: int, answers: Tensor, width: int
) -> None:
    """Advance each sequence by its right drafts and one token more; others become -1."""
    sampled = answers[0].view(-1, width)
    same = sampled[:, :-1] == ids.view(-1, width)[:, 1:]
    right = same.long().cumprod(1).sum(1)
    right = torch.minimum(right, (context - 2 - state.filled[slots]).clamp(min=0))
    token = sampled.gather(1, right[:, None])[:, 0].long()
    wrong = torch.arange(width, device=slots.device) > right[:, None]
    answers[0] = sampled.masked_fill(wrong, -1).flatten()
    real = slots != state.spare
    slots, right = slots[real], right[real]
    state.token[slots] = token[real]
    state.index[slots] += right + 1
    state.filled[slots] += right + 1


def choose(
    logits: Tensor, slots: Tensor, state: DeviceState, answers: Tensor, grown: bool, width: int = 1
) -> None:
    """Sample row r for the sequence in slots[r] and advance its state; results go to `answers`.

    With `width` rows per sequence, each for one token, `accept` advances the state.
    """
    index = state.index[slots][:, None] + torch.arange(width, device=slots.device)
    slots = slots.repeat_interleave(width)
    temperature = state.temperature[slots][:, None]
    greedy = temperature == 0
    logprobs = (logits.float() / torch.where(greedy, 1.0, temperature)).log_softmax(-1)
    summed = logprobs.exp().cumsum(-1)
    drawn = uniform(*(np.asarray(part.cpu()) for part in (state.seed[slots], index.flatten())))
    point = torch.from_numpy(drawn).to(logits.device)[:, None] * summed[:, -1:]
    tokens = torch.searchsorted(summed, point, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logprobs.argmax(-1, keepdim=True), tokens)
    answers[0], answers[1] = tokens[:, 0].int(), logprobs.gather(-1, tokens)[:, 0].view(torch.int32)
    if width > 1:
        return
    real = slots != state.spare
    slots = slots[real]
    state.token[slots] = tokens[real, 0]
    state.index[slots] += 1
    if grown:
        state.filled[slots] += 1
