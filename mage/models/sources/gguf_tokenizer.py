"""The tokenizer inside a GGUF file as the JSON of the `tokenizers` package.

Read is byte-level BPE (`gpt2`), where tokens and merges say everything but one thing: how text is split into words before
merging. For that a GGUF file has a name only; the names here are those whose rule is known.
"""

from typing import Any

Tables = dict[str, Any]
_CONTROL, _USER_DEFINED = 3, 4
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # as Qwen publishes it


def _bytes(use_regex: bool) -> Tables:
    """Bytes as printable characters; with `use_regex` cut into words by GPT-2's rule first."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sequence(*steps: Tables) -> Tables:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_SPLITS: dict[str, Tables] = {
    "default": _bytes(True),
    "gpt-2": _bytes(True),
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _bytes(True)),
    "qwen2": _sequence(
        {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False},
        _bytes(False),
    ),
}


def read_tokenizer(metadata: Tables, where: str) -> Tables:
    """tokenizer.json."""
    kind, split = (
        metadata.get("tokenizer.ggml.model"),
        metadata.get("tokenizer.ggml.pre", "default"),
    )
    if kind != "gpt2":
        raise ValueError(
            f"{where} has a tokenizer of kind {kind}; read is gpt2 (byte-level BPE). Give a transformers folder of this model instead"
        )
    if split not in _SPLITS:
        raise ValueError(
            f"{where} splits words by the rule {split!r}; known are {', '.join(_SPLITS)}. Give a transformers folder of this model instead"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added(tokens, metadata.get("tokenizer.ggml.token_type", []))),
        "normalizer": {"type": "NFC"} if split == "qwen2" else None,
        "pre_tokenizer": _SPLITS[split],
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": _model(tokens, metadata["tokenizer.ggml.merges"]),
    }


def _model(tokens: list[str], merges: list[str]) -> Tables:
    options = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
    }
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {
        "type": "BPE",
        **options,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [_pair(merge) for merge in merges],
    }


def _pair(merge: str) -> list[str]:
    """A merge is two tokens with a blank between; a blank inside a token is another character there."""
    return merge.split(" ")


def _added(tokens: list[str], kinds: list[int]) -> list[Tables]:
    """Tokens that are never split: those of control are left out of decoded text on request, a user's own are not."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    chosen = [
        (number, kind) for number, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)
    ]
    return [
        {"id": number, "content": tokens[number], **plain, "special": kind == _CONTROL}
        for number, kind in chosen
    ]


def read_tokenizer_config(metadata: Tables) -> Tables:
    """tokenizer_config.json: the tokens with a role."""
    tokens = metadata["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
    named = {f"{role}_token": tokens[number] for role, number in ids.items() if number is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **named,
    }
