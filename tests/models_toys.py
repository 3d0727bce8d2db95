"""Small GGUF files: a writer of the container, a byte-level tokenizer, random tiny models."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "Ġ th", "Ġth e", "1 2", "Ġ Ġ"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": TEMPLATE,
}
Tensor = tuple[tuple[int, ...], int, bytes]  # shape, number format, data


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor], version: int = 3
) -> Path:
    """Write the container value by value, as its specification says."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _typed(value) for key, value in metadata.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        data += bytes(-len(data) % 32)
        head += _text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data)
        )
        data += raw
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    kind, raw = _value(value)
    return struct.pack("<I", kind) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, list):
        items = [_value(item) for item in value]
        return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(raw for _, raw in items)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return 8, _text(value)


def float32(array: Any) -> Tensor:
    """A tensor in float32."""
    made = np.ascontiguousarray(array, np.float32)
    return made.shape, 0, made.tobytes()


def tiny_model(kind: str) -> Any:
    """A random transformers model: 2 layers, 4 heads of width 16, 2 key heads."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    options = {
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 512,
        "rope_theta": 5e4,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": kind != "qwen2",
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **options))
    # Larger than at initialisation, so that norms and biases matter.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.3 if parameter.ndim == 1 else 0.0, std=0.2)
    return model.eval()


def gguf_of(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a transformers model, with the names and the order of GGUF."""
    kind = model.config.model_type
    keys = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 5e4,
    }
    weights = {
        name: tensor.detach().numpy()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or kind == "qwen2"
    }
    metadata = (
        {"general.architecture": kind}
        | {f"{kind}.{key}": value for key, value in keys.items()}
        | TOKENIZER
    )
    return metadata, {
        _renamed(name): float32(_interleaved(name, array) if kind == "llama" else array)
        for name, array in weights.items()
    }


def _renamed(name: str) -> str:
    pairs = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
    }
    for theirs, ours in pairs.items():
        name = name.replace(theirs, ours)
    return name


def _interleaved(name: str, array: Any) -> Any:
    """For each head: row i of the first half, then row i of the second half."""
    if "q_proj" not in name and "k_proj" not in name:
        return array
    heads = np.split(array, len(array) // 16)
    return np.concatenate([head[[row // 2 + 8 * (row % 2) for row in range(16)]] for head in heads])
