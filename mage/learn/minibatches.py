"""The rows of each optimizer step of an epoch, in one process.

`shared_batches.py` makes the same mini-batches where several ranks hold the rows.
"""

import random
from collections.abc import Sequence
from itertools import groupby, pairwise

from mage.learn.pack.tries import Row


def cut(rows: Sequence[Row], parts: int, seed: int) -> list[list[Row]]:
    """Cut the rows into `parts` lists whose lengths differ by at most one.

    Meta-episodes are shuffled as a whole, because their rows share most of their prompts. A cut may
    divide a meta-episode.
    """

    def member(row: Row) -> tuple[int, int]:
        return row.sample.where.group, row.sample.where.member

    units = [list(found) for _, found in groupby(sorted(rows, key=member), key=member)]
    random.Random(seed).shuffle(units)
    ordered = [row for unit in units for row in unit]
    ends = [len(ordered) * part // parts for part in range(parts + 1)]
    return [ordered[start:end] for start, end in pairwise(ends)]


def split(rows: Sequence[Row], parts: int, seed: int) -> list[list[Row]]:
    """Split the samples into `parts` mini-batches of similar size, in an order drawn from `seed`.

    Whole groups stay together if there are enough of them, because their members share most of
    their prompts and pack well. Otherwise whole meta-episodes stay together. Parts may be empty.
    """

    def group(row: Row) -> tuple[int, ...]:
        return (row.sample.where.group,)

    def member(row: Row) -> tuple[int, ...]:
        return (row.sample.where.group, row.sample.where.member)

    whose = group if len({group(row) for row in rows}) >= parts else member
    units = [list(found) for _, found in groupby(sorted(rows, key=whose), key=whose)]
    random.Random(seed).shuffle(units)
    return [[row for unit in units[start::parts] for row in unit] for start in range(parts)]
