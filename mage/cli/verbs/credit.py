"""`mage credit`: returns and advantages of trajectories in a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mage.cli.arguments import OVERRIDES, AsJson, split_words
from mage.cli.terminal import console
from mage.cli.terminal.tables import plain_table
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.credit.trajectories import RowCredit, credit_rows, read_trajectories

verbs = typer.Typer()
PLACE = ("line", "group", "member", "episode", "turn")
MOST_IN_TABLE, WIDTH = 2_000, 17  # rows; a longer table is printed as lines of this cell width
FIGURES = ("step_return", "episode_advantage", "step_advantage", "advantage")


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage credit games.jsonl --recipe kuhn_poker+as_published",
)
def credit(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.jsonl", help="One JSON object per line with a list `trajectories`."
        ),
    ],
    recipe: Annotated[
        str, typer.Option(metavar="RECIPE", help="A recipe, with parts: kuhn_poker+as_published.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the credit of every turn: step_return, episode_advantage, step_advantage, advantage.

    [returns] and [advantages] of the recipe decide. Any option of the recipe can be changed with
    --section.option=value. The format of the file is described in docs/credit.md.
    """
    _, overrides = split_words(None, ctx.args, ctx.command)
    chosen = load_recipe(recipe, overrides)
    found: list[tuple[int, list[RowCredit]]] = []
    state: dict[str, float] = {}  # lines are updates: running baselines continue
    for line, metas in read_trajectories(file):
        try:
            found.append((line, credit_rows(metas, chosen, state)))
        except ConfigError as error:
            raise ConfigError(f"{file}, line {line}: {error}") from None
    if as_json:
        for _, rows in found:
            typer.echo(json.dumps(_lists(rows)))
    else:
        _print_table(found)


def _lists(rows: Sequence[RowCredit]) -> dict[str, list[float]]:
    """One list per number, in row order."""
    figures = {name: [getattr(row, name) for row in rows] for name in FIGURES}
    return figures | {name: [row.parts[name] for row in rows] for name in _own_parts(rows)}


def _own_parts(rows: Sequence[RowCredit]) -> list[str]:
    """Parts whose sum is the advantage, if they are not episode and step."""
    parts = rows[0].parts if rows else {}
    return [name for name in parts if len(parts) > 1 and f"{name}_advantage" not in FIGURES]


def _print_table(found: Sequence[tuple[int, Sequence[RowCredit]]]) -> None:
    parts = _own_parts(found[0][1])
    rows = [
        (
            *map(str, (line, row.where.group, row.where.member, row.where.episode + 1)),
            "reflection" if row.where.index < 0 else str(row.where.index + 1),
            *(f"{getattr(row, name):.4f}" for name in FIGURES),
            *(f"{row.parts[name]:.4f}" for name in parts),
        )
        for line, rows in found
        for row in rows
    ]
    if len(rows) <= MOST_IN_TABLE:
        console().print(plain_table((*PLACE, *FIGURES, *parts), rows, group=3, head=len(PLACE)))
        return
    for row in ((*PLACE, *FIGURES, *parts), *rows):
        typer.echo("  ".join(f"{cell:>{WIDTH}}" for cell in row))
