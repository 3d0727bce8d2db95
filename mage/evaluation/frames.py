"""Evaluation figures as a pandas frame. pandas is optional (extra `pandas`)."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from mage.config.errors import UserError
from mage.environments.base import SEATS
from mage.evaluation.statistics import Estimate


def make_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """A pandas frame; an error that says how to install pandas if it is missing."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise UserError(
            "pandas is not installed: pip install '.[pandas]' in the checkout of MAGE"
        ) from None
    return pandas.DataFrame(rows)


def evaluation_frame(cells: Sequence[Any]) -> Any:
    """One row per `Cell` and episode. `all` and `both`: figures over all opponents or seats."""
    return make_frame([_row(cell, figures) for cell in cells for figures in cell.episodes])


def _row(cell: Any, figures: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "opponent": cell.opponent or "all",
        "seat": "both" if cell.seat is None else SEATS[cell.seat],
        "tasks": cell.tasks,
    }
    for name in asdict(figures):
        value = getattr(figures, name)
        if isinstance(value, Estimate):
            row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            row[name] = value
    return row
