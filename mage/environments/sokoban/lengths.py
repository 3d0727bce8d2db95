"""Solution lengths of rooms of the published generator: reverse play in 6x6 rooms.

Measured with search depth 100 and solutions of 5 to 21 moves, as in the paper, on 500 rooms with
one and with two boxes and on 1,200 with three. Most of these rooms are short: reverse play prefers
few changes between boxes. The lengths come from there; our own generator makes the layouts.
"""

from functools import cache

SIZE = 6  # rows and columns of the measured rooms
NATURAL = 100  # equal shares into which the lengths of one number of boxes are divided

_COUNTS = {  # boxes -> rooms with solutions of 5, 6, ... moves
    1: (199, 127, 70, 50, 33, 12, 4),
    2: (77, 70, 59, 56, 42, 29, 51, 35, 27, 18, 9, 10, 5, 5, 4, 2, 1),
    3: (67, 109, 125, 93, 105, 91, 104, 83, 100, 82, 61, 56, 45, 24, 20, 16, 19),
}
_FIRST = 5


@cache
def natural_lengths(boxes: int, shortest: int, longest: int) -> tuple[int, ...]:
    """`NATURAL` solution lengths, each as often as in the measured rooms; empty if there are none.

    >>> sorted(natural_lengths(2, 5, 21))[NATURAL // 2]
    8
    """
    rooms = [
        moves
        for moves, count in enumerate(_COUNTS.get(boxes, ()), start=_FIRST)
        for _ in range(count)
        if shortest <= moves <= longest
    ]
    if not rooms:
        return ()
    middles = [(2 * share + 1) / (2 * NATURAL) for share in range(NATURAL)]
    return tuple(rooms[int(middle * len(rooms))] for middle in middles)
