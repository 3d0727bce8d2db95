"""Conclusions from the results of an environment, as sentences, limited by the intervals."""

from collections.abc import Iterator

from mage.evaluation.statistics import Estimate
from mage.reproduce.results import ArmResult, Pair, WorldResult
from mage.reproduce.tables import MeasureName


def conclude(result: WorldResult) -> Iterator[str]:
    """Significant differences, arms against the exact lines, budgets, and missing runs."""
    if not result.arms:
        yield "No run is finished yet."
        return
    real = [pair for pair in result.pairs if pair.is_real]
    if result.pairs:
        yield (
            f"{len(real)} of {len(result.pairs)} pairs of arms differ significantly in the last "
            "episode (paired interval excludes zero, Holm-corrected p below .05)."
        )
    returns = [
        pair
        for pair in result.pairs
        if {pair.first, pair.second}
        in ({"lamer", "mage"}, {"mage", "final"}, {"cumulative", "differential"})
    ]
    yield from (
        f"{pair.second} minus {pair.first}: {_difference(pair, result.measure)}."
        for pair in returns
    )
    if result.bounds is not None:
        yield from (_against_bounds(arm, result) for arm in result.arms if arm.trains)
    yield from (f"Budgets are not equal: {fault}." for fault in result.budget_faults)
    if not result.budget_faults and sum(arm.trains for arm in result.arms) > 1:
        yield (
            "Budgets are equal: all trained arms have the same number of training episodes, "
            "and generated tokens within 10 %."
        )
    if result.missing:
        more = " ..." if len(result.missing) > 6 else ""
        yield f"{len(result.missing)} runs are missing: {', '.join(result.missing[:6])}{more}."


def _difference(pair: Pair, measure: MeasureName) -> str:
    verdict = "significant" if pair.is_real else "not significant"
    shown = show(pair.difference.difference, measure, signed=True)
    return f"{shown}, Holm p {pair.adjusted:.3f}, {pair.seeds} seeds: {verdict}"


def _against_bounds(arm: ArmResult, result: WorldResult) -> str:
    assert result.bounds is not None, "the caller checks for bounds"
    last, line, best = arm.episodes[-1].score, result.bounds.non_adapting, result.bounds.learner[-1]
    place = "above" if last.low > line else "below" if last.high < line else "not different from"
    gap = "" if best is None else f"; the best learner has {best:.3f}, {best - last.value:.3f} more"
    return (
        f"{arm.label} scores {show(last, 'score')} in the last episode, "
        f"{place} the best without adapting ({line:.3f}){gap}."
    )


def show(found: Estimate, measure: MeasureName, signed: bool = False) -> str:
    """`+0.213 [+0.190, +0.236]`, or `41.2 % [37.0, 45.6]`; differences of rates are in points."""
    if measure == "score":
        return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    sign = "+" if signed else ""
    unit = "points" if signed else "%"
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.value:{sign}.1f} {unit} [{low:{sign}.1f}, {high:{sign}.1f}]"
