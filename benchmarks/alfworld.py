"""ALFWorld: our engine's steps a second compared with TextWorld's on the same games.

Both sides execute the same commands and must give the same answers and admissible commands. The
games are official ones if ALFWORLD_DATA is set, else generated ones, exported for TextWorld.
Loading time is not counted.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import Comparison, Skipped, Way, relate, take_turns
from mage.environments.alfworld.engine import World
from mage.environments.alfworld.export import write_games
from mage.environments.alfworld.game_file import read_game
from mage.environments.alfworld.games import find_folder, list_games
from mage.environments.alfworld.problem import TASK_TYPES

INSTALL = (
    "needs TextWorld and alfworld beside MAGE: pip install -e '.[alfworld-oracle]' (compiles a "
    "planner, about four minutes)"
)
REPEATS = 50  # of our side, which is too fast to be timed once
TARGET = 300.0


def measure(steps: int = 10, rounds: int = 3) -> Iterator[Comparison | str]:
    """One game of every type, `steps` commands each."""
    yield (
        f"the engine alone: {_own_rate():,.0f} steps/s on generated games of 8 receptacles (one "
        "CPU second, admissible commands included)"
    )
    if find_spec("textworld") is None or find_spec("alfworld") is None:
        raise Skipped(INSTALL)
    with tempfile.TemporaryDirectory() as folder:
        name, paths = _choose_games(Path(folder))
        games = [
            (open_textworld(path), World(read_game(json.loads(path.read_text())))) for path in paths
        ]
        lines = [_draw_commands(world, steps, number) for number, (_, world) in enumerate(games)]
        ours, theirs = take_turns((_ours(games, lines), _theirs(games, lines)), rounds)
        found = relate(
            "alfworld",
            f"{len(paths)} {name} games",
            ("ours", "TextWorld"),
            "steps",
            steps * len(paths),
            ours,
            theirs,
        )
        yield Comparison(
            **{field: getattr(found, field) for field in Comparison.__dataclass_fields__}
            | {"target": TARGET}
        )


def open_textworld(path: Path) -> Any:
    """A game loaded in TextWorld, with ALFWorld's names of things."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.core import EnvInfos
    from textworld.envs.pddl import PddlEnv

    env = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
    env.load(str(path))
    return env


def _choose_games(folder: Path) -> tuple[str, list[Path]]:
    try:
        official = find_folder("official")
    except ValueError:
        return "generated", write_games(folder, len(TASK_TYPES))[: len(TASK_TYPES)]
    return "official", [list_games(official, "train", (kind,))[0] for kind in TASK_TYPES]


def _draw_commands(start: World, steps: int, seed: int) -> list[str]:
    world, rng, found = start.copy(), random.Random(seed), list[str]()
    for _ in range(steps):
        found.append(rng.choice(world.admissible()))
        world.step(found[-1])
    return found


def _ours(games: list[tuple[Any, World]], lines: list[list[str]]) -> Way:
    def way() -> float:
        seconds = 0.0
        for _ in range(REPEATS):
            for (_, start), commands in zip(games, lines, strict=True):
                world = start.copy()
                began = time.process_time()
                for command in commands:
                    world.step(command)
                    world.admissible()
                seconds += time.process_time() - began
        return seconds / REPEATS

    return way


def _theirs(games: list[tuple[Any, World]], lines: list[list[str]]) -> Way:
    def way() -> float:
        seconds = 0.0
        for (env, start), commands in zip(games, lines, strict=True):
            world = start.copy()
            env.reset()
            for command in commands:
                began = time.process_time()
                state, _, _ = env.step(command)
                seconds += time.process_time() - began
                assert (world.step(command), world.admissible()) == (
                    state.feedback,
                    state["admissible_commands"],
                ), "both must do the same work"
        return seconds

    return way


def _own_rate(games: int = 60, steps: int = 30) -> float:
    """Steps per CPU second in random play."""
    from mage.environments.alfworld.games import make_game

    starts = [
        World(make_game(TASK_TYPES[seed % 6], "train", seed, 8, 12, 10)) for seed in range(games)
    ]
    lines = [_draw_commands(start, steps, number) for number, start in enumerate(starts)]
    return games * steps / _ours([(None, start) for start in starts], lines)()


if __name__ == "__main__":
    from benchmarks.__main__ import print_lines

    print_lines(measure())
