"""Mini-batches that do not depend on the number of ranks.

Every rank holds the rows of its meta-episodes. The ranks tell each other how many rows each
meta-episode has; from that, every rank computes the mini-batches of one process and takes its own
rows of each.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from mage.learn.pack.tries import Row
from mage.ranks.ranks import Ranks

Member = tuple[int, int]  # group, member


def split_shared(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """This rank's rows of the mini-batches that `minibatches.split` makes of all rows."""
    sizes = _sizes(rows, ranks)
    by_group = len({group for group, _ in sizes}) >= parts

    def key(member: Member) -> tuple[int, ...]:
        return member[:1] if by_group else member

    order = sorted({key(member) for member in sizes})
    random.Random(seed).shuffle(order)
    own: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        own[key(_member(row))].append(row)
    return [
        [row for unit in order[start::parts] for row in own.get(unit, ())] for start in range(parts)
    ]


def cut_shared(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """This rank's rows of the mini-batches that `minibatches.cut` makes of all rows."""
    sizes = _sizes(rows, ranks)
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    starts = dict(
        zip(order, accumulate((sizes[member] for member in order), initial=0), strict=False)
    )
    total = sum(sizes.values())
    ends = [total * part // parts for part in range(1, parts + 1)]
    found: list[list[Row]] = [[] for _ in range(parts)]
    seen: Counter[Member] = Counter()
    for row in sorted(rows, key=lambda row: starts[_member(row)]):
        member = _member(row)
        found[bisect_right(ends, starts[member] + seen[member])].append(row)
        seen[member] += 1
    return found


def _member(row: Row) -> Member:
    return row.sample.where.group, row.sample.where.member


def _sizes(rows: Sequence[Row], ranks: Ranks) -> Counter[Member]:
    """The number of rows of every meta-episode of all ranks."""
    return sum(ranks.gather(Counter(map(_member, rows))), Counter())
