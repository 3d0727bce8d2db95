"""The commands: what they print, the files they write, and one clear message per user error."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from processes import start_mage, wait
from rich.console import Console
from typer.testing import CliRunner

import mage
from mage.cli.main import app, is_user_error
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.environments.tic_tac_toe import TicTacToe
from mage.models.base import SHIPPED
from mage.opponents.base import find
from mage.run_folder import RunFolder
from tests.marks import end_to_end

STYLES = "conservative=.3,aggressive=.3,intermediate=.4"
RECIPE = """
[environments]
name = "kuhn_poker"
[opponents.train]
conservative = 0.3
aggressive = 0.3
intermediate = 0.4
[run]
updates = 3
save_every = 1
evaluate_every = 2
threads = 1
[play]
groups = 2
members = 2
[agent]
max_tokens = 8
reflection_tokens = 12
[engines]
name = "local"
context = 1024
[evaluate]
size = 6
final_size = 6
"""


def call(*words: str | Path, typed: str | None = None) -> Any:
    """Run one command in this process; an exception that is a bug is raised.

    Texts are split at blanks, paths are not.
    """
    split = [
        part for word in words for part in (word.split() if isinstance(word, str) else [str(word)])
    ]
    result = CliRunner().invoke(app, split, input=typed, prog_name="mage")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*words: str | Path) -> str:
    """The message of a command that must be refused."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("mage: ")
    assert "Traceback" not in result.stderr
    return str(result.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "small.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
@end_to_end
def trained(place: Path) -> Any:
    """The command that trained the run of the other tests."""
    return call("train", place / "small.toml", "--runs", place / "runs")


@pytest.fixture(scope="module")
def run(place: Path, trained: Any) -> Path:
    assert trained.exit_code == 0, trained.output
    return place / "runs" / "small-1"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage: trained, but not finished."""
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").unlink()
    return tmp_path / "copy"


def metrics(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


# --- help ----------------------------------------------------------------------------------------


def test_mage_prints_help_and_every_command_has_an_example() -> None:
    alone = call()
    assert alone.exit_code == 0
    for verb in ("train", "evaluate", "play", "report", "list", "check", "ceilings"):
        assert verb in alone.stdout
        assert f"Example: mage {verb}" in " ".join(call(verb, "--help").stdout.split())
    assert all(title in alone.stdout for title in ("Train", "Measure", "Look"))
    assert call("--version").stdout == f"mage {mage.__version__}\n"


# --- train, report -------------------------------------------------------------------------------


def test_training_ends_with_table_ceilings_and_paths(trained: Any, run: Path) -> None:
    for title in (
        *("before training", "after training", "without memory", "best without adapting"),
        "best learner",
    ):
        assert title in trained.stdout
    # Mean of both seats: non-adapting .125, Bayes-optimal third episode .238
    assert re.search(r"\n\s+3 .*\+0\.125 +\+0\.238", trained.stdout)
    for line in ("plot", "page", "summary", "run folder"):
        assert Path(re.search(rf"^{line} +(.+)$", trained.stdout, re.MULTILINE)[1].strip()).exists()  # type: ignore[index]
    assert "model embedded, 0.2 M parameters, on cpu" in trained.stderr
    assert "update 2 (select)" in trained.stderr
    assert "memory emptied (final test)" in trained.stderr
    assert "update 3 of 3" in trained.stderr
    assert "left" in trained.stderr


def test_the_terminal_shows_the_verdict_of_the_page(trained: Any, run: Path) -> None:
    page = next(run.rglob("report.html")).read_text()
    said = json.loads(re.search(r'"verdict":(\[.*?\]),', page)[1])  # type: ignore[index]
    assert any(re.match(r"Episode 3, after training, scores", sentence) for sentence in said)
    assert [sentence for sentence in said if sentence not in trained.stdout] == []


def test_a_finished_run_is_reported_as_json_without_training(run: Path) -> None:
    before = metrics(run)
    again, report = call("train --resume", run, "--json"), call("report", run, "--json")
    for result in (again, report):
        told = json.loads(result.stdout)
        assert told["finished"]
        assert told["updates"] == 3
        assert len(told["after"]["test"]["episodes"]) == 3
        assert told["files"][0].endswith(".png")
    assert all(Path(path).exists() for path in told["files"])
    assert metrics(run) == before


def test_the_report_of_an_unfinished_run_shows_how_to_continue(copy: Path) -> None:
    assert f"mage train --resume {copy}" in call("report", copy).stdout
    assert json.loads(call("report", copy, "--json").stdout)["finished"] is False


@pytest.mark.e2e
def test_overrides_are_accepted_in_any_order_and_can_name_the_run(
    place: Path, tmp_path: Path
) -> None:
    told = call(
        "train --run.updates=0", place / "small.toml", "--run.name=other --runs", tmp_path, "--json"
    )
    assert json.loads(told.stdout)["updates"] == 0
    assert RunFolder.open(tmp_path / "other").recipe.run.updates == 0
    assert "exists already" in refused(
        "train", place / "small.toml", "--run.name=other --runs", tmp_path
    )


def test_a_second_ctrl_c_stops_immediately() -> None:
    from mage.ranks.stop import StopSignals

    said: list[str] = []
    before = signal.getsignal(
        signal.SIGINT
    )  # in the background of a shell it is ignored from the start
    with StopSignals(said.append) as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGINT)
        assert interrupt()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1
    assert signal.getsignal(signal.SIGINT) is before


# --- the live display ----------------------------------------------------------------------------


def figures(score: float) -> dict[str, Any]:
    return {"score_1": 0.0, "score_2": score, "action_entropy": 0.5, "illegal_rate": 0.25}


def test_the_display_shows_scores_against_ceilings_and_the_time_left(
    place: Path, run: Path
) -> None:
    from mage.report.progress import TerminalCallback
    from mage.report.run_results import read_run_results

    recipe, bounds = (
        load_recipe(place / "small.toml", ["--run.updates=4"]),
        read_run_results(RunFolder.open(run)).bounds,
    )
    text = StringIO()
    with TerminalCallback(
        recipe, Console(file=text, force_terminal=True, width=100), bounds
    ) as display:
        display.on_tasks_played(1, 12, "select_000000")
        display.on_update(1, 4, figures(0.1), {"total": 2.0})
        display.on_update(2, 4, figures(0.3), {"total": 4.0})
        display.display.refresh()
    shown = re.sub(r"\x1b\[[^m]*m", "", text.getvalue())
    assert "+0.000  +0.200  (mean of 2 updates)" in shown
    assert "+0.125  +0.203  +0.238  (without adapting +0.125)" in shown
    assert "action entropy 0.500, illegal replies 25.0 %" in shown
    assert "update 2 of 4" in shown
    assert "0:00:06 left" in shown  # two updates of (2 + 4) / 2 seconds; no panel has been timed


def test_the_time_left_includes_the_remaining_panels(place: Path) -> None:
    from mage.report.progress import Pace

    pace = Pace(
        load_recipe(
            place / "small.toml",
            ["--run.updates=10", "--run.evaluate_every=4", "--evaluate.final_size=12"],
        )
    )
    assert pace.left(0) is None
    pace.updates.extend([1.0, 3.0])
    pace.panels["select"] = 5.0
    # 8 updates of 2 s, select panels after updates 4, 8 and 10, two final panels of twice the size
    assert pace.left(2) == pytest.approx(16 + 3 * 5 + 2 * 10)
    pace.panels |= {"before": 7.0, "after": 8.0}
    assert pace.left(10) == pytest.approx(8)


def test_ceilings_of_other_opponents_are_not_shown(place: Path, run: Path) -> None:
    from mage.report.progress import TerminalCallback
    from mage.report.run_results import read_run_results

    recipe, bounds = (
        load_recipe(place / "small.toml", ["--opponents.test={cfr = 1}"]),
        read_run_results(RunFolder.open(run)).bounds,
    )
    text = StringIO()
    TerminalCallback(recipe, Console(file=text, width=200), bounds).on_update(
        3, 3, figures(0.1), {"total": 2.0}
    )
    assert "score by episode in training +0.000 +0.100" in text.getvalue()
    assert "without adapting" not in text.getvalue()


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("small.toml --play.grops=3", "play.grops is unknown (did you mean 'groups'?)"),
        ("small.toml --model.path=/nowhere", "has no config.json"),
        ("small.toml --play.groups no", "play.groups"),
        ("small.toml two names", "--section.option=value"),
        ("small.toml --groups=3", "is not an override"),
        ("demo+react+", "there is no part ''"),
        ("alfworld --environments.data=.", "holds no ALFWorld games"),
        ("alfworld --environments.data=gone", "gone"),
        ("paper_webshop --environments.data=.", "one file items_shuffle*.json"),
        ("paper_webshop --environments.data=gone", "there is no folder gone"),
        ("kuhn_demo --engines.context=20", "engines.context = 20 is smaller than one prompt"),
    ],
)
def test_an_error_in_a_recipe_gives_one_message_and_creates_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(place)
    told = refused("train", words, "--runs", place / "none")
    assert message in told
    assert told.count("\n") == 1
    assert not (place / "none").exists()


def test_a_mistake_is_no_bug() -> None:
    assert is_user_error(ConfigError("wrong"))
    assert not is_user_error(ValueError("wrong"))


def test_missing_recipes_and_runs_are_named(place: Path, tmp_path: Path) -> None:
    assert "there is no recipe 'dem0'" in refused("train dem0")
    assert "there is no recipe" in refused("train", tmp_path / "none.toml")
    assert "no recipe is given" in refused("train")
    assert "is not a run folder" in refused("train --resume", tmp_path)
    assert "is not a run folder" in refused("report", tmp_path / "none")
    assert "there is no recipe" in refused("evaluate none")
    assert "did you mean 'kuhn_poker'?" in refused("check kuhn_pokr")
    (tmp_path / "runs" / "small-1").mkdir(parents=True)
    (tmp_path / "runs" / "small-1" / "recipe.toml").write_text(RECIPE)
    for command in (("evaluate",), ("report",), ("train", "--resume")):
        message = refused(*command, tmp_path / "runs" / "smal-1")
        assert f"did you mean '{tmp_path / 'runs' / 'small-1'}'?" in message
    assert "leave out --play.groups=3" in refused("train --resume", tmp_path, "--play.groups=3")


def model_without(name: str, folder: Path) -> Path:
    shutil.copytree(SHIPPED / "embedded", folder)
    (folder / name).unlink()
    return folder


@pytest.mark.parametrize(
    ("missing", "message"),
    [("chat_template.jinja", "no chat template"), ("model.safetensors", "no *.safetensors")],
)
def test_an_incomplete_model_folder_is_refused(
    place: Path, tmp_path: Path, missing: str, message: str
) -> None:
    folder = model_without(missing, tmp_path / "model")
    told = refused_late(
        "train", place / "small.toml", f"--model.path={folder}", "--runs", tmp_path / "runs"
    )
    assert message in told
    assert not list(tmp_path.glob("runs/*"))
    assert message in refused_late(
        "play", "kuhn_poker", "--watch", "--against", "random", "--model", folder
    )


def refused_late(*words: str | Path) -> str:
    """Like `refused`, but other lines may be printed before the message."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("mage: ") == 1
    return str(result.stderr)


def test_a_broken_checkpoint_is_reported_and_nothing_is_changed(copy: Path) -> None:
    newest = max((copy / "checkpoints").iterdir())
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + bytes([weights.read_bytes()[-1] ^ 1]))
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    for words in (["train", "--resume"], ["evaluate"], ["evaluate", "--checkpoint", "latest"]):
        assert f"checkpoint {newest} is broken" in refused_late(*words, copy)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


@pytest.mark.e2e
@pytest.mark.parametrize("trouble", ["memory", "driver"])
def test_a_gpu_error_is_reported_and_the_last_checkpoint_is_whole(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    import torch

    from mage.learn.learner import Learner

    error = (
        torch.OutOfMemoryError if trouble == "memory" else getattr(torch, "AcceleratorError", None)
    )
    if error is None:
        pytest.skip("this torch has no error of its own for a driver")
    real, done = Learner.update, list[int]()

    def update(self: Learner, *arguments: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) == 3:
            raise error("CUDA: something is wrong\nand a long trace")
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", update)
        told = refused_late("train", place / "small.toml", "--runs", tmp_path)
    assert "CUDA: something is wrong" in told
    assert "long trace" not in told
    assert "The checkpoint of update" in told
    assert ("learn.micro_tokens" in told) == (trouble == "memory")
    assert f"mage train --resume {tmp_path / 'small-1'}" in told
    assert call("check", tmp_path / "small-1").exit_code == 0


def test_a_full_gpu_is_reported_without_training_too(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB.\nand a long trace"
        )

    monkeypatch.setattr("mage.training.build.load_model", full)
    told = refused_late("evaluate", run, "--size 6")
    assert "out of GPU memory: CUDA out of memory. Tried to allocate 20.00 MiB." in told
    assert "engines.slots" in told
    assert "long trace" not in told


def fill_gpu() -> None:
    """In a process: the engine's first step finds no memory."""
    import torch

    from mage.engines.local import LocalEngine

    def step(self: LocalEngine) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nand a long trace")

    LocalEngine.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize("verb", ["evaluate", "play"])
def test_a_gpu_that_is_full_in_the_middle_of_a_game_is_one_message(
    verb: str, run: Path, tmp_path: Path
) -> None:
    """In a process of its own, because Python prints warnings about lost coroutines at its end."""
    game = ["play", "kuhn_poker", "--against", "random", "--watch"]
    words = ["evaluate", str(run), "--size", "6"] if verb == "evaluate" else game
    assert wait(start_mage(words, tmp_path, tmp_path / "log", prepare=fill_gpu)) == 2
    lines = (tmp_path / "log").read_text().splitlines()
    told = [line for line in lines if line and not line.startswith("note: ")]
    assert told[-2] == "mage: out of GPU memory: CUDA out of memory."
    assert "engines.context" in told[-1]
    assert "never awaited" not in "".join(lines)


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def slip(kind: str, with_options: bool) -> list[Any]:
        return [*zip([1], [], strict=True)]

    monkeypatch.setattr("mage.cli.verbs.catalog.read_menu", slip)
    with pytest.raises(ValueError, match="zip"):
        call("list")
    monkeypatch.setattr("mage.cli.arguments.names", lambda kind: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        call("train")


# --- evaluate ------------------------------------------------------------------------------------


def test_a_run_is_evaluated_at_the_given_checkpoint(run: Path) -> None:
    updates = sorted(int(path.name[7:]) for path in (run / "checkpoints").iterdir())
    chosen = json.loads((run / "summary.json").read_text())["chosen_update"]
    stored = json.loads((run / "evaluations" / "after_test.json").read_text())
    best = json.loads(call("evaluate", run, "--json").stdout)
    assert best["update"] == chosen
    assert best["evaluation"]["overall"] == stored["overall"]
    emptied = json.loads(
        call("evaluate", run, "--memory none --checkpoint", str(chosen), "--json").stdout
    )
    assert (
        emptied["evaluation"]["overall"]
        == json.loads((run / "evaluations" / "emptied_test.json").read_text())["overall"]
    )
    assert json.loads(call("evaluate", run, "--checkpoint latest --size 6 --json").stdout)[
        "update"
    ] == max(updates)
    copied = run / "checkpoints" / "update_000010.bak"  # not a checkpoint
    copied.mkdir()
    assert "Allowed are best, latest" in refused_late("evaluate", run, "--checkpoint 77")
    copied.rmdir()


def test_memories_are_swapped_and_written_by_another_agent(run: Path, place: Path) -> None:
    words = ("evaluate", run, "--size 8 --episodes 2 --json")
    kept, swapped = (json.loads(call(*words, more).stdout) for more in ("", "--memory swapped"))
    assert swapped["memory"] == "swapped"
    first = [one["evaluation"]["overall"]["episodes"][0] for one in (kept, swapped)]
    assert first[0]["score"] == first[1]["score"]
    other = json.loads(call(*words, "--writer", place / "small.toml").stdout)
    assert other["writer"] == str(place / "small.toml")
    assert other["evaluation"]["overall"]["episodes"][0]["score"] == first[0]["score"]
    assert "plays no panel" in refused("evaluate", run, "--exact --memory swapped")
    assert "plays no panel" in refused("evaluate", run, "--population cfr --writer", run)
    assert "holds no reflections" in refused_late(*words, "--memory none --writer", run)
    assert "nothing can be swapped" in refused_late(*words, "--memory swapped --memory.keep=none")


def test_an_evaluation_needs_no_state_of_the_optimizer(copy: Path) -> None:
    for path in (copy / "checkpoints").glob("*/optimizer.safetensors"):
        path.unlink()
    stored = json.loads((copy / "evaluations" / "after_test.json").read_text())
    found = json.loads(call("evaluate", copy, "--json").stdout)
    assert found["evaluation"]["overall"] == stored["overall"]
    assert "optimizer.safetensors is missing" in refused("train --resume", copy)


def test_an_evaluation_prints_the_overall_rows_and_others_on_request(run: Path) -> None:
    words = ("evaluate", run, "--size 12 --episodes 2 --panel select")
    cell = r"^ (?:all|conservative|aggressive|intermediate) +(?:both|first|second) "
    told = call(*words).stdout
    assert "select test panel" in told
    assert "Pass@k" in told
    assert not re.findall(cell, told, re.MULTILINE)
    every = call(*words, "--by opponent,seat").stdout
    assert len(re.findall(cell, every, re.MULTILINE)) == 12 * 2
    assert "allowed are opponent, seat and kind" in refused(*words, "--by player")


def test_a_recipe_is_evaluated_untrained_and_compared_pairwise(run: Path, place: Path) -> None:
    words = ("evaluate", run, "--compare", place / "small.toml")
    told = json.loads(call(*words, "--json").stdout)
    assert told["compared_with"]["update"] == 0
    first, second = (
        one["evaluation"]["overall"]["episodes"] for one in (told, told["compared_with"])
    )
    for number, episode in enumerate(told["comparison"]["episodes"]):
        difference = first[number]["score"]["value"] - second[number]["score"]["value"]
        assert episode["score"]["difference"]["value"] == pytest.approx(difference)
    assert "paired over 6 tasks" in call(*words).stdout
    file = place / "small.jsonl"
    call("evaluate", place / "small.toml", "--tasks", file, "--json")
    words = ("evaluate", run, "--compare", file)
    later = json.loads(call(*words, "--json").stdout)
    assert later["compared_with"] == {"file": "small.jsonl"}
    assert later["plays"] == 1
    assert later["comparison"] == told["comparison"], "stored outcomes are those of a new play"
    assert "minus small.jsonl, paired over 6 tasks" in call(*words).stdout
    packed = place / "small.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    words = ("evaluate", run, "--compare", packed)
    assert json.loads(call(*words, "--json").stdout)["comparison"] == told["comparison"]
    packed.write_bytes(packed.read_bytes()[:-9])
    assert "gzip cannot unpack it" in refused_late(*words)
    assert "no such file" in refused("evaluate", run, "--compare", place / "none.jsonl")
    assert "there is no folder" in refused("evaluate", run, "--tasks", place / "none" / "x.jsonl")
    assert "ends with .jsonl" in refused("evaluate", run, "--tasks", place / "x.txt")
    metrics = run / "metrics.jsonl"
    assert "the file exists already" in refused("evaluate", run, "--tasks", metrics)
    assert "cannot write there" in refused("evaluate", run, "--tasks", Path("/proc/x.jsonl"))
    other = refused_late("evaluate", run, "--compare", file, "--size 4")
    assert "holds 6 tasks, and " in other
    file.write_text("{}")
    assert "line 1 is not a task row" in refused_late("evaluate", run, "--compare", file)
    assert "has no effect" in refused("evaluate", place / "small.toml", "--checkpoint best")
    assert "no opponents for split 'ood'" in refused_late(
        "evaluate", place / "small.toml", "--split ood"
    )


# --- play ----------------------------------------------------------------------------------------


def test_a_person_sees_the_legal_moves_and_the_result() -> None:
    told = call(
        "play kuhn_poker --against conservative --seed 3", typed="raise\n?\nBET\nbet\nbet\nbet\n"
    ).stdout
    assert "There are three cards" in told
    assert "You act first." in told
    assert "'raise' is not a legal move here" in told
    assert "legal moves: pass, bet" in told
    results = [
        float(chips) * (1 if verb == "won" else -1)
        for verb, chips in re.findall(r"You (won|lost) (\d) chip", told)
    ]
    assert len(results) == 3
    assert f"Your score: {sum(results):+g} over 3 games." in told


def test_a_person_sees_the_last_position_and_a_short_form_of_wrong_input() -> None:
    """One box, one move from solved: after it the box stands on the target."""
    words = (
        "play sokoban --seed 3 --episodes 1 --environments.boxes=1 --environments.shortest=1 "
        "--environments.longest=1",
    )
    legal = ("up", "down", "left", "right")
    told = next(
        found
        for move in legal
        if "You solved the room"
        in (found := call(*words, typed=f"{'x' * 100_000}\n{move}\n").stdout)
    )
    assert len(told) < 3000
    assert "Boxes on targets: 1 of 1." in told
    assert "*" in told.split("You made")[1]


@pytest.mark.parametrize(
    ("world", "option"),
    [("alfworld", "data=official"), ("webshop", "data=/nowhere"), ("sokoban", "levels=/nowhere")],
)
def test_missing_data_is_reported_before_the_rules(
    world: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    message = refused("play", world, f"--environments.{option}")
    assert "data" in message or "levels" in message


@pytest.mark.parametrize(
    ("typed", "score"),
    [("q\n", "No game was finished."), ("", "No game was finished."), ("bet\nq\n", "over 1 game.")],
)
def test_a_person_can_quit_at_any_time(typed: str, score: str) -> None:
    result = call("play kuhn_poker --against conservative --seed 3", typed=typed)
    assert result.exit_code == 0
    assert "You quit." in result.stdout
    assert score in result.stdout.split("You quit.")[1]


def test_a_person_can_choose_the_second_seat_and_the_game() -> None:
    told = call(
        "play tic_tac_toe --against pattern-0 --seat second --episodes 1", typed="1\n7\n4\n"
    ).stdout
    assert "You are O and move second." in told
    assert "opponent: 5" in told  # pattern 0 opens in the centre
    assert "Your cells in order: 1 7 4." in told
    assert "You won." in told
    nim = call(
        "play openspiel --environments.game=nim --against random --seed 1", typed="?\nq\n"
    ).stdout
    assert "legal moves: " in nim


def test_a_person_plays_against_the_agent(run: Path) -> None:
    told = call(
        "play kuhn_poker --against agent --run",
        run,
        "--episodes 2 --seed 3",
        typed="bet\nbet\nbet\nbet\n",
    ).stdout
    assert len(re.findall(r"You (won|lost) \d chip", told)) == 2
    assert "over 2 games." in told
    assert "You quit." in call("play kuhn_poker --against agent --seat second", typed="").stdout


def test_watching_an_agent_shows_prompts_notes_and_memory(run: Path) -> None:
    words = ("play kuhn_poker --watch --against aggressive --run", run, "--seed 5 --memory both")
    told, data = call(*words).stdout, json.loads(call(*words, "--json").stdout)
    assert told.count("There are three cards") == 1, "only new lines are shown"
    assert "game 1 of 3, memory: empty" in told
    assert "Write a short note" in told
    assert [episode["memory"].count("\n") for episode in data["episodes"]] == [0, 1, 3]
    for episode in data["episodes"]:
        assert episode["recap"] in told
        assert episode["memory"] in told
        assert all(reply["text"] in told for reply in episode["replies"])
    assert data["episodes"][0]["reflection"] is None
    assert " ".join(data["episodes"][1]["reflection"].split()) in data["episodes"][1]["memory"]


def test_play_refuses_options_without_effect(run: Path, tmp_path: Path) -> None:
    assert "no opponent is given" in refused("play kuhn_poker")
    assert "pattern-1 does not play kuhn_poker" in refused("play kuhn_poker --against pattern-1")
    assert "did you mean 'kuhn_poker'?" in refused("play kuhn_pokr --against random")
    assert "--memory has no effect" in refused("play kuhn_poker --against random --memory none")
    assert "--sead is not an option" in refused("play kuhn_poker --against random --sead 3")
    assert "--json has no effect" in refused("play kuhn_poker --against random --json")
    assert "--environments.colour is unknown" in refused(
        "play kuhn_poker --against random --environments.colour=red"
    )
    assert "OpenSpiel has no game" in refused(
        "play openspiel --against random --environments.game=ludo"
    )
    assert "was trained on kuhn_poker" in refused(
        "play tic_tac_toe --watch --against random --run", run
    )
    assert "is not a run folder" in refused("play kuhn_poker --against agent --run", tmp_path)


# --- list, ceilings ------------------------------------------------------------------------------


def test_menus_are_listed_with_their_options() -> None:
    told = json.loads(call("list --json").stdout)
    assert set(told) == {
        *("environments", "opponents", "memory", "engines", "advantages", "recipes", "parts"),
        "options",
    }
    opponents = {item["name"]: item for item in told["opponents"]}
    assert opponents["mcts"]["options"] == [
        {"name": "simulations", "default": 100, "description": ""}
    ]
    assert opponents["conservative"]["plays"] == ["kuhn_poker"]
    assert {"kuhn_poker", "tic_tac_toe", "openspiel"} <= {
        item["name"] for item in told["environments"]
    }
    assert "mcts-100" in call("list opponents").stdout
    assert "restart = fresh" in call("list environments").stdout
    assert "did you mean 'opponents'" in refused("list opponent")


@pytest.mark.parametrize(
    ("seat", "expected"),
    [("first", (0.0833, 0.2426, 0.2833)), ("second", (0.1667, 0.2333, 0.2667))],
)
def test_ceilings_equal_the_known_figures(seat: str, expected: tuple[float, ...]) -> None:
    words = ("ceilings kuhn_poker --seat", seat, "--episodes 3 --weights", STYLES)
    told = json.loads(call(*words, "--json").stdout)
    assert (
        tuple(round(told[key], 4) for key in ("non_adapting", "bayes_final", "knows_opponent"))
        == expected
    )
    assert f"{expected[1]:+.4f}" in call(*words).stdout


def test_ceilings_of_pass_at_k_need_a_replayed_deal() -> None:
    words = "ceilings kuhn_poker --population cfr --objective pass --episodes 10 --seat second"
    told = json.loads(call(words, "--environments.restart=same --json").stdout)
    assert told["pass_at"]["10"] == pytest.approx(0.666, abs=1e-3)
    assert "4 of 6" in call(words, "--environments.restart=same").stdout
    assert "--environments.restart=same" in refused(words)


def test_ceilings_of_a_weighted_sum_are_shown_by_episode() -> None:
    words = ("ceilings kuhn_poker --weights", STYLES, "--objective .25,.25,1")
    first, second = (
        json.loads(call(*words, "--seat", seat, "--json").stdout)["weighted"]
        for seat in ("first", "second")
    )
    # project log: .117 / .194 / .237 over the two seats
    assert [(a + b) / 2 for a, b in zip(first, second, strict=True)] == pytest.approx(
        [0.117, 0.194, 0.237], abs=6e-4
    )
    assert "sum .25,.25,1, episode 3" in call(*words).stdout
    for wrong in (".25,1", "chips", "0,0,0", "-1,0,1"):
        refused("ceilings kuhn_poker --weights", STYLES, f"--objective={wrong}")


@pytest.mark.e2e
def test_a_tree_too_large_for_a_learner_gives_best_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "mage.evaluation.exact.game_tree.MAX_NODES", 20_000
    )  # enough for the best response, and a quick end of the learner's tree
    told = json.loads(
        call("ceilings tic_tac_toe --weights random=1,pattern-0=1 --objective win --json").stdout
    )
    assert told["bayes_final"] is None
    assert "more than 20,000 positions" in told["note"]
    # .995 against random, 1 against a pattern
    assert told["best_response"] == pytest.approx({"random": 0.9948, "pattern-0": 1.0}, abs=1e-4)
    assert told["knows_opponent"] == pytest.approx(0.9974, abs=1e-4)


def test_wrong_weights_are_refused() -> None:
    words = "conservative conservative=x conservative=0 conservative=1,conservative=1 pattern-0=1"
    for weights in (*words.split(), "nobody=1"):
        refused("ceilings kuhn_poker --weights", weights)


# --- check ---------------------------------------------------------------------------------------


def test_an_environment_is_compared_with_its_golden_play_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("check tic_tac_toe --golden", tmp_path, "--games 5")
    assert "--write creates it" in call(*words).stdout
    assert call(*words, "--write").exit_code == 0
    assert "the play-through equals" in call(*words).stdout
    monkeypatch.setattr(TicTacToe, "rules", lambda self: "Other rules.")
    changed = call(*words)
    assert changed.exit_code == 1
    assert "line 2 was" in changed.stdout
    assert json.loads(call(*words, "--json").stdout)["faults"]


@pytest.fixture
def odd_players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "odd_players.py").write_text(
        textwrap.dedent("""
        from typing import ClassVar
        from pydantic import PrivateAttr
        from mage.opponents.base import Opponent

        class Learner(Opponent):
            name: ClassVar[str] = "learner"
            _games: int = PrivateAttr(0)
            def policy(self, state, seat):
                self._games += 1
                return {state.legal()[self._games % len(state.legal())]: 1.0}

        class Cheat(Opponent):
            name: ClassVar[str] = "cheat"
            def policy(self, state, seat):
                return {"peek": 0.7}
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("odd_players", None)
    find.cache_clear()


def test_opponents_that_learn_or_cheat_are_found(odd_players: None) -> None:
    learner = call("check odd_players.Learner --environment kuhn_poker --games 20")
    assert learner.exit_code == 1
    assert "not stationary" in learner.stdout
    cheat = call("check odd_players.Cheat --environment kuhn_poker --games 5")
    assert cheat.exit_code == 1
    assert "'peek' is not a legal move" in cheat.stdout
    assert "probabilities that sum to 1" in cheat.stdout


def test_check_refuses_unknown_names_and_options_without_effect() -> None:
    assert "there is no environment and no opponent 'nim'" in refused("check nim")
    assert "--write has no effect" in refused("check random --write")
    assert "--environment has no effect" in refused("check kuhn_poker --environment tic_tac_toe")
    assert "conservative does not play tic_tac_toe" in refused(
        "check conservative --environment tic_tac_toe"
    )


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux: /dev/full is always full")
def test_an_error_that_cannot_be_printed_keeps_its_exit_code() -> None:
    with open("/dev/full", "w") as full:
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        words = [sys.executable, "-m", "mage", "show", "typo"]
        done = subprocess.run(words, stderr=full, env=buffered)
    assert done.returncode == 2
