"""Shared by all tests: a small Kuhn recipe, as plain tables that a test may change."""

from typing import Any

import pytest
from hypothesis import settings

# Two shared cores: a slow example is no failure, and every test has a time-out of its own.
settings.register_profile("mage", deadline=None, max_examples=50)
settings.load_profile("mage")


@pytest.fixture
def kuhn_tables() -> dict[str, dict[str, Any]]:
    return {
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}},
    }
