"""Facts about the paper's experiment that need no model: print them, about a minute.

    python scripts/paper_numbers.py [sokoban alfworld webshop]

- sokoban: solution lengths of 300 rooms with one, two and three boxes (natural and uniform);
- alfworld: share of turns that share an anchor with another member, in random play of 8 x 3;
- webshop: goals of each split, and the share of ood goals whose product is trained on.

ALFWorld uses the folder in ALFWORLD_DATA and WebShop the one in WEBSHOP_DATA, else generated data.
"""

import itertools
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from statistics import mean, median

from mage.environments.alfworld import Alfworld
from mage.environments.sokoban.world import Sokoban
from mage.environments.webshop.environment import WebShop


def sokoban_lengths(boxes: int, lengths: str, rooms: int = 300) -> list[int]:
    """Shortest solutions of the first rooms of the paper's Sokoban with so many boxes."""
    world = Sokoban.model_validate({"boxes": (boxes,), "lengths": lengths})
    found = [world.room(seed) for seed in range(rooms)]
    return [room.distance(room.player, room.boxes) or 0 for room in found]


def shared_anchors(world: Alfworld, games: int = 20, members: int = 8, episodes: int = 3) -> float:
    """Share of turns whose anchor another member of the group also has, in random play."""
    shared = turns = 0
    for game in range(games):
        holders: dict[str, set[int]] = defaultdict(set)
        seen: list[str] = []
        for member in range(members):
            for episode in range(episodes):
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
    splits = {split: shop.for_split(split) for split in ("train", "test", "ood")}
    places = {split: one.places() for split, one in splits.items()}
    catalogue = shop.catalogue()
    trained = {catalogue.goal(place).asin for place in places["train"]}
    known = mean(catalogue.goal(place).asin in trained for place in places["ood"])
    return {split: len(own) for split, own in places.items()}, known


# --- Printing -------------------------------------------------------------------------------------


def _print_sokoban() -> None:
    for lengths in ("natural", "uniform"):
        for boxes in (1, 2, 3):
            found = sokoban_lengths(boxes, lengths)
            long = mean(one >= 16 for one in found)
            print(
                f"sokoban, {lengths}, {boxes} boxes: {len(found)} rooms, median {median(found):g}, "
                f"mean {mean(found):.1f}, 16 moves or more {long:.0%}"
            )


def _print_alfworld() -> None:
    data = "official" if os.environ.get("ALFWORLD_DATA") else "generated"
    for anchor, idle in itertools.product(("text", "state"), (False, True)):
        world = Alfworld.model_validate({"data": data, "anchor": anchor, "idle": idle})
        moves = "all commands" if idle else "commands that change something"
        print(f"alfworld, {data} games, anchor = {anchor}, {moves}: {shared_anchors(world):.3f}")


def _print_webshop() -> None:
    data = "official" if os.environ.get("WEBSHOP_DATA") else ""
    for ood in ("products", "goals"):
        counts, known = product_overlap(WebShop.model_validate({"data": data, "ood": ood}))
        print(f"webshop, ood = {ood}: goals {counts}, ood goals of trained products {known:.3f}")


PARTS = {
    "sokoban": _print_sokoban,
    "alfworld": _print_alfworld,
    "webshop": _print_webshop,
}


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
