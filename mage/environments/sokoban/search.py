"""Solver for rooms that are too large for a table: weighted A* over pushes.

A state is the boxes and the region that the player can reach. The lower bound is the cheapest
assignment of boxes to targets, each box alone in the room. A square from which a box reaches no
target is dead. The bound is weighted, so a solution is found early but is not always the shortest.
Only states that cannot be solved are pruned, so an empty queue proves that there is no solution.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mage.environments.sokoban.rooms import Boxes, Room

NODES = 100_000  # states before the search gives up; about five seconds
_WEIGHT = 3
_MATCHED = 5  # most boxes for which all assignments are tried
_DEAD = math.inf

Push = tuple[int, int]  # the box's cell and the move


@dataclass(frozen=True, slots=True)
class Answer:
    """Moves that solve the room, or None. `certain` is False if the search gave up."""

    moves: tuple[int, ...] | None
    certain: bool


class Bounds:
    """Facts about a room that need no search."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.pushes = [_push_distances(room, target) for target in room.targets]
        self.known: dict[Boxes, float] = {}
        self.floor = {square: cell for cell, square in enumerate(room.cells)}

    def least_pushes(self, boxes: Boxes) -> float:
        """Lower bound on the pushes of a solution.

        Infinite if a box is on a dead square or two boxes need the same target.
        """
        if boxes not in self.known:
            self.known[boxes] = self._least_pushes(boxes)
        return self.known[boxes]

    def _least_pushes(self, boxes: Boxes) -> float:
        costs = [[row[box] for row in self.pushes] for box in boxes]
        if len(boxes) > _MATCHED:
            return sum(map(min, costs))
        return min(
            sum(cost[target] for cost, target in zip(costs, order, strict=True))
            for order in itertools.permutations(range(len(boxes)))
        )

    def is_stuck(self, boxes: Boxes, pushed: int) -> bool:
        """Whether the box that was just pushed can never move again.

        This is so if it is in a 2x2 block of walls and boxes, and one box of it is off target.
        """
        square, width = self.room.cells[pushed], self.room.width
        for corner in (square - width - 1, square - width, square - 1, square):
            block = [self.floor.get(corner + offset, -1) for offset in (0, 1, width, width + 1)]
            held = [cell for cell in block if cell >= 0]
            if all(cell in boxes for cell in held) and any(
                cell not in self.room.targets for cell in held
            ):
                return True
        return False

    def is_dead(self, boxes: Boxes) -> bool:
        """Whether the position is certainly lost, without a search."""
        return self.least_pushes(boxes) == _DEAD or any(self.is_stuck(boxes, box) for box in boxes)


@lru_cache(maxsize=64)
def bounds_of(room: Room) -> Bounds:
    return Bounds(room)


def _push_distances(room: Room, target: int) -> list[float]:
    """Pushes that a box alone in the room needs from every cell to this target."""
    found = [_DEAD] * len(room.cells)
    found[target], queue = 0, [target]
    for cell in queue:
        for move in range(4):
            before = room.beside[4 * cell + (move ^ 1)]
            if before >= 0 and room.beside[4 * before + (move ^ 1)] >= 0 and found[before] == _DEAD:
                found[before] = found[cell] + 1
                queue.append(before)
    return found


def solve(room: Room, player: int, boxes: Boxes, nodes: int = NODES) -> Answer:
    """A solution from this state, a proof that there is none, or neither after `nodes` states."""
    return _Search(room, player, boxes).run(nodes)


class _Search:
    """Weighted A*. A node is (lowest cell that the player reaches, boxes)."""

    def __init__(self, room: Room, player: int, boxes: Boxes) -> None:
        self.room, self.bounds = room, bounds_of(room)
        self.player, self.boxes = player, boxes
        self.came: dict[tuple[int, Boxes], tuple[tuple[int, Boxes], Push] | None] = {}
        self.open: list[tuple[float, int, int, int, Boxes]] = []
        self.counter = itertools.count()

    def run(self, nodes: int) -> Answer:
        first = (min(_reach(self.room, self.player, self.boxes)), self.boxes)
        self.came[first] = None
        self._offer(first, self.player, 0)
        for _ in range(nodes):
            if not self.open:
                return Answer(None, certain=True)
            _, depth, _, player, boxes = heapq.heappop(self.open)
            if boxes == self.room.targets:
                return Answer(
                    tuple(self._retrace((min(_reach(self.room, player, boxes)), boxes))),
                    certain=True,
                )
            self._expand(player, boxes, -depth)
        return Answer(None, certain=False)

    def _offer(self, node: tuple[int, Boxes], player: int, depth: int) -> None:
        bound = self.bounds.least_pushes(node[1])
        if bound < _DEAD:  # ties: the deeper node first, then the newer
            heapq.heappush(
                self.open, (depth + _WEIGHT * bound, -depth, -next(self.counter), player, node[1])
            )

    def _expand(self, player: int, boxes: Boxes, depth: int) -> None:
        reached = _reach(self.room, player, boxes)
        here = (min(reached), boxes)
        for box, move, ahead in _pushes(self.room, reached, boxes):
            pushed = tuple(sorted(ahead if one == box else one for one in boxes))
            if self.bounds.least_pushes(pushed) == _DEAD or self.bounds.is_stuck(pushed, ahead):
                continue
            node = (min(_reach(self.room, box, pushed)), pushed)
            if node not in self.came:
                self.came[node] = (here, (box, move))
                self._offer(node, box, depth + 1)

    def _retrace(self, node: tuple[int, Boxes]) -> list[int]:
        """All moves to a node: its pushes and the steps between them."""
        pushes: list[Push] = []
        while (link := self.came[node]) is not None:
            node, push = link
            pushes.append(push)
        moves: list[int] = []
        player, boxes = self.player, self.boxes
        for box, move in reversed(pushes):
            moves += [
                *_walk(self.room, player, self.room.beside[4 * box + (move ^ 1)], boxes),
                move,
            ]
            player, boxes = self.room.step(self.room.beside[4 * box + (move ^ 1)], boxes, move)
        return moves


def _reach(room: Room, player: int, boxes: Boxes) -> set[int]:
    """Cells that the player reaches without a push."""
    reached, queue = {player, *boxes}, [player]
    for cell in queue:
        for ahead in room.beside[4 * cell : 4 * cell + 4]:
            if ahead >= 0 and ahead not in reached:
                reached.add(ahead)
                queue.append(ahead)
    return reached.difference(boxes)


def _pushes(room: Room, reached: set[int], boxes: Boxes) -> Iterator[tuple[int, int, int]]:
    """Box, move and destination cell of every possible push."""
    for box in boxes:
        for move in range(4):
            ahead = room.beside[4 * box + move]
            if ahead >= 0 and ahead not in boxes and room.beside[4 * box + (move ^ 1)] in reached:
                yield box, move, ahead


def _walk(room: Room, start: int, end: int, boxes: Boxes) -> list[int]:
    """Shortest steps from one cell to another around the boxes."""
    came: dict[int, tuple[int, int]] = {start: (start, -1)}
    queue = [start]
    for cell in queue:
        for move, ahead in enumerate(room.beside[4 * cell : 4 * cell + 4]):
            if ahead >= 0 and ahead not in boxes and ahead not in came:
                came[ahead] = (cell, move)
                queue.append(ahead)
    moves: list[int] = []
    while end != start:
        end, move = came[end]
        moves.append(move)
    return moves[::-1]
