"""Replies that were cut off and prompts that did not fit, as lines for the terminal.

There is no line for a problem that did not occur.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mage.evaluation.figures import Evaluation

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
