"""Samples to tensors. `pack_trie` and `pack_forest` compute shared tokens once; `pack_rows` pads.

The samples form a prefix trie that is laid out depth first. If `end[j]` is one past the last token
of j's subtree, query i may attend to key j exactly when `j <= i < end[j]`. Positions are depths.
A trie is one line, for attention that skips empty blocks of the mask (CUDA). A forest is for dense
masks (CPU): one ROOT (the common prefix of the micro-batch) and B trees padded to one width, so
that attention computes B small squares instead of a large one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Literal

import numpy as np
import torch

from mage.learn.pack.tries import (
    EXCHANGE,
    TRIE_EXCHANGE,
    Row,
    SplitCost,
    Tree,
    build_tree,
    common,
    root_of,
    split_tree,
)
from mage.types import Sample

Layout = Literal["trie", "forest", "rows"]


@dataclass(frozen=True, slots=True, eq=False)
class ReplyTokens:
    """One entry per reply token. `parents` are the flat positions that predict them.

    `index` is the token's place in the update. `choice_parents` predict the places where legal
    moves diverge; `choice_tokens` [places, most tokens] are the possible tokens there, padded
    with -1.
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
    """Layout of a forest: `root` tokens, then `trees` blocks of `width` tokens."""

    root: int
    trees: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A micro-batch. The meaning of `reach` depends on the layout.

    Trie: `end` of every token [L]. Forest (with a `shape`): `end` of every token of a tree [B, n],
    counted from the start of the tree. Rows: 1 for real tokens [rows, width].
    """

    layout: Layout
    input_ids: torch.Tensor
    positions: torch.Tensor
    reach: torch.Tensor
    shape: Shape | None
    replies: ReplyTokens
    tokens: int


def plan_forests(
    rows: Sequence[Row],
    *,
    micro_tokens: int,
    tree_tokens: int | None = None,
    exchange: float = EXCHANGE,
) -> list[list[Tree]]:
    """Micro-batches of trees of similar size, each of about `micro_tokens` tokens with padding.

    Trees are built within a group: what groups share is the root, which is computed once anyway.
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
    rows: Sequence[Row],
    *,
    micro_tokens: int,
    tree_tokens: int | None = None,
    exchange: float = TRIE_EXCHANGE,
) -> list[list[Tree]]:
    """Micro-batches of at most `micro_tokens` tokens, made of trees of one group each.

    In the backward pass a key sums over all its queries in sequence, so the first keys of a large
    tree delay the whole kernel. A tree is split where that costs more than the repeated prefix
    (`exchange`, see `packer.trie_exchange_rate`), or where it exceeds `tree_tokens` if given.
    """
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.where.group, []).append(row)
    limit = None if tree_tokens is None else min(tree_tokens, micro_tokens)
    split_cost = SplitCost(0, exchange, limit, most=micro_tokens)
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
    """Micro-batches of rows of similar length, each of at most `micro_tokens` tokens or one row."""
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
    pad: Callable[[int], int] = lambda tokens: tokens,
) -> Packed:
    """Lay out trees in one line; `pad` gives its length from the number of tokens."""
    total = sum(tree.size for tree in trees)
    ids = np.zeros(pad(total), dtype=np.int64)
    positions = np.zeros_like(ids)
    ends = np.arange(1, len(ids) + 1)  # padding attends to itself, as in a forest
    parents: list[np.ndarray] = []
    base = 0
    for tree in trees:
        own = ends[base : base + tree.size]
        parents += _lay(tree, 0, base, ids, positions, own)
        own += base
        base += tree.size
    replies = _reply_tokens([row for tree in trees for row in tree.rows], parents, dtype, device)
    flat, depths, reach = (
        torch.from_numpy(array).to(device) for array in (ids[None], positions[None], ends)
    )
    return Packed("trie", flat, depths, reach, None, replies, tokens=total)


def pack_forest(
    trees: Sequence[Tree], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Packed:
    """Lay out trees as one root and blocks of equal width. `dtype` is the network's."""
    root = root_of(trees)
    sizes = [tree.size - root for tree in trees]
    width = max(sizes)
    shape = Shape(root, len(trees) if width else 0, width)
    ids = np.zeros(root + shape.trees * width, dtype=np.int64)
    positions = np.zeros_like(ids)
    ids[:root], positions[:root] = trees[0].rows[0].ids[:root], np.arange(root)
    # Padding attends to itself: a query without any key gives NaN, and NaN times zero is NaN.
    ends = np.tile(np.arange(1, width + 1), (len(trees), 1))
    parents: list[np.ndarray] = []
    for block, tree in enumerate(trees):
        parents += _lay(tree, root, root + block * width, ids, positions, ends[block])
    replies = _reply_tokens([row for tree in trees for row in tree.rows], parents, dtype, device)
    flat, depths, reach = (
        torch.from_numpy(array).to(device) for array in (ids[None], positions[None], ends)
    )
    return Packed("forest", flat, depths, reach, shape, replies, tokens=root + sum(sizes))


def _lay(
    tree: Tree, root: int, base: int, ids: np.ndarray, positions: np.ndarray, ends: np.ndarray
) -> list[np.ndarray]:
    """Write one tree at `base`; returns for every row the positions that predict its reply tokens.

    `path[d]` is the flat position of the current row's token at depth d. A new row keeps the part
    that it shares with the previous row.
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
    """One padded line per sample; tests compare the other layouts with it."""
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
        _reply_tokens(rows, parents, dtype, device),
        tokens=int(real.sum()),
    )


def _reply_tokens(
    rows: Sequence[Row], parents: list[np.ndarray], dtype: torch.dtype, device: torch.device | str
) -> ReplyTokens:
    """The reply tokens of rows, in this order, in float32 at least, whatever the model's dtype."""
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

    return ReplyTokens(
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
    """The places where legal moves diverge, padded to the widest."""
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
