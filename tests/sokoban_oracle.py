"""Sokoban by brute force: the rules written again, on coordinates of the drawn room."""

import itertools
from collections.abc import Iterator

from mage.environments.sokoban import SokobanState
from mage.environments.sokoban.rooms import Room

Place = tuple[int, int]
Position = tuple[Place, frozenset[Place]]


def read_drawing(text: str) -> tuple[set[Place], frozenset[Place], Position]:
    """Floor, targets and position of a room as an agent sees it."""
    symbols = {
        (row, column): symbol
        for row, line in enumerate(text.splitlines())
        for column, symbol in enumerate(line.split())
    }
    player = next(place for place, symbol in symbols.items() if symbol in "PS")
    boxes = frozenset(place for place, symbol in symbols.items() if symbol in "X*")
    targets = frozenset(place for place, symbol in symbols.items() if symbol in "O*S")
    return {place for place, symbol in symbols.items() if symbol != "#"}, targets, (player, boxes)


def neighbours(position: Position, floor: set[Place]) -> Iterator[Position]:
    (row, column), boxes = position
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if ahead in boxes and beyond in floor and beyond not in boxes:
            yield ahead, boxes - {ahead} | {beyond}
        elif ahead in floor and ahead not in boxes:
            yield ahead, boxes


def search_all(text: str) -> dict[Position, int]:
    """The distance of every solvable position of a room, by forward relaxation."""
    floor, targets, (_, boxes) = read_drawing(text)
    sets = [frozenset(some) for some in itertools.combinations(sorted(floor), len(boxes))]
    after = {
        (player, some): list(neighbours((player, some), floor))
        for some in sets
        for player in floor - some
    }
    found = {position: 0 for position in after if position[1] == targets}
    changed = True
    while changed:
        better = {
            p: 1 + min(found[n] for n in after[p] if n in found)
            for p in after
            if p not in found and any(n in found for n in after[p])
        }
        changed = bool(better)
        found |= better
    return found


def all_states(room: Room) -> Iterator[tuple[int, tuple[int, ...]]]:
    cells = range(len(room.cells))
    for boxes in itertools.combinations(cells, len(room.boxes)):
        yield from ((player, boxes) for player in cells if player not in boxes)


def play_expert(state: SokobanState) -> int:
    """Play the expert's moves until the room is solved; returns their number."""
    while state.turn() is not None:
        action = state.expert()
        assert action is not None
        assert action in state.legal()
        state.apply(action)
    assert state.scores() == (1.0,)
    return len(state.moves)
