"""Facts about the paper's experiment that need no model.

    python scripts/paper_figures.py           # writes docs/what_the_figures_can_show.md
    python scripts/paper_figures.py worlds    # prints shared anchors of ALFWorld, goals of WebShop

Every table stands between two comments in the page and is replaced by the computed one. The figures
of the paper come from `mage/reproduce/tables.py`. ALFWorld uses the folder in ALFWORLD_DATA and
WebShop the one in WEBSHOP_DATA, else generated data.
"""

import math
import os
import random
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from mage.config.loading import load_recipe
from mage.environments.alfworld import Alfworld
from mage.environments.sokoban.world import Sokoban
from mage.environments.webshop.environment import WebShop
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
    bounds = ["Pass@1 at most", "Pass@10 at most"]
    return table(["CFR plays its", "agent", "deals that can be won", *bounds], rows)


def rooms() -> str:
    """Solution lengths of test rooms, of the published generator's lengths and of uniform ones."""
    rows = [
        [f"{boxes}", name, *_spread(sokoban_lengths(boxes, lengths))]
        for boxes in (1, 2, 3)
        for lengths, name in (("natural", "as published"), ("uniform", "`+ours`"))
    ]
    header = ["boxes", "lengths", "median", "mean", "5", "6 to 10", "11 to 15", "16 to 21"]
    return table(header, rows)


def sokoban_lengths(boxes: int, lengths: str, rooms: int = 300) -> list[int]:
    """Shortest solutions of the first rooms of the paper's Sokoban with so many boxes."""
    world = Sokoban.model_validate({"boxes": (boxes,), "lengths": lengths})
    found = [world.room(seed) for seed in range(rooms)]
    return [room.distance(room.player, room.boxes) or 0 for room in found]


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


def shared_anchors(world: Alfworld, games: int = 20, members: int = 8, episodes: int = 3) -> float:
    """Share of turns whose anchor another member of the group also has, in random play."""
    shared = turns = 0
    for game in range(games):
        holders: dict[str, set[int]] = defaultdict(set)
        seen: list[str] = []
        for member, episode in product(range(members), range(episodes)):
            for anchor in _random_anchors(world, game, random.Random(f"{member} {episode}")):
                holders[anchor].add(member)
                seen.append(anchor)
        shared += sum(len(holders[anchor]) > 1 for anchor in seen)
        turns += len(seen)
    return shared / turns


def _random_anchors(world: Alfworld, game: int, rng: random.Random) -> Iterator[str]:
    state = world.start(game)
    for _ in range(world.max_turns):
        if state.turn() is None:
            return
        yield state.anchor(0)
        state.apply(rng.choice(state.legal()))


def product_overlap(shop: WebShop) -> tuple[dict[str, int], float]:
    """Goals of each split, and the share of ood goals whose product a training goal asks for."""
    places = {split: shop.for_split(split).places() for split in ("train", "test", "ood")}
    catalogue = shop.catalogue()
    trained = {catalogue.goal(place).asin for place in places["train"]}
    known = statistics.mean(catalogue.goal(place).asin in trained for place in places["ood"])
    return {split: len(own) for split, own in places.items()}, known


def print_worlds() -> None:
    rooms, goals = (
        "official" if os.environ.get(name) else other
        for name, other in (("ALFWORLD_DATA", "generated"), ("WEBSHOP_DATA", ""))
    )
    for anchor, idle in product(("text", "state"), (False, True)):
        world = Alfworld.model_validate({"data": rooms, "anchor": anchor, "idle": idle})
        print(f"alfworld, {rooms}, anchor {anchor}, idle {idle}: {shared_anchors(world):.3f}")
    for ood in ("products", "goals"):
        counts, known = product_overlap(WebShop.model_validate({"data": goals, "ood": ood}))
        print(f"webshop, ood = {ood}: goals {counts}, ood goals of trained products {known:.3f}")


def write_page() -> None:
    page = PAGE.read_text("utf-8")
    for block in BLOCKS:
        page = fill(page, block)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    (print_worlds if sys.argv[1:] == ["worlds"] else write_page)()
