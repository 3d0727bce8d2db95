"""The table of `mage evaluate --exact`: expected scores computed from the agent's probabilities."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mage.cli.arguments import print_json
from mage.cli.terminal import console
from mage.cli.terminal.tables import plain_table
from mage.environments.base import SEATS
from mage.opponents.base import population_of
from mage.types import Split

if TYPE_CHECKING:  # these are slow to load
    from mage.api.agents import Candidate
    from mage.evaluation.exact.scores import Exact
    from mage.evaluation.statistics import Estimate

Players = Annotated[
    int,
    typer.Option(min=2, help="With --exact: unseen players that stand for a family of opponents."),
]


def show_exact(one: "Candidate", split: Split, notes: Any, players: int, as_json: bool) -> None:
    """Print the exact scores; families are represented by players that training never draws."""
    from mage.evaluation.exact.scores import exact_scores
    from mage.opponents.base import sample_players

    with console(stderr=True).status(f"{one.title}: computing the policy in every situation"):
        recipe = one.components.recipe
        setup = one.components.play_setup(evaluating=True, memory=notes)
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
    _print(found, sampled, title + f"{split} opponents, memory {keep}")


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


def _print(found: "Exact", sampled: list["Estimate"] | None, title: str) -> None:
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
