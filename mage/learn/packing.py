"""Samples into tensors. `pack_forest` computes every shared token once, `pack_rows` is the ordinary padded way.

A set of samples is a prefix trie laid out depth first: if `end[j]` is one past the last token of j's subtree, query i may
attend key j exactly when `j <= i < end[j]`, and positions are depths. A forest is one ROOT (what all samples of the
micro-batch begin with) and B trees padded to one width, so that attention is B small squares and not one large one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
import torch

from mage.types import Sample


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A sample as an array. `key` sorts like the ids do; `offset` is the place of its first reply token in the update."""

    sample: Sample
    ids: np.ndarray
    key: bytes
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Rows in lexicographic order; `shared[k]` leading tokens of row k are those of row k - 1. `size` counts trie nodes."""

    rows: tuple[Row, ...]
    shared: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """One entry per reply token. `parents` are the flat positions that predict them, `index` their places in the update."""

    parents: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    on_action: torch.Tensor
    on_reflection: torch.Tensor
    index: torch.Tensor
    plays: int

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, slots=True)
class Shape:
    """A forest's layout: `root` tokens, then `trees` blocks of `width` tokens, one after the other."""

    root: int
    trees: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A micro-batch. `mask` is additive [B, 1, n, R + n] for a forest, 1 for real tokens [rows, width] for rows (`shape` None)."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None
    shape: Shape | None
    terms: Terms
    tokens: int


def prepare(samples: Iterable[Sample]) -> list[Row]:
    """Check samples and turn them into rows."""
    rows, offset = [], 0
    for sample in samples:
        _check(sample)
        ids = np.array(sample.prompt_ids + sample.reply_ids, dtype=np.int64)
        rows.append(Row(sample, ids, ids.astype(">u4").tobytes(), offset))
        offset += len(sample.reply_ids)
    return rows


def _check(sample: Sample) -> None:
    replies, (start, end) = len(sample.reply_ids), sample.action_span
    if not sample.prompt_ids or not replies:
        raise ValueError(f"sample {sample.where} needs at least one prompt token and one reply token")
    if len(sample.old_logprobs) != replies:
        raise ValueError(f"sample {sample.where} has {replies} reply tokens but {len(sample.old_logprobs)} old logprobs")
    if not 0 <= start <= end <= replies:
        raise ValueError(f"sample {sample.where} has action span {sample.action_span} outside its {replies} reply tokens")


def common(one: Row, other: Row) -> int:
    """How many leading tokens two rows share."""
    length = min(len(one.ids), len(other.ids))
    differs = one.ids[:length] != other.ids[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def plant(rows: Iterable[Row]) -> Tree:
    """The trie of these rows: in sorted order all that is shared is shared with the neighbour."""
    ordered = tuple(sorted(rows, key=attrgetter("key")))
    shared = (0, *(common(one, other) for one, other in zip(ordered, ordered[1:], strict=False)))
    return Tree(ordered, shared, sum(len(row.ids) for row in ordered) - sum(shared))


def cut(tree: Tree, limit: int) -> list[Tree]:
    """Split a tree that is too large between neighbours; each part repeats the trunk it needs."""
    if tree.size <= limit:
        return [tree]
    parts: list[list[Row]] = []
    size = 0
    for row, shared in zip(tree.rows, tree.shared, strict=True):
        size += len(row.ids) - shared
        if not parts or size > limit:
            parts.append([])
            size = len(row.ids)
        parts[-1].append(row)
    return [plant(part) for part in parts]


def grow(rows: Sequence[Row], limit: int) -> list[Tree]:
    """Trees of at most `limit` tokens: meta-episodes of one group are merged while they fit, larger ones are cut.

    Groups are not merged with each other: what they share is the root, and that is computed once anyway.
    """
    trees: list[Tree] = []
    ordered = sorted(rows, key=lambda row: (row.sample.where.group, row.sample.where.member))
    for _, group in groupby(ordered, key=lambda row: row.sample.where.group):
        current: Tree | None = None
        for _, member in groupby(group, key=lambda row: row.sample.where.member):
            for part in cut(plant(member), limit):
                merged = _merge(current, part, limit)
                if merged is None and current is not None:
                    trees.append(current)
                current = merged or part
        assert current is not None, "groupby yields no empty group"
        trees.append(current)
    return trees


def _merge(current: Tree | None, part: Tree, limit: int) -> Tree | None:
    # Two tries share at most the smaller one, so without this bound every pair would be planted in vain.
    if current is None or max(current.size, part.size) > limit:
        return None
    merged = plant(current.rows + part.rows)
    return merged if merged.size <= limit else None


def root_of(trees: Sequence[Tree]) -> int:
    """The length of the prefix common to all rows: that of the first and the last in lexicographic order."""
    first = min((tree.rows[0] for tree in trees), key=attrgetter("key"))
    last = max((tree.rows[-1] for tree in trees), key=attrgetter("key"))
    return common(first, last)


def plan_forests(rows: Sequence[Row], *, tree_tokens: int, micro_tokens: int) -> list[list[Tree]]:
    """Micro-batches of trees of like size, each of about `micro_tokens` tokens with padding."""
    trees = sorted(grow(rows, tree_tokens), key=attrgetter("size"), reverse=True)
    root = root_of(trees)
    batches: list[list[Tree]] = []
    room = 0
    for tree in trees:
        if room < 1:
            batches.append([])
            room = max(1, (micro_tokens - root) // max(1, tree.size - root))
        batches[-1].append(tree)
        room -= 1
    return batches


def plan_rows(rows: Sequence[Row], *, micro_tokens: int) -> list[list[Row]]:
    """Micro-batches of rows of like length, each of at most `micro_tokens` tokens with padding (or one row)."""
    batches: list[list[Row]] = []
    room = 0
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if room < 1:
            batches.append([])
            room = max(1, micro_tokens // len(row.ids))
        batches[-1].append(row)
        room -= 1
    return batches


def pack_forest(trees: Sequence[Tree], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Packed:
    """Lay trees out as one root and equally wide blocks. `dtype` is that of the attention scores' mask."""
    root = root_of(trees)
    sizes = [tree.size - root for tree in trees]
    width = max(sizes)
    shape = Shape(root, len(trees) if width else 0, width)
    ids = np.zeros(root + shape.trees * width, dtype=np.int64)
    positions = np.zeros_like(ids)
    ids[:root], positions[:root] = trees[0].rows[0].ids[:root], np.arange(root)
    # Padding attends itself: a query without any key would be NaN, and NaN times zero is NaN.
    ends = np.tile(np.arange(1, width + 1), (len(trees), 1))
    parents: list[np.ndarray] = []
    for block, tree in enumerate(trees):
        parents += _lay(tree, root, root + block * width, ids, positions, ends[block])
    mask = _forest_mask(torch.from_numpy(ends).to(device), root, dtype) if shape.trees else None
    terms = _terms([row for tree in trees for row in tree.rows], parents, dtype, device)
    tensors = (torch.from_numpy(array)[None].to(device) for array in (ids, positions))
    return Packed(*tensors, mask, shape, terms, tokens=root + sum(sizes))


def _lay(tree: Tree, root: int, base: int, ids: np.ndarray, positions: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Write one tree at `base`; returns for every row the flat positions that predict its reply tokens.

    `path[d]` is the flat position of the current row's token at depth d; a new row keeps what it shares with the last.
    """
    parents = []
    path = np.arange(max(len(row.ids) for row in tree.rows))
    cursor = deepest = 0
    ends[: tree.size - root] = tree.size - root
    for row, shared in zip(tree.rows, tree.shared, strict=True):
        length, kept = len(row.ids), max(shared, root)
        ends[path[kept:deepest] - base] = cursor
        new = slice(base + cursor, base + cursor + length - kept)
        path[kept:length] = np.arange(new.start, new.stop)
        ids[new], positions[new] = row.ids[kept:], np.arange(kept, length)
        parents.append(path[len(row.sample.prompt_ids) - 1 : length - 1].copy())
        cursor, deepest = cursor + length - kept, length
    return parents


def _forest_mask(ends: torch.Tensor, root: int, dtype: torch.dtype) -> torch.Tensor:
    """Zero where a query may look, minus infinity elsewhere; the root is open to every query."""
    trees, width = ends.shape
    place = torch.arange(width, device=ends.device)
    allowed = (place[None, :] <= place[:, None]) & (place[:, None] < ends[:, None, :])
    # CUDA kernels want rows that begin at multiples of 8 and would otherwise copy the mask in every layer.
    columns = -(-(root + width) // 8) * 8
    mask = torch.zeros(trees, 1, width, columns, dtype=dtype, device=ends.device)[..., : root + width]
    mask[:, 0, :, root:].masked_fill_(~allowed, float("-inf"))
    return mask


def pack_rows(rows: Sequence[Row], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Packed:
    """One padded line per sample: the reference that the forest is held against."""
    width = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for line, row in enumerate(rows):
        ids[line, : len(row.ids)], mask[line, : len(row.ids)] = row.ids, 1
    parents = [line * width + np.arange(len(row.sample.prompt_ids) - 1, len(row.ids) - 1) for line, row in enumerate(rows)]
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    tensors = (torch.from_numpy(array).to(device) for array in (ids, positions, mask))
    return Packed(*tensors, None, _terms(rows, parents, dtype, device), tokens=int(mask.sum()))


def _terms(rows: Sequence[Row], parents: list[np.ndarray], dtype: torch.dtype, device: torch.device | str) -> Terms:
    """The loss terms of rows in this order. Half precision is for the network: the loss is computed in float32 at least."""
    samples = [row.sample for row in rows]
    lengths = np.array([len(sample.reply_ids) for sample in samples])
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    first, last = (np.repeat([sample.action_span[side] for sample in samples], lengths) for side in (0, 1))
    reflects = np.array([sample.kind == "reflect" for sample in samples])
    real = torch.float64 if dtype == torch.float64 else torch.float32
    integers = (
        np.concatenate(parents),
        np.fromiter(chain.from_iterable(sample.reply_ids for sample in samples), np.int64, len(place)),
    )
    reals = (
        np.fromiter(chain.from_iterable(sample.old_logprobs for sample in samples), np.float64, len(place)),
        np.repeat([sample.advantage for sample in samples], lengths),
    )
    return Terms(
        *(torch.from_numpy(array).to(device) for array in integers),
        *(torch.from_numpy(array).to(device, real) for array in reals),
        on_action=torch.from_numpy((first <= place) & (place < last)).to(device),
        on_reflection=torch.from_numpy(np.repeat(reflects, lengths)).to(device),
        index=torch.from_numpy(np.repeat([row.offset for row in rows], lengths) + place).to(device),
        plays=int((~reflects).sum()),
    )
