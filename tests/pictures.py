"""Runs in processes of their own, without the drawing of pictures that no test looks at.

Drawing is a third of the processor time of a tiny run. tests/test_report.py and tests/test_cli.py
have the pictures.
"""


def skip_pictures() -> None:
    """In this process, reports of runs have empty pictures."""
    from mage.report import curves

    curves.draw_curves = lambda results: {"png": b"", "svg": b""}
