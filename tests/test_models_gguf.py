"""GGUF files: every number format element by element, the container, names, the tokenizer, and files that are wrong."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from mage.agent.chat import Chat
from mage.models.loading import load_model
from mage.models.sources.gguf import read_gguf
from mage.models.sources.gguf import write_gguf as convert
from mage.models.sources.gguf_reader import GgufFile
from mage.models.sources.gguf_tokenizer import read_tokenizer
from mage.models.sources.quants import FORMATS
from tests.models_toys import (
    TOKENIZER,
    TOKENS,
    Tensor,
    float32,
    gguf_of,
    random_blocks,
    tiny_model,
    write_gguf,
)

# --- number formats: one element at a time, straight from the layout of a block, as ggml's own loops read it


def half(block: bytes, place: int) -> float:
    return float(struct.unpack_from("<e", block, place)[0])


def nibble(packed: bytes, element: int) -> int:
    """4-bit integer of a block of 32: the first 16 are the low halves of the bytes."""
    return packed[element] & 15 if element < 16 else packed[element - 16] >> 4


def fifth(bits: bytes, element: int) -> int:
    return (int.from_bytes(bits, "little") >> element & 1) << 4


def six_bits(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of 32."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    return packed[group + 4] & 15 | packed[group - 4] >> 6 << 4, packed[group + 4] >> 4 | packed[
        group
    ] >> 6 << 4


def nibble_of_64(packed: bytes, element: int) -> int:
    """Runs of 64: the low halves of 32 bytes, then their high halves."""
    run, rest = divmod(element, 64)
    byte = packed[32 * run + rest % 32]
    return byte & 15 if rest < 32 else byte >> 4


def q4_k(block: bytes, element: int) -> float:
    scale, least = six_bits(block[4:16], element // 32)
    return half(block, 0) * scale * nibble_of_64(block[16:], element) - half(block, 2) * least


def q5_k(block: bytes, element: int) -> float:
    scale, least = six_bits(block[4:16], element // 32)
    high = block[16 + element % 32] >> (element // 32) & 1
    return (
        half(block, 0) * scale * (nibble_of_64(block[48:], element) + 16 * high)
        - half(block, 2) * least
    )


def q6_k(block: bytes, element: int) -> float:
    run, rest = divmod(element, 128)
    quarter, place = divmod(rest, 32)
    byte = block[64 * run + 32 * (quarter % 2) + place]
    low = byte & 15 if quarter < 2 else byte >> 4
    high = block[128 + 32 * run + place] >> (2 * quarter) & 3
    (scale,) = struct.unpack_from("<b", block, 192 + element // 16)
    return half(block, 208) * scale * ((low | high << 4) - 32)


REFERENCES: dict[int, Callable[[bytes, int], float]] = {
    0: lambda block, element: struct.unpack("<f", block)[0],
    1: lambda block, element: half(block, 0),
    2: lambda block, element: half(block, 0) * (nibble(block[2:], element) - 8),
    3: lambda block, element: half(block, 0) * nibble(block[4:], element) + half(block, 2),
    6: lambda block, element: (
        half(block, 0) * ((nibble(block[6:], element) | fifth(block[2:6], element)) - 16)
    ),
    7: lambda block, element: (
        half(block, 0) * (nibble(block[8:], element) | fifth(block[4:8], element)) + half(block, 2)
    ),
    8: lambda block, element: half(block, 0) * struct.unpack_from("<b", block, 2 + element)[0],
    12: q4_k,
    13: q5_k,
    14: q6_k,
    30: lambda block, element: struct.unpack("<f", b"\0\0" + block)[0],
}
SIZES = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    30: (1, 2),
}


def plain_bytes(kind: int, count: int) -> bytes:
    numbers = np.random.default_rng(0).normal(size=count).astype(np.float32)
    if kind == 30:
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return numbers.astype(np.float16 if kind == 1 else np.float32).tobytes()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_a_number_format_is_read_as_its_layout_says_element_by_element(
    kind: int, tmp_path: Path
) -> None:
    elements, size = SIZES[kind]
    columns, rows = max(elements, 4) * 2, 3
    count = rows * columns // elements
    raw = random_blocks(kind, count) if elements > 1 else plain_bytes(kind, count)
    path = write_gguf(
        tmp_path / "a.gguf",
        {},
        {"other": float32([1.0, 2.0, 3.0]), "one": ((rows, columns), kind, raw)},
    )
    blocks = [raw[start : start + size] for start in range(0, len(raw), size)]
    expected = [REFERENCES[kind](block, element) for block in blocks for element in range(elements)]
    found = GgufFile(path).tensor("one")
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, np.array(expected).reshape(rows, columns), rtol=1e-6, atol=1e-6
    )


# --- the container


@pytest.mark.parametrize("version", [2, 3])
def test_keys_and_shapes_come_back_as_they_were_written(version: int, tmp_path: Path) -> None:
    keys = {
        "a.text": "grüße",
        "a.count": 7,
        "a.share": 0.5,
        "a.on": True,
        "a.words": ["x", "y"],
        "a.numbers": [1, 2, 3],
    }
    file = GgufFile(
        write_gguf(tmp_path / "a.gguf", keys, {"one": float32(np.arange(6).reshape(2, 3))}, version)
    )
    assert file.metadata == keys
    assert file.tensor("one").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_data_begins_where_the_file_says(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"general.alignment": 32}, {"one": float32([5.0])})
    data = path.read_bytes()
    end = data.rindex(struct.pack("<f", 5.0))
    wider = data[:end].replace(struct.pack("<I", 32), struct.pack("<I", 128))
    path.write_bytes(wider + bytes(-len(wider) % 128) + data[end:])
    assert GgufFile(path).tensor("one").tolist() == [5.0]


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", TOKENIZER, {"one": float32(np.ones((4, 32)))})
    whole = path.read_bytes()
    for length in (1, 3, 7, 23, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut off|no GGUF"):
            GgufFile(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"PK\3\4 a zip file, say", "does not begin with the letters GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; read are 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99),
            "unknown type 99",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "cut off or damaged"),
    ],
)
def test_a_file_that_is_none_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words):
        GgufFile(path)


def test_an_unknown_number_format_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {}, {"blk.0.attn_q.weight": ((256,), 16, bytes(66))})
    with pytest.raises(
        ValueError,
        match=r"blk\.0\.attn_q\.weight has number format 16, which is not read here; read are F32, F16, Q4_0",
    ):
        GgufFile(path)


def test_rows_that_do_not_fill_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fill blocks of 32 \(Q8_0\)"):
        GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"one": ((2, 16), 8, bytes(34))}))


# --- whole models


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    return tmp_path / "tiny.gguf", *gguf_of(tiny_model("llama"))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_model_computes_the_same_after_a_trip_through_a_gguf_file(
    kind: str, tmp_path: Path
) -> None:
    before = tiny_model(kind)
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(before))
    (tmp_path / "out").mkdir()
    convert(path, tmp_path / "out", None, None, lambda line: None)
    after = load_model(tmp_path / "out", "float32", "cpu")
    assert type(after) is type(before)
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(after(ids).logits, before(ids).logits, rtol=0, atol=1e-5)
    assert set(after.state_dict()) == set(before.state_dict())


def test_bfloat16_on_disk_is_the_nearest_one(llama: Any, tmp_path: Path) -> None:
    path, metadata, tensors = llama
    (tmp_path / "out").mkdir()
    convert(
        write_gguf(path, metadata, tensors), tmp_path / "out", "bfloat16", None, lambda line: None
    )
    before, after = (
        tiny_model("llama").state_dict(),
        load_model(tmp_path / "out", "float32", "cpu").state_dict(),
    )
    assert all(
        torch.equal(after[name], tensor.bfloat16().float()) for name, tensor in before.items()
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_large_weights_go_into_numbered_files(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, metadata, tensors = llama
    monkeypatch.setattr("mage.models.sources.files.SHARD_NUMBERS", 30_000)
    (tmp_path / "out").mkdir()
    convert(write_gguf(path, metadata, tensors), tmp_path / "out", None, None, lambda line: None)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    before, after = (
        tiny_model("llama").state_dict(),
        load_model(tmp_path / "out", "float32", "cpu").state_dict(),
    )
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def change(metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed = metadata | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__chat_template": None}, "has no chat template: give one with --template FILE"),
        (
            {"general__architecture": "mamba"},
            "has the architecture mamba; read are llama, qwen2, qwen3",
        ),
        ({"llama__rope__scaling__type": "yarn"}, "stretches its rotary positions"),
        ({"llama__block_count": None}, "does not say its block_count"),
        (
            {"llama__block_count": 3},
            r"lacks model\.layers\.2\.input_layernorm\.weight, .* and more",
        ),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer of kind llama; read is gpt2"),
        (
            {"tokenizer__ggml__pre": "tekken"},
            "by the rule 'tekken'; known are default, gpt-2, smollm, qwen2",
        ),
    ],
)
def test_a_model_that_is_not_understood_is_refused(
    changes: dict[str, Any], words: str, llama: Any
) -> None:
    path, metadata, tensors = llama
    with pytest.raises(ValueError, match=words):
        read_gguf(write_gguf(path, change(metadata, **changes), tensors))


def test_a_tensor_that_no_layer_has_is_named(llama: Any) -> None:
    path, metadata, tensors = llama
    with pytest.raises(ValueError, match=r"a tensor blk\.0\.ffn_gate_exps\.weight, which no layer"):
        read_gguf(
            write_gguf(path, metadata, tensors | {"blk.0.ffn_gate_exps.weight": float32([1.0])})
        )


# --- the tokenizer


def tokens_of(text: str, split: str) -> list[str]:
    made = Tokenizer.from_str(
        json.dumps(read_tokenizer(TOKENIZER | {"tokenizer.ggml.pre": split}, "a file"))
    )
    encoded = made.encode(text, add_special_tokens=False)
    assert made.decode(encoded.ids, skip_special_tokens=False) == text
    return list(encoded.tokens)


# Worked by hand with the merges of the toy: th, Ġth, Ġthe, 12, ĠĠ.
@pytest.mark.parametrize(
    ("split", "text", "expected"),
    [
        ("default", "a the 12", ["a", "Ġthe", "Ġ", "12"]),
        ("smollm", "a the 12", ["a", "Ġthe", "Ġ", "1", "2"]),  # digits stand alone
        ("qwen2", "a the 12", ["a", "Ġthe", "Ġ", "1", "2"]),
        ("smollm", "a  1", ["a", "ĠĠ", "1"]),  # blanks before a digit stay together
        ("default", "a  1", ["a", "Ġ", "Ġ", "1"]),  # the last one belongs to the digit
        ("smollm", "<|im_start|>the<|im_end|>", ["<|im_start|>", "th", "e", "<|im_end|>"]),
        ("default", "é\n", ["Ã", "©", "Ċ"]),
    ],
)
def test_words_are_split_before_they_are_merged(split: str, text: str, expected: list[str]) -> None:
    assert tokens_of(text, split) == expected


def test_the_folder_is_a_chat_whose_turns_end(llama: Any, tmp_path: Path) -> None:
    path, metadata, tensors = llama
    (tmp_path / "out").mkdir()
    convert(write_gguf(path, metadata, tensors), tmp_path / "out", None, None, lambda line: None)
    chat = Chat.load(tmp_path / "out")
    assert chat.end_ids == (TOKENS.index("<|im_end|>"),)
    assert chat.tokenizer.decode(
        list(chat.first("a", "b") + chat.encode("c") + chat.next("d")), skip_special_tokens=False
    ) == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_turn_may_end_with_another_token_than_a_text(llama: Any, tmp_path: Path) -> None:
    path, metadata, tensors = llama
    parts = read_gguf(
        write_gguf(
            path,
            change(metadata, tokenizer__ggml__eos_token_id=0, tokenizer__ggml__eot_token_id=2),
            tensors,
        )
    )
    assert parts.generation["eos_token_id"] == [0, 2]
    assert parts.tokenizer_config["eos_token"] == TOKENS[0]


def test_the_tokenizer_is_what_transformers_loads(llama: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path, metadata, tensors = llama
    (tmp_path / "out").mkdir()
    convert(write_gguf(path, metadata, tensors), tmp_path / "out", None, None, lambda line: None)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token, len(theirs)) == (
        *TOKENS[1:3],
        TOKENS[0],
        len(TOKENS),
    )
    assert theirs.convert_ids_to_tokens(theirs("a the 12").input_ids) == [
        "a",
        "Ġthe",
        "Ġ",
        "1",
        "2",
    ]
