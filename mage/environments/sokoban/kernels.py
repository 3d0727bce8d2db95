"""Rooms and their distance tables, in the part of Python that numba compiles too: whole numbers and flat sequences.

`compiled.py` compiles these very functions; as they stand they are the plain fallback, on lists. Both give the same rooms
for the same numbers, so nothing depends on whether numba is there.

A room's floor cells are numbered from 0, and `beside[4 * cell + move]` is the neighbour or -1. A state is a player's cell and a rising
row of boxes; its key is `rank(boxes) * cells + player`, where `rank` numbers the sets of boxes without gaps. The table is filled
BACKWARDS from the solved states over undone steps and undone pushes: what it does not reach can no longer be solved.

The search takes many states at a time. Squares are bits of a number, from the first one inside the outer wall on, so a set of boxes is a number, and so is a
WAVE: the players from whom one set of boxes is solved in the same number of moves. All of them step at once by a shift. A compiled
number has 64 bits, enough for 10x10 rooms; the top one is its sign, which a shift to the right smears, so what is shifted is always masked.
"""

from typing import Any, NamedTuple

import numpy as np

Numbers = Any  # a list here, a numpy array of int64 where the functions are compiled
TURN = 35  # chance in 100 that the walk that carves a room turns
PRIME = 509  # by which powers of two up to 2 ** 507 leave different rests (2 is a primitive root), and so does -(2 ** 63) among the first 64
PIECES = 13  # sequences in a Space
HELD, SEEN, LAST, FIELDS = (
    0,
    1,
    2,
    3,
)  # of a set of boxes: the boxes, all players that it was met with so far, its newest wave


class Space(NamedTuple):
    """What the functions below fill for one room, but for `choose`, which is given.

    `choose[4 * n + i]` is n over i + 1; `bits[cell]` is the bit of a cell and `number[bit % PRIME]` the cell of a bit; `sets` has FIELDS numbers for
    every rank. `waves` has two numbers for every wave, the rank of its boxes and its players; those of distance d are waves `levels[d]` up to `levels[d + 1]`.
    """

    luck: Numbers
    grid: Numbers
    cells: Numbers
    beside: Numbers
    targets: Numbers
    boxes: Numbers
    choose: Numbers
    bits: Numbers
    number: Numbers
    sets: Numbers
    waves: Numbers
    levels: Numbers
    table: Numbers  # of int16 where compiled


def draw(luck: Numbers, bound: int) -> int:
    """A number below `bound`; two linear generators of 31 bits combined (L'Ecuyer 1988), so no product leaves 64 bits."""
    luck[0] = luck[0] * 40014 % 2147483563
    luck[1] = luck[1] * 40692 % 2147483399
    return (luck[0] - luck[1]) % 2147483562 % bound


def carve(grid: Numbers, size: int, wanted: int, luck: Numbers) -> None:
    """A random walk inside the outer wall (2) marks `wanted` squares as floor (1)."""
    for square in range(size * size):
        grid[square] = (
            2
            if square < size
            or square >= size * (size - 1)
            or square % size == 0
            or square % size == size - 1
            else 0
        )
    at, heading, found = (
        size * (1 + draw(luck, size - 2)) + 1 + draw(luck, size - 2),
        draw(luck, 4),
        1,
    )
    grid[at] = 1
    while found < wanted:
        turn = draw(luck, 400)
        heading = turn % 4 if turn < 4 * TURN else heading
        ahead = at + (size if heading < 2 else 1) * (2 * (heading % 2) - 1)
        if grid[ahead] == 2:
            heading = draw(luck, 4)
        else:
            at = ahead
            found += 1 - grid[at]
            grid[at] = 1


def connect(height: int, width: int, space: Space) -> int:
    """Number the floor of a room whose border is wall; `grid`, where floor was 1, holds the cell of a square or -1 then. Returns the number of cells."""
    grid, cells, beside, count = space.grid, space.cells, space.beside, 0
    for square in range(height * width):
        if grid[square] == 1:
            cells[count] = square
            space.bits[count] = 1 << ((square // width - 1) * (width - 2) + square % width - 1)
            space.number[space.bits[count] % PRIME] = count
            grid[square] = count
            count += 1
        else:
            grid[square] = -1
    for cell in range(count):
        beside[4 * cell] = grid[cells[cell] - width]
        beside[4 * cell + 1] = grid[cells[cell] + width]
        beside[4 * cell + 2] = grid[cells[cell] - 1]
        beside[4 * cell + 3] = grid[cells[cell] + 1]
    return count


def rank(boxes: int, space: Space) -> int:
    """The number of a set of boxes among all sets of as many."""
    total, i = 0, 0
    while boxes != 0:
        total += space.choose[4 * space.number[(boxes & -boxes) % PRIME] + i]
        boxes &= boxes - 1
        i += 1
    return total


def meet(there: int, players: int, first: int, tail: int, space: Space) -> int:
    """Players that a set of boxes meets for the first time join its wave of this distance, which may be a new one; returns the end of all waves."""
    sets, waves = space.sets, space.waves
    sets[FIELDS * there + SEEN] |= players
    last = sets[FIELDS * there + LAST]
    if last >= first:
        waves[2 * last + 1] |= players
        return tail
    sets[FIELDS * there + LAST] = tail
    waves[2 * tail] = there
    waves[2 * tail + 1] = players
    return tail + 1


def find_steps(cells: int, beside: Numbers, bits: Numbers) -> tuple[int, int, int, int, int]:
    """All floor, and what of it a step up, down, left and right can end on."""
    floor, up, down, left, right = 0, 0, 0, 0, 0
    for cell in range(cells):
        floor |= bits[cell]
        up |= bits[cell] if beside[4 * cell + 1] >= 0 else 0
        down |= bits[cell] if beside[4 * cell] >= 0 else 0
        left |= bits[cell] if beside[4 * cell + 3] >= 0 else 0
        right |= bits[cell] if beside[4 * cell + 2] >= 0 else 0
    return floor, up, down, left, right


def search(width: int, cells: int, count: int, space: Space) -> int:
    """All live states of a room, wave by wave from its targets; returns the greatest distance. `width` is that of the room inside the outer wall."""
    sets, waves, levels = space.sets, space.waves, space.levels
    floor, up, down, left, right = find_steps(cells, space.beside, space.bits)
    for there in range(space.choose[4 * cells + count - 1]):
        sets[FIELDS * there + SEEN] = 0
        sets[FIELDS * there + LAST] = -1
    goals = 0
    for i in range(count):
        goals |= space.bits[space.targets[i]]
    solved = rank(goals, space)
    sets[FIELDS * solved + HELD] = goals
    head, tail, distance = 0, meet(solved, floor & ~goals, 0, 0, space), 0
    levels[0] = 0
    while head < tail:
        first = tail
        distance += 1
        levels[distance] = first
        for wave in range(head, first):
            here, players = waves[2 * wave], waves[2 * wave + 1]
            boxes = sets[FIELDS * here + HELD]
            free = floor & ~boxes
            above, below, before, after = (
                players >> width & up,
                players << width & down,
                players >> 1 & left,
                players << 1 & right,
            )
            stepped = (above | below | before | after) & free & ~sets[FIELDS * here + SEEN]
            if stepped != 0:
                tail = meet(here, stepped, first, tail, space)
            # A box next to a player who can step back from it: one that the player has just pushed.
            above &= boxes & ((free >> width & up) >> width & up)
            below &= boxes & ((free << width & down) << width & down)
            before &= boxes & ((free >> 1 & left) >> 1 & left)
            after &= boxes & ((free << 1 & right) << 1 & right)
            if above | below | before | after != 0:
                tail = pull(boxes, above, 1, first, tail, space)
                tail = pull(boxes, below, 0, first, tail, space)
                tail = pull(boxes, before, 3, first, tail, space)
                tail = pull(boxes, after, 2, first, tail, space)
        head = first
    return distance - 1


def pull(boxes: int, pulled: int, back: int, first: int, tail: int, space: Space) -> int:
    """Undo the pushes of these boxes by players who came by the move opposite to `back`; returns the end of all waves."""
    while pulled != 0:
        box = pulled & -pulled
        pulled &= pulled - 1
        cell = space.beside[4 * space.number[box % PRIME] + back]
        player = space.bits[space.beside[4 * cell + back]]
        earlier = boxes ^ box | space.bits[cell]
        there = rank(earlier, space)
        if space.sets[FIELDS * there + SEEN] & player == 0:
            space.sets[FIELDS * there + HELD] = earlier
            tail = meet(there, player, first, tail, space)
    return tail


def tabulate(cells: int, count: int, longest: int, space: Space) -> None:
    """The distance of every state, from the waves; -1 where there is none."""
    for key in range(cells * space.choose[4 * cells + count - 1]):
        space.table[key] = -1
    for distance in range(longest + 1):
        for wave in range(space.levels[distance], space.levels[distance + 1]):
            key, players = space.waves[2 * wave] * cells, space.waves[2 * wave + 1]
            while players != 0:
                space.table[key + space.number[(players & -players) % PRIME]] = distance
                players &= players - 1


def fill(space: Space, height: int, width: int, count: int) -> None:
    """The table of a room whose floor stands in `grid` as 1 and whose targets are given."""
    cells = connect(height, width, space)
    tabulate(cells, count, search(width - 2, cells, count, space), space)


def choose_start(first: int, end: int, cells: int, space: Space) -> int:
    """One state of these waves with no box on a target, any as likely as another: its boxes into `boxes`; returns its player, -1 if there is none."""
    goals, some = space.sets[FIELDS * space.waves[0] + HELD], first
    while some < end and space.sets[FIELDS * space.waves[2 * some] + HELD] & goals != 0:
        some += 1
    while some < end:  # a wave and a cell at random, until they meet
        wave, player = first + draw(space.luck, end - first), draw(space.luck, cells)
        boxes = space.sets[FIELDS * space.waves[2 * wave] + HELD]
        if space.waves[2 * wave + 1] & space.bits[player] != 0 and boxes & goals == 0:
            list_cells(boxes, space)
            return player
    return -1


def list_cells(boxes: int, space: Space) -> None:
    """A set of boxes as a rising row of cells, into `boxes`."""
    i = 0
    while boxes != 0:
        space.boxes[i] = space.number[(boxes & -boxes) % PRIME]
        boxes &= boxes - 1
        i += 1


def mark(cells: Numbers, floor: int, targets: Numbers, count: int) -> int:
    """A number that walls and targets decide, by which rooms are dealt out to splits."""
    total = 7
    for cell in range(floor):
        total = (total * 131 + cells[cell] + 1) % 1000003
    for i in range(count):
        total = (total * 131 + cells[targets[i]] + 1) % 1000003
    return total


def scatter(floor: int, targets: Numbers, count: int, luck: Numbers) -> None:
    """`count` different cells, in rising order, all sets as likely."""
    found = 0
    while found < count:
        cell, place = draw(luck, floor), found
        while place > 0 and targets[place - 1] > cell:
            place -= 1
        if place > 0 and targets[place - 1] == cell:
            continue
        for i in range(found, place, -1):
            targets[i] = targets[i - 1]
        targets[place] = cell
        found += 1


def make(
    space: Space,
    size: int,
    count: int,
    shortest: int,
    longest: int,
    shares: int,
    low: int,
    high: int,
    tries: int,
    luck: int,
) -> tuple[int, int]:
    """Draw rooms until one has a start so many moves from solved; returns its number of floor cells and its player, (0, -1) if none has.

    Only rooms with `low <= mark % shares < high` count. `luck` decides all that is drawn.
    """
    space.luck[0], space.luck[1] = 1 + luck % 2147483562, 1 + luck // 2147483562 % 2147483398
    inside = (size - 2) * (size - 2)
    most = inside - 1 if shortest > inside else inside  # without a wall inside no way is that long
    fewest = max(count + 2, inside * 2 // 3)  # tighter rooms are mostly stuck from the start
    for _ in range(tries):
        carve(space.grid, size, fewest + draw(space.luck, most - fewest + 1), space.luck)
        cells = connect(size, size, space)
        scatter(cells, space.targets, count, space.luck)
        if not low <= mark(space.cells, cells, space.targets, count) % shares < high:
            continue
        farthest = search(size - 2, cells, count, space)
        if farthest < shortest:
            continue
        player = choose_start(
            space.levels[shortest], space.levels[min(longest, farthest) + 1], cells, space
        )
        if player >= 0:
            tabulate(cells, count, farthest, space)
            return cells, player
    return 0, -1


def cut(array: Any) -> Space:
    """The sequences of a room, one after the other in one array that begins with where they end: a compiled call costs a microsecond an array."""
    ends = array[: PIECES + 1]
    return Space(
        array[ends[0]:ends[1]], array[ends[1]:ends[2]], array[ends[2]:ends[3]], array[ends[3]:ends[4]], array[ends[4]:ends[5]], array[ends[5]:ends[6]],
        array[ends[6]:ends[7]], array[ends[7]:ends[8]], array[ends[8]:ends[9]], array[ends[9]:ends[10]], array[ends[10]:ends[11]],
        array[ends[11]:ends[12]], array[ends[12]:ends[13]].view(np.int16),
    )  # fmt: skip


def make_in(
    array: Any,
    size: int,
    count: int,
    shortest: int,
    longest: int,
    shares: int,
    low: int,
    high: int,
    tries: int,
    luck: int,
) -> tuple[int, int]:
    return make(cut(array), size, count, shortest, longest, shares, low, high, tries, luck)


def fill_in(array: Any, height: int, width: int, count: int) -> None:
    fill(cut(array), height, width, count)
