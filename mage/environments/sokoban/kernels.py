"""Room generation and distance tables, in the subset of Python that numba compiles.

`compiled.py` compiles these functions. Without numba they run as they are, on lists. Both versions
make the same rooms from the same numbers.

Floor cells of a room are numbered from 0. `beside[4 * cell + move]` is the neighbour cell or -1. A
state is the player's cell and a sorted sequence of box cells. Its key is `rank(boxes) * cells +
player`, where `rank` numbers all sets of boxes without gaps. The table is filled BACKWARDS from the
solved states by undoing steps and pushes. States that are not reached cannot be solved.

The search handles many states at once. The squares inside the outer wall are bits of an integer, so
a set of boxes is an integer. A WAVE is also an integer: all player cells from which one set of
boxes is solved in the same number of moves. One shift moves all of these players. A compiled
integer has 64 bits, enough for 10x10 rooms. Bit 63 is the sign, which a right shift copies, so
shifted values are always masked.
"""

from typing import Any, NamedTuple

import numpy as np

Numbers = Any  # a list, or a numpy array of int64 if compiled
TURN = 35  # percent chance that the random walk turns
# Powers of two up to 2 ** 507 differ modulo this prime (2 is a primitive root). So does
# -(2 ** 63) from the first 64 powers.
PRIME = 509
MARKS = 1_000_003  # a prime: number of values of the hash that assigns rooms to splits
PIECES = 13  # sequences in a Space
# Per set of boxes: the boxes, all players reached so far, the newest wave.
HELD, SEEN, LAST, FIELDS = 0, 1, 2, 3


class Space(NamedTuple):
    """Working memory for one room. The functions below fill all of it except `choose`.

    `choose[4 * n + i]` is the binomial coefficient n over i + 1. `bits[cell]` is the bit of a cell,
    and `number[bit % PRIME]` is the cell of a bit. `sets` has FIELDS numbers per rank. `waves` has
    two numbers per wave: the rank of its boxes and its players. The waves of distance d are
    `levels[d]` to `levels[d + 1]`.
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
    table: Numbers  # int16 if compiled


def draw(luck: Numbers, bound: int) -> int:
    """A random number below `bound`.

    Two 31-bit linear generators combined (L'Ecuyer 1988), so no product exceeds 64 bits.
    """
    luck[0] = luck[0] * 40014 % 2147483563
    luck[1] = luck[1] * 40692 % 2147483399
    return (luck[0] - luck[1]) % 2147483562 % bound


def carve(grid: Numbers, size: int, wanted: int, luck: Numbers) -> None:
    """Random walk inside the outer wall (2) that marks `wanted` squares as floor (1)."""
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
        chance = draw(luck, 400)
        heading = chance % 4 if chance < 4 * TURN else heading
        ahead = at + (size if heading < 2 else 1) * (2 * (heading % 2) - 1)
        if grid[ahead] == 2:
            heading = draw(luck, 4)
        else:
            at = ahead
            found += 1 - grid[at]
            grid[at] = 1


def connect(height: int, width: int, space: Space) -> int:
    """Number the floor cells of a room; returns how many there are.

    On entry floor squares of `grid` are 1. Afterwards `grid` holds the cell number of a square, or
    -1. The border of the room must be wall.
    """
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
    """Index of a set of boxes among all sets of the same size."""
    total, i = 0, 0
    while boxes != 0:
        total += space.choose[4 * space.number[(boxes & -boxes) % PRIME] + i]
        boxes &= boxes - 1
        i += 1
    return total


def meet(there: int, players: int, first: int, tail: int, space: Space) -> int:
    """Add newly reached players of a set of boxes to its wave of this distance.

    Starts a new wave if there is none yet. Returns the number of waves.
    """
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
    """All floor bits, and the floor that a step up, down, left and right can end on."""
    floor, up, down, left, right = 0, 0, 0, 0, 0
    for cell in range(cells):
        floor |= bits[cell]
        up |= bits[cell] if beside[4 * cell + 1] >= 0 else 0
        down |= bits[cell] if beside[4 * cell] >= 0 else 0
        left |= bits[cell] if beside[4 * cell + 3] >= 0 else 0
        right |= bits[cell] if beside[4 * cell + 2] >= 0 else 0
    return floor, up, down, left, right


def search(width: int, cells: int, count: int, space: Space) -> int:
    """Find all solvable states of a room, wave by wave from its targets.

    `width` is the width inside the outer wall. Returns the greatest distance.
    """
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
            # A box that the player has just pushed: the player can step back from it.
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
    """Undo pushes of the boxes `pulled`; the player steps back by the move `back`.

    Returns the number of waves.
    """
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
    """Write the distance of every state into the table; -1 for states that cannot be solved."""
    for key in range(cells * space.choose[4 * cells + count - 1]):
        space.table[key] = -1
    for distance in range(longest + 1):
        for wave in range(space.levels[distance], space.levels[distance + 1]):
            key, players = space.waves[2 * wave] * cells, space.waves[2 * wave + 1]
            while players != 0:
                space.table[key + space.number[(players & -players) % PRIME]] = distance
                players &= players - 1


def fill(space: Space, height: int, width: int, count: int) -> None:
    """Fill the table of a room. Floor squares of `grid` are 1, and the targets are given."""
    cells = connect(height, width, space)
    tabulate(cells, count, search(width - 2, cells, count, space), space)


def choose_start(first: int, end: int, cells: int, space: Space) -> int:
    """Draw a start state from these waves, uniformly, with no box on a target.

    Writes its boxes into `boxes`. Returns the player's cell, or -1 if there is no such state.
    """
    goals, some = space.sets[FIELDS * space.waves[0] + HELD], first
    while some < end and space.sets[FIELDS * space.waves[2 * some] + HELD] & goals != 0:
        some += 1
    while some < end:  # rejection sampling of a wave and a cell
        wave, player = first + draw(space.luck, end - first), draw(space.luck, cells)
        boxes = space.sets[FIELDS * space.waves[2 * wave] + HELD]
        if space.waves[2 * wave + 1] & space.bits[player] != 0 and boxes & goals == 0:
            list_cells(boxes, space)
            return player
    return -1


def list_cells(boxes: int, space: Space) -> None:
    """Write a set of boxes into `boxes` as sorted cells."""
    i = 0
    while boxes != 0:
        space.boxes[i] = space.number[(boxes & -boxes) % PRIME]
        boxes &= boxes - 1
        i += 1


def turn(square: int, size: int, form: int) -> int:
    """The square in one of the eight symmetric forms of a room: mirrored and rotated."""
    row, column = square // size, square % size
    if form & 1:
        row = size - 1 - row
    if form & 2:
        column = size - 1 - column
    return column * size + row if form & 4 else row * size + column


def weigh(square: int) -> int:
    """A pseudo-random number of a square."""
    return (square * square * square * 7919 + square * 104729 + 12289) % MARKS


def mark(size: int, cells: int, count: int, space: Space) -> int:
    """A hash of walls and targets: the smallest over the eight symmetric forms of the room.

    It assigns rooms to splits, so rotations and mirror images are always in the same split.
    """
    smallest = MARKS
    for form in range(8):
        total = 0
        for cell in range(cells):
            total += weigh(turn(space.cells[cell], size, form))
        for i in range(count):
            total += 31 * weigh(turn(space.cells[space.targets[i]], size, form))
        smallest = min(smallest, total % MARKS)
    return smallest


def scatter(floor: int, targets: Numbers, count: int, luck: Numbers) -> None:
    """Draw `count` different cells, sorted; all sets are equally likely."""
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
    """Draw rooms until one has a start state of the wanted distance.

    Only rooms with `low <= mark % shares < high` are accepted. `luck` is the random seed. Returns
    the number of floor cells and the player's cell, or (0, -1) if no room was found.
    """
    space.luck[0], space.luck[1] = 1 + luck % 2147483562, 1 + luck // 2147483562 % 2147483398
    inside = (size - 2) * (size - 2)
    most = inside - 1 if shortest > inside else inside  # such long solutions need inner walls
    fewest = max(count + 2, inside * 2 // 3)  # tighter rooms are mostly unsolvable
    for _ in range(tries):
        carve(space.grid, size, fewest + draw(space.luck, most - fewest + 1), space.luck)
        cells = connect(size, size, space)
        scatter(cells, space.targets, count, space.luck)
        if not low <= mark(size, cells, count, space) % shares < high:
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
    """The sequences of a room as slices of one array, whose first entries hold their ends.

    One array instead of 13 because each array argument of a compiled call costs a microsecond.
    """
    ends = array[: PIECES + 1]
    return Space(
        array[ends[0]:ends[1]], array[ends[1]:ends[2]], array[ends[2]:ends[3]],
        array[ends[3]:ends[4]], array[ends[4]:ends[5]], array[ends[5]:ends[6]],
        array[ends[6]:ends[7]], array[ends[7]:ends[8]], array[ends[8]:ends[9]],
        array[ends[9]:ends[10]], array[ends[10]:ends[11]], array[ends[11]:ends[12]],
        array[ends[12]:ends[13]].view(np.int16),
    )  # fmt: skip


def make_in(array: Any, *order: int) -> tuple[int, int]:
    return make(cut(array), *order)


def fill_in(array: Any, height: int, width: int, count: int) -> None:
    fill(cut(array), height, width, count)
