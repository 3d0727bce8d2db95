"""`scripts/compare_tasks.py`: every expected share is counted by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from mage.evaluation.rows import TaskRow, write_tasks
from mage.types import Outcome, Task

SCRIPT = Path(__file__).parents[1] / "scripts" / "compare_tasks.py"


def row(seed: int, wins: str, member: int = 0) -> TaskRow:
    """A play; `wins` has a letter for every episode, `w` or `l`."""
    outcomes: tuple[Outcome, ...] = tuple("won" if one == "w" else "lost" for one in wins)
    zeros = (0,) * len(wins)
    return TaskRow(
        task=Task("sokoban", seed, 0, "", "test"),
        member=member,
        scores=tuple(float(one == "w") for one in wins),
        outcomes=outcomes,
        endings=("finished",) * len(wins),
        replies=zeros,
        illegal=zeros,
        tokens=zeros,
        regrets=(None,) * len(wins),
        reflected=zeros,
        asked=zeros,
        cut_off=zeros,
        folded=zeros,
        overflow=zeros,
    )


def run_script(*paths: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600)


def shares(told: str, name: str) -> list[float]:
    """The two shares and their difference in a line of the output."""
    line = next(line for line in told.splitlines() if line.startswith(name))
    return [float(word) for word in line.removeprefix(name).split()[:3]]


def test_the_shares_are_those_of_the_plays(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_tasks(first, [row(1, "wll"), row(2, "lll"), row(3, "lwl"), row(4, "www")])
    write_tasks(second, [row(1, "www"), row(2, "llw"), row(3, "lww"), row(4, "wlw")])
    told = run_script(first, second).stdout
    assert "4 tasks" in told
    assert shares(told, "success in episode 1") == [0.5, 0.5, 0.0]
    assert shares(told, "success in episode 3") == [0.25, 1.0, 0.75]
    assert shares(told, "gain from episode 1 to 3") == [-0.25, 0.5, 0.75]
    assert shares(told, "lost in episode 1, won later") == [0.5, 1.0, 0.5]
    assert shares(told, "won in episode 1, won in episode 3") == [0.5, 1.0, 0.5]


def test_several_plays_of_a_task_count_as_one_task(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_tasks(first, [row(1, "ll"), row(1, "lw", 1), row(2, "ll"), row(2, "ll", 1)])
    write_tasks(second, [row(1, "lw"), row(1, "lw", 1), row(2, "ll"), row(2, "ll", 1)])
    told = run_script(first, second).stdout
    assert "2 tasks" in told
    assert shares(told, "lost in episode 1, won later") == [0.25, 0.5, 0.25]
    assert "won in episode 1, won in episode 2" in told
    assert "no task" in told, "no play wins its first episode"


@pytest.mark.parametrize("count", [0, 1])
def test_other_tasks_and_missing_files_are_refused(tmp_path: Path, count: int) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_tasks(first, [row(1, "ww")])
    write_tasks(second, [row(2, "ww")])
    ended = run_script(*[first, second][: 2 * count])
    assert ended.returncode == 1
    assert ("do not hold the same tasks" if count else "Compare two files") in ended.stderr
