"""A GGUF file as a transformers folder; numbers are dequantised by the package `gguf`.

The header is checked before memory is allocated (gguf_header.py), and every tensor is compared with
the shapes that the metadata promises. Config and weights come from gguf_weights.py, the tokenizer
from gguf_tokenizer.py (transformers' own conversion drops SmolLM2's split into single digits and
takes the wrong end token).
"""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mage.config.errors import UserError
from mage.models.sources.base import Dtype, Say, Source
from mage.models.sources.gguf_header import Header, read_header
from mage.models.sources.gguf_tokenizer import Tables, read_tokenizer, read_tokenizer_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_PACKAGES = ("gguf",)
_LARGEST = 2**31


class Gguf(Source):
    """Any local GGUF file."""

    title = "a GGUF file: llama, qwen2 or qwen3, byte-level BPE"

    @classmethod
    def takes(cls, what: str) -> bool:
        return what.lower().endswith(".gguf")

    def name(self) -> str:
        return Path(self.what).stem

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        path = Path(self.what).expanduser()
        write_gguf(path, folder, dtype, template, say)
        return str(path.resolve())


def write_gguf(
    path: Path, folder: Path, dtype: Dtype | None, template: str | None, say: Say
) -> None:
    """Write a GGUF file as a transformers folder. Without `dtype`: see `default_dtype`."""
    from mage.models.sources.gguf_weights import default_dtype, write_weights  # loads torch

    path.stat()  # a missing file is reported first
    check_packages()
    say(f"reading {path.name}")
    header = read_header(path)
    template = template or header.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str) or not template:
        raise UserError(
            f"{path} has no chat template: give one with --template FILE "
            "(jinja, as in a chat_template.jinja)"
        )
    check_model(header)
    read_tokenizer(header.metadata, str(path)).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", read_tokenizer_config(header.metadata))
    (folder / "chat_template.jinja").write_text(template)
    number = dtype or default_dtype(header)
    say(f"writing the weights as {number}")
    _make_config(header, number).save_pretrained(folder)
    write_weights(header, folder, number, _head_width(header))
    _write_json(folder / "generation_config.json", _generation(header))


def check_packages() -> None:
    """Raise ValueError if a package that reads GGUF files is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"GGUF files need the package {' and '.join(missing)}: "
            f"pip install {' '.join(missing)} (the extra `gguf` of this package)"
        )


def _make_config(header: Header, dtype: Dtype) -> "PreTrainedConfig":
    """The config of transformers for the architecture, with the figures of the metadata."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    kind, heads = header.metadata["general.architecture"], _count(header, "attention.head_count")
    width = {} if _is(header, "qwen2") else {"head_dim": _head_width(header)}
    config = AutoConfig.for_model(
        kind,
        vocab_size=header.shapes["token_embd.weight"][0],
        hidden_size=_count(header, "embedding_length"),
        intermediate_size=_count(header, "feed_forward_length"),
        num_hidden_layers=_count(header, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=_count(header, "attention.head_count_kv", heads),
        max_position_embeddings=_count(header, "context_length"),
        rope_theta=_number(header, "rope.freq_base"),
        rms_norm_eps=round(_number(header, "attention.layer_norm_rms_epsilon"), 12),  # 1e-5
        tie_word_embeddings="output.weight" not in header.shapes,
        dtype=dtype,
        **width,
        **_token_ids(header),
    )
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    return config


def check_model(header: Header) -> None:
    """Compare the architecture and all tensor shapes with what the metadata promises."""
    kind = header.metadata.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise UserError(
            f"{header.path} has the architecture {str(kind)[:80]}; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    scaling = header.metadata.get(f"{kind}.rope.scaling.type", "none")
    if "rope_freqs.weight" in header.shapes or scaling != "none":
        raise UserError(
            f"{header.path} scales its rotary positions, which transformers does not read from "
            "GGUF. Give a transformers folder of this model instead"
        )
    expected = _expected_shapes(header)
    optional = ("output.weight",)
    if missing := sorted(set(expected) - set(header.shapes) - set(optional)):
        more = " and more" if len(missing) > 3 else ""
        raise UserError(
            f"{header.path} lacks {', '.join(missing[:3])}{more}: it is damaged or of another kind"
        )
    for name, shape in header.shapes.items():
        if name not in expected:
            raise UserError(f"{header.path} has a tensor {name[:80]}, which is not part of {kind}")
        if shape != expected[name]:
            raise UserError(
                f"{header.path}: tensor {name} has the shape {shape}, expected {expected[name]}"
            )


def _expected_shapes(header: Header) -> dict[str, tuple[int, ...]]:
    """Every tensor of the architecture with its shape, by its name in the file."""
    layers = _count(header, "block_count")
    if layers > len(header.shapes):
        raise UserError(
            f"{header.path} promises {layers:,} layers (block_count) and has "
            f"{len(header.shapes):,} tensors: it is damaged or of another kind"
        )
    hidden, inner = _count(header, "embedding_length"), _count(header, "feed_forward_length")
    heads, width = _count(header, "attention.head_count"), _head_width(header)
    key_heads = _count(header, "attention.head_count_kv", heads)
    vocabulary = header.shapes.get("token_embd.weight", (0,))[0]
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (heads * width, hidden),
        "attn_k.weight": (key_heads * width, hidden),
        "attn_v.weight": (key_heads * width, hidden),
        "attn_output.weight": (hidden, heads * width),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if _is(header, "qwen2"):
        layer |= {f"attn_{part}.bias": layer[f"attn_{part}.weight"][:1] for part in "qkv"}
    if _is(header, "qwen3"):
        layer |= {"attn_q_norm.weight": (width,), "attn_k_norm.weight": (width,)}
    top = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    inside = {f"blk.{n}.{name}": shape for n in range(layers) for name, shape in layer.items()}
    return {**top, "output.weight": (vocabulary, hidden), **inside}


def _is(header: Header, architecture: str) -> bool:
    return bool(header.metadata["general.architecture"] == architecture)


def _head_width(header: Header) -> int:
    heads = _count(header, "attention.head_count")
    return _count(header, "attention.key_length", _count(header, "embedding_length") // heads)


def _count(header: Header, key: str, default: int | None = None) -> int:
    """A positive integer of the metadata."""
    value = header.metadata.get(f"{header.metadata['general.architecture']}.{key}", default)
    if value is None:
        raise UserError(f"{header.path} has no {key}: it is damaged or of another kind")
    if not isinstance(value, int) or not 0 < value < _LARGEST:
        raise UserError(f"{header.path} has {key} = {str(value)[:80]}: expected a positive integer")
    return value


def _number(header: Header, key: str) -> float:
    """A positive number of the metadata."""
    value = header.metadata.get(f"{header.metadata['general.architecture']}.{key}")
    if not isinstance(value, float) or not 0 < value < _LARGEST:
        raise UserError(f"{header.path} has {key} = {str(value)[:80]}: expected a positive number")
    return value


def _generation(header: Header) -> Tables:
    """generation_config.json. A reply ends at the end of text, or at a separate end of turn."""
    ends = [_token_id(header, key) for key in ("eos", "eot")]
    chosen = list(dict.fromkeys(number for number in ends if number is not None))
    last = {"eos_token_id": chosen if len(chosen) > 1 else chosen[0]} if chosen else {}
    return _token_ids(header) | last


def _token_ids(header: Header) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: _token_id(header, key) for name, key in names.items()}
    return {name: number for name, number in found.items() if number is not None}


def _token_id(header: Header, key: str) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
    return value if isinstance(value, int) else None


def _write_json(path: Path, tables: Tables) -> None:
    path.write_text(json.dumps(tables, indent=2, ensure_ascii=False) + "\n")
