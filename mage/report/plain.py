"""Figures as plain text for a terminal, and lines about problems of replies."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mage.evaluation.figures import EpisodeFigures, Evaluation
from mage.evaluation.statistics import Estimate
from mage.report.run_results import Measure


def show(measure: Measure, figures: EpisodeFigures) -> str:
    """`+0.231 ±0.014`, or `54 % (51-57)` for a rate, or `-` without a figure."""
    estimate = measure.of(figures)
    if estimate is None:
        return "-"
    return show_rate(estimate) if measure.percent else show_score(estimate)


def show_rate(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} % ({100 * estimate.low:.0f}-{100 * estimate.high:.0f})"


def show_score(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:+.3f} ±{half:.3f}" if math.isfinite(half) else f"{estimate.value:+.3f}"


# --- Problems of replies: cut off, folded, too long for the context -------------------------

_LABELS = {
    "cut_off": "replies cut off while thinking (raise agent.max_tokens)",
    "folded": "prompts with folded turns",
    "overflow": "prompts that did not fit into the context (raise engines.context)",
}


def evaluation_problems(evaluation: Evaluation) -> list[str]:
    """One line for each problem, with its share of the turns in every episode."""
    episodes = evaluation.overall.episodes
    shares = {name: [getattr(one, name) or 0.0 for one in episodes] for name in _LABELS}
    return [
        f"{_LABELS[name]}, by episode: {', '.join(map(_percent, values))}"
        for name, values in shares.items()
        if any(values)
    ]


def training_problems(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each problem, with its mean share over some updates."""
    shares = {
        name: sum(one.get(f"{name}_rate") or 0.0 for one in metrics) / max(1, len(metrics))
        for name in _LABELS
    }
    return [f"{_LABELS[name]}: {_percent(share)}" for name, share in shares.items() if share]


def _percent(share: float) -> str:
    return "below 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"
