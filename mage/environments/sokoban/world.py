"""The Sokoban environment: rooms as text, up to three moves a turn.

Some pushes cannot be undone: a box in a corner stays there. So the recap of an episode names the
move after which the room was lost, unless `verdict = false`. The next attempt at the same room can
use this. The recap never shows the solution.
"""

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mage.config.errors import UserError
from mage.environments.base import SingleAgentEnvironment, State, Wording, turn_limit
from mage.environments.sokoban.lengths import NATURAL, SIZE, natural_lengths
from mage.environments.sokoban.levels import level_files, pick_level
from mage.environments.sokoban.moves import Surplus, all_actions, read_moves
from mage.environments.sokoban.rooms import (
    BOX_ON_TARGET,
    LARGEST_TABLE,
    MOST_BOXES,
    MOVES,
    Boxes,
    Room,
    count_states,
    nearest_room,
)
from mage.environments.sokoban.rules import TASK, TICK, View, write_answer, write_rules
from mage.environments.sokoban.search import bounds_of, solve
from mage.types import Split

_KIND_MOVES = 5  # solution lengths that tables put together


class SokobanState(State):
    """One episode.

    `turns` are the actions, `moves` the single moves, `last` the moves of the last turn. `regrets`
    has the number of wasted moves of each turn.
    """

    def __init__(self, environment: "Sokoban", room: Room) -> None:
        self.environment, self.room = environment, room
        self.player, self.boxes = room.player, room.boxes
        self.turns: list[str] = []
        self.moves: list[tuple[str, bool]] = []  # the move, and whether it had an effect
        self.regrets: list[int | None] = []
        self.dead_since: int | None = None
        self.last: list[tuple[str, bool]] = []
        self._plan: dict[tuple[int, Boxes], int] = {}

    # --- State interface ---

    def turn(self) -> int | None:
        ran_out = len(self.turns) >= self.environment.max_turns
        return None if self.solved or self.dead_since is not None or ran_out else 0

    def legal(self) -> tuple[str, ...]:
        return all_actions(self.environment.turn_moves)

    def read(self, written: str) -> str | None:
        return read_moves(written, self.environment.turn_moves, self.environment.surplus)

    def apply(self, action: str) -> None:
        """Make the moves; moves after the end of the episode are ignored."""
        before = self._distance()
        self.turns.append(action)
        self.last = []
        for word in action.split():
            player, boxes = self.room.step(self.player, self.boxes, MOVES.index(word))
            self.last.append((word, (player, boxes) != (self.player, self.boxes)))
            self.player, self.boxes = player, boxes
            self._look_for_the_end(len(self.moves) + len(self.last))
            if self.solved or self.dead_since is not None:
                break
        self.moves += self.last
        self.regrets.append(_regret(before, self._distance(), len(self.last)))

    def observe(self, seat: int) -> str:
        made = f"You made: {self._told(self.last)}.\n" if self.last else "The room:\n"
        view = self.environment.view
        parts = [self.room.draw(self.player, self.boxes)] if view != "words" else []
        parts += [self._told_places()] if view != "map" else []
        shown = "\n".join(parts)
        done = f"Boxes on targets: {self._done()} of {len(self.boxes)}."
        if self.environment.recap == "turns" and self.turn() is not None:
            done += f" Turn {len(self.turns) + 1} of {self.environment.max_turns}."
        return f"{made}{shown}\n{done}"

    def anchor(self, seat: int) -> str:
        return self.room.draw(self.player, self.boxes).replace(" ", "")

    def scores(self) -> tuple[float, ...]:
        return (float(self.solved),)

    def recap(self, seat: int) -> str:
        began = f"You began at {self.room.place(self.room.player)}."
        if not self.moves:
            made = "You made no move."
        elif self.environment.recap == "turns":
            made = " ".join(f"Turn {k}: {made}." for k, made in enumerate(self.turns, start=1))
        else:
            made = f"Your moves: {self._told(self.moves)}."
        return " ".join((began, made, self._told_end()))

    def expert(self) -> str | None:
        """The next moves of a shortest solution; None if there is no solution.

        In rooms without a table the solution need not be the shortest.
        """
        player, boxes, words = self.player, self.boxes, list[str]()
        while boxes != self.room.targets and len(words) < self.environment.turn_moves:
            move = self._best_move(player, boxes)
            if move is None:
                return None
            words.append(MOVES[move])
            player, boxes = self.room.step(player, boxes, move)
        return " ".join(words) or None

    # --- Distances ---

    @property
    def solved(self) -> bool:
        return self.boxes == self.room.targets

    def _distance(self) -> int | None:
        return None if self.room.distances is None else self.room.distance(self.player, self.boxes)

    def _look_for_the_end(self, number: int) -> None:
        """Record the first move after which the room cannot be solved.

        Without a table only dead squares and stuck blocks are recognised.
        """
        if self.dead_since is None:
            dead = (
                bounds_of(self.room).is_dead(self.boxes)
                if self.room.distances is None
                else self._distance() is None
            )
            self.dead_since = number if dead else None

    def _best_move(self, player: int, boxes: Boxes) -> int | None:
        if self.room.distances is not None:
            return self.room.best_move(player, boxes)
        if (player, boxes) not in self._plan:
            state = player, boxes
            for move in solve(self.room, player, boxes).moves or ():
                self._plan.setdefault(state, move)
                state = self.room.step(*state, move)
        return self._plan.get((player, boxes))

    # --- Texts ---

    def _done(self) -> int:
        return sum(box in self.room.targets for box in self.boxes)

    def _told(self, moves: list[tuple[str, bool]]) -> str:
        return ", ".join(word if moved else f"{word} (blocked)" for word, moved in moves)

    def _told_places(self) -> str:
        """Boxes, targets and walls relative to the player."""
        boxes, targets = (
            ", ".join(self.room.direction(self.player, cell) for cell in cells)
            for cells in (self.boxes, self.room.targets)
        )
        walls = [
            move
            for number, move in enumerate(MOVES)
            if self.room.beside[4 * self.player + number] < 0
        ]
        return f"Boxes: {boxes}. Targets: {targets}. Walls: {', '.join(walls) or 'none'}."

    def _told_end(self) -> str:
        count = len(self.moves)
        if self.solved:
            return f"You solved the room in {count} move{'s' if count != 1 else ''}."
        done = f"Boxes on targets at the end: {self._done()} of {len(self.boxes)}."
        if not self.environment.verdict:
            return f"{done} The room was not solved. You lost."
        if self.dead_since is not None:
            move = f"move {self.dead_since} ({self.moves[self.dead_since - 1][0]})"
            if self.environment.recap == "turns":
                move = f"turn {len(self.turns)}"
            return f"{done} After {move} the room could not be solved any more. You lost."
        ran_out = "The turns ran out. " if len(self.turns) >= self.environment.max_turns else ""
        return f"{done} {ran_out}The room was not solved, but {self._told_hope()}. You lost."

    def _told_hope(self) -> str:
        if self.room.distances is not None:
            return "it still could be"
        answer = solve(self.room, self.player, self.boxes)
        if answer.moves:
            return "it still could be"
        if answer.certain:
            return "by then it could not be any more"
        return "nobody knows if it still could be"


def _regret(before: int | None, after: int | None, moves: int) -> int | None:
    """Wasted moves of a turn; None if the room was lost in this turn or before."""
    return None if before is None or after is None else moves + after - before


class SokobanWording(Wording):
    """A map with numbered rows; the moves of an answer are separated by commas."""

    boards: ClassVar[int | None] = 2
    reviewed: ClassVar[int | None] = 7

    def task(self, seat: int) -> str:
        return TASK

    def view(self, state: State, seat: int) -> str:
        assert isinstance(state, SokobanState)
        drawn = state.room.draw(state.player, state.boxes).replace(BOX_ON_TARGET, TICK)
        return "\n".join(f"{row}: {line}" for row, line in enumerate(drawn.splitlines()))

    def answer(self) -> str:
        assert isinstance(self.environment, Sokoban)
        return write_answer(self.environment.turn_moves)

    def word(self, action: str) -> str:
        return ", ".join(action.split())


class Sokoban(SingleAgentEnvironment):
    """Sokoban in text with up to three moves a turn: generated rooms or Boxoban levels."""

    name: ClassVar[str] = "sokoban"
    presentation: ClassVar[tuple[str, ...]] = ("view", "recap", "verdict")
    settled: ClassVar[Mapping[str, Any]] = {"stop_when_lost": True}

    size: int = Field(
        6, ge=5, le=10, description="rows and columns of a room, outer walls included"
    )
    boxes: tuple[int, ...] = Field(
        (2,), min_length=1, description="numbers of boxes; the seed of a task selects one"
    )
    ood_boxes: tuple[int, ...] = Field(
        (1, 3), min_length=1, description="numbers of boxes out of domain"
    )
    shortest: int = Field(5, ge=1, description="minimum length of the shortest solution in moves")
    longest: int = Field(21, ge=1, description="maximum length of the shortest solution in moves")
    lengths: Literal["uniform", "natural"] = Field(
        "uniform",
        description="solution lengths from shortest to longest: uniform = equally frequent; "
        "natural = as frequent as in rooms of the published generator (6x6, 1 to 3 boxes)",
    )
    part: Literal["all", "train", "test"] = Field(
        "all", description="all rooms, training rooms, or the held-out fifth; the split sets it"
    )
    levels: str = Field(
        "",
        description="Boxoban file or folder to use instead of generated rooms "
        "(set max_turns to 30 or more)",
    )
    ood_levels: str = Field("", description="with levels: Boxoban file or folder out of domain")
    turn_moves: int = Field(3, ge=1, le=3, description="maximum number of moves in one action")
    surplus: Surplus = Field(
        "refuse",
        description="an answer with more moves: refuse = not legal; cut = the first ones count",
    )
    view: View = Field(
        "map",
        description="map = a drawing of the room; words = positions of boxes, targets and "
        "adjacent walls relative to the player; both = map and words",
    )
    recap: Literal["moves", "turns"] = Field(
        "moves",
        description="what the memory tells of an attempt: moves = a list of all moves; turns = "
        "the answers with the numbers of their turns, which the room then shows too",
    )
    verdict: bool = Field(
        True,
        description="the recap says after which move the room could not be solved any more; "
        "false = only whether it was solved",
    )
    max_turns: int = turn_limit(7)

    @field_validator("boxes", "ood_boxes")
    @classmethod
    def _are_few(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= count <= MOST_BOXES for count in value):
            raise UserError(f"a room has 1 to {MOST_BOXES} boxes, not {', '.join(map(str, value))}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "Sokoban":
        _check_levels(self) if self.levels else _check_rooms(self)
        return self

    def start(self, seed: int) -> SokobanState:
        return SokobanState(self, self.room(seed))

    def room(self, seed: int) -> Room:
        """The room of an episode with this seed."""
        if self.levels:
            return pick_level(self.levels, self.part, seed)
        spread = self._lengths_of_a_number()
        boxes = self.boxes[seed // spread % len(self.boxes)]
        moves = self.shortest + seed % spread
        if self.lengths == "natural":
            moves = natural_lengths(boxes, self.shortest, self.longest)[seed % spread]
        return nearest_room(self.size, boxes, self.shortest, self.longest, moves, seed, self.part)

    def _lengths_of_a_number(self) -> int:
        """Strata of rooms with one number of boxes: solution lengths, or equal shares of them."""
        return NATURAL if self.lengths == "natural" else self.longest - self.shortest + 1

    def variants(self) -> tuple[str, ...]:
        several = len(self.boxes) > 1 and not self.levels
        return tuple(map(_count_boxes, self.boxes)) if several else ()

    def instance_key(self, seed: int) -> Hashable:
        return self.room(seed)

    def rules(self) -> str:
        return write_rules(self.view, self.turn_moves, self.max_turns)

    def wording(self) -> SokobanWording:
        return SokobanWording(self)

    def instance(self, seat: int) -> str:
        if self.restart == "same":
            return "The room is the same in every attempt."
        return "Every attempt is in a new room."

    def example_action(self) -> str:
        return ("left left up", "left up", "left")[3 - self.turn_moves]

    def task_kind(self, seed: int) -> str:
        """Number of boxes, and the range of the solution length."""
        room = self.room(seed)
        boxes = _count_boxes(len(room.boxes))
        if room.distances is None:
            return boxes
        moves = room.distance(room.player, room.boxes) or 0
        first = moves - (moves - 1) % _KIND_MOVES
        return f"{boxes}, {first} to {first + _KIND_MOVES - 1} moves"

    def check_data(self) -> None:
        """The first level of each file or folder must be valid."""
        for path in filter(None, (self.levels, self.ood_levels)):
            pick_level(path, "all", 0)

    def for_split(self, split: Split) -> "Sokoban":
        """test: held-out rooms; train: all others; ood: other numbers of boxes."""
        if split != "ood":
            return self.model_copy(update={"part": split})
        if not self.levels:
            return self.model_copy(update={"part": "all", "boxes": self.ood_boxes})
        if not self.ood_levels:
            raise UserError(
                "environments.ood_levels is empty: the split out of domain of Boxoban levels "
                "needs other levels, such as the folder `hard`"
            )
        return self.model_copy(update={"part": "all", "levels": self.ood_levels})

    def strata(self) -> int:
        """One stratum per solution length and number of boxes."""
        return 1 if self.levels else self._lengths_of_a_number() * len(self.boxes)


def _check_rooms(world: Sokoban) -> None:
    if world.ood_levels:
        raise UserError("ood_levels has no effect without levels")
    if world.shortest > world.longest:
        raise UserError(f"shortest = {world.shortest} is more than longest = {world.longest}")
    if world.longest > world.max_turns * world.turn_moves:
        raise UserError(
            f"longest = {world.longest} moves do not fit into max_turns = "
            f"{world.max_turns} turns of {world.turn_moves}; lower longest or raise max_turns"
        )
    if world.lengths == "natural":
        _check_lengths(world)
    inside = (world.size - 2) ** 2
    for boxes in (*world.boxes, *world.ood_boxes):
        if boxes + 2 >= inside or count_states(inside, boxes) > LARGEST_TABLE:
            raise UserError(
                f"a room of size = {world.size} cannot have {boxes} boxes: 5x5 has up to 4,"
                " 6x6 up to 4, 8x8 up to 3, 10x10 up to 2"
            )


def _check_lengths(world: Sokoban) -> None:
    known = (*world.boxes, *world.ood_boxes)
    if world.size != SIZE or not all(natural_lengths(boxes, 1, 99) for boxes in known):
        raise UserError(
            f"lengths = 'natural' is known for {SIZE}x{SIZE} rooms with 1 to 3 boxes: use "
            "lengths = 'uniform', or another size and number of boxes"
        )
    if not all(natural_lengths(boxes, world.shortest, world.longest) for boxes in known):
        raise UserError(
            f"no room of the published generator takes {world.shortest} to {world.longest} moves: "
            "widen shortest and longest, or use lengths = 'uniform'"
        )


def _count_boxes(count: int) -> str:
    return "1 box" if count == 1 else f"{count} boxes"


def _check_levels(world: Sokoban) -> None:
    fields = type(world).model_fields
    for name in ("size", "boxes", "ood_boxes", "shortest", "longest", "lengths"):
        if getattr(world, name) != fields[name].default:
            raise UserError(f"{name} has no effect with levels: it is for generated rooms")
    for path in filter(None, (world.levels, world.ood_levels)):
        level_files(path, "all")
