"""The short form of `make torture`: every part with small numbers, on the same code.

The attacks of `suites` are tests of their own. Kills of several processes are in test_stop.py.
"""

import pytest
from processes import start_python, wait

from mage.config.loading import load_recipe
from tests.torture.parts import PARTS, SHORT
from tests.torture.result import Result, table


@pytest.mark.e2e
@pytest.mark.parametrize("part", ["replies", "configurations", "tools"])
def test_fuzzed_input_gives_data_or_one_message(part, tmp_path):
    results = PARTS[part](tmp_path, SHORT, 7)
    assert sum(one.attempts for one in results) >= 400
    assert not [line for one in results for line in one.failures]


@pytest.mark.e2e
@pytest.mark.parametrize("part", ["operations", "damage", "disks", "long_run"])
def test_killed_runs_damaged_folders_and_full_disks_lose_nothing(part, tmp_path):
    """In a process of its own: the parts fork, and this one may have computed with torch."""
    words = ["--short", "--seed=7", f"--only={part}"]
    program = f"""
import sys
from tests.torture.__main__ import main
sys.argv[1:] = {words}
sys.exit(main())
"""
    log = tmp_path / "log"
    assert wait(start_python(program, tmp_path, log)) == 0, log.read_text()
    assert "| test | attempts | failures |" in log.read_text()


def test_the_table_counts_attempts_and_lists_failures():
    found = table([Result("kills", 50), Result("damages", 1_000, ("attempt 3: wrong",))])
    assert found.splitlines() == [
        *("| test | attempts | failures |", "|---|---|---|", "| kills | 50 | 0 |"),
        *("| damages | 1,000 | 1 |", "FAILED damages: attempt 3: wrong"),
    ]


def test_the_recipes_of_the_torture_tests_load(tmp_path):
    from tests.torture.runs import SHORT, write_recipe

    assert load_recipe(write_recipe(tmp_path), SHORT).warmup.first
