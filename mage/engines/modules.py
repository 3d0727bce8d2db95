"""How the local engine uses the modules of a transformers model: attention, kernels, checks."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from mage.config.errors import UserError


@contextmanager
def attending(model: torch.nn.Module, config: Any, name: str) -> Iterator[None]:
    """Use the engine's attention and eval mode inside the context; restore both on exit."""
    before = config._attn_implementation
    training = [module for module in model.modules() if module.training] if model.training else []
    config._attn_implementation = name
    for module in training:
        module.training = False
    try:
        yield
    finally:
        config._attn_implementation = before
        for module in training:
            module.training = True


def operations(device: torch.device) -> ModuleType:
    """Triton kernels on CUDA; the same functions in plain PyTorch elsewhere."""
    return importlib.import_module(f"mage.engines.{'kernels' if device.type == 'cuda' else 'ops'}")


def check_full_attention(config: Any) -> None:
    """Refuse models with sliding windows or other kinds of attention."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UserError(
            f"the local engine supports full attention only; {config.model_type} has layers of "
            f"kind {sorted(kinds)}"
        )
