"""How much can memory help in ALFWorld? `python scripts/study_memory.py [DATA] [SPLIT] [EPISODES]`.

A scripted reader plays every game several times. It knows only what an agent can read: the task,
and the contents of receptacles that it has looked into. It searches unknown receptacles in random
order; as soon as it knows where the objects are, it follows the planner. With memory it keeps what
a recap states (the first seen contents of receptacles); without memory it starts from nothing. The
difference is the gain that reading the recaps can give.
"""

import random
import sys
from dataclasses import replace

from mage.environments.alfworld import Alfworld, AlfworldState
from mage.environments.alfworld.engine import World
from mage.environments.alfworld.planner import plan
from mage.evaluation.statistics import wilson
from mage.seeds import derive
from mage.types import Split

Contents = dict[int, tuple[int, ...]]  # receptacle -> objects that were in it at first sight


def believed(world: World, known: Contents) -> World:
    """The world as the reader believes it to be: unknown receptacles are empty."""
    held = () if world.held is None else (world.held,)
    inside = tuple(
        tuple(o for o in now if o in known.get(r, ()) or o in world.moved)
        for r, now in enumerate(world.inside)
    )
    twin = world.copy()
    twin.game = replace(world.game, inside=inside)
    twin.inside = tuple(tuple(o for o in objects if o not in held) for objects in inside)
    return twin


def next_command(state: AlfworldState, known: Contents, rng: random.Random) -> str:
    """Follow the plan for the believed world; without a plan, look into an unknown receptacle."""
    world, game = state.world, state.world.game
    steps = plan(believed(world, known))
    if steps and steps[0] in world.commands:
        return steps[0]
    here = [r for r in game.here[world.at] if r not in known and r in game.openable]
    if here:
        return f"open {game.receptacles[here[0]]}"
    unknown = [r for r in range(len(game.receptacles)) if r not in known]
    choices = [f"go to {game.receptacles[r]}" for r in unknown]
    possible = [command for command in choices if command in world.commands]
    return rng.choice(possible or sorted(world.commands))


def play(environment: Alfworld, seed: int, episodes: int, remembers: bool) -> list[bool]:
    """Whether each episode of one game was won."""
    known: Contents = {}
    won = []
    for episode in range(episodes):
        rng = random.Random(derive(seed, "reader", episode))
        state = environment.start(seed)
        known = dict(known) if remembers else {}
        while state.turn() is not None:
            state.apply(next_command(state, known, rng))
            for receptacle, objects in state.seen.items():
                known.setdefault(receptacle, objects)
        won.append(state.scores()[0] > 0)
    return won


def main(words: list[str]) -> None:
    data, split, count = (*words, *("generated", "test", "3")[len(words) :])
    chosen: Split = "ood" if split == "ood" else "train" if split == "train" else "test"
    environment = Alfworld(data=data, idle=False).for_split(chosen)
    games = range(environment.strata() if data != "generated" else 120)
    for remembers in (True, False):
        results = [play(environment, seed, int(count), remembers) for seed in games]
        cells = [wilson(sum(column), len(column)) for column in zip(*results, strict=True)]
        shown = "  ".join(f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in cells)
        print(f"{len(results)} games, {'with' if remembers else 'without'} memory: {shown}")


if __name__ == "__main__":
    main(sys.argv[1:])
