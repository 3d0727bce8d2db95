"""Compute the tables of docs/what_the_figures_can_show.md: `python scripts/paper_figures.py`.

Every table stands between two comments in the page and is replaced by the computed one. The
figures of the paper come from `mage/reproduce/tables.py`.
"""

import math
import re
import runpy
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mage.config.loading import load_recipe
from mage.evaluation.exact.ceilings import ceilings
from mage.evaluation.exact.replayed import (
    at_least_once,
    count_winnable,
    panel_bound,
    pass_bound,
    win_chances,
)
from mage.evaluation.panels import recipe_panel
from mage.reproduce.tables import TABLES
from mage.types import Split

PAGE = Path(__file__).parents[1] / "docs" / "what_the_figures_can_show.md"
NUMBERS = runpy.run_path(str(Path(__file__).with_name("paper_numbers.py")))
EPISODES, TASKS = 10, 128
SEATS = ("first", "second")
KUHN = load_recipe("paper_kuhn_poker")
STYLES = dict(KUHN.opponents.train)
RECIPES = {"paper_kuhn_poker": ", the published draw", "paper_kuhn_poker+ours": ""}
PAPER = {name: table.paper for name, table in TABLES.items()}


def rate(value: float) -> str:
    """`.617`, as the pages write rates."""
    return f"{value:.3f}".removeprefix("0")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def panel_bounds(name: str, split: Split) -> list[float]:
    """The largest Pass@1 and Pass@10 on the final panel of a recipe."""
    recipe = load_recipe(name)
    tasks = recipe_panel(recipe, split, "final")
    return [panel_bound(recipe.environment(), tasks, k) for k in (1, EPISODES)]


def kuhn() -> str:
    """Pass@1 and Pass@10 that no learner exceeds against the three styles."""
    game, known = KUHN.environment(), PAPER["table1"]["kuhn_poker", "test"]
    bounds = {
        f"six deals, agent {name}": [pass_bound(game, STYLES, seat, k) for k in (1, EPISODES)]
        for seat, name in enumerate(SEATS)
    }
    bounds |= {
        f"the {TASKS} tasks of `{name}`{note}": panel_bounds(name, "test")
        for name, note in RECIPES.items()
    }
    rows = [[name, *map(rate, values)] for name, values in bounds.items()]
    for label, name in (("react", "ReAct, untrained"), ("lamer", "LaMer"), ("mage", "MAGE")):
        first = known[label].get(1)
        rows.append(
            [f"the paper, {name}", "" if first is None else rate(first), rate(known[label][10])]
        )
    dealt = load_recipe("paper_kuhn_poker", ["--environments.restart=fresh"]).environment()
    fresh = ceilings(dealt, STYLES, 0, 3)
    text = (
        f"Which deals can be won depends on seat and opponent. With {TASKS} deals drawn at random, "
        f"agent first, the bound itself has a standard error of {rate(_error(bounds))}.\n"
        f"By chips a hand with new deals, agent first: at most {rate(fresh.non_adapting)} without "
        f"adapting, {rate(fresh.bayes_final)} for the best learner's third hand."
    )
    return f"{table(['', 'Pass@1 at most', 'Pass@10 at most'], rows)}\n\n{text}"


def _error(bounds: dict[str, list[float]]) -> float:
    share = bounds[f"six deals, agent {SEATS[0]}"][1]
    return math.sqrt(share * (1 - share) / TASKS)


def draws() -> str:
    """Draw@k of an agent that never learns."""
    known = PAPER["ood"]["tic_tac_toe", "ood"]["mage"]
    counted = [at_least_once(known[1], k) for k in range(1, EPISODES + 1)]
    header = ["k", *map(str, range(1, EPISODES + 1))]
    paper = [rate(known[k]) if k in known else "" for k in range(1, EPISODES + 1)]
    all_drawn = counted[-1] ** TASKS
    rows = [["by counting alone", *map(rate, counted)], ["the paper", *paper]]
    text = (
        f"All {TASKS} tasks have a draw among their ten games with probability {rate(all_drawn)}."
    )
    return f"{table(header, rows)}\n\n{text}"


def cfr() -> str:
    """What can be won against CFR, by the way its policy is played, and by seat."""
    game = KUHN.environment()
    rows = [
        [
            how,
            name,
            f"{count_winnable(chances)} of {len(chances)}",
            *(rate(pass_bound(game, {opponent: 1.0}, seat, k)) for k in (1, EPISODES)),
        ]
        for opponent, how in (("cfr_argmax", "most likely move"), ("cfr", "sampled move"))
        for seat, name in enumerate(SEATS)
        for chances in (win_chances(game, opponent, seat),)
    ]
    for name, note in RECIPES.items():
        seats = load_recipe(name).evaluation_seats("ood")
        rows.append([f"`{name}`{note}", seats, "", *map(rate, panel_bounds(name, "ood"))])
    known = PAPER["ood"]["kuhn_poker", "ood"]["mage"]
    rows.append(["the paper, MAGE", "", "", "", rate(known[10])])
    header = [
        "CFR plays its",
        "agent",
        "deals that can be won",
        "Pass@1 at most",
        "Pass@10 at most",
    ]
    return table(header, rows)


def rooms() -> str:
    """Solution lengths of test rooms, of the published generator's lengths and of uniform ones."""
    rows = [
        [f"{boxes}", name, *_spread(NUMBERS["sokoban_lengths"](boxes, lengths))]
        for boxes in (1, 2, 3)
        for lengths, name in (("natural", "as published"), ("uniform", "`+ours`"))
    ]
    header = ["boxes", "lengths", "median", "mean", "5", "6 to 10", "11 to 15", "16 to 21"]
    return table(header, rows)


def _spread(lengths: Sequence[int]) -> list[str]:
    parts = [(5, 5), (6, 10), (11, 15), (16, 21)]
    shares = [sum(low <= one <= high for one in lengths) / len(lengths) for low, high in parts]
    middle = [f"{statistics.median(lengths):g}", f"{statistics.mean(lengths):.1f}"]
    return [*middle, *(f"{100 * share:.0f} %" for share in shares)]


BLOCKS: dict[str, Callable[[], str]] = {"kuhn": kuhn, "draws": draws, "cfr": cfr, "rooms": rooms}


def fill(text: str, name: str) -> str:
    """The page with one table computed again."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    found = re.search(f"{begin}.*?{end}", text, re.DOTALL)
    assert found, f"{PAGE.name} has no table {name}"
    return text.replace(found.group(), f"{begin}\n\n{BLOCKS[name]()}\n\n{end}")


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    for block in BLOCKS:
        page = fill(page, block)
    PAGE.write_text(page, "utf-8")
