"""The verdict: what the figures of a final panel show, in sentences."""

from collections.abc import Iterator, Mapping

from mage.evaluation.figures import Cell
from mage.evaluation.statistics import Estimate
from mage.report.run_results import SCORE, SUCCESS, Measure, Stage, title_of
from mage.report.values import show, show_estimate


def tell_verdict(overall: Mapping[Stage, Cell], measure: Measure) -> Iterator[str]:
    """Sentences about the overall figures of one split, limited to what the intervals support."""
    after = overall.get("after")
    if after is None:
        yield "The final panel has not been played after training yet."
        return
    gain = after.episodes[-1].score_gain if measure is SCORE else after.episodes[-1].success_gain
    if gain is not None:
        amount = _text(gain, measure)
        if measure.percent:  # a difference of rates
            amount = amount.replace(" %", " percentage points", 1)
        last = len(after.episodes)
        change = f"From episode 1 to episode {last} the {measure.title} changes by {amount}"
        yield f"{change}: {_side(gain, 0, 'a gain', 'a loss')}."
    if after.expert is not None:
        success, score = show(after.expert.success, SUCCESS), show(after.expert.score, SCORE)
        yield (
            f"The expert of the environment, which also sees these tasks for the first time, "
            f"succeeds in {success} of them and scores {score}."
        )
    if after.non_adapting is not None:
        yield from _compare_with_bounds(overall, after, after.non_adapting)


def _compare_with_bounds(
    overall: Mapping[Stage, Cell], after: Cell, non_adapting: float
) -> Iterator[str]:
    """The last episode of every stage against the best score without adapting."""
    for stage, cell in overall.items():
        last = cell.episodes[-1].score
        if stage != "before" and last is not None:
            place = _side(
                last,
                non_adapting,
                "above it" + (", so the agent adapts" if stage == "after" else ""),
                "below it",
            )
            found = (
                f"Episode {len(cell.episodes)}, {title_of(stage, overall)}, "
                f"scores {_text(last, SCORE)}"
            )
            line = show(non_adapting, SCORE)
            yield f"{found}. The best policy that does not adapt gets {line}: {place}."
    last, ceiling = after.episodes[-1].score, after.episodes[-1].ceiling
    if last is not None and ceiling is not None and last.low > ceiling:
        yield (
            f"This is above the Bayes-optimal score {show(ceiling, SCORE)}, which no learner can "
            "exceed. Check the evaluation for an error."
        )


def _side(found: Estimate, line: float, above: str, below: str) -> str:
    if found.low > line:
        return f"the whole 95 % interval is {above}"
    if found.high < line:
        return f"the whole 95 % interval is {below}"
    return "the 95 % interval does not decide it"


def _text(found: Estimate, measure: Measure) -> str:
    return show_estimate(found, measure, signed=True)
