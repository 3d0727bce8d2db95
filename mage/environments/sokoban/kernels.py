"""Rooms and their distance tables, in the part of Python that numba compiles too: whole numbers and flat sequences.

`compiled.py` compiles these very functions; as they stand they are the plain fallback, on lists. Both give the same rooms
for the same numbers, so nothing depends on whether numba is there.

A room's floor cells are numbered from 0, and `beside[4 * cell + move]` is the neighbour or -1. A state is a player's cell and a rising
row of boxes; its key is `rank(boxes) * cells + player`, where `rank` numbers the sets of boxes without gaps. The table is filled
BACKWARDS from the solved states over undone steps and undone pushes: what it does not reach can no longer be solved.
"""

from typing import Any

Numbers = Any  # a list here, a numpy array of int64 where the functions are compiled
TURN = 35  # chance in 100 that the walk that carves a room turns


def draw(luck: Numbers, bound: int) -> int:
    """A number below `bound`; two linear generators of 31 bits combined (L'Ecuyer 1988), so no product leaves 64 bits."""
    luck[0] = luck[0] * 40014 % 2147483563
    luck[1] = luck[1] * 40692 % 2147483399
    return (luck[0] - luck[1]) % 2147483562 % bound


def carve(grid: Numbers, size: int, wanted: int, luck: Numbers) -> None:
    """A random walk inside the outer wall marks `wanted` squares as floor (1)."""
    for square in range(size * size):
        grid[square] = 0
    row, column, heading, found = 1 + draw(luck, size - 2), 1 + draw(luck, size - 2), draw(luck, 4), 0
    while True:
        if grid[row * size + column] == 0:
            grid[row * size + column] = 1
            found += 1
            if found == wanted:
                return
        if draw(luck, 100) < TURN:
            heading = draw(luck, 4)
        if heading == 0 and row > 1:
            row -= 1
        elif heading == 1 and row < size - 2:
            row += 1
        elif heading == 2 and column > 1:
            column -= 1
        elif heading == 3 and column < size - 2:
            column += 1
        else:
            heading = draw(luck, 4)


def connect(grid: Numbers, height: int, width: int, cells: Numbers, beside: Numbers) -> int:
    """Number the floor: `cells[cell]` is its square, `beside` its neighbours, and `grid` holds the cell of a square or -1."""
    count = 0
    for square in range(height * width):
        if grid[square] == 1:
            cells[count] = square
            grid[square] = count
            count += 1
        else:
            grid[square] = -1
    for cell in range(count):
        square = cells[cell]
        beside[4 * cell] = grid[square - width] if square >= width else -1
        beside[4 * cell + 1] = grid[square + width] if square + width < height * width else -1
        beside[4 * cell + 2] = grid[square - 1] if square % width > 0 else -1
        beside[4 * cell + 3] = grid[square + 1] if square % width < width - 1 else -1
    return count


def rank(boxes: Numbers, count: int, choose: Numbers) -> int:
    """The number of a rising row of boxes among all rows of this length; `choose[4 * n + i]` is n over i + 1."""
    total = 0
    for i in range(count):
        total += choose[4 * boxes[i] + i]
    return total


def move_box(boxes: Numbers, count: int, old: int, new: int, moved: Numbers) -> None:
    """`boxes` with one of them moved, in rising order, into `moved`."""
    at = 0
    placed = False
    for i in range(count):
        if boxes[i] == old:
            continue
        if not placed and new < boxes[i]:
            moved[at] = new
            placed = True
            at += 1
        moved[at] = boxes[i]
        at += 1
    if not placed:
        moved[at] = new


def fill(
    beside: Numbers, cells: int, targets: Numbers, count: int, choose: Numbers, table: Numbers, queue: Numbers, levels: Numbers, held: Numbers, work: Numbers,
) -> int:  # fmt: skip
    """Distances of all live states of a room, in moves; `table` comes in with -1 everywhere. Returns the greatest distance.

    `queue` ends up with the states in order of distance, each as its player, the rank of its boxes and the boxes; those at distance d
    are numbers `levels[d]` up to `levels[d + 1]`. `work` has room for two rows of boxes.
    """
    wide, boxes, moved = count + 2, work[:8], work[8:]
    for cell in range(cells):
        held[cell] = 0
    for i in range(count):
        held[targets[i]] = 1
    solved, tail = rank(targets, count, choose), 0
    for player in range(cells):
        if held[player] == 0:
            table[solved * cells + player] = 0
            tail = put(queue, tail, wide, player, solved, targets)
    for i in range(count):
        held[targets[i]] = 0
    levels[0], head, distance = 0, 0, 0
    while head < tail:
        levels[distance + 1] = tail
        distance += 1
        for place in range(head, tail):
            at = place * wide
            player, here = queue[at], queue[at + 1]
            for i in range(count):
                boxes[i] = queue[at + 2 + i]
                held[boxes[i]] = 1
            for move in range(4):
                behind = beside[4 * player + (move ^ 1)]
                if behind < 0 or held[behind] == 1:
                    continue
                if table[here * cells + behind] < 0:
                    table[here * cells + behind] = distance
                    tail = put(queue, tail, wide, behind, here, boxes)
                ahead = beside[4 * player + move]
                if ahead >= 0 and held[ahead] == 1:
                    move_box(boxes, count, ahead, player, moved)
                    there = rank(moved, count, choose)
                    if table[there * cells + behind] < 0:
                        table[there * cells + behind] = distance
                        tail = put(queue, tail, wide, behind, there, moved)
            for i in range(count):
                held[boxes[i]] = 0
        head = levels[distance]
    return distance - 1


def put(queue: Numbers, tail: int, wide: int, player: int, rank_of_boxes: int, boxes: Numbers) -> int:
    """Add a state that was reached for the first time; returns the new end of the queue."""
    at = tail * wide
    queue[at] = player
    queue[at + 1] = rank_of_boxes
    for i in range(wide - 2):
        queue[at + 2 + i] = boxes[i]
    return tail + 1


def choose_start(queue: Numbers, first: int, end: int, targets: Numbers, count: int, luck: Numbers) -> int:
    """One of these states with no box on a target, any as likely as another; its place in the queue, or -1."""
    found, chosen = 0, -1
    for place in range(first, end):
        at = place * (count + 2) + 2
        free = True
        for i in range(count):
            for j in range(count):
                free = free and queue[at + i] != targets[j]
        if free:
            found += 1
            if draw(luck, found) == 0:
                chosen = place
    return chosen


def mark(cells: Numbers, floor: int, targets: Numbers, count: int) -> int:
    """A number that walls and targets decide, by which rooms are dealt out to splits."""
    total = 7
    for cell in range(floor):
        total = (total * 131 + cells[cell] + 1) % 1000003
    for i in range(count):
        total = (total * 131 + cells[targets[i]] + 1) % 1000003
    return total


def make(
    size: int, count: int, shortest: int, longest: int, shares: int, low: int, high: int, tries: int, luck: Numbers, grid: Numbers, cells: Numbers,
    beside: Numbers, targets: Numbers, choose: Numbers, table: Numbers, queue: Numbers, levels: Numbers, held: Numbers, work: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Draw rooms until one has a start so many moves from solved: its number of floor cells and the start's place in the queue, -1 if none has.

    Only rooms with `low <= mark % shares < high` count. The sequences from `grid` on are filled here, but for `choose`.
    """
    inside = (size - 2) * (size - 2)
    most = inside - 1 if shortest > inside else inside  # without a wall inside no way is that long
    fewest = max(count + 2, inside * 2 // 3)  # tighter rooms are mostly stuck from the start
    for _ in range(tries):
        carve(grid, size, fewest + draw(luck, most - fewest + 1), luck)
        floor = connect(grid, size, size, cells, beside)
        scatter(floor, targets, count, held, luck)
        if not low <= mark(cells, floor, targets, count) % shares < high:
            continue
        for key in range(choose[4 * floor + count - 1] * floor):
            table[key] = -1
        longest_here = min(longest, fill(beside, floor, targets, count, choose, table, queue, levels, held, work))
        if longest_here < shortest:
            continue
        start = choose_start(queue, levels[shortest], levels[longest_here + 1], targets, count, luck)
        if start >= 0:
            return floor, start
    return 0, -1


def scatter(floor: int, targets: Numbers, count: int, held: Numbers, luck: Numbers) -> None:
    """`count` different cells, in rising order, all sets as likely."""
    for cell in range(floor):
        held[cell] = 0
    found = 0
    while found < count:
        cell = draw(luck, floor)
        if held[cell] == 0:
            held[cell] = 1
            found += 1
    found = 0
    for cell in range(floor):
        if held[cell] == 1:
            targets[found] = cell
            found += 1


def make_in(space: Any, ends: Any, size: int, count: int, shortest: int, longest: int, shares: int, low: int, high: int, tries: int) -> tuple[int, int]:
    """`make` on the pieces of one array, since a compiled call costs a microsecond an array: piece i begins at `ends[i]` and ends at `ends[i + 1]`."""
    return make(
        size, count, shortest, longest, shares, low, high, tries, space[ends[0]:ends[1]], space[ends[1]:ends[2]], space[ends[2]:ends[3]],
        space[ends[3]:ends[4]], space[ends[4]:ends[5]], space[ends[5]:ends[6]], space[ends[6]:ends[7]], space[ends[7]:ends[8]], space[ends[8]:ends[9]],
        space[ends[9]:ends[10]], space[ends[10]:ends[11]],
    )  # fmt: skip
