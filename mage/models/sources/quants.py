"""GGUF's number formats as float32: plain numbers, and blocks of 32 or 256 small integers with shared scales.

A block is a record of bytes. Integers of 4 bits share a byte: low halves are the first half of a run, high halves the
second. The 5th (and 6th) bits lie apart in `high`. Formulas, with q the unsigned integer of an element:

    Q4_0  d (q - 8)      Q4_1  d q + m      Q8_0  d q, q signed       Q4_K, Q5_K  d s q - m t, s and t of each 32 elements
    Q5_0  d (q - 16)     Q5_1  d q + m      Q6_K  d s (q - 32), s signed, of each 16 elements
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_D, _M = ("d", "<f2"), ("m", "<f2")
_SMALL, _LARGE = 32, 256


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: `elements` numbers are one `record`, and `decode` turns n records into n x elements floats."""

    name: str
    elements: int
    record: "np.dtype[Any]"
    decode: Callable[[Array], Array]

    def bytes_of(self, count: int) -> int:
        """Bytes that `count` numbers take; they fill whole records."""
        return count // self.elements * self.record.itemsize


def decode(data: Array, kind: Format) -> Array:
    """A run of bytes as float32."""
    return np.require(kind.decode(data.view(kind.record)), np.float32, ["C", "W"]).reshape(-1)


def _float(field: Array) -> Array:
    """One float a block, as a column."""
    return field.astype(np.float32)[:, None]


def _halves(packed: Array) -> Array:
    """Bytes (.., n) as the 4-bit integers (.., 2 n): all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bfloat16(blocks: Array) -> Array:
    return (blocks.astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Array) -> Array:
    return _float(blocks["d"]) * (_halves(blocks["q"]).astype(np.float32) - 8)


def _q4_1(blocks: Array) -> Array:
    return _float(blocks["d"]) * _halves(blocks["q"]) + _float(blocks["m"])


def _five_bits(blocks: Array) -> Array:
    high = (blocks["high"][:, None] >> np.arange(_SMALL, dtype=np.uint32)) & 1
    return _halves(blocks["q"]).astype(np.float32) + 16 * high.astype(np.float32)


def _q5_0(blocks: Array) -> Array:
    return _float(blocks["d"]) * (_five_bits(blocks) - 16)


def _q5_1(blocks: Array) -> Array:
    return _float(blocks["d"]) * _five_bits(blocks) + _float(blocks["m"])


def _q8_0(blocks: Array) -> Array:
    return _float(blocks["d"]) * blocks["q"]


def _scales(packed: Array) -> tuple[Array, Array]:
    """Twelve bytes as eight scales and eight minima of 6 bits: the first four whole, the others in 4 + 2 bits."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    least = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    return scale.astype(np.float32), least.astype(np.float32)


def _with_minima(blocks: Array, q: Array) -> Array:
    """d s q - m t for q of shape (blocks, 8, 32)."""
    scale, least = _scales(blocks["scales"])
    return (_float(blocks["d"]) * scale)[:, :, None] * q - (_float(blocks["m"]) * least)[:, :, None]


def _q4_k(blocks: Array) -> Array:
    return _with_minima(blocks, _halves(blocks["q"].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Array) -> Array:
    low = _halves(blocks["q"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = (blocks["high"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _with_minima(blocks, low + 16 * high)


def _q6_k(blocks: Array) -> Array:
    low = _halves(blocks["q"].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = (blocks["high"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    q = (low + 16 * high).astype(np.float32).reshape(-1, 16, 16) - 32
    return (_float(blocks["d"]) * blocks["scales"])[:, :, None] * q


def _plain(name: str, kind: str) -> Format:
    return Format(name, 1, np.dtype(kind), lambda blocks: blocks)


FORMATS = {
    0: _plain("F32", "<f4"),
    1: _plain("F16", "<f2"),
    2: Format("Q4_0", _SMALL, np.dtype([_D, ("q", "u1", 16)]), _q4_0),
    3: Format("Q4_1", _SMALL, np.dtype([_D, _M, ("q", "u1", 16)]), _q4_1),
    6: Format("Q5_0", _SMALL, np.dtype([_D, ("high", "<u4"), ("q", "u1", 16)]), _q5_0),
    7: Format("Q5_1", _SMALL, np.dtype([_D, _M, ("high", "<u4"), ("q", "u1", 16)]), _q5_1),
    8: Format("Q8_0", _SMALL, np.dtype([_D, ("q", "i1", 32)]), _q8_0),
    12: Format("Q4_K", _LARGE, np.dtype([_D, _M, ("scales", "u1", 12), ("q", "u1", 128)]), _q4_k),
    13: Format(
        "Q5_K",
        _LARGE,
        np.dtype([_D, _M, ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)]),
        _q5_k,
    ),
    14: Format(
        "Q6_K",
        _LARGE,
        np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D]),
        _q6_k,
    ),
    30: Format("BF16", 1, np.dtype("<u2"), _bfloat16),
}
