"""`mage credit` and the published credit: outputs of the published functions are the expectation.

Three records are in tests/published_credit.jsonl. All 160 are in a file beside the repository
(../shared/data/published_credit.jsonl.xz) or in the folder $MAGE_SHARED_DATA.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.credit.trajectories import credit_rows, read_trajectories

REPOSITORY = Path(__file__).parents[1]
FIXTURE = REPOSITORY / "tests" / "published_credit.jsonl"
SHARED = Path(os.environ.get("MAGE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
ALL_RECORDS = SHARED / "published_credit.jsonl.xz"
NORMALISE = {"mean_norm": "mean", "mean_std_norm": "mean_std"}


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["credit", *map(str, words)])


def expected_lines() -> list[dict[str, Any]]:
    return [json.loads(line)["expected"] for line in FIXTURE.read_text().splitlines()]


def difference(path: Path, recipe: str, norm: str) -> float:
    """Largest difference between our numbers and the expected ones over all records of a file."""
    import lzma

    chosen = load_recipe(recipe, [f"--advantages.normalise={NORMALISE[norm]}"])
    data = path.read_bytes()
    lines = (lzma.decompress(data) if path.suffix == ".xz" else data).splitlines()
    worst = 0.0
    for (_, metas), line in zip(read_trajectories(path), lines, strict=True):
        expected = json.loads(line)["expected"]
        rows = credit_rows(metas, chosen)
        for name, values in {"step_return": expected["step_return"], **expected[norm]}.items():
            found = [getattr(row, name) for row in rows]
            worst = max(worst, *(abs(a - b) for a, b in zip(found, values, strict=True)))
    return worst


# -- the published functions


@pytest.mark.parametrize("norm", NORMALISE)
@pytest.mark.parametrize(
    "records",
    [
        FIXTURE,
        pytest.param(
            ALL_RECORDS,
            marks=pytest.mark.skipif(not ALL_RECORDS.is_file(), reason=f"{ALL_RECORDS} is missing"),
        ),
    ],
    ids=["three records", "all records"],
)
def test_as_published_equals_the_published_functions(records, norm):
    assert difference(records, "kuhn_poker+as_published", norm) < 1e-6


# -- the verb


def test_the_verb_prints_one_json_object_per_line_in_row_order():
    done = run(FIXTURE, "--recipe", "kuhn_poker+as_published", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 3
    for one, expected in zip(found, expected_lines(), strict=True):
        norm = expected["mean_norm"]
        assert one["step_return"] == pytest.approx(expected["step_return"], abs=1e-6)
        assert one["episode_advantage"] == pytest.approx(norm["episode_advantage"], abs=1e-6)
        assert one["step_advantage"] == pytest.approx(norm["step_advantage"], abs=1e-6)
        sums = zip(one["episode_advantage"], one["step_advantage"], strict=True)
        assert one["advantage"] == pytest.approx([a + b for a, b in sums])
        assert len(one) == 4


# One group: member 0 loses and then wins, member 1 loses twice. One turn per episode.
LOST_WON = """{"trajectories": [
    {"group": 0, "member": 0, "episodes": [
        {"reward": -10, "reflection_cost": null, "turns": [{"state": "a", "cost": 0}]},
        {"reward": 10, "reflection_cost": 0, "turns": [{"state": "a", "cost": -1}]}]},
    {"group": 0, "member": 1, "episodes": [
        {"reward": -10, "reflection_cost": null, "turns": [{"state": "b", "cost": 0}]},
        {"reward": -10, "reflection_cost": 0, "turns": [{"state": "b", "cost": 0}]}]}]}""".replace(
    "\n", " "
)


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_overrides_change_the_credit(tmp_path):
    path = write(tmp_path, LOST_WON)
    words = ("--recipe", "kuhn_poker+mage", "--advantages.step_weight=0", "--json")
    # Differential: 20 - 1 in episode 2; -10 + .6 x 19 = 1.4 in episode 1. Member 1: -10 and 0.
    one = json.loads(run(path, *words).stdout)
    assert one["step_return"] == pytest.approx([1.4, 19, 19, -10, 0, 0])
    assert one["advantage"] == pytest.approx([11.4, 19, 19, -11.4, -19, -19])
    # Cumulative: 10 - 1; -10 + .6 x 9 = -4.6. Member 1: -10 - 6 and -10.
    one = json.loads(run(path, *words, "--returns.kind=cumulative").stdout)
    assert one["step_return"] == pytest.approx([-4.6, 9, 9, -16, -10, -10])
    one = json.loads(run(path, *words, "--returns.penalties=false").stdout)
    assert one["step_return"] == pytest.approx([2, 20, 20, -10, 0, 0])


def test_an_estimator_without_steps_has_only_the_episode_advantage(tmp_path):
    found = run(write(tmp_path, LOST_WON), "--recipe", "kuhn_poker+grpo", "--json")
    one = json.loads(found.stdout)
    assert one["step_advantage"] == [0] * 6
    assert one["episode_advantage"] == one["advantage"]


def test_without_json_the_verb_prints_a_table(tmp_path):
    text = run(write(tmp_path, LOST_WON), "--recipe", "kuhn_poker+mage").stdout
    assert "step_return" in text
    assert [line.split()[4] for line in text.splitlines() if line.split()[:1] == ["1"]] == [
        *("1", "reflection", "1"),
        *("1", "reflection", "1"),
    ]


# -- wrong input: one message, exit code 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: this is not a JSON object"),
        ("[]", "line 2: this is not a JSON object"),
        ("{}", "line 2: trajectories is missing"),
        ('{"trajectories": []}', "line 2: trajectories: must have at least 1 item"),
        ('{"trajectories": [{"group": 0, "member": 0}]}', "trajectories.0.episodes is missing"),
        (LOST_WON.replace("-10", "NaN", 1), "line 2: trajectories.0.episodes.0.reward: must be a"),
        (LOST_WON.replace("-10", "1e300", 1), "reward: must be less than or equal to 1000"),
        (LOST_WON.replace('"a"', "3", 1), "turns.0.state: must be a valid string"),
        (LOST_WON.replace('"cost": -1', '"cost": 1'), "turns.0.cost: must be less than or equal"),
        (LOST_WON.replace('"cost": -1', '"cots": 1'), "turns.0.cots is unknown"),
        (LOST_WON.replace('"member": 1', '"member": 0'), "member 0 of group 0 occurs 2 times"),
        (LOST_WON.replace('"member": 1', f'"member": {"1" * 5000}'), "line 2: "),
        ("[" * 5000, "line 2: this is not a JSON object"),
    ],
)
def test_a_malformed_line_is_reported_with_its_number(tmp_path, line, message):
    done = run(write(tmp_path, LOST_WON, line), "--recipe", "kuhn_poker+mage")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_weights_must_fit_the_episodes_of_a_trajectory(tmp_path):
    words = ("--returns.kind=final", "--returns.weights=[1]", "--play.episodes=1")
    done = run(write(tmp_path, LOST_WON), "--recipe", "kuhn_poker", *words)
    assert done.exit_code == 2
    assert "line 1: a trajectory has 2 episodes, but returns.weights has 1" in done.stderr
