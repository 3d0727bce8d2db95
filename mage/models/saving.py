"""Writing a trained model as a transformers folder."""

import json
import shutil
from pathlib import Path

import torch

from mage.models.architecture import PreTrainedModel
from mage.models.sources.base import copy_permissions

# Files of the source folder that the weights do not change.
_KEPT = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "generation_config.json", "LICENSE",
)  # fmt: skip


def save_model(model: PreTrainedModel, source: Path, target: Path) -> None:
    """Write a transformers folder: weights in the source's dtype, and the source's tokenizer."""
    model.to(_stored_dtype(source)).save_pretrained(target)
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for path in target.glob("*.safetensors"):
        copy_permissions(path, target / "config.json")


def _stored_dtype(source: Path) -> torch.dtype:
    config = json.loads((source / "config.json").read_text())
    found = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
    return found if isinstance(found, torch.dtype) else torch.float32
