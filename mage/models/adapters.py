"""LoRA adapters in PEFT's file format: read, check, write, merge into a base model. Loads torch."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mage.config.errors import UserError
from mage.models.architecture import PreTrainedModel
from mage.models.base import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from mage.models.checks import read_object, read_tensors
from mage.models.sources.base import copy_permissions
from mage.models.sources.hub import read_hub_id

_PREFIX = "base_model.model."  # PEFT's prefix of every tensor name
_LARGEST_RANK = 65_536
_UNSUPPORTED = ("use_rslora", "use_dora", "alpha_pattern", "rank_pattern", "modules_to_save")


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Names of all linear layers except the output head (PEFT's `all-linear`)."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]


def save_adapters(
    folder: Path, masters: Mapping[str, Tensor], *, rank: int, alpha: float, base: str
) -> None:
    """Write A and B in bfloat16 with PEFT's config file.

    `base` is the `model.path` of the base model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            _PREFIX + name: value.detach().to("cpu", torch.bfloat16).contiguous()
            for name, value in masters.items()
        },
        folder / ADAPTER_WEIGHTS,
    )
    targets = sorted(
        {name.removesuffix(".weight").rpartition(".")[0].rpartition(".")[2] for name in masters}
    )
    hub = read_hub_id(base)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": hub.name if hub else base,
        **({"revision": hub.revision} if hub and hub.revision else {}),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    copy_permissions(folder / ADAPTER_WEIGHTS, folder / ADAPTER_CONFIG)


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapters of a folder to the weights of their base model."""
    config, names = adapter_config(folder), linear_layers(model)
    masters = read_adapters(folder, model, names)
    for name in names:
        weight = model.get_parameter(f"{name}.weight")
        down, up = (masters[f"{name}.lora_{side}.weight"] for side in "AB")
        scale = config["lora_alpha"] / config["r"]
        weight.copy_(weight.to(down.dtype).addmm(up, down, alpha=scale))


def adapter_config(folder: Path) -> dict[str, Any]:
    """PEFT's config of plain LoRA adapters: `r`, `lora_alpha` and others."""
    found = read_object(folder / ADAPTER_CONFIG)
    rank: Any = found.get("r")
    alpha: Any = found.get("lora_alpha")
    if (
        found.get("peft_type") != "LORA"
        or type(rank) is not int
        or not 0 < rank <= _LARGEST_RANK
        or type(alpha) not in (int, float)
        or not 0 < alpha < math.inf
        or found.get("bias", "none") != "none"
        or any(found.get(name) for name in _UNSUPPORTED)
    ):
        raise UserError(
            f"{folder / ADAPTER_CONFIG} is not the config of plain LoRA adapters (peft_type LORA "
            f"with r and lora_alpha, bias none, without {', '.join(_UNSUPPORTED)})"
        )
    return found


def read_adapters(folder: Path, model: PreTrainedModel, names: list[str]) -> dict[str, Tensor]:
    """The A and B matrices of a folder. Raises ValueError if they do not fit the model."""
    config = adapter_config(folder)
    expected: dict[str, tuple[int, int]] = {}
    for name in names:
        out, into = model.get_parameter(f"{name}.weight").shape
        expected[f"{name}.lora_A.weight"] = (config["r"], into)
        expected[f"{name}.lora_B.weight"] = (out, config["r"])
    # The header is compared before the weights are read.
    tensors = read_tensors(folder / ADAPTER_WEIGHTS)
    if {key.removeprefix(_PREFIX): shape for key, (_, shape) in tensors.items()} != expected:
        raise UserError(
            f"the adapters in {folder} do not match the linear layers of "
            f"{config.get('base_model_name_or_path')}: one is missing or has another shape"
        )
    real = torch.float64 if model.dtype == torch.float64 else torch.float32
    stored = {
        key.removeprefix(_PREFIX): value
        for key, value in load_file(folder / ADAPTER_WEIGHTS).items()
    }
    return {key: stored[key].to(model.device, real) for key in expected}
