"""Loading a transformers checkpoint for play and training."""

import gc
import warnings
from pathlib import Path

import torch

from mage.config.errors import UserError
from mage.models.adapters import merge_adapters
from mage.models.architecture import PreTrainedModel
from mage.models.base import base_of, is_adapter
from mage.models.checks import check_folder
from mage.models.plain import read_plain

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_cache(cache: str, device: torch.device) -> str:
    """`cache`, or "model" with a warning on a device without kernels for 8 bits."""
    if cache != "int8" or (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    ):
        return cache
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    warnings.warn(
        f'engines.cache = "{cache}" has no effect on {name}: it needs an NVIDIA GPU of compute '
        "capability 8.0 or newer. Keys and values keep the model's format",
        stacklevel=2,
    )
    return "model"


def load_model(
    folder: Path, dtype: str = "auto", device: str = "auto", *, plays_only: bool = False
) -> PreTrainedModel:
    """A causal language model from a local folder of weights or of adapters.

    Only safetensors are read: nothing is unpickled, and no code of the folder is run. `plays_only`:
    the local engine alone uses the model, so on a CPU it may be a `PlainModel`.
    """
    if is_adapter(folder):
        model = load_model(base_of(folder), dtype, device, plays_only=plays_only)
        merge_adapters(model, folder)
        return model
    place = pick_device(device)
    if not list(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder} has no *.safetensors: a model folder needs its weights in that format"
        )
    check_folder(folder)
    dtype_of = pick_dtype(dtype, place)
    plain = read_plain(folder, dtype_of) if plays_only and place.type == "cpu" else None
    return _load_modules(folder, dtype_of).to(place).eval() if plain is None else plain


def _load_modules(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM  # slow to load
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config._attn_implementation = "sdpa"  # the file's own could name code to download
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # a strange config can fail anywhere in transformers
        raise UserError(
            f"{folder} cannot be loaded as a causal language model: {error!s:.600}"
        ) from None
    if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
        # transformers would go on with random numbers in their place.
        raise UserError(
            f"{folder} lacks {', '.join(wrong[:3])}{' and more' if len(wrong) > 3 else ''}, "
            "or has them in another shape than config.json says"
        )
    return model


def pick_device(name: str) -> torch.device:
    """`auto` = CUDA if available. Raises ValueError for a device that does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"run.device = {name!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from None
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 elsewhere."""
    return _DTYPES.get(name) or (torch.bfloat16 if device.type == "cuda" else torch.float32)


def free_memory() -> None:
    """Free the memory of models that are no longer used, on the GPU too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
