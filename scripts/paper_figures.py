"""Compute the tables of docs/what_the_figures_can_show.md: `python scripts/paper_figures.py`.

Every table stands between two comments in the page and is replaced by the computed one. The
figures of the paper come from `mage/reproduce/tables.py`.
"""

import math
import re
import runpy
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mage.config.loading import load_recipe
from mage.environments.kuhn_poker import DEALS
from mage.evaluation.exact.ceilings import ceilings
from mage.evaluation.exact.replayed import (
    at_least_once,
    count_winnable,
    panel_bound,
    pass_bound,
    win_chances,
)
from mage.evaluation.panels import make_panel
from mage.opponents.base import population_of
from mage.reproduce.tables import TABLES
from mage.types import Split, Task

PAGE = Path(__file__).parents[1] / "docs" / "what_the_figures_can_show.md"
NUMBERS = runpy.run_path(str(Path(__file__).with_name("paper_numbers.py")))
EPISODES, TASKS = 10, 128
SEATS = ("first", "second")
KUHN = load_recipe("paper_kuhn_poker")
STYLES = dict(KUHN.opponents.train)
PAPER = {name: table.paper for name, table in TABLES.items()}


def rate(value: float) -> str:
    """`.617`, as the pages write rates."""
    return f"{value:.3f}".removeprefix("0")


def table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def panel(split: Split) -> tuple[Task, ...]:
    """The tasks of the final panel of `paper_kuhn_poker`."""
    return make_panel(
        KUHN.environment(),
        population_of(KUHN),
        split,
        size=TASKS,
        seats=KUHN.evaluation_seats(split),
        episodes=EPISODES,
    )


def kuhn() -> str:
    """Pass@1 and Pass@10 that no learner exceeds against the three styles."""
    game, known = KUHN.environment(), PAPER["table1"]["kuhn_poker", "test"]
    bounds = {
        f"six deals, agent {name}": [pass_bound(game, STYLES, seat, k) for k in (1, EPISODES)]
        for seat, name in enumerate(SEATS)
    }
    tasks = panel("test")
    bounds[f"the {TASKS} tasks of `paper_kuhn_poker`"] = [
        panel_bound(game, tasks, k) for k in (1, EPISODES)
    ]
    published = [NUMBERS["published_pass_rate"](0)] * 2  # these players never mix
    bounds[f"the {TASKS} deals of the published code, agent first"] = published
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
    return f"{table(['', 'Pass@1 at most', 'Pass@10 at most'], iter(rows))}\n\n{text}"


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
    return f"{table(header, iter(rows))}\n\n{text}"


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
    bounds = [rate(panel_bound(game, panel("ood"), k)) for k in (1, EPISODES)]
    rows.append(["`paper_kuhn_poker`", KUHN.evaluation_seats("ood"), "", *bounds])
    chances = win_chances(game, "cfr_argmax", 1)
    drawn = [chances[DEALS.index(deal)] for deal in NUMBERS["published_deals"](TASKS)]
    published = [rate(statistics.fmean(at_least_once(p, k) for p in drawn)) for k in (1, EPISODES)]
    rows.append([f"most likely move, the published {TASKS} deals", "second", "", *published])
    known = PAPER["ood"]["kuhn_poker", "ood"]["mage"]
    rows.append(["the paper, MAGE", "", "", "", rate(known[10])])
    header = [
        "CFR plays its",
        "agent",
        "deals that can be won",
        "Pass@1 at most",
        "Pass@10 at most",
    ]
    return table(header, iter(rows))


def rooms() -> str:
    """Solution lengths of test rooms, of the published generator's lengths and of uniform ones."""
    rows = [
        [f"{boxes}", name, *_spread(NUMBERS["sokoban_lengths"](boxes, lengths))]
        for boxes in (1, 2, 3)
        for lengths, name in (("natural", "as published"), ("uniform", "`+ours`"))
    ]
    header = ["boxes", "lengths", "median", "mean", "5", "6 to 10", "11 to 15", "16 to 21"]
    return table(header, iter(rows))


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
