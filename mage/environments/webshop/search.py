"""BM25 as in Lucene 9 with Anserini's settings, on arrays that processes can share.

Three things make the order equal to Lucene's. The length of a document is stored in one byte (so
153 and 159 words count the same). Every factor is a 32-bit float. Equal scores are ordered by
document name; documents are numbered in this order. The contribution of every (term, document) pair
is precomputed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mage.environments.webshop.words import terms

Array = npt.NDArray[Any]
K1, B = np.float32(0.9), np.float32(0.4)
_ROWS, _MANY = 64, 5_000  # dense rows are faster in large catalogues only
_FREE = 24  # lengths below this are exact


def quantise(length: int) -> int:
    """The length after storage in one byte: four significant bits above the first 24.

    >>> [quantise(length) for length in (7, 39, 40, 41, 153, 159, 1000)]
    [7, 39, 40, 40, 152, 152, 984]
    """
    if length < _FREE:
        return length
    rest = length - _FREE
    shift = max(0, rest.bit_length() - 4)
    return _FREE + (rest >> shift << shift)


@dataclass(frozen=True, slots=True)
class Texts:
    """Many texts in one byte array; text k is `joined[starts[k] : starts[k + 1]]`."""

    joined: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def bytes(self, number: int) -> bytes:
        return self.joined[int(self.starts[number]) : int(self.starts[number + 1])].tobytes()

    def find(self, text: str) -> int | None:
        """The number of a text. The texts must be sorted by their bytes."""
        wanted, low, high = text.encode("utf-8", "surrogatepass"), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.bytes(middle) < wanted else (low, middle)
        return low if low < len(self) and self.bytes(low) == wanted else None


def join_texts(texts: Iterable[bytes]) -> Texts:
    parts = list(texts)
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return Texts(np.frombuffer(b"".join(parts), np.uint8), starts)


@dataclass(frozen=True, slots=True)
class Index:
    """Postings of term t are at `starts[t]` to `starts[t + 1]`.

    `documents` is ascending, `shares` is the contribution of the term to each score.
    """

    vocabulary: Texts
    starts: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float32]
    frequent: npt.NDArray[
        np.int32
    ]  # frequent terms; `rows` has their contributions to ALL documents (faster to add)
    rows: npt.NDArray[np.float32]
    size: int

    def search(self, query: str, count: int = 50) -> list[int]:
        """The best documents, best first; ties by number."""
        weights: dict[int, int] = {}
        for word in terms(query):
            if (number := self.vocabulary.find(word)) is not None:
                weights[number] = weights.get(number, 0) + 1
        return self._best(self._score(weights), count) if weights else []

    def _score(self, weights: Mapping[int, int]) -> npt.NDArray[np.float32]:
        """Sums in double precision, rounded once, as in Lucene's disjunctions."""
        scores = np.zeros(self.size)
        rows = {int(number): row for row, number in enumerate(self.frequent)}
        for number, weight in weights.items():
            if number in rows:
                shares = self.rows[rows[number]]
                scores += shares if weight == 1 else shares * np.float32(weight)
            else:
                part = slice(int(self.starts[number]), int(self.starts[number + 1]))
                shares = self.shares[part]
                scores[self.documents[part]] += (
                    shares if weight == 1 else shares * np.float32(weight)
                )
        return scores.astype(np.float32)

    def _best(self, scores: npt.NDArray[np.float32], count: int) -> list[int]:
        """The top documents.

        The best of every 16th document give a lower bound, so few documents are left to sort.
        """
        some = scores[:: max(1, min(16, self.size // (2 * count)))]
        least = (
            np.partition(some, len(some) - count)[len(some) - count]
            if count < len(some)
            else np.float32(0)
        )
        found = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
        order = np.argsort(-scores[found], kind="stable")[:count]
        return [int(number) for number in found[order]]


def build_index(contents: Iterable[str]) -> Index:
    """An index of texts that come in the order of their names."""
    vocabulary: dict[str, int] = {}
    numbers, lengths = list[npt.NDArray[np.int32]](), list[int]()
    for text in contents:
        found = terms(text)
        numbers.append(
            np.fromiter(
                (vocabulary.setdefault(word, len(vocabulary)) for word in found),
                np.int32,
                len(found),
            )
        )
        lengths.append(len(found))
    texts = sorted(
        (word.encode("utf-8", "surrogatepass"), number) for word, number in vocabulary.items()
    )
    rank = np.empty(len(texts), np.int64)
    rank[[number for _, number in texts]] = np.arange(len(texts))
    size = len(lengths)
    flat = rank[np.concatenate(numbers)] if numbers else np.zeros(0, np.int64)
    pairs, counts = np.unique(flat * size + np.repeat(np.arange(size), lengths), return_counts=True)
    owners, documents = pairs // max(size, 1), pairs % max(size, 1)
    starts = np.searchsorted(owners, np.arange(len(texts) + 1))
    shares = _shares(np.diff(starts), owners, documents, counts, np.array(lengths, np.int64))
    frequent, rows = _rows(starts, documents, shares, size)
    return Index(
        join_texts(word for word, _ in texts),
        starts.astype(np.int64),
        documents.astype(np.int32),
        shares,
        frequent,
        rows,
        size,
    )


def _rows(
    starts: Array, documents: Array, shares: Array, size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The terms that occur in at least one of 16 documents, at most 64 terms."""
    counts = np.diff(starts)
    frequent = [
        number
        for number in np.argsort(-counts, kind="stable")[:_ROWS]
        if counts[number] * 16 >= size > _MANY
    ]
    rows = np.zeros((len(frequent), size), np.float32)
    for row, number in enumerate(frequent):
        part = slice(starts[number], starts[number + 1])
        rows[row, documents[part]] = shares[part]
    return np.array(frequent, np.int32), rows


def _shares(
    frequencies: Array,
    owners: Array,
    documents: Array,
    counts: Array,
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    """idf - idf / (1 + count / norm) in 32-bit steps, as in Lucene's BM25Similarity."""
    size, held = len(lengths), np.count_nonzero(lengths)
    average = np.float32(lengths.sum() / max(held, 1))
    kept = np.array([quantise(int(length)) for length in lengths], np.float32)
    inverse = np.float32(1) / (K1 * ((np.float32(1) - B) + B * kept / average))
    idf = (
        np.log(1 + (held - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        if size
        else np.zeros(0, np.float32)
    )
    weight = idf[owners]
    return (
        weight - weight / (np.float32(1) + counts.astype(np.float32) * inverse[documents])
    ).astype(np.float32)
