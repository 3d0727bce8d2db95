"""A GGUF file as a transformers folder: names and shapes of the llama, qwen2 and qwen3 architectures.

The file's Llama weights have the rows of q and k in another order (the two halves of a head's rotation interleaved);
they are put back, else the model talks nonsense. Qwen's are as in transformers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mage.models.base import Dtype, Say, Source
from mage.models.sources.files import ModelFiles, Tables, write_files
from mage.models.sources.gguf_reader import GgufFile
from mage.models.sources.gguf_tokenizer import read_tokenizer, read_tokenizer_config
from mage.models.sources.quants import Array

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Gguf(Source):
    """Any GGUF file on this machine."""

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
    """Everything of a GGUF file, as the files of a transformers folder. Numbers are float32 unless told."""
    say(f"reading {path.name}")
    write_files(read_gguf(path, template), folder, dtype or "float32", say)


def read_gguf(path: Path, template: str | None = None) -> ModelFiles:
    """The parts of a model in a GGUF file, with another chat template if one is given."""
    file = GgufFile(path)
    template = template or file.metadata.get("tokenizer.chat_template")
    if not template:
        raise ValueError(
            f"{path} has no chat template: give one with --template FILE (jinja, as in a chat_template.jinja)"
        )
    config = _config(file)
    tokenizer = read_tokenizer(file.metadata, str(path))
    return ModelFiles(
        config,
        _generation(file),
        tokenizer,
        read_tokenizer_config(file.metadata),
        template,
        _weights(file, config),
    )


def _config(file: GgufFile) -> Tables:
    kind = file.metadata.get("general.architecture")
    if kind not in _CLASSES:
        raise ValueError(f"{file.path} has the architecture {kind}; read are {', '.join(_CLASSES)}")
    if "rope_freqs.weight" in file.entries or _get(file, "rope.scaling.type", "none") != "none":
        raise ValueError(
            f"{file.path} stretches its rotary positions, which is not read here. Give a transformers folder of this model instead"
        )
    heads, hidden = _get(file, "attention.head_count"), _get(file, "embedding_length")
    has_bias = "blk.0.attn_q.bias" in file.entries
    return {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "vocab_size": file.entries["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _get(file, "feed_forward_length"),
        "num_hidden_layers": _get(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _get(file, "attention.head_count_kv", heads),
        "head_dim": _get(file, "attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": _get(file, "context_length"),
        "rms_norm_eps": round(_get(file, "attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": _get(file, "rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.entries,
        **(
            {} if kind == "qwen2" else {"attention_bias": has_bias}
        ),  # qwen2 has those of q, k and v always
        **_special_ids(file),
    }


def _get(file: GgufFile, key: str, default: Any = None) -> Any:
    value = file.metadata.get(f"{file.metadata['general.architecture']}.{key}", default)
    if value is None:
        raise ValueError(
            f"{file.path} does not say its {key}: the file is damaged or of another kind"
        )
    return value


def _special_ids(file: GgufFile) -> Tables:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {
        name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()
    }
    return {name: number for name, number in found.items() if number is not None}


def _generation(file: GgufFile) -> Tables:
    """generation_config.json: a reply ends at the end of text, and at the end of a turn where that is another token."""
    ids = _special_ids(file)
    ends = [file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    chosen = list(dict.fromkeys(number for number in ends if number is not None))
    return ids | ({"eos_token_id": chosen if len(chosen) > 1 else chosen[0]} if chosen else {})


def _weights(file: GgufFile, config: Tables) -> Iterator[tuple[str, Array]]:
    names = {
        name: _translated(name, file.path) for name in file.entries
    }  # all at once: a stranger is told before anything is written
    missing = _missing(set(names.values()), config)
    if missing:
        raise ValueError(
            f"{file.path} lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}: the file is damaged or of another kind"
        )
    return ((target, _in_order(file.tensor(name), name, config)) for name, target in names.items())


def _missing(found: set[str], config: Tables) -> list[str]:
    layers = [
        f"model.layers.{number}.{name}.weight"
        for number in range(config["num_hidden_layers"])
        for name in _LAYER.values()
    ]
    needed = ["model.embed_tokens.weight", "model.norm.weight", *layers]
    if config["model_type"] != "qwen3":
        needed = [name for name in needed if not name.endswith(("q_norm.weight", "k_norm.weight"))]
    return [name for name in needed if name not in found]


def _translated(name: str, path: Path) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    stem, _, ending = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{ending}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in _LAYER:
        raise ValueError(f"{path} has a tensor {name}, which no layer of llama, qwen2 or qwen3 has")
    return f"model.layers.{number}.{_LAYER[part]}.{ending}"


def _in_order(array: Array, name: str, config: Tables) -> Array:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(
        name.split(".")[-2]
    )
    return array if heads is None or config["model_type"] != "llama" else _unpermute(array, heads)


def _unpermute(array: Array, heads: int) -> Array:
    """Rows of a head from (0, half, 1, half + 1, ..) back to (0, 1, .., half, half + 1, ..)."""
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)
