"""The page of differences says what the recipes hold: every value on it is compared with them."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mage.config.loading import load_recipe

PAGE = Path(__file__).parents[1] / "docs" / "differences.md"
WORLDS = ("kuhn_poker", "tic_tac_toe", "sokoban", "alfworld", "webshop")
OPTION = re.compile(r"`([a-z_]+\.[a-z_]+) = ([^`]+)`")


def rows(title: str) -> Iterator[dict[str, str]]:
    """The rows of the table under a heading, by the names of its columns."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"## {title}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    header, _, *found = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines)
    for cells in found:
        assert len(cells) == len(header), cells
        yield dict(zip(header, cells, strict=True))


def worlds_of(row: dict[str, str]) -> tuple[str, ...]:
    named = WORLDS if row["recipes"] == "all" else tuple(row["recipes"].split(", "))
    assert set(named) <= set(WORLDS), row
    return named


def read(value: str) -> Any:
    return tomllib.loads(f"value = {value.strip('`')}")["value"]


@cache
def flat(name: str) -> dict[str, Any]:
    """The options of a recipe that have an effect."""
    return dict(load_recipe(name).flat())


def checked() -> list[tuple[str, str, Any]]:
    """(world, option, value) for every value that the page gives for `paper_X`."""
    titles = ("Where the paper and its code disagree", "What differs in `paper_X`")
    return [
        (world, option, read(value))
        for title in titles
        for row in rows(title)
        for option, value in OPTION.findall(row["switch"])
        for world in worlds_of(row)
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_the_values_on_the_page_are_those_of_the_recipe(world):
    found = [(option, value) for name, option, value in checked() if name == world]
    assert len(found) >= 4
    for option, value in found:
        assert flat(f"paper_{world}")[option] == value, option


@pytest.mark.parametrize("world", WORLDS)
def test_the_page_lists_everything_that_ours_changes(world):
    listed = {
        row["option"].strip("`"): (read(row["`paper_X`"]), read(row["`paper_X+ours`"]))
        for row in rows("What `+ours` changes")
        if world in worlds_of(row) and row["`paper_X`"] != "no effect"
    }
    exact, ours = flat(f"paper_{world}"), flat(f"paper_{world}+ours")
    # Options that only one side has belong to the other estimator or the other prompts.
    differing = {key for key in exact.keys() & ours.keys() if exact[key] != ours[key]}
    assert listed == {key: (exact[key], ours[key]) for key in differing}


def test_options_that_have_no_effect_in_the_paper_recipe_are_those_of_ours():
    for row in rows("What `+ours` changes"):
        if row["`paper_X`"] == "no effect":
            option = row["option"].strip("`")
            for world in worlds_of(row):
                assert option not in flat(f"paper_{world}")
                assert flat(f"paper_{world}+ours")[option] == read(row["`paper_X+ours`"])


def test_every_row_has_a_reason_and_every_link_a_page():
    for row in rows("What differs in `paper_X`"):
        assert row["reason"] not in ("", "-"), row
    for target in re.findall(r"\]\(([a-z_/]+\.md)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / target).is_file(), target
