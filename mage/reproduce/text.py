"""What a world's results prove and what they leave open, in sentences; no more than the intervals allow."""

from collections.abc import Iterator

from mage.evaluation.statistics import Estimate
from mage.reproduce.results import ArmResult, MeasureName, Pair, WorldResult


def tell(result: WorldResult) -> Iterator[str]:
    """The differences that are real, the arms against what is possible, budgets, and what is missing."""
    if not result.arms:
        yield "No run is finished yet."
        return
    real = [pair for pair in result.pairs if pair.is_real]
    if result.pairs:
        yield f"{len(real)} of {len(result.pairs)} pairs of arms differ in the last episode (paired interval without zero, Holm-corrected p below .05)."
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
        yield "Budgets are equal: the same number of training episodes in every trained arm, generated tokens within 10 %."
    if result.missing:
        yield f"{len(result.missing)} runs are missing: {', '.join(result.missing[:6])}{' ...' if len(result.missing) > 6 else ''}."


def _difference(pair: Pair, measure: MeasureName) -> str:
    verdict = "a difference" if pair.is_real else "no difference shown"
    return f"{show(pair.difference.difference, measure, signed=True)}, Holm p {pair.adjusted:.3f}, {pair.seeds} seeds: {verdict}"


def _against_bounds(arm: ArmResult, result: WorldResult) -> str:
    assert result.bounds is not None, "there are bounds"
    last, line, best = arm.episodes[-1].score, result.bounds.non_adapting, result.bounds.learner[-1]
    place = "above" if last.low > line else "below" if last.high < line else "not told apart from"
    gap = (
        "" if best is None else f"; the best learner's is {best:.3f}, {best - last.value:.3f} more"
    )
    return f"{arm.label} scores {show(last, 'score')} in the last episode, {place} the best without adapting ({line:.3f}){gap}."


def show(found: Estimate, measure: MeasureName, signed: bool = False) -> str:
    """`+0.213 [+0.190, +0.236]`, or `41.2 % [37.0, 45.6]` for a rate; a difference of rates is in points."""
    if measure == "score":
        return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    sign = "+" if signed else ""
    return f"{100 * found.value:{sign}.1f} {'points' if signed else '%'} [{100 * found.low:{sign}.1f}, {100 * found.high:{sign}.1f}]"
