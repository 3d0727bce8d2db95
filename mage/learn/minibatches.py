"""The rows of each optimizer step of an epoch.

If the members of groups are dealt to the ranks (run.deal = "members"), the mini-batches do not
depend on the number of ranks: the ranks tell each other how many rows each meta-episode has; from
that, every rank computes the mini-batches of one process and takes its own rows of each. Otherwise
(run.deal = "groups") every rank divides its own rows. Meta-episodes are shuffled as a whole,
because their rows share most of their prompts.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from mage.learn.pack.tries import Row
from mage.ranks.ranks import Ranks
from mage.types import Member


def split_by_unit(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """Split the samples into `parts` mini-batches, in an order drawn from `seed`.

    The mini-batches have similar numbers of units, not of rows. A unit stays together: a whole
    group if there are enough groups, because its members share most of their prompts and pack well;
    otherwise a whole meta-episode. Parts may be empty.
    """
    sizes = _sizes(rows, ranks)
    by_group = len({group for group, _ in sizes}) >= parts

    def unit_of(member: Member) -> tuple[int, ...]:
        return member[:1] if by_group else member

    order = sorted({unit_of(member) for member in sizes})
    random.Random(seed).shuffle(order)
    own: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        own[unit_of(_member(row))].append(row)
    return [
        [row for unit in order[part::parts] for row in own.get(unit, ())] for part in range(parts)
    ]


def cut_by_rows(rows: Sequence[Row], parts: int, seed: int, ranks: Ranks) -> list[list[Row]]:
    """Cut the rows of all ranks into `parts` mini-batches whose lengths differ by at most one.

    A cut may divide a meta-episode.
    """
    sizes = _sizes(rows, ranks)
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    before = accumulate((sizes[member] for member in order), initial=0)
    first_row_of = dict(zip(order, before, strict=False))  # its place in that order
    ends = [sum(sizes.values()) * part // parts for part in range(1, parts + 1)]
    batches: list[list[Row]] = [[] for _ in range(parts)]
    seen: Counter[Member] = Counter()
    for row in sorted(rows, key=lambda row: first_row_of[_member(row)]):
        member = _member(row)
        # Counted over the rows of all ranks: one rank has all rows of a meta-episode, in order.
        row_number = first_row_of[member] + seen[member]
        batches[bisect_right(ends, row_number)].append(row)
        seen[member] += 1
    return batches


def _member(row: Row) -> Member:
    return row.sample.where.group, row.sample.where.member


def _sizes(rows: Sequence[Row], ranks: Ranks) -> Counter[Member]:
    """The number of rows of every meta-episode of all ranks."""
    return sum(ranks.gather(Counter(map(_member, rows))), Counter())
