"""The tables of `mage evaluate --exact` and `mage evaluate --population`.

Exact: expected scores computed from the agent's probabilities. Population: the agent and
references against every member of a population.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mage.cli.arguments import print_json
from mage.cli.terminal import console, say
from mage.cli.terminal.tables import plain_table
from mage.environments.base import SEATS
from mage.opponents.base import population_of
from mage.types import Split, Task

if TYPE_CHECKING:  # these are slow to load
    from mage.api.agents import Candidate
    from mage.evaluation.exact.scores import Exact
    from mage.evaluation.population import PopulationResult
    from mage.evaluation.statistics import Estimate
    from mage.play import PlaySetup

Players = Annotated[
    int,
    typer.Option(min=2, help="With --exact: unseen players that stand for a family of opponents."),
]
Population = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Play every member: roshambo, or names with commas."),
]
Throws = Annotated[int | None, typer.Option(min=1, help="Throws of an episode, with --population.")]
Matches = Annotated[int, typer.Option(min=1, help="Matches against each member.")]
References = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Opponents that play the same matches, with commas: bayes-pairs,predictors-best. "
        "members: every member of the population.",
    ),
]
WithAgent = Annotated[
    bool, typer.Option("--agent/--no-agent", help="Play the agent, or the references only.")
]
Page = Annotated[Path | None, typer.Option(help="Write the whole table to this Markdown file.")]
_HEADER = ("opponent", "mean return", "95 % interval", "beaten")


# --- Exact scores


def show_exact(one: "Candidate", split: Split, notes: Any, players: int, as_json: bool) -> None:
    """Print the exact scores; families are represented by players that training never draws."""
    from mage.evaluation.exact.scores import exact_scores
    from mage.opponents.base import sample_players
    from mage.training.build import describe_model

    say(describe_model(one.components.recipe))
    with console(stderr=True).status(f"{one.title}: computing the policy in every situation"):
        recipe = one.components.recipe
        setup = one.components.begin_play(evaluating=True, memory=notes)
        pool = population_of(recipe).pool(split)
        shares = sample_players(pool, players)
        found = exact_scores(setup, one.components.weights(), shares, recipe.learn)
    sampled = _over_players(found) if len(shares) > len(pool) else None
    keep = "as in the recipe" if notes is None else notes.keep
    if as_json:
        about = {"of": one.title, "update": one.update, "split": split, "memory": keep}
        print_json(about | asdict(found) | {"over_players": sampled and _to_json(sampled)})
        return
    title = f"{one.title}, update {one.update}: exact score per episode, "
    _print_exact(found, sampled, title + f"{split} opponents, memory {keep}")


def _over_players(found: "Exact") -> list["Estimate"]:
    """The mean of every episode over the players, then the gain from first to last, with intervals.

    The score against each player is exact; the interval is that of the sample of players.
    """
    from mage.evaluation.statistics import mean

    scores = [cell.scores for cell in found.cells if cell.opponent and cell.seat is None]
    episodes = [mean(list(column)) for column in zip(*scores, strict=True)]
    return [*episodes, mean([row[-1] - row[0] for row in scores])]


def _to_json(sampled: list["Estimate"]) -> dict[str, Any]:
    return {"episodes": [asdict(one) for one in sampled[:-1]], "gain": asdict(sampled[-1])}


def _print_exact(found: "Exact", sampled: list["Estimate"] | None, title: str) -> None:
    out = console()
    rows = [
        (
            cell.opponent or "all",
            "both" if cell.seat is None else SEATS[cell.seat],
            *(f"{score:+.4f}" for score in cell.scores),
        )
        for cell in found.cells
        if sampled is None or cell.opponent is None
    ]
    episodes = [f"episode {number + 1}" for number in range(len(found.overall.scores))]
    out.print(plain_table(("opponent", "seat", *episodes), rows, title))
    if sampled is not None:
        lines = [
            (name, f"{one.value:+.4f}", f"[{one.low:+.4f}, {one.high:+.4f}]")
            for name, one in zip([*episodes, "gain, last minus first"], sampled, strict=True)
        ]
        header = (f"over {sampled[0].count} unseen players", "mean", "95 % interval")
        out.print(plain_table(header, lines))
    if found.exploitability is not None:
        out.print(f"exploitability of the first episode's policy: {found.exploitability:.4f}")
    out.print(
        f"{found.situations:,} situations; replies that are not legal moves {found.unread:.2%}; "
        f"probability of courses that were left out {found.left_out:.1e}",
        style="dim",
    )


# --- A population


def throw_options(throws: int | None) -> dict[str, dict[str, int]]:
    """Changes of the recipe; a run folder stores the turn limit of its own number of throws."""
    return {"environments": {"throws": throws, "max_turns": 0}} if throws else {}


def show_population(
    candidate: "Candidate",
    population: str,
    matches: int,
    references: str,
    memory: Any,
    with_agent: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Play all matches of the candidate and of the references; print the tables."""
    from mage.evaluation.population import make_matches
    from mage.opponents.base import members
    from mage.training.build import describe_model

    if with_agent:
        say(describe_model(candidate.components.recipe))
    setup = candidate.components.begin_play(evaluating=True, memory=memory)
    tasks = make_matches(setup.environment, population, matches)
    names = [one for name in references.split(",") if name for one in _expand(name, population)]
    units = int(setup.environment.model_dump().get("throws", 1))
    title = f"{candidate.title}, update {candidate.update}" if with_agent else None
    results = _play_matches(setup, tasks, title, names, units)
    about = {
        "population": population,
        "members": len(members(population)),
        "matches": matches,
        "episodes": setup.episodes,
        "throws": units,
    }
    if page is not None:
        page.write_text(_markdown(results, about), encoding="utf-8")
    if as_json:
        print_json(about | {"players": [result.to_json() for result in results]})
        return
    _print_population(results, about)


def _play_matches(
    setup: "PlaySetup",
    tasks: Sequence[Task],
    agent: str | None,
    references: Sequence[str],
    units: int,
) -> list["PopulationResult"]:
    """The results of the agent, if it has a title, and of every reference."""
    from mage.evaluation import population as played

    results, done = [], 0
    with console(stderr=True).status(f"{agent or 'references'}: {len(tasks)} matches") as status:

        def count(row: object) -> None:
            nonlocal done
            done += 1
            status.update(f"{agent}: match {done} of {len(tasks)}")

        if agent is not None:
            found = played.play_agent(setup, tasks, count)
            results.append(played.summarise_matches(agent, found, units))
        for number, name in enumerate(references, start=1):
            status.update(f"reference {name}, {number} of {len(references)}")
            found = played.play_reference(name, setup.environment, tasks, setup.episodes)
            results.append(played.summarise_matches(name, found, units))
    return results


def _expand(name: str, population: str) -> tuple[str, ...]:
    from mage.opponents.base import members

    return members(population) if name == "members" else (name,)


def _describe(about: dict[str, Any]) -> str:
    shape = f"{about['episodes']} x {about['throws']} throws"
    return (
        f"{about['members']} members of {about['population']}, "
        f"{about['matches']} matches of {shape} against each"
    )


def _print_population(results: list["PopulationResult"], about: dict[str, Any]) -> None:
    out = console()
    out.print(plain_table(_HEADER, _member_rows(results[0]), results[0].player))
    header, rows = _summary(results)
    out.print(plain_table(header, rows, _describe(about)))


def _member_rows(result: "PopulationResult") -> list[tuple[str, ...]]:
    ordered = sorted(result.against, key=lambda one: one.mean_return.value)
    return [
        (
            one.member,
            f"{one.mean_return.value:+.1f}",
            _interval(one.mean_return),
            "yes" if one.is_surely_beaten else "perhaps" if one.is_beaten else "no",
        )
        for one in ordered
    ]


def _summary(results: list["PopulationResult"]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per player: its population return, the number of members beaten, the worst."""
    header: tuple[str, ...] = (
        "player",
        "population return",
        "95 % interval",
        "beaten",
        "surely",
        "worst",
    )
    rows: list[tuple[str, ...]] = [
        (
            result.player,
            f"{result.population_return.value:+.1f}",
            _interval(result.population_return),
            f"{result.beaten}",
            f"{result.surely_beaten}",
            f"{result.worst.mean_return.value:+.1f} ({result.worst.member})",
            " ".join(f"{episode.value:+.3f}" for episode in result.by_episode),
        )
        for result in results
    ]
    if len(results[0].by_episode) > 1:
        return (*header, "score a throw by episode"), rows
    return header, [row[:-1] for row in rows]


def _interval(one: "Estimate") -> str:
    return "-" if one.count < 2 else f"[{one.low:+.0f}, {one.high:+.0f}]"


def _markdown(results: list["PopulationResult"], about: dict[str, Any]) -> str:
    from mage.report.values import pipe_table

    tables = pipe_table(*_summary(results)), pipe_table(_HEADER, _member_rows(results[0]))
    parts = [f"# {results[0].player}", f"{_describe(about)}.", *map("\n".join, tables)]
    return "\n\n".join(parts) + "\n"
