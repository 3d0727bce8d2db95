"""The tokenizer of a GGUF file as a tokenizer.json.

Supported is byte-level BPE (`gpt2`). The file holds the tokens and the merges. The rule that splits
text into words before merging is stored as a name only; the names below have a known rule.
transformers' own conversion ignores this name: with SmolLM2, 51 of 604 texts got other token ids,
and the shipped adapters were trained with these ids.
"""

from typing import Any

from mage.config.errors import UserError

Tables = dict[str, Any]
_CONTROL, _USER_DEFINED = 3, 4
# As Qwen publishes it.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bytes(use_regex: bool) -> Tables:
    """Bytes as printable characters; `use_regex` splits into words by GPT-2's rule first."""
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
    """tokenizer.json. Raises ValueError if the tokenizer is damaged or of another kind."""
    kind = metadata.get("tokenizer.ggml.model")
    split = metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UserError(
            f"{where} has a tokenizer of kind {str(kind)[:80]}; supported is gpt2 "
            "(byte-level BPE). Give a transformers folder of this model instead"
        )
    if not isinstance(split, str) or split not in _SPLITS:
        raise UserError(
            f"{where} splits words by the rule {str(split)[:80]!r}; known are "
            f"{', '.join(_SPLITS)}. Give a transformers folder of this model instead"
        )
    _check(metadata, where)
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


def _check(metadata: Tables, where: str) -> None:
    """Check types and ranges of everything that is used below."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    ids = [
        value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
    ]
    for lines in (tokens, merges):
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise UserError(f"{where} has no list of tokens or merges: its tokenizer is damaged")
    assert isinstance(tokens, list) and isinstance(merges, list), "checked above"  # noqa: PT018
    if (
        len(set(tokens)) != len(tokens)
        or not all(merge.count(" ") == 1 for merge in merges)
        or not isinstance(kinds, list)
        or len(kinds) not in (0, len(tokens))
        or not all(isinstance(number, int) and 0 <= number < len(tokens) for number in ids)
    ):
        raise UserError(
            f"{where} has a damaged tokenizer: tokens repeat, a merge is not a pair, "
            "or a special token is not in the list"
        )


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
    """The two tokens of a merge. Inside a token a blank is written as another character."""
    return merge.split(" ")


def _added(tokens: list[str], kinds: list[int]) -> list[Tables]:
    """Tokens that are never split. Only control tokens are special (skipped on request)."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    chosen = [
        (number, kind) for number, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)
    ]
    return [
        {"id": number, "content": tokens[number], **plain, "special": kind == _CONTROL}
        for number, kind in chosen
    ]


def read_tokenizer_config(metadata: Tables) -> Tables:
    """tokenizer_config.json: the tokens with a role (begin, end, unknown, padding)."""
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
