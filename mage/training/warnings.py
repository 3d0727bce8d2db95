"""Warnings of a training run: one line that says what is wrong and what to do.

Lines go to `Callback.on_warning` and, in the metrics of the update, to the list `warnings`. A kind
of warning is given once per run.
"""

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from mage.config.recipe import Recipe

WINDOW = 3  # updates over which a metric is averaged
_TEACH = (
    "Teach the answer format first with `mage warmup` or warmup.first = true, or raise "
    "agent.max_tokens."
)
# After a warm-up that was not enough.
_TEACH_MORE = (
    "The warm-up before training was not enough: raise warmup.steps or agent.max_tokens, or take a "
    "larger model (model.path)."
)
# Shares above which there is a warning.
LIMITS = {"illegal_rate": 0.5, "opponent_illegal_rate": 0.5, "flat_groups": 0.8}


def start_warnings(recipe: Recipe) -> list[str]:
    """Warnings that the recipe alone gives."""
    train, test = recipe.training_sampler(), recipe.evaluation_sampler()
    different = [
        f"{name} {there} in evaluation, {here} in training"
        for name, there, here in zip(train._fields, test, train, strict=True)
        if there != here
    ]
    if not recipe.run.updates or not different:
        return []
    return [
        f"evaluation samples differently from training ({'; '.join(different)}), so scores of "
        "training and evaluation are not comparable. Remove these options from [evaluate] if they "
        "should be: evaluation then samples as training does."
    ]


class UpdateWarnings:
    """Judges the metrics of updates. Each kind of warning is given once.

    `warmed_up`: the run has begun with a warm-up (warmup.first).

    >>> warnings = UpdateWarnings()
    >>> [len(warnings.check({"illegal_rate": 1.0})) for _ in range(5)]
    [0, 0, 1, 0, 0]
    """

    def __init__(self, *, warmed_up: bool = False) -> None:
        self.warmed_up = warmed_up
        self.recent = deque[Mapping[str, Any]](maxlen=WINDOW)
        self.given: set[str] = set()

    def check(self, figures: Mapping[str, Any]) -> list[str]:
        """The new warnings after an update with these metrics."""
        self.recent.append(figures)
        lines = []
        for name, limit in LIMITS.items():
            mean = self._mean(name)
            if mean is not None and mean > limit and name not in self.given:
                self.given.add(name)
                lines.append(_text(name, mean, self.warmed_up))
        return lines

    def _mean(self, name: str) -> float | None:
        values = [one[name] for one in self.recent if one.get(name) is not None]
        return fmean(values) if len(values) == WINDOW else None


def panel_warnings(illegal: float, *, warmed_up: bool = False) -> list[str]:
    """A warning if most replies of the first panel are not legal moves."""
    if illegal <= LIMITS["illegal_rate"]:
        return []
    return [
        f"{100 * illegal:.0f} % of the replies on the first panel are not legal moves, so there is "
        f"little to learn from. Stop the run with Ctrl-C. {_teach(warmed_up)}"
    ]


def warmup_line(before: float, after: float) -> str:
    """What a warm-up has reached: the share of legal moves in held-out situations."""
    line = f"legal moves {100 * before:.0f} % before, {100 * after:.0f} % after"
    too_few = 1 - after > LIMITS["illegal_rate"]
    return line + (". Raise warmup.steps or warmup.lr" if too_few else "")


def choice_warnings(recipe: Recipe, chosen_update: int, illegal: float = 0.0) -> list[str]:
    """A warning if the untrained checkpoint is the best one. `illegal` is of the first panel."""
    if not recipe.run.updates or chosen_update:
        return []
    if illegal > LIMITS["illegal_rate"]:
        return [
            "the best checkpoint on the select panel is update 0, so the final figures are those "
            f"of the untrained model, and {100 * illegal:.0f} % of its replies are not legal "
            f"moves. {_teach(recipe.warmup.first)}"
        ]
    return [
        "the best checkpoint on the select panel is update 0, so the final figures are those of "
        "the untrained model. Train longer, or change learn.lr, learn.entropy or play.members."
    ]


def _teach(warmed_up: bool) -> str:
    return _TEACH_MORE if warmed_up else _TEACH


def _text(name: str, mean: float, warmed_up: bool) -> str:
    if name == "illegal_rate":
        return (
            f"{100 * mean:.0f} % of the replies of the last {WINDOW} updates are not legal moves. "
            f"{_teach(warmed_up)}"
        )
    if name == "opponent_illegal_rate":
        return (
            f"{100 * mean:.0f} % of the replies of the model in the other seat are not legal "
            "moves, and random moves replace them. Use a model that knows the answer format, such "
            "as the folder that `mage warmup` or `mage model export` writes."
        )
    return (
        f"{100 * mean:.0f} % of the groups of the last {WINDOW} updates are flat: all members have "
        "equal returns and teach nothing. Raise play.members or agent.temperature, or use easier "
        "tasks."
    )
