"""Shared by all tests: a small Kuhn recipe, and the mark `e2e` of tests with a trained run."""

from typing import Any

import pytest
from hypothesis import settings

# A slow example is not a failure: every test has a time-out of its own.
settings.register_profile("mage", deadline=None, max_examples=50)
settings.load_profile("mage")


# Fixtures that train a run or start a browser: a test that uses one is an end-to-end test.
TRAINING = {"trained", "run", "copy", "reproduced", "whole", "built", "browser"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TRAINING & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def kuhn_tables() -> dict[str, dict[str, Any]]:
    return {
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}},
    }
