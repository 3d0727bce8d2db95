"""The mark of fixtures that make end-to-end tests."""

from collections.abc import Callable
from typing import Any


def end_to_end(fixture: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a fixture that trains, builds a package or starts a browser.

    Tests that use it, also through other fixtures, are end-to-end tests: `make check` skips them.
    """
    fixture.end_to_end = True  # type: ignore[attr-defined]
    return fixture
