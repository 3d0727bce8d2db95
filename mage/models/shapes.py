"""The sizes of a model without its weights: preset shapes, or the config.json of a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mage.config.errors import UserError
from mage.models.base import base_of, find_model
from mage.models.sources.hub import fetch_config, read_hub_id


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with gated MLP and grouped attention (Llama, Qwen3 and their relatives)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    plain: bool = True  # Llama, Qwen2 or Qwen3, whose layers the learner compiles

    @property
    def linear_weights(self) -> int:
        """Weights of the linear layers of one layer, which LoRA adapts."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def embedding_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the whole model (the norms are counted with two per layer)."""
        norms = (2 * self.layers + 1) * self.hidden
        embeddings = self.embedding_weights * (1 if self.tied else 2)
        return self.layers * self.linear_weights + embeddings + norms

    def lora_parameters(self, rank: int) -> int:
        """Weights of adapters of this rank on all linear layers."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        ends = 2 * (self.hidden + query) + 2 * (self.hidden + key)
        return rank * self.layers * (ends + 3 * (self.hidden + self.intermediate))

    @property
    def cached_values(self) -> int:
        """Numbers that the key/value cache holds per token."""
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def layer_values(self) -> int:
        """Numbers per token that the backward pass of one layer needs.

        Queries, keys and values before and after the rotation, the output of attention, two
        residual streams, gate, up and their product.
        """
        attention = self.head_size * (3 * self.heads + 3 * self.kv_heads)
        return attention + 2 * self.hidden + 3 * self.intermediate


PRESETS = {
    "qwen3-0.6b": ModelShape(28, 1024, 16, 8, 128, 3072, 151_936, True),
    "qwen3-1.7b": ModelShape(28, 2048, 16, 8, 128, 6144, 151_936, True),
    "qwen3-4b": ModelShape(36, 2560, 32, 8, 128, 9728, 151_936, True),
    "qwen3-8b": ModelShape(36, 4096, 32, 8, 128, 12_288, 151_936, False),
    "smollm2-135m": ModelShape(30, 576, 9, 3, 64, 1536, 49_152, True),
    "smollm2-360m": ModelShape(32, 960, 15, 5, 64, 2560, 49_152, True),
    "smollm2-1.7b": ModelShape(24, 2048, 32, 32, 64, 8192, 49_152, True),
}


LEAST_PARAMETERS = 10**9  # of a model whose keys and values may have 8 bits


def check_cache(cache: str, parameters: int) -> None:
    """Refuse a cache in 8 bits for a small model."""
    if cache != "model" and parameters < LEAST_PARAMETERS:
        raise UserError(
            f'engines.cache = "{cache}" is for models of at least {LEAST_PARAMETERS / 1e9:g} B '
            f"parameters, and this one has {parameters / 1e9:.2f} B. Remove the option: smaller "
            "models are known to lose reward with keys and values in 8 bits"
        )


_PUBLISHERS = {"qwen": "qwen3-", "huggingfacetb": "smollm2-"}


def known_shape(model: str) -> ModelShape | None:
    """The preset that a name or a model of the hub has; None if it is not known.

    >>> known_shape("Qwen/Qwen3-4B@main") == known_shape("qwen3-4b") == PRESETS["qwen3-4b"]
    True
    """
    hub = read_hub_id(model)
    publisher, _, name = hub.name.lower().partition("/") if hub else ("", "", model.lower())
    if hub and not name.startswith(_PUBLISHERS.get(publisher, " ")):
        return None
    return PRESETS.get(name.removesuffix("-instruct").removesuffix("-base"))


def find_shape(model: str) -> ModelShape:
    """The shape of a preset, of a model folder, of an added model or of a model of the hub.

    Presets need no files, and of other models of the hub only config.json is fetched.
    """
    if (known := known_shape(model)) and not Path(model).exists():
        return known
    try:
        folder = _config_folder(model)
    except ValueError as error:
        names = ", ".join(PRESETS)
        raise UserError(
            f"the model {model} was not found: {error}; preset shapes, which need no weights, are "
            f"{names}"
        ) from None
    return read_shape(folder)


def _config_folder(model: str) -> Path:
    """The folder of the config.json of a whole model."""
    hub = read_hub_id(model)
    try:
        return base_of(find_model(model, download=hub is None))
    except ValueError:
        if hub is None or Path(model).exists():
            raise
        return fetch_config(hub)


def read_shape(folder: Path) -> ModelShape:
    """The shape that the config.json of a model folder describes."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            plain=config.get("model_type") in ("llama", "qwen2", "qwen3"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / 'config.json'} does not describe a decoder of a known kind ({error!r}): "
            "needed are num_hidden_layers, hidden_size, num_attention_heads, intermediate_size "
            "and vocab_size"
        ) from None
