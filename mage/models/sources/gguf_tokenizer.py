"""The tokenizer of a GGUF file as a tokenizer.json.

Supported is byte-level BPE (`gpt2`). The file holds the tokens and the merges. The rule that splits
text into words before merging is stored as a name only; the names below have a known rule.
transformers' own conversion ignores this name: with SmolLM2, 51 of 604 texts got other token ids,
and the shipped adapters were trained with these ids.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as FromBytes
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from mage.config.errors import UserError

Tables = dict[str, Any]
_CONTROL, _USER_DEFINED = 3, 4
# As Qwen publishes it.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = ByteLevel(add_prefix_space=False)  # splits into words by GPT-2's rule
_SPLITS: dict[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": Sequence([Digits(individual_digits=True), _GPT2]),
    "qwen2": Sequence(
        [Split(Regex(_QWEN2), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
}


def read_tokenizer(metadata: Tables, where: str) -> Tokenizer:
    """The tokenizer. Raises ValueError if the tokenizer is damaged or of another kind."""
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
    # The two tokens of a merge; inside a token a blank is written as another character.
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    made.pre_tokenizer, made.decoder = _SPLITS[split], FromBytes()
    if split == "qwen2":
        made.normalizer = NFC()
    # Added tokens are never split. Only control tokens are special (skipped on request).
    kinds = zip(tokens, metadata.get("tokenizer.ggml.token_type", []), strict=False)
    made.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, kind in kinds
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return made


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
    known = set(tokens)
    if (
        len(known) != len(tokens)
        or not all(merge.count(" ") == 1 for merge in merges)
        or not {part for one in merges for part in (*one.split(" "), one.replace(" ", ""))} <= known
        or not isinstance(kinds, list)
        or len(kinds) not in (0, len(tokens))
        or not all(isinstance(number, int) and 0 <= number < len(tokens) for number in ids)
    ):
        raise UserError(
            f"{where} has a damaged tokenizer: tokens repeat, a merge is not a pair of tokens, "
            "or a special token is not in the list"
        )


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
