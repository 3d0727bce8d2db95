"""`mage play`: play against an opponent or the agent, or watch an agent play."""

import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mage.api.menus import names
from mage.cli.arguments import (
    AGENT,
    OVERRIDES,
    AsJson,
    Keep,
    Seat,
    World,
    check_opponent_of,
    find_seat,
    make_environment,
    make_notes,
    print_json,
    read_world,
)
from mage.cli.terminal import UsageError, console, say
from mage.config.loading import is_environment, load_recipe, read_stored
from mage.config.menus import find_item, is_foreign, menu, without_foreign_code
from mage.environments.base import Environment
from mage.opponents.base import find
from mage.types import MetaEpisode, Task

verbs = typer.Typer()


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage play kuhn_poker --against conservative --seat second",
)
def play(
    ctx: typer.Context,
    environment: World,
    against: Annotated[
        str | None,
        typer.Option(metavar="OPPONENT", help="A name of `mage list opponents`, or `agent`."),
    ] = None,
    seat: Annotated[
        Seat, typer.Option(help="Your seat; with --watch, the seat of the agent.")
    ] = "first",
    episodes: Annotated[int, typer.Option(min=1, help="Number of games.")] = 3,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same deals. Default: random.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Watch an agent play: its prompts, replies, notes and memory."
        ),
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Use the best checkpoint of this run as the agent."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model of the agent, without --run: a folder, a name of `mage model list`, or "
            "ORG/NAME of the model hub. Default: the best one on this machine.",
        ),
    ] = None,
    memory: Annotated[Keep | None, typer.Option(help="The agent's memory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play in the terminal against an opponent or against the agent, or watch an agent play.

    Options of the environment are --environments.key=value.
    """
    environment, options = read_world(environment, ctx.args, ctx.command)
    _refuse_recipe(environment)
    of_agent = {"--run": run, "--memory": memory, "--model": model}
    world = make_environment(environment, options)
    _check_play(world, against, watch, as_json, of_agent)
    opponent = "" if against == AGENT else check_opponent_of(world, against)
    if opponent and not watch and find(opponent).has_weights:
        raise UsageError(f"a person plays against a model with --against {AGENT} --model NAME")
    place = find_seat(world, seat)
    seed = secrets.randbits(31) if seed is None else seed
    task = Task(world.name, seed, place, opponent, "test")
    from mage.cli.terminal import human

    if not watch and against != AGENT:
        human.play_person(world, task, episodes, console())
        console().print(f"(to play the same deals again: --seed {seed})", style="dim")
        return
    from mage.api.agents import find_player
    from mage.training.build import describe_model

    components = find_player(
        environment, world, options, run, model, say, lambda recipe: say(describe_model(recipe))
    ).components
    notes = None if memory is None else make_notes(memory)
    setup = replace(components.begin_play(evaluating=True, memory=notes), episodes=episodes)
    if against == AGENT:
        human.play_agent(setup, replace(task, seat=1 - place, opponent=human.PERSON), console())
    else:
        played = human.watch_agent(setup, task, console(quiet=as_json))
        if as_json:
            print_json(_transcript(played))


def _refuse_recipe(name: str) -> None:
    """A run or a recipe is no environment: say which command does what the user may want."""
    if name in dict(menu("environments")):
        return
    path = Path(name) / "recipe.toml"
    if path.is_file():
        with without_foreign_code():
            world = read_stored(path).environments.name
        own, other = _play_of(world), f"{_play_of(world)} --watch --run {name}"
        advice = f"To watch its agent: {other}. For its figures: mage evaluate {name}"
    elif name.endswith(".toml") or _is_recipe(name):
        own = _play_of(load_recipe(name).environments.name)
        advice = f"To train it: mage train {name}. For figures: mage evaluate {name}"
    else:
        return
    what = "run" if path.is_file() else "recipe"
    raise UsageError(f"{name} is a {what}, not an environment. To play yourself: {own}. {advice}")


def _is_recipe(name: str) -> bool:
    """Whether a name is a recipe, perhaps with parts, and no environment."""
    first = name.split("+")[0]
    return first in dict(menu("recipes")) or (name != first and is_environment(first))


def _play_of(world: str) -> str:
    """The command that plays an environment."""
    has_opponents = not is_foreign(world) and find_item("environments", world).multi_agent
    return f"mage play {world}{' --against random' if has_opponents else ''}"


def _check_play(
    world: Environment, against: str | None, watch: bool, as_json: bool, of_agent: dict[str, Any]
) -> None:
    given = [name for name, value in of_agent.items() if value is not None]
    if given and not watch and against != AGENT:
        raise UsageError(
            f"{', '.join(given)} has no effect without an agent. "
            f"Add --watch, or play --against {AGENT}."
        )
    if {"--run", "--model"} <= set(given):
        raise UsageError("--model has no effect with --run, because the run has its own model")
    if as_json and not watch:
        raise UsageError(
            "--json has no effect without --watch. A game at the keyboard prints plain text."
        )
    if against == AGENT and not world.multi_agent:
        raise UsageError(f"{world.name} has a single agent, so --against {AGENT} is not possible")
    if watch and against == AGENT:
        raise UsageError(
            f"--watch needs a scripted opponent. --against takes one of {names('opponents')}."
        )


def _transcript(played: MetaEpisode) -> dict[str, Any]:
    return {
        "task": asdict(played.task),
        "episodes": [
            {
                "memory": memory,
                "reflection": episode.reflection.completion.text if episode.reflection else None,
                "replies": [
                    {
                        "observation": turn.observation,
                        "text": turn.completion.text,
                        "legal": turn.legal,
                    }
                    for turn in episode.turns
                ],
                "moves": [asdict(move) for move in episode.moves],
                "score": episode.score,
                "outcome": episode.outcome,
                "recap": episode.recap,
            }
            for memory, episode in zip(played.memories, played.episodes, strict=True)
        ],
    }
