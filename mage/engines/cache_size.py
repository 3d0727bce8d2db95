"""How large the key/value cache of the local engine is: bytes per sequence, and slots that fit."""

import math
import os
from typing import Any

import torch

from mage.config.errors import UserError
from mage.engines.slots import KeyValuePool


def make_pool(
    config: Any, most: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KeyValuePool:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KeyValuePool(config.num_hidden_layers, kv_heads, size, most, dtype, device)


def affordable_slots(
    slots: int, context: int, config: Any, backbone: Any, device: torch.device
) -> int:
    """At most `slots`, or as many as fit into the memory for slots; the learner needs the rest."""
    pool = make_pool(
        config, (slots, context), backbone.get_input_embeddings().weight.dtype, torch.device("meta")
    )
    layers, two, _, _, *rest = pool.store.shape
    size = layers * two * context * math.prod(rest) * pool.dtype.itemsize
    room = memory_for_slots(device)
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
