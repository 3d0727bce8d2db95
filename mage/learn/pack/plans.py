"""Plans: which samples form a micro-batch, before `packing.py` lays them out.

All plans take the largest first, so that the samples of a micro-batch have similar sizes.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from mage.learn.pack.tries import Row, SplitCost, Tree, build_tree, common, split_tree


def plan_forests(
    rows: Sequence[Row],
    *,
    micro_tokens: int,
    pairs_per_token: float,
    tree_tokens: int | None = None,
) -> list[list[Tree]]:
    """Micro-batches of trees of similar size, each of about `micro_tokens` tokens with padding.

    Trees are built within a group: what groups share is the root, which is computed once anyway.
    """
    if not rows:
        return []
    root = common(min(rows, key=attrgetter("key")), max(rows, key=attrgetter("key")))
    split_cost = SplitCost(root, pairs_per_token, tree_tokens)
    trees = [tree for group in _groups(rows) for tree in split_tree(build_tree(group), split_cost)]
    batches: list[list[Tree]] = []
    places = 0  # left in the last micro-batch, whose first tree is the widest
    for tree in sorted(trees, key=attrgetter("size"), reverse=True):
        if places < 1:
            batches.append([])
            places = max(1, (micro_tokens - root) // max(1, tree.size - root))
        batches[-1].append(tree)
        places -= 1
    return batches


def plan_tries(
    rows: Sequence[Row],
    *,
    micro_tokens: int,
    pairs_per_token: float,
    tree_tokens: int | None = None,
) -> list[list[Tree]]:
    """Micro-batches of at most `micro_tokens` tokens, made of trees of one group each.

    In the backward pass a key sums over all its queries in sequence, so the first keys of a large
    tree delay the whole kernel. A tree is split where that costs more than the repeated prefix
    (see `packer.trie_pairs_per_token`), or where it exceeds `tree_tokens` if given.
    """
    limit = None if tree_tokens is None else min(tree_tokens, micro_tokens)
    split_cost = SplitCost(0, pairs_per_token, limit, most=micro_tokens)
    trees = [
        tree
        for group in _groups(rows)
        for tree in split_tree(build_tree(group, deepest_first=True), split_cost)
    ]
    return _first_fit(sorted(trees, key=attrgetter("size"), reverse=True), micro_tokens)


def _first_fit(trees: Iterable[Tree], micro_tokens: int) -> list[list[Tree]]:
    """Put every tree into the first micro-batch with enough tokens left, or into a new one."""
    batches: list[list[Tree]] = []
    left: list[int] = []  # tokens that each micro-batch can still take
    for tree in trees:
        place = next((n for n, tokens in enumerate(left) if tokens >= tree.size), len(batches))
        if place == len(batches):
            batches.append([])
            left.append(micro_tokens)
        batches[place].append(tree)
        left[place] -= tree.size
    return batches


def plan_rows(rows: Sequence[Row], *, micro_tokens: int) -> list[list[Row]]:
    """Micro-batches of rows of similar length, each of at most `micro_tokens` tokens or one row."""
    batches: list[list[Row]] = []
    places = 0  # left in the last micro-batch, whose first row is the longest
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if places < 1:
            batches.append([])
            places = max(1, micro_tokens // len(row.ids))
        batches[-1].append(row)
        places -= 1
    return batches


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.where.group, []).append(row)
    return list(groups.values())
