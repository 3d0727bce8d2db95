"""The key/value cache of the local engine: its tensors, and how many slots fit into memory.

`engines.cache = "fp8"` stores a key or value as 8-bit floats (4 bits of exponent, 3 of mantissa)
and one exponent: the vector of a head and token is multiplied by a power of two so that its largest
number is at most 448, the largest of the format. Keys of different heads and tokens differ in size
by orders of magnitude.
"""

import os
from typing import Any

import numpy as np
import torch

from mage.config.errors import UserError

Array = np.ndarray[Any, Any]

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # number of this format
SMALLEST = 1e-6  # largest number of a vector; smaller ones get no other exponent


class KeyValuePool:
    """Keys and values of all layers, [layers, 2, slots, length, kv_heads, head_size].

    In 8 bits (`fp8`) they have `exponents` [layers, 2, slots, kv_heads, length]. The pool grows on
    demand, up to `most` (slots, length).
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_size: int,
        most: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        fp8: bool = False,
    ) -> None:
        self.most, self.device, self.dtype, self.fp8 = most, device, dtype, fp8
        self.store, self.exponents = self._zeros((layers, 2, 0, 0, kv_heads, head_size))
        self.strip = torch.zeros(0, dtype=dtype, device=device)

    @property
    def length(self) -> int:
        return int(self.store.shape[3])

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        layers, two, _, _, heads, size = self.store.shape
        return int(layers * two * heads * (size * self.store.dtype.itemsize + self.fp8))

    def _zeros(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A store of this shape and its exponents.

        Zeros, not empty memory: a masked key has weight 0, and 0 times an old NaN would be NaN.
        """
        if not self.fp8:
            return torch.zeros(shape, dtype=self.dtype, device=self.device), None
        layers, two, slots, length, heads, _ = shape
        return (
            torch.zeros(shape, dtype=FP8, device=self.device),
            torch.zeros(layers, two, slots, heads, length, dtype=torch.int8, device=self.device),
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
        store, exponents = self._zeros((layers, two, new_slots, new_length, *rest))
        store[:, :, :old_slots, :old_length] = self.store
        if exponents is not None and self.exponents is not None:
            exponents[:, :, :old_slots, :, :old_length] = self.exponents
        self.store, self.exponents = store, exponents
        self.strip = torch.zeros(2 * new_length, dtype=self.dtype, device=self.device)
        self.strip[new_length:] = -torch.inf

    def release(self) -> None:
        """Free all memory; `reserve` allocates it again."""
        layers, two, _, _, *rest = self.store.shape
        self.store, self.exponents = self._zeros((layers, two, 0, 0, *rest))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.store[index, 0], self.store[index, 1]

    def layer_exponents(self, index: int) -> torch.Tensor | None:
        """The exponents of keys and values [2, slots, kv_heads, length]; None unless in 8 bits."""
        return None if self.exponents is None else self.exponents[index]

    def write(self, into: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows [tokens, kv_heads, size] at flat places slot * length + position."""
        into.view(-1, *into.shape[2:]).index_copy_(0, where, rows)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.store[:, :, target, start:end] = self.store[:, :, source, start:end]
        if self.exponents is not None:
            self.exponents[:, :, target, :, start:end] = self.exponents[:, :, source, :, start:end]

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
    fp8: bool = False,
) -> KeyValuePool:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KeyValuePool(config.num_hidden_layers, kv_heads, size, most, dtype, device, fp8)


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
        return torch.cuda.mem_get_info()[0] * 9 // 10
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (ValueError, OSError, AttributeError):
        return None


def _grow(size: int, needed: int, most: int) -> int:
    if needed <= size:
        return size
    return min(max(-(-needed // 64) * 64, size * 3 // 2), most)
