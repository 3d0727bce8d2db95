"""Rollouts of whole groups with and without the prefix cache, same seeds and same replies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.measure import Comparison, compare, timed
from benchmarks.workload import make_recipe, play, replies
from mage.engines.local import LocalEngine
from mage.training.build import build_components

CASES = (("kuhn_poker", "reflections"), ("kuhn_poker", "both"), ("tic_tac_toe", "reflections"))


def measure(
    cases: Sequence[tuple[str, str]] = CASES, groups: int = 16, rounds: int = 5
) -> Iterator[Comparison]:
    """Meta-episodes per second."""
    for game, keep in cases:
        yield _measure_case(game, keep, groups, rounds)


def _measure_case(game: str, keep: str, groups: int, rounds: int) -> Comparison:
    cached, uncached = (
        build_components(make_recipe(game, keep, groups, prefix_cache=on)) for on in (True, False)
    )
    one, other = replies(play(cached)), replies(play(uncached))
    same = sum(left == right for left, right in zip(one, other, strict=False))
    ways = (timed(lambda: play(cached)), timed(lambda: play(uncached)))
    found = compare(
        "prefix_cache",
        f"{game}/{keep}",
        ("cached", "uncached"),
        "meta-episodes",
        groups * cached.recipe.play.members,
        ways,
        rounds,
    )
    assert isinstance(cached.engine, LocalEngine), "the benchmark's recipe asks for it"
    stats = cached.engine.stats
    reused = stats.reused_tokens / (stats.reused_tokens + stats.prefilled_tokens)
    return replace(
        found,
        note=f"{reused:.0%} of prompt tokens reused; "
        f"{same:,} of {max(len(one), len(other)):,} replies are equal",
    )
