"""Evaluation: fixed panels, figures with intervals, exact ceilings."""
