"""Samples into tensors. `pack_trie` and `pack_forest` compute every shared token once, `pack_rows` is the ordinary padded way.

A set of samples is a prefix trie laid out depth first: if `end[j]` is one past the last token of j's subtree, query i may
attend key j exactly when `j <= i < end[j]`, and positions are depths. A trie is laid out as one line, for attention that skips
what its mask leaves empty (CUDA). A forest is for dense masks (CPU): one ROOT (what all samples of the micro-batch begin with)
and B trees padded to one width, so that attention is B small squares and not one large one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Literal

import numpy as np
import torch

from mage.types import Sample

Layout = Literal["trie", "forest", "rows"]
# Pairs of query and key that cost as much as one token outside attention, for a small model (see `attention.exchange_rate`).
EXCHANGE = 660.0
TREE = 2048  # most tokens of a tree in a line


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A sample as an array. `key` sorts like the ids do; `offset` is the place of its first reply token in the update."""

    sample: Sample
    ids: np.ndarray
    key: bytes
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Rows in the order of a walk; `shared[k]` leading tokens of row k are those of row k - 1. `size` counts trie nodes."""

    rows: tuple[Row, ...]
    shared: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """One entry per reply token. `parents` are the flat positions that predict them, `index` their places in the update.

    `choice_parents` predict the places where legal moves part, `choice_tokens` [places, most tokens] are what they part
    into, filled up with -1.
    """

    parents: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    on_reflection: torch.Tensor
    index: torch.Tensor
    plays: int
    choice_parents: torch.Tensor
    choice_tokens: torch.Tensor

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
    """A micro-batch. A trie's `reach` is `end` for every token [L]. A forest has a `shape`, and `reach` is `end` for every token
    of a tree [B, n], counted from its start; that of rows is 1 for real tokens [rows, width]."""

    layout: Layout
    input_ids: torch.Tensor
    positions: torch.Tensor
    reach: torch.Tensor
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
    replies = len(sample.reply_ids)
    if not sample.prompt_ids or not replies:
        raise ValueError(
            f"sample {sample.where} needs at least one prompt token and one reply token"
        )
    if len(sample.old_logprobs) != replies:
        raise ValueError(
            f"sample {sample.where} has {replies} reply tokens but {len(sample.old_logprobs)} old logprobs"
        )
    if any(not 0 <= place < replies or len(tokens) < 2 for place, tokens in sample.choices):
        raise ValueError(
            f"sample {sample.where} has choices {sample.choices}: places are 0 to {replies - 1}, with two tokens or more"
        )


def common(one: Row, other: Row) -> int:
    """How many leading tokens two rows share."""
    length = min(len(one.ids), len(other.ids))
    differs = one.ids[:length] != other.ids[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def build_tree(rows: Iterable[Row], *, deepest_first: bool = False) -> Tree:
    """The trie of these rows: in sorted order all that is shared is shared with the neighbour."""
    ordered = sorted(rows, key=attrgetter("key"))
    shared = [0, *(common(one, other) for one, other in pairwise(ordered))]
    if deepest_first:
        ordered, shared = _deepest_first(ordered, shared)
    return Tree(tuple(ordered), tuple(shared), _size(ordered, shared))


def _deepest_first(rows: list[Row], shared: list[int]) -> tuple[list[Row], list[int]]:
    """The same trie with the branch that goes deepest first at every fork: a trunk with many short branches then lies in one piece,
    and a block of the mask is mostly full or empty."""
    if len(rows) < 2:
        return rows, shared
    least = min(shared[1:])
    forks = [0, *(place for place in range(1, len(rows)) if shared[place] == least), len(rows)]
    branches = [
        _deepest_first(rows[start:end], [0, *shared[start + 1 : end]])
        for start, end in pairwise(forks)
    ]
    branches.sort(key=lambda branch: -max(len(row.ids) for row in branch[0]))
    lengths = [length for _, own in branches for length in (least, *own[1:])]
    return [row for own, _ in branches for row in own], [0, *lengths[1:]]


def _size(rows: Sequence[Row], shared: Sequence[int]) -> int:
    return sum(len(row.ids) for row in rows) - sum(shared)


@dataclass(frozen=True, slots=True)
class SplitCost:
    """When a trie is better computed in parts. With a `limit`: when it is larger. Without: when what attention saves is
    more than the repeated trunks cost, one token costing as much as `exchange` pairs of query and key."""

    root: int
    exchange: float
    limit: int | None

    def price(self, tree: Tree) -> float:
        own = tree.size - self.root
        return own * (self.exchange + self.root + own)

    def better_apart(self, tree: Tree, parts: Sequence[Tree]) -> bool:
        if self.limit is not None:
            return tree.size - self.root > self.limit
        return self.price(tree) > sum(map(self.price, parts))


def split_tree(tree: Tree, split_cost: SplitCost) -> list[Tree]:
    """Split a tree where the least is shared (the nearest such place to its middle), again and again, if that pays."""
    if len(tree.rows) == 1:
        return [tree]
    middle = len(tree.rows) / 2
    place = min(range(1, len(tree.rows)), key=lambda row: (tree.shared[row], abs(row - middle)))
    halves = (_subtree(tree, 0, place), _subtree(tree, place, len(tree.rows)))
    parts = [part for half in halves for part in split_tree(half, split_cost)]
    return parts if split_cost.better_apart(tree, parts) else [tree]


def _subtree(tree: Tree, start: int, end: int) -> Tree:
    rows, shared = tree.rows[start:end], (0, *tree.shared[start + 1 : end])
    return Tree(rows, shared, _size(rows, shared))


def root_of(trees: Sequence[Tree]) -> int:
    """The length of the prefix common to all rows."""
    first = trees[0].rows[0]
    within = (min(tree.shared[1:], default=len(tree.rows[0].ids)) for tree in trees)
    between = (common(first, tree.rows[0]) for tree in trees)
    return min(*within, *between)


def plan_forests(
    rows: Sequence[Row],
    *,
    micro_tokens: int,
    tree_tokens: int | None = None,
    exchange: float = EXCHANGE,
) -> list[list[Tree]]:
    """Micro-batches of trees of like size, each of about `micro_tokens` tokens with padding.

    Only samples of one group are looked at together: what groups share is the root, and that is computed once anyway.
    """
    if not rows:
        return []
    root = common(min(rows, key=attrgetter("key")), max(rows, key=attrgetter("key")))
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.where.group, []).append(row)
    split_cost = SplitCost(root, exchange, tree_tokens)
    trees = [
        tree for group in groups.values() for tree in split_tree(build_tree(group), split_cost)
    ]
    batches: list[list[Tree]] = []
    room = 0
    for tree in sorted(trees, key=attrgetter("size"), reverse=True):
        if room < 1:
            batches.append([])
            room = max(1, (micro_tokens - root) // max(1, tree.size - root))
        batches[-1].append(tree)
        room -= 1
    return batches


def plan_tries(
    rows: Sequence[Row], *, micro_tokens: int, tree_tokens: int | None = None
) -> list[list[Tree]]:
    """Micro-batches of about `micro_tokens` tokens, filled with trees of samples of one group.

    Trees are cut at `tree_tokens`: in the backward pass a key gathers from all its queries one after the other, and the first keys of
    a large tree would keep everybody waiting. What a cut repeats is little beside that.
    """
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.where.group, []).append(row)
    split_cost = SplitCost(0, EXCHANGE, min(tree_tokens or TREE, micro_tokens))
    trees = [
        tree
        for group in groups.values()
        for tree in split_tree(build_tree(group, deepest_first=True), split_cost)
    ]
    batches: list[tuple[list[Tree], int]] = []
    for tree in sorted(trees, key=attrgetter("size"), reverse=True):
        place = next((n for n, (_, room) in enumerate(batches) if room >= tree.size), None)
        if place is None:
            batches.append(([tree], micro_tokens - tree.size))
        else:
            batches[place] = ([*batches[place][0], tree], batches[place][1] - tree.size)
    return [batch for batch, _ in batches]


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


def pack_trie(
    trees: Sequence[Tree],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    multiple: int = 1,
) -> Packed:
    """Lay trees out one after the other in one line, and fill up to a multiple, as kernels work in blocks."""
    total = sum(tree.size for tree in trees)
    ids = np.zeros(-(-total // multiple) * multiple, dtype=np.int64)
    positions = np.zeros_like(ids)
    ends = np.arange(1, len(ids) + 1)  # padding attends itself, as in a forest
    parents: list[np.ndarray] = []
    base = 0
    for tree in trees:
        own = ends[base : base + tree.size]
        parents += _lay(tree, 0, base, ids, positions, own)
        own += base
        base += tree.size
    terms = _terms([row for tree in trees for row in tree.rows], parents, dtype, device)
    flat, depths, reach = (
        torch.from_numpy(array).to(device) for array in (ids[None], positions[None], ends)
    )
    return Packed("trie", flat, depths, reach, None, terms, tokens=total)


def pack_forest(
    trees: Sequence[Tree], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Packed:
    """Lay trees out as one root and equally wide blocks. `dtype` is the network's."""
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
    terms = _terms([row for tree in trees for row in tree.rows], parents, dtype, device)
    flat, depths, reach = (
        torch.from_numpy(array).to(device) for array in (ids[None], positions[None], ends)
    )
    return Packed("forest", flat, depths, reach, shape, terms, tokens=root + sum(sizes))


def _lay(
    tree: Tree, root: int, base: int, ids: np.ndarray, positions: np.ndarray, ends: np.ndarray
) -> list[np.ndarray]:
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


def pack_rows(
    rows: Sequence[Row], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Packed:
    """One padded line per sample: the reference that the forest is held against."""
    width = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    real = np.zeros_like(ids)
    for line, row in enumerate(rows):
        ids[line, : len(row.ids)], real[line, : len(row.ids)] = row.ids, 1
    parents = [
        line * width + np.arange(len(row.sample.prompt_ids) - 1, len(row.ids) - 1)
        for line, row in enumerate(rows)
    ]
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    lines, depths, reach = (torch.from_numpy(array).to(device) for array in (ids, positions, real))
    return Packed(
        "rows",
        lines,
        depths,
        reach,
        None,
        _terms(rows, parents, dtype, device),
        tokens=int(real.sum()),
    )


def _terms(
    rows: Sequence[Row], parents: list[np.ndarray], dtype: torch.dtype, device: torch.device | str
) -> Terms:
    """The loss terms of rows in this order. Half precision is for the network: the loss is computed in float32 at least."""
    samples = [row.sample for row in rows]
    lengths = np.array([len(sample.reply_ids) for sample in samples])
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    reflects = np.array([sample.kind == "reflect" for sample in samples])
    reply_ids = chain.from_iterable(sample.reply_ids for sample in samples)
    old_logprobs = chain.from_iterable(sample.old_logprobs for sample in samples)
    real = torch.float64 if dtype == torch.float64 else torch.float32

    def moved(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device, real if array.dtype == np.float64 else None)

    return Terms(
        parents=moved(np.concatenate(parents)),
        targets=moved(np.fromiter(reply_ids, np.int64, len(place))),
        old_logprobs=moved(np.fromiter(old_logprobs, np.float64, len(place))),
        advantages=moved(np.repeat([float(sample.advantage) for sample in samples], lengths)),
        on_reflection=moved(np.repeat(reflects, lengths)),
        index=moved(np.repeat([row.offset for row in rows], lengths) + place),
        plays=int((~reflects).sum()),
        **{name: moved(array) for name, array in _choices(samples, parents).items()},
    )


def _choices(samples: Sequence[Sample], parents: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The places where legal moves part, padded to the widest."""
    found = [
        (above[place], tokens)
        for sample, above in zip(samples, parents, strict=True)
        for place, tokens in sample.choices
    ]
    width = max((len(tokens) for _, tokens in found), default=0)
    padded = np.array(
        [tokens + (-1,) * (width - len(tokens)) for _, tokens in found], dtype=np.int64
    ).reshape(len(found), width)
    return {
        "choice_parents": np.array([at for at, _ in found], dtype=np.int64),
        "choice_tokens": padded,
    }
