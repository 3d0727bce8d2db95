"""ALFWorld: household tasks in text, on our own engine that answers as TextWorld does.

The agent finds, takes, cleans, heats, cools and places objects in a room that it has to explore.
Games are generated or official ones. Episodes repeat the same room, so the agent need not search
again for objects that it has seen.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mage.config.errors import UserError
from mage.environments.alfworld.engine import BANNER, IDLE, NOTHING_HAPPENS, Game, World
from mage.environments.alfworld.games import (
    FOLDERS,
    GENERATED,
    find_folder,
    list_games,
    load_game,
    make_game,
)
from mage.environments.alfworld.generator import SHORTEST
from mage.environments.alfworld.planner import plan
from mage.environments.alfworld.problem import TASK_TYPES, TaskType
from mage.environments.base import SingleAgentEnvironment, State, Wording, turn_limit
from mage.types import Split

_RULES = (
    "You are alone in a room and have one household task. Things lie on or in receptacles; "
    "some must be opened first. You see what is there only when you "
    "are at a receptacle, and you carry one thing at a time. A sinkbasin cleans, a microwave "
    "heats and a fridge cools what you carry; use a lamp to look at it "
    "in the light. Do one command at a time, written exactly as it is listed."
)

_TASK = "You are an expert agent in the household world ALFRED."
_ANSWER = (
    "It is your turn. First think step by step about the situation. Then choose one of the "
    "possible actions and write it between <action> and </action>."
)


class AlfworldState(State):
    """A running game with the agent's commands and observations."""

    def __init__(self, environment: "Alfworld", game: Game) -> None:
        self.environment, self.world = environment, World(game)
        self.answer = self.world.introduction().removeprefix(BANNER).strip().replace("\n\n", "\n")
        self.commands: list[str] = []
        self._legal: tuple[str, ...] | None = None
        self.seen: dict[
            int, tuple[int, ...]
        ] = {}  # receptacle -> contents when first seen (the same in the next episode)

    def turn(self) -> int | None:
        return None if self.world.won or len(self.commands) >= self.environment.max_turns else 0

    def legal(self) -> tuple[str, ...]:
        if self._legal is None:
            idle, found = self.environment.idle, self.world.admissible()
            self._legal = tuple(one for one in found if idle or not one.startswith(IDLE))
        return self._legal

    def apply(self, action: str) -> None:
        self.answer, self._legal = self.world.step(action), None
        self.commands.append(action)
        for r in self.world.game.here[self.world.at]:
            if self.world.is_open(r):
                self.seen.setdefault(r, self.world.inside[r])

    def refuse(self, written: str | None) -> None:
        self.answer = NOTHING_HAPPENS

    def observe(self, seat: int) -> str:
        legal, most = self.legal(), self.environment.commands
        # Local commands come first, so that only `go to` commands are cut.
        local_first = sorted(legal, key=lambda command: command.startswith("go to"))
        shown = local_first[:most] if len(legal) > most else legal
        more = f" (and {len(legal) - most} more, not shown)" if len(legal) > most else ""
        return (
            f"{_cut(self.answer, self.environment.characters)}\nCommands: {', '.join(shown)}{more}."
        )

    def anchor(self, seat: int) -> str:
        """Position, inspected receptacles and everything that has changed; or the text alone."""
        if self.environment.anchor == "text":
            return self.answer
        world, game = self.world, self.world.game
        here = " ".join(game.receptacles[r] for r in game.here[world.at]) or "the middle"
        held = "nothing" if world.held is None else game.objects[world.held]
        changed = [
            f"{verb} {game.objects[o]}"
            for verb, objects in world.done.items()
            for o in sorted(objects - game.done[verb])
        ]
        moved = [
            f"{game.objects[o]} to {game.receptacles[r]}"
            for r, now in enumerate(world.inside)
            for o in now
            if o not in game.inside[r]
        ]
        lists = (
            ("open", [game.receptacles[r] for r in sorted(world.opened)]),
            ("seen", [game.receptacles[r] for r in sorted(self.seen)]),
        )
        told = [
            f"{word}: {', '.join(names)}"
            for word, names in (*lists, ("moved", moved), ("did", changed))
            if names
        ]
        return "; ".join(
            [game.task.removeprefix("Your task is to: "), f"at {here}", f"holds {held}", *told]
        )

    def scores(self) -> tuple[float, ...]:
        return (1.0 if self.world.won else 0.0,)

    def recap(self, seat: int) -> str:
        did = f"You did: {', '.join(self.commands)}." if self.commands else "You did nothing."
        steps = f"{len(self.commands)} step{'s' if len(self.commands) != 1 else ''}"
        end = f"You did not finish the task in {steps}."
        if self.world.won:
            end = f"You did the task in {steps}."
        return _cut(
            " ".join([self.world.game.task, did, *self._sights(), end]),
            self.environment.characters,
            end,
        )

    def _sights(self) -> list[str]:
        """The first seen contents of every receptacle that the agent has looked into."""
        game = self.world.game
        return [
            (
                f"At first {game.receptacles[r]} held "
                f"{', '.join(game.objects[o] for o in content) or 'nothing'}."
            )
            for r, content in sorted(self.seen.items())
        ]

    def expert(self) -> str | None:
        """The next command of the shortest plan from the current situation."""
        steps = plan(self.world)
        return steps[0] if steps else None


class AlfworldWording(Wording):
    """No rules and no hints: the room and the task are in the first observation."""

    reviewed: ClassVar[int | None] = 15

    def task(self, seat: int) -> str:
        return _TASK

    def opening(self, state: State, seat: int) -> str:
        return self.view(state, seat)

    def view(self, state: State, seat: int) -> str:
        assert isinstance(state, AlfworldState)
        return _cut(state.answer, state.environment.characters)

    def choices(self, state: State) -> str:
        listed = ",\n".join(f"'{command}'" for command in self.words(state))
        return f"The possible actions now are:\n[{listed}]"

    def answer(self) -> str:
        return _ANSWER

    def words(self, state: State) -> tuple[str, ...]:
        return tuple(command for command in state.legal() if command != "help")


def _cut(text: str, most: int, end: str = "") -> str:
    """Shorten a text that is too long, and say how much was cut."""
    if len(text) <= most:
        return text
    kept = text[: most - len(end)].rstrip()
    return " ".join(
        [f"{kept} [.. {len(text) - len(kept) - len(end)} characters cut]", *([end] if end else [])]
    )


class Alfworld(SingleAgentEnvironment):
    """Household tasks in text, with generated rooms or the official games."""

    name: ClassVar[str] = "alfworld"

    data: str = Field(
        GENERATED,
        description="'generated', 'official' (the folder in ALFWORLD_DATA), or a folder with "
        "the official games",
    )
    split: Split = Field(
        "train", description="split of the games for mage play and mage check: train, test or ood"
    )
    task_types: tuple[TaskType, ...] = Field(
        TASK_TYPES,
        min_length=1,
        description="task types: some of place, light, clean, heat, cool, two",
    )
    receptacles: int = Field(8, ge=3, le=13, description="most receptacles in a generated room")
    objects: int = Field(12, ge=2, le=100, description="objects in a generated room")
    anchor: Literal["state", "text"] = Field(
        "state",
        description="turns compared with each other have the same state (all that was seen and "
        "changed), or the same text (the last answer of the world, as published)",
    )
    idle: bool = Field(
        True, description="also offer commands that change nothing: look, examine, inventory, help"
    )
    commands: int = Field(
        100, ge=1, description="most listed commands; the text says how many are left out"
    )
    characters: int = Field(
        3000, ge=200, description="longest answer or recap; the text says how much is cut"
    )
    max_turns: int = turn_limit(10)

    @field_validator("task_types")
    @classmethod
    def _are_different(cls, kinds: tuple[TaskType, ...]) -> tuple[TaskType, ...]:
        if len(set(kinds)) != len(kinds):
            raise UserError("must not name a type twice")
        return kinds

    @model_validator(mode="after")
    def _can_be_won(self) -> "Alfworld":
        hopeless = [
            kind
            for kind in self.task_types
            if SHORTEST[kind] > self.max_turns and self.data == GENERATED
        ]
        if hopeless:
            need = ", ".join(f"{kind} takes at least {SHORTEST[kind]}" for kind in hopeless)
            raise UserError(
                f"max_turns = {self.max_turns} is too few: {need}; allow more turns or leave "
                "it out of task_types"
            )
        return self

    def start(self, seed: int) -> AlfworldState:
        return AlfworldState(self, self.game(seed))

    def game(self, seed: int) -> Game:
        """The game of an episode with this seed."""
        if self.data == GENERATED:
            kind = self.task_types[self.stratum(seed)]
            return make_game(kind, self.split, seed, self.receptacles, self.objects, self.max_turns)
        return load_game(self._files()[self.stratum(seed)])

    def instances(self) -> int | None:
        return None if self.data == GENERATED else len(self._files())

    def instance_key(self, seed: int) -> Hashable:
        if self.data != GENERATED:
            return self.stratum(seed)
        game = self.game(seed)
        return game.task, game.receptacles, game.locations, game.objects, game.inside, game.start

    def task_kind(self, seed: int) -> str:
        return self.game(seed).goal.kind

    def check_data(self) -> None:
        """Every split that the folder has must contain games, and the first game must load."""
        if self.data == GENERATED:
            return
        folder = find_folder(self.data)
        for split, name in FOLDERS.items():
            if (folder / name).is_dir() or split == self.split:
                load_game(list_games(folder, split, self.task_types)[0])

    def for_split(self, split: Split) -> "Alfworld":
        return self if split == self.split else self.model_copy(update={"split": split})

    def rules(self) -> str:
        return _RULES

    def wording(self) -> AlfworldWording:
        return AlfworldWording(self)

    def instance(self, seat: int) -> str:
        return f"You have {self.max_turns} turns."

    def example_action(self) -> str:
        return "go to shelf 1"

    def strata(self) -> int:
        """Task types for generated games, else the games; panels cover them evenly."""
        return len(self.task_types) if self.data == GENERATED else len(self._files())

    def _files(self) -> tuple[Path, ...]:
        return list_games(find_folder(self.data), self.split, self.task_types)
