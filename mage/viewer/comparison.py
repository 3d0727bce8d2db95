"""Two runs, or two stages of a run, on the same panels: paired differences and changed tasks."""

from collections.abc import Sequence
from typing import Any

from mage.evaluation.compare import compare
from mage.evaluation.rows import TaskRow
from mage.run_folder import Json, RunFolder
from mage.viewer.runs import panel_names, panel_rows

CHANGED = 30  # tasks that are listed, the largest change first


def compare_runs(first: RunFolder, second: RunFolder) -> Json:
    """All pairs of final panels that both runs played on the same tasks."""
    if first.path == second.path:
        pairs = [
            (f"before_{name.removeprefix('after_')}", name)
            for name in panel_names(first)
            if name.startswith("after_")
        ]
    else:
        pairs = [(name, name) for name in panel_names(first) if name in panel_names(second)]
    panels = [_compare_panel(first, second, *names) for names in pairs]
    return {
        "options": differing_options(first, second),
        "panels": [panel for panel in panels if panel is not None],
    }


def _compare_panel(first: RunFolder, second: RunFolder, one: str, other: str) -> Json | None:
    if one not in panel_names(first):
        return None
    a, b = panel_rows(first, one), panel_rows(second, other)
    if {row.task for row in a} != {row.task for row in b}:
        return {"first": one, "second": other, "same_panel": False}
    return {
        "first": one,
        "second": other,
        "same_panel": True,
        **compare(a, b).to_json(),
        "changed": _changed(a, b),
    }


def _changed(a: Sequence[TaskRow], b: Sequence[TaskRow]) -> list[Json]:
    """The tasks whose last-episode score changed most; `number` is the place in the panel.

    With several plays of a task, equal plays are compared.
    """
    second = {(row.task, row.member): row for row in b}
    pairs = [(number, row, second.get((row.task, row.member))) for number, row in enumerate(a)]
    rows = [
        (number, row, other, other.scores[-1] - row.scores[-1])
        for number, row, other in pairs
        if other is not None
    ]
    rows.sort(key=lambda one: (-abs(one[3]), one[0]))
    return [
        {
            "number": number,
            "opponent": row.task.opponent,
            "seat": row.task.seat,
            "first": row.scores,
            "second": other.scores,
            "difference": difference,
        }
        for number, row, other, difference in rows[:CHANGED]
        if difference
    ]


def differing_options(first: RunFolder, second: RunFolder) -> list[list[Any]]:
    """Options of the resolved recipes that differ: name, first value, second value."""
    a, b = first.recipe.flat(), second.recipe.flat()
    return [[key, a.get(key), b.get(key)] for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
