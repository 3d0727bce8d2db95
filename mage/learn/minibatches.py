"""The rows of each optimizer step of an epoch. They do not depend on the number of ranks.

Every rank holds the rows of its meta-episodes. The ranks tell each other how many rows each
meta-episode has; from that, every rank computes the mini-batches of one process and takes its own
rows of each. Meta-episodes are shuffled as a whole, because their rows share most of their prompts.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from mage.learn.pack.tries import Row
from mage.ranks.ranks import Ranks
from mage.types import Member


def split(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """Split the samples into `parts` mini-batches of similar size, in an order drawn from `seed`.

    Whole groups stay together if there are enough of them, because their members share most of
    their prompts and pack well. Otherwise whole meta-episodes stay together. Parts may be empty.
    """
    sizes = _sizes(rows, ranks)
    by_group = len({group for group, _ in sizes}) >= parts

    def unit(member: Member) -> tuple[int, ...]:
        return member[:1] if by_group else member

    order = sorted({unit(member) for member in sizes})
    random.Random(seed).shuffle(order)
    own: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        own[unit(_member(row))].append(row)
    return [
        [row for unit in order[start::parts] for row in own.get(unit, ())] for start in range(parts)
    ]


def cut(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """Cut the rows of all ranks into `parts` mini-batches whose lengths differ by at most one.

    A cut may divide a meta-episode.
    """
    sizes = _sizes(rows, ranks)
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    before = accumulate((sizes[member] for member in order), initial=0)
    first = dict(zip(order, before, strict=False))  # place of a member's first row in that order
    ends = [sum(sizes.values()) * part // parts for part in range(1, parts + 1)]
    batches: list[list[Row]] = [[] for _ in range(parts)]
    seen: Counter[Member] = Counter()
    for row in sorted(rows, key=lambda row: first[_member(row)]):
        member = _member(row)
        batches[bisect_right(ends, first[member] + seen[member])].append(row)
        seen[member] += 1
    return batches


def _member(row: Row) -> Member:
    return row.sample.where.group, row.sample.where.member


def _sizes(rows: Sequence[Row], ranks: Ranks) -> Counter[Member]:
    """The number of rows of every meta-episode of all ranks."""
    return sum(ranks.gather(Counter(map(_member, rows))), Counter())
