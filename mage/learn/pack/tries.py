"""The prefix trie of a set of samples: rows in sorted order, and where to split it.

In sorted order every row shares its longest prefix with its neighbour, so a tree is a list of rows
with the number of tokens that each shares with the row before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np

from mage.config.errors import UserError
from mage.types import Sample


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A sample as an array.

    `offset` is the place of its first reply token in the reply tokens of all samples, one after the
    other. `key` holds the ids as big-endian bytes, so that bytes compare like the ids.
    """

    sample: Sample
    ids: np.ndarray
    key: bytes
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Rows in depth-first order. Row k shares its first `shared[k]` tokens with row k - 1.

    `size` is the number of trie nodes.
    """

    rows: tuple[Row, ...]
    shared: tuple[int, ...]
    size: int


def prepare(samples: Iterable[Sample]) -> list[Row]:
    """Check samples and convert them to rows."""
    rows, offset = list[Row](), 0
    for sample in samples:
        _check(sample)
        ids = _as_array(sample, rows[-1] if rows else None)
        rows.append(Row(sample, ids, ids.astype(">u4").tobytes(), offset))
        offset += len(sample.reply_ids)
    return rows


def _as_array(sample: Sample, before: Row | None) -> np.ndarray:
    """The ids of a sample. A prompt that continues the one before takes over its array."""
    prompt, known = sample.prompt_ids, before.sample.prompt_ids if before else ()
    if before is None or prompt[: len(known)] != known:
        return np.array(prompt + sample.reply_ids, dtype=np.int64)
    new = np.array(prompt[len(known) :] + sample.reply_ids, dtype=np.int64)
    return np.concatenate((before.ids[: len(known)], new))


def _check(sample: Sample) -> None:
    replies = len(sample.reply_ids)
    if not sample.prompt_ids or not replies:
        raise UserError(
            f"sample {sample.where} needs at least one prompt token and one reply token"
        )
    if len(sample.old_logprobs) != replies:
        raise UserError(
            f"sample {sample.where} has {replies} reply tokens but "
            f"{len(sample.old_logprobs)} old logprobs"
        )
    if any(not 0 <= place < replies or len(tokens) < 2 for place, tokens in sample.choices):
        raise UserError(
            f"sample {sample.where} has choices {sample.choices}: a place must be 0 to "
            f"{replies - 1}, with at least two tokens"
        )


def common(one: Row, other: Row) -> int:
    """Number of leading tokens that two rows share."""
    length = min(len(one.ids), len(other.ids))
    differs = one.ids[:length] != other.ids[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def build_tree(rows: Iterable[Row], *, deepest_first: bool = False) -> Tree:
    """The trie of these rows. In sorted order a row shares most with its neighbour."""
    ordered = sorted(rows, key=attrgetter("key"))
    shared = [0, *(common(one, other) for one, other in pairwise(ordered))]
    if deepest_first:
        ordered, shared = _deepest_first(ordered, shared)
    return Tree(tuple(ordered), tuple(shared), _size(ordered, shared))


def _deepest_first(rows: list[Row], shared: list[int]) -> tuple[list[Row], list[int]]:
    """The same trie with the deepest branch first at every fork.

    A trunk with many short branches is then contiguous, and most mask blocks are full or empty.
    The rows 1 2, 1 3 and 1 4 5 fork after their first token; the longest comes first.

    >>> samples = [Sample.to_score((1,), reply) for reply in ((2,), (3,), (4, 5))]
    >>> rows, shared = _deepest_first(prepare(samples), [0, 1, 1])
    >>> [row.sample.reply_ids for row in rows], shared
    ([(4, 5), (2,), (3,)], [0, 1, 1])
    """
    new_rows: list[Row] = []
    new_shared: list[int] = []
    # Branches (start, end) of the rows, with the tokens that each shares with the row before it.
    # No recursion: a long episode has hundreds of forks, one below the other.
    left = [(0, len(rows), 0)]
    while left:
        start, end, before = left.pop()
        if end - start < 2:
            new_rows += rows[start:end]
            new_shared += [before][: end - start]
            continue
        trunk = min(shared[start + 1 : end])  # tokens that all rows share, up to the first fork
        # A row that shares only the trunk with the row before begins a new branch.
        forks = [place for place in range(start + 1, end) if shared[place] == trunk]
        branches = sorted(
            pairwise([start, *forks, end]),
            key=lambda branch: -max(len(row.ids) for row in rows[slice(*branch)]),
        )
        shares = [before, *(trunk for _ in forks)]
        left += [(*branch, own) for branch, own in zip(branches, shares, strict=True)][::-1]
    return new_rows, new_shared


def _size(rows: Sequence[Row], shared: Sequence[int]) -> int:
    return sum(len(row.ids) for row in rows) - sum(shared)


@dataclass(frozen=True, slots=True)
class SplitCost:
    """Decides whether a tree is computed whole or apart, as several trees.

    Apart, the attention between unrelated branches is not computed, but every tree repeats the
    trunk above it. Rules, in this order:

    - `most`: a tree with more tokens than this is computed apart.
    - `limit`: if it is given, a tree with more tokens than this besides the root is computed apart,
      and a smaller one whole.
    - Otherwise the cheaper of the two, by `price`.

    A single row is never split, so it can be longer than `most` and `limit`. `root` is the length
    of the prefix that all trees share, if it is computed once for all, else 0. `pairs_per_token` is
    the work of the layers on one token, measured in query-key pairs.
    """

    root: int
    pairs_per_token: float
    limit: int | None
    most: int | None = None

    def price(self, tree: Tree) -> float:
        """The work on a tree in query-key pairs: of the layers, and of attention.

        Every token besides the root is counted as if it saw the root and all of these tokens.
        """
        own = tree.size - self.root
        return own * (self.pairs_per_token + self.root + own)

    def better_apart(self, tree: Tree, parts: Sequence[Tree]) -> bool:
        if self.most is not None and tree.size > self.most:
            return True
        if self.limit is not None:
            return tree.size - self.root > self.limit
        return self.price(tree) > sum(map(self.price, parts))


def split_tree(tree: Tree, split_cost: SplitCost) -> list[Tree]:
    """The trees that are computed in place of this one, or the tree alone if it stays whole.

    It is split in two where the least is shared, nearest to the middle, and so on to single rows.
    Then, from the bottom up, the parts are kept where they are better than the whole.
    """
    left, found = [(tree, False)], list[list[Tree]]()
    while left:
        one, has_parts = left.pop()
        if len(one.rows) == 1:
            found.append([one])
        elif not has_parts:  # its halves are split first
            first, second = _halves(one)
            left += [(one, True), (second, False), (first, False)]
        else:
            after, before = found.pop(), found.pop()
            parts = before + after
            found.append(parts if split_cost.better_apart(one, parts) else [one])
    return found[0]


def _halves(tree: Tree) -> tuple[Tree, Tree]:
    """The tree in two, where the least is shared, nearest to the middle."""
    middle = len(tree.rows) / 2
    place = min(range(1, len(tree.rows)), key=lambda row: (tree.shared[row], abs(row - middle)))
    return _subtree(tree, 0, place), _subtree(tree, place, len(tree.rows))


def _subtree(tree: Tree, start: int, end: int) -> Tree:
    rows, shared = tree.rows[start:end], (0, *tree.shared[start + 1 : end])
    return Tree(rows, shared, _size(rows, shared))


def root_of(trees: Sequence[Tree]) -> int:
    """Length of the prefix common to all rows."""
    first = trees[0].rows[0]
    within = (min(tree.shared[1:], default=len(tree.rows[0].ids)) for tree in trees)  # one tree
    between = (common(first, tree.rows[0]) for tree in trees)  # the first rows of all trees
    return min(*within, *between)
