"""The key/value cache of the local engine: its tensors, and how many slots fit into memory.

`engines.cache = "int8"` stores a key or value as 8-bit integers and one scale for every head and
token. The scale is kept as its logarithm to base 2 in float16, because kernels need it in sums as
well as in products. An integer x from -127 to 127 is stored as the byte x + 128. Keys of Qwen2 have
a few channels with biases of up to 354 beside numbers of about 1. Those biases are not stored with
every key: rotated, they depend on the position only and form one table for all sequences.
"""

import os
from typing import Any, NamedTuple

import numpy as np
import torch

from mage.config.errors import UserError

Array = np.ndarray[Any, Any]

BLOCK = 64  # keys that decoding reads at once; shared prefixes are counted in whole blocks
ZERO = 128  # the byte that stands for 0
LARGEST = 126.5  # number in 8 bits; with the rounding of the scale at most 127.2
SMALLEST = 1e-6  # largest number of a vector; smaller ones get no other scale


class Scales(NamedTuple):
    """What restores the keys and values of one layer from 8 bits.

    `pairs` [slots, kv_heads, length, 2]: logarithms of the scales of keys and values. `bias`
    [length, kv_heads, n]: what a key at a position lacks in its `channels` [kv_heads, n]. n is 0
    for models whose keys have no bias.
    """

    pairs: torch.Tensor
    channels: torch.Tensor
    bias: torch.Tensor


class KeyValuePool:
    """Keys and values of all layers, [layers, 2, slots, length, kv_heads, head_size].

    In 8 bits (`small`) they have `scales` [layers, slots, kv_heads, length, 2], and the length is a
    multiple of `BLOCK`, so that kernels read whole blocks. The pool grows on demand, up to `most`
    (slots, length).
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_size: int,
        most: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        small: bool = False,
    ) -> None:
        self.most, self.device, self.dtype, self.small = most, device, dtype, small
        self.store, self.scales = self._zeros((layers, 2, 0, 0, kv_heads, head_size))
        self.strip = torch.zeros(0, dtype=dtype, device=device)
        self.channels = torch.zeros(layers, kv_heads, 0, dtype=torch.int64, device=device)
        self.bias = torch.zeros(
            layers, whole_blocks(most[1]), kv_heads, 0, dtype=torch.float16, device=device
        )

    @property
    def length(self) -> int:
        return int(self.store.shape[3])

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        layers, two, _, _, heads, size = self.store.shape
        return int(layers * two * heads * (size * self.store.dtype.itemsize + 2 * self.small))

    def _zeros(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A store of this shape and its scales.

        Zeros, not empty memory: a masked key has weight 0, and 0 times an old NaN would be NaN.
        """
        if not self.small:
            return torch.zeros(shape, dtype=self.dtype, device=self.device), None
        layers, two, slots, length, heads, _ = shape
        return (
            torch.zeros(shape, dtype=torch.uint8, device=self.device),
            torch.zeros(layers, slots, heads, length, two, dtype=torch.float16, device=self.device),
        )

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` slots of `length` tokens; grows by at least half."""
        layers, two, old_slots, old_length, *rest = self.store.shape
        if slots <= old_slots and length <= old_length:
            return
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the pool is one large block; cached small ones do not serve
        new_slots = _grow(old_slots, slots, self.most[0])
        new_length = _grow(old_length, length, self.most[1])
        if self.small:
            new_length = whole_blocks(new_length)
        store, scales = self._zeros((layers, two, new_slots, new_length, *rest))
        store[:, :, :old_slots, :old_length] = self.store
        if scales is not None and self.scales is not None:
            scales[:, :old_slots, :, :old_length] = self.scales
        self.store, self.scales = store, scales
        self.strip = torch.zeros(2 * new_length, dtype=self.dtype, device=self.device)
        self.strip[new_length:] = -torch.inf

    def release(self) -> None:
        """Free all memory; `reserve` allocates it again."""
        layers, two, _, _, *rest = self.store.shape
        self.store, self.scales = self._zeros((layers, two, 0, 0, *rest))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.store[index, 0], self.store[index, 1]

    def layer_scales(self, index: int) -> Scales | None:
        """None unless keys and values are in 8 bits."""
        if self.scales is None:
            return None
        return Scales(self.scales[index], self.channels[index], self.bias[index])

    def write(self, into: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows [tokens, kv_heads, size] at flat places slot * length + position."""
        into.view(-1, *into.shape[2:]).index_copy_(0, where, rows)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.store[:, :, target, start:end] = self.store[:, :, source, start:end]
        if self.scales is not None:
            self.scales[:, target, :, start:end] = self.scales[:, source, :, start:end]

    def on_device(self, numbers: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device, non_blocking=True)

    def causal_mask(self, last: torch.Tensor, length: int) -> torch.Tensor:
        """Additive mask over `length` keys; each query sees the keys up to and including `last`."""
        # Every row is a window of one strip of zeros followed by -inf: one copy, no comparisons.
        windows = self.strip.unfold(0, length, 1)
        return windows.index_select(0, (self.length - 1 - last).view(-1)).view(*last.shape, length)


def make_pool(
    config: Any,
    most: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    small: bool = False,
) -> KeyValuePool:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KeyValuePool(config.num_hidden_layers, kv_heads, size, most, dtype, device, small)


def affordable_slots(slots: int, context: int, pool: KeyValuePool) -> int:
    """At most `slots`, or as many as fit into the memory for slots; the learner needs the rest."""
    size, room = context * pool.token_bytes, memory_for_slots(pool.device)
    if room is None:
        return slots
    if room < 2 * size:
        raise UserError(
            f"a sequence of engines.context = {context} tokens needs {size / 1e9:.1f} GB, but only "
            f"{room / 1e9:.1f} GB are left for the cache: lower engines.context"
        )
    return min(slots, room // size - 1)


def memory_for_slots(device: torch.device) -> int | None:
    """Bytes for the cache: nine tenths of the free GPU memory, or a quarter of the host's memory.

    A training run lowers the number of slots before that, so that learning fits as well (see
    `mage.training.memory_plan`). On a host the total counts, so a resumed run has the same number
    of slots. None if unknown.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] * 9 // 10
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (ValueError, OSError, AttributeError):
        return None


def whole_blocks(length: int) -> int:
    """The next multiple of `BLOCK`."""
    return -(-length // BLOCK) * BLOCK


def _grow(size: int, needed: int, most: int) -> int:
    if needed <= size:
        return size
    return min(max(whole_blocks(needed), size * 3 // 2), most)
