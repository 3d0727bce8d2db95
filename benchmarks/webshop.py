"""WebShop: steps a second, time to open a catalogue and to search it.

The published environment makes 31 steps per CPU second. This was measured once on a two-core
machine with the 1,000 real products and a stubbed search (BeautifulSoup and jinja take the time),
not in this run. A step here is an action, the new page, its legal actions and the score, in random
episodes of at most 12 steps. All times are processor time of one thread. Products are generated. If
MAGE_WEBSHOP names a folder with WebShop's files, they are measured first, with uncut `text` pages
as in the published environment.
"""

import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks.measure import Comparison
from mage.environments.webshop import WebShop
from mage.environments.webshop.catalogue import open_catalogue

PUBLISHED = 31.0  # steps a CPU-second
TARGET = 100.0


def measure(
    sizes: Sequence[int] = (1_000, 100_000), trips: int = 300, rounds: int = 3
) -> Iterator[Comparison | str]:
    """One line of steps and one of opening and searching for every size."""
    before = os.environ.get("MAGE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MAGE_CACHE"] = folder
        try:
            if data := os.environ.get("MAGE_WEBSHOP"):
                yield from _measure_shop(
                    WebShop(data=data, observation="text", page_limit=10**9), "real", trips, rounds
                )
            for size in sizes:
                yield from _measure_shop(WebShop(products=size), "generated", trips, rounds)
        finally:
            os.environ.pop("MAGE_CACHE") if before is None else os.environ.update(MAGE_CACHE=before)


def _measure_shop(shop: WebShop, kind: str, trips: int, rounds: int) -> Iterator[Comparison | str]:
    first = _seconds(shop.catalogue)
    open_catalogue.cache_clear()
    again, size = _seconds(shop.catalogue), len(shop.catalogue())
    rates = [
        _steps_per_second(shop, range(number * trips, (number + 1) * trips))
        for number in range(rounds)
    ]
    note, target = (
        "the published figure is of 1,000 products and not of this run",
        TARGET if size <= 1_000 else None,
    )
    ratios = tuple(rate / PUBLISHED for rate in rates)
    yield Comparison(
        "webshop",
        f"{size:,} {kind} products",
        ("ours", "published"),
        "steps",
        statistics.median(rates),
        PUBLISHED,
        ratios,
        note,
        target,
    )
    times = sorted(_query_times(shop))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield (
        f"webshop      {size:,} {kind} products: opened in {first:.1f} s the first time and "
        f"{again:.3f} s after that; a query takes "
        f"{1000 * statistics.mean(times):.2f} ms (p99 "
        f"{1000 * times[len(times) * 99 // 100]:.2f} ms); peak memory {peak:,.0f} MB"
    )


def _seconds(work: object) -> float:
    began = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began


def _steps_per_second(shop: WebShop, seeds: range) -> float:
    """Random episodes of at most 12 steps with typical searches."""
    steps, seconds = 0, 0.0
    for seed in seeds:
        rng = random.Random(seed)
        began = time.process_time()
        state = shop.start(seed)
        while state.turn() is not None and len(state.actions) < shop.max_turns:
            state.apply(rng.choice(state.legal()))
            state.observe(0)
        state.scores()
        seconds += time.process_time() - began
        steps += len(state.actions)
    return steps / seconds


def _query_times(shop: WebShop, count: int = 200) -> list[float]:
    """Queries that are not cached: instructions of goals with shuffled words."""
    catalogue, found = shop.catalogue(), []
    for place in range(count):
        words = catalogue.goal(place).text.split()
        random.Random(place).shuffle(words)
        began = time.process_time()
        catalogue.index.search(" ".join(words), 50)
        found.append(time.process_time() - began)
    return found
