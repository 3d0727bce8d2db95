"""GGUF files: whole models, the header, the tokenizer, and damaged files."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mage.agent.chat import Chat
from mage.models.loading import load_model
from mage.models.sources import gguf, gguf_weights
from mage.models.sources.gguf import check_model
from mage.models.sources.gguf import write_gguf as convert
from mage.models.sources.gguf_header import read_header
from mage.models.sources.gguf_tokenizer import read_tokenizer
from mage.models.sources.gguf_weights import default_dtype, read_weights
from tests.models_toys import TOKENIZER, TOKENS, Tensor, float32, gguf_of, tiny_model, write_gguf

Llama = tuple[Path, dict[str, Any], dict[str, Tensor]]
Q4_1, Q8_0 = 3, 8  # number formats of GGUF


@pytest.fixture
def llama(tmp_path):
    return tmp_path / "tiny.gguf", *gguf_of(tiny_model("llama"))


def converted(path: Path, dtype: Any = None) -> Path:
    folder = path.parent / "out"
    folder.mkdir()
    convert(path, folder, dtype, None, lambda line: None)
    return folder


# --- Whole models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_model_computes_the_same_logits_after_conversion(kind, tmp_path):
    before = tiny_model(kind)
    after = load_model(
        converted(write_gguf(tmp_path / "tiny.gguf", *gguf_of(before))), "float32", "cpu"
    )
    assert type(after) is type(before)
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(after(ids).logits, before(ids).logits, rtol=0, atol=1e-5)
    assert set(after.state_dict()) == set(before.state_dict())


def test_four_bit_blocks_are_dequantised_as_their_layout_says(llama):
    """A block of Q4_1 has a scale d, a minimum m and 32 integers: d q + m.

    The low halves of the 16 bytes come first, then their high halves. SmolLM2 uses this format.
    """
    path, metadata, tensors = llama
    block = struct.pack("<ee", 0.5, -2.0) + bytes(range(16))
    expected = [0.5 * (byte & 15) - 2 for byte in range(16)] + [-2.0] * 16
    tensors["blk.1.ffn_up.weight"] = ((96, 64), Q4_1, block * (96 * 2))
    model = load_model(converted(write_gguf(path, metadata, tensors)), "float32", "cpu")
    found = model.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert found.tolist() == [expected * 2] * 96


def test_bfloat16_weights_are_rounded_to_the_nearest_number(llama):
    folder = converted(write_gguf(*llama), "bfloat16")
    before = tiny_model("llama").state_dict()
    after = load_model(folder, "float32", "cpu").state_dict()
    assert all(
        torch.equal(after[name], tensor.bfloat16().float()) for name, tensor in before.items()
    )
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_large_models_are_written_as_bfloat16(llama, monkeypatch):
    header = read_header(write_gguf(*llama))
    assert default_dtype(header) == "float32"
    monkeypatch.setattr(gguf_weights, "_LARGE", 1000)
    assert default_dtype(header) == "bfloat16"


def test_pieces_of_a_tensor_give_the_same_numbers(llama, monkeypatch):
    header = read_header(write_gguf(*llama))
    whole = read_weights(header, "float32")
    monkeypatch.setattr(gguf_weights, "_VALUES_AT_ONCE", 100)
    pieces = read_weights(header, "float32")
    assert all(torch.equal(pieces[name], tensor) for name, tensor in whole.items())


def test_weights_have_the_permissions_of_the_config(llama):
    folder = converted(write_gguf(*llama))
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_a_missing_package_is_one_message(llama, monkeypatch):
    monkeypatch.setattr(gguf, "_PACKAGES", ("gguf", "no_such_package_xyz"))
    with pytest.raises(ValueError, match="need the package no_such_package_xyz: pip install"):
        converted(write_gguf(*llama))


# --- The header -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_keys_and_shapes_are_read_as_they_were_written(version, tmp_path):
    keys = {
        "a.text": "grüße",
        "a.count": 7,
        "a.share": 0.5,
        "a.on": True,
        "a.words": ["x", "y"],
        "a.numbers": [1, 2, 3],
    }
    tensors = {"one": float32(np.arange(6).reshape(2, 3))}
    header = read_header(write_gguf(tmp_path / "a.gguf", keys, tensors, version))
    assert header.metadata == keys
    assert header.shapes == {"one": (2, 3)}


def test_a_truncated_file_is_refused_at_any_length(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", TOKENIZER, {"one": float32(np.ones((4, 32)))})
    whole = path.read_bytes()
    for length in (1, 3, 7, 23, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"incomplete|not a GGUF"):
            read_header(path)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def table(name: str, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


def container(keys: list[bytes], tensors: list[bytes], data: bytes = bytes(64)) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32) + data


HUGE = 2**62
BAD_FILES = [
    (b"", "is empty"),
    (b"PK\3\4 a zip file, for example", "does not begin with the letters GGUF"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; supported are 2 and 3"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    (container([key("k", 99, b"")], []), "unknown type 99"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "incomplete or damaged"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "incomplete or damaged"),
    (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "incomplete or damaged"),
    (container([key("k", 9, struct.pack("<IQ", 4, HUGE))], []), "incomplete or damaged"),
    (container([key("k", 9, struct.pack("<IQ", 8, HUGE))], []), "incomplete or damaged"),
    (container([key("k", 9, struct.pack("<IQ", 9, 1) * 500)], []), "unknown type 9"),
    (container([key("k", 4, bytes(4))] * 2, []), "the key 'k' twice"),
    (container([key("general.alignment", 4, bytes(4))], []), "must be a power of two"),
    (container([], [table("t", (4,), 0)] * 2), "the tensor 't' twice"),
    (container([], [table("t", (4,), 999)]), "unknown number format 999"),
    (container([], [table("t", (0,), 0)]), "does not fill blocks"),
    (container([], [table("t", (), 0)]), "does not fill blocks"),
    (container([], [table("t", (16, 2), Q8_0)]), "does not fill blocks of 32"),
    (container([], [table("t", (HUGE, HUGE), 0)]), "is incomplete: tensor t ends"),
    (container([], [table("t", (4,), 0, HUGE)]), "is incomplete: tensor t ends"),
    (container([], [struct.pack("<Q", 1) + b"t" + struct.pack("<I", 2**31)]), "axes"),
]


@pytest.mark.parametrize(("data", "words"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_damaged_header_is_refused(data, words, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read_header(path)


def change(metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed = metadata | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__chat_template": None}, "has no chat template: give one with --template FILE"),
        (
            {"general__architecture": "mamba"},
            "architecture mamba; supported are llama, qwen2, qwen3",
        ),
        ({"general__architecture": 7}, "architecture 7; supported are"),
        ({"llama__rope__scaling__type": "yarn"}, "scales its rotary positions"),
        ({"llama__block_count": None}, "has no block_count"),
        ({"llama__block_count": 3}, r"lacks blk\.2\.attn_k\.weight, .* and more"),
        ({"llama__block_count": 2**31}, "expected a positive integer"),
        ({"llama__block_count": 10**9}, "promises 1,000,000,000 layers"),
        ({"llama__block_count": "two"}, "block_count = two: expected a positive integer"),
        ({"llama__embedding_length": 128}, r"has the shape \(.*\), expected"),
        ({"llama__attention__head_count": 0}, "expected a positive integer"),
        ({"llama__attention__head_count": [4, 4]}, "expected a positive integer"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer of kind llama; supported is gpt2"),
        ({"tokenizer__ggml__pre": "tekken"}, "'tekken'; known are default, gpt-2, smollm, qwen2"),
        ({"tokenizer__ggml__tokens": None}, "no list of tokens or merges"),
        ({"tokenizer__ggml__tokens": [1, 2]}, "no list of tokens or merges"),
        ({"tokenizer__ggml__merges": ["ab"]}, "a merge is not a pair"),
        ({"tokenizer__ggml__eos_token_id": 10**6}, "a special token is not in the list"),
        ({"tokenizer__ggml__eos_token_id": "x"}, "a special token is not in the list"),
        ({"tokenizer__ggml__token_type": [1]}, "damaged tokenizer"),
    ],
)
def test_a_model_that_is_not_supported_or_damaged_is_refused_before_weights_are_read(
    changes, words, llama, monkeypatch
):
    monkeypatch.setattr(gguf_weights, "write_weights", lambda *_: pytest.fail("weights were read"))
    path, metadata, tensors = llama
    with pytest.raises(ValueError, match=words):
        converted(write_gguf(path, change(metadata, **changes), tensors))


def test_a_tensor_of_another_architecture_is_named(llama):
    path, metadata, tensors = llama
    more = tensors | {"blk.0.ffn_gate_exps.weight": float32([1.0])}
    with pytest.raises(ValueError, match=r"a tensor blk\.0\.ffn_gate_exps\.weight, which is not"):
        check_model(read_header(write_gguf(path, metadata, more)))


# --- The tokenizer ------------------------------------------------------------------------------


def tokens_of(text: str, split: str) -> list[str]:
    made = read_tokenizer(TOKENIZER | {"tokenizer.ggml.pre": split}, "a file")
    encoded = made.encode(text, add_special_tokens=False)
    assert made.decode(encoded.ids, skip_special_tokens=False) == text
    return list(encoded.tokens)


# Worked by hand with the merges of the toy tokenizer: th, Ġth, Ġthe, 12, ĠĠ.
@pytest.mark.parametrize(
    ("split", "text", "expected"),
    [
        ("default", "a the 12", ["a", "Ġthe", "Ġ", "12"]),
        ("smollm", "a the 12", ["a", "Ġthe", "Ġ", "1", "2"]),  # single digits
        ("qwen2", "a the 12", ["a", "Ġthe", "Ġ", "1", "2"]),
        ("smollm", "a  1", ["a", "ĠĠ", "1"]),  # blanks before a digit are one word
        ("default", "a  1", ["a", "Ġ", "Ġ", "1"]),  # the last blank belongs to the digit
        ("smollm", "<|im_start|>the<|im_end|>", ["<|im_start|>", "th", "e", "<|im_end|>"]),
        ("default", "é\n", ["Ã", "©", "Ċ"]),
    ],
)
def test_text_is_split_into_words_before_merging(split, text, expected):
    assert tokens_of(text, split) == expected


def test_the_folder_renders_a_chat_and_knows_its_end_token(llama):
    chat = Chat.load(converted(write_gguf(*llama)))
    assert chat.end_ids == (TOKENS.index("<|im_end|>"),)
    ids = chat.first("a", "b") + chat.encode("c") + chat.next("d")
    assert chat.tokenizer.decode(list(ids), skip_special_tokens=False) == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_reply_may_end_with_another_token_than_the_text(llama):
    path, metadata, tensors = llama
    ends = {"tokenizer__ggml__eos_token_id": 0, "tokenizer__ggml__eot_token_id": 2}
    folder = converted(write_gguf(path, change(metadata, **ends), tensors))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["eos_token"] == TOKENS[0]


def test_transformers_loads_the_same_tokenizer(llama):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(converted(write_gguf(*llama)))
    roles = (theirs.bos_token, theirs.eos_token, theirs.pad_token, len(theirs))
    assert roles == (*TOKENS[1:3], TOKENS[0], len(TOKENS))
    found = theirs.convert_ids_to_tokens(theirs("a the 12").input_ids)
    assert found == ["a", "Ġthe", "Ġ", "1", "2"]
