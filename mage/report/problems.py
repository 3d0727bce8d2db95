"""Problems of a run that a user should know: figures that make results doubtful, and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass

from mage.report.run_results import RunResults

RECENT = 5  # updates over which a metric is averaged


@dataclass(frozen=True, slots=True)
class Problem:
    """What was found, and what to do about it."""

    text: str
    advice: str


def find_problems(results: RunResults) -> list[Problem]:
    """All problems of a run, the most serious first."""
    return [*_reply_problems(results), *_learning_problems(results), *_choice_problems(results)]


def _reply_problems(results: RunResults) -> Iterator[Problem]:
    illegal = _recent(results, "illegal_rate")
    if illegal is not None and illegal > 0.3:
        yield Problem(
            f"{100 * illegal:.0f} % of the replies of the last updates are illegal.",
            "Read some replies under Meta-episodes. Check agent.max_tokens and the answer format, "
            "or start with a warm-up.",
        )
    cut = _recent(results, "cut_off_rate")
    if cut is not None and cut > 0.1:
        yield Problem(
            f"{100 * cut:.0f} % of the replies reach the length limit.", "Raise agent.max_tokens."
        )


def _learning_problems(results: RunResults) -> Iterator[Problem]:
    flat = _recent(results, "flat_groups")
    if flat is not None and flat > 0.8:
        yield Problem(
            f"In {100 * flat:.0f} % of the groups all members have equal returns, so these groups "
            "teach nothing.",
            "Raise play.members or the temperature, or choose easier tasks.",
        )
    mismatch = _recent(results, "mismatch")
    if mismatch is not None and mismatch > 0.05:
        yield Problem(
            f"The engine and the learner disagree on log-probabilities by {mismatch:.3f} on "
            "average.",
            "Use the same precision in engine and learner, or an importance correction.",
        )
    entropy = _recent(results, "action_entropy")
    if entropy is not None and entropy < 0.01 and not results.finished:
        yield Problem(
            "The action entropy is almost 0: the policy no longer explores.",
            "Raise learn.entropy or lower learn.lr.",
        )


def _choice_problems(results: RunResults) -> Iterator[Problem]:
    recipe = results.folder.recipe
    if results.finished and recipe.run.updates and results.chosen_update == 0:
        yield Problem(
            "The best checkpoint on the select panel is update 0: training did not improve it.",
            "Look at the curves, then train longer or change learn.lr and learn.entropy.",
        )
    sampler = recipe.evaluate.temperature
    if sampler is not None and sampler != recipe.agent.temperature:
        yield Problem(
            f"Evaluation samples at temperature {sampler:g}, training at "
            f"{recipe.agent.temperature:g}.",
            "Compare scores of training and evaluation with care.",
        )


def _recent(results: RunResults, name: str) -> float | None:
    values = results.series(name)[1][-RECENT:]
    return sum(values) / len(values) if values else None
