"""Loading a transformers checkpoint for play and training."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from mage.models.adapters import merge_adapters
from mage.models.base import base_of, is_adapter

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(folder: Path, dtype: str = "auto", device: str = "auto") -> PreTrainedModel:
    """A causal language model from a local folder of weights or of adapters.

    Only safetensors are read: nothing is unpickled, and no code of the folder is run.
    """
    if is_adapter(folder):
        model = load_model(base_of(folder), dtype, device)
        merge_adapters(model, folder)
        return model
    place = pick_device(device)
    if not list(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} has no *.safetensors: a model folder needs its weights in that format"
        )
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=pick_dtype(dtype, place),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} cannot be loaded as a causal language model: {error}") from None
    return model.to(place).eval()


def pick_device(name: str) -> torch.device:
    """`auto` = CUDA if available. Raises ValueError for a device that does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"run.device = {name!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from None
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 elsewhere."""
    return _DTYPES.get(name) or (torch.bfloat16 if device.type == "cuda" else torch.float32)
