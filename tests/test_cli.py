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
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import start_mage, wait
from rich.console import Console
from typer.testing import CliRunner

import mage
from mage.api.runs import open_display
from mage.cli.main import app, is_user_error
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.engines.local import LocalEngine
from mage.environments.tic_tac_toe import TicTacToe
from mage.evaluation.shards import ShardStore
from mage.learn.learner import Learner
from mage.models.base import SHIPPED
from mage.opponents.base import find
from mage.ranks.stop import StopSignals
from mage.report.progress import Pace, TerminalCallback
from mage.report.run_results import read_run_results
from mage.run_folder import RunFolder
from tests.marks import end_to_end

STYLES = "conservative=.3,aggressive=.3,intermediate=.4"
RECIPE = """
[environments]
name = "kuhn_poker"
[opponents]
train = {conservative = 0.3, aggressive = 0.3, intermediate = 0.4}
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


def read(*words: str | Path) -> Any:
    """The JSON object that a command prints."""
    return json.loads(call(*words, "--json").stdout)


def refused(*words: str | Path, late: bool = False) -> str:
    """The message of a command that must be refused; notes may come before a late one."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("mage: ") == 1
    assert late or result.stderr.startswith("mage: ")
    assert "Traceback" not in result.stderr
    return str(result.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "small.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
@end_to_end
def trained(place):
    """The command that trained the run of the other tests."""
    return call("train", place / "small.toml", "--runs", place / "runs")


@pytest.fixture(scope="module")
def run(place, trained):
    """The trained run. Pictures were drawn once; later reports have empty ones."""
    assert trained.exit_code == 0, trained.output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mage.report.curves.draw_curves", lambda results: {"png": b"", "svg": b""})
        yield place / "runs" / "small-1"


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that a test may damage: trained, but not finished."""
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").unlink()
    return tmp_path / "copy"


# --- help ----------------------------------------------------------------------------------------


def test_mage_prints_help_and_every_command_has_an_example():
    alone = call()
    assert alone.exit_code == 0
    for verb in ("train", "evaluate", "play", "report", "list", "check", "ceilings"):
        assert verb in alone.stdout
        assert f"Example: mage {verb}" in " ".join(call(verb, "--help").stdout.split())
    assert all(title in alone.stdout for title in ("Train", "Measure", "Look"))
    assert call("--version").stdout == f"mage {mage.__version__}\n"


# --- train, report -------------------------------------------------------------------------------


def test_training_ends_with_table_ceilings_paths_and_the_verdict_of_the_page(trained, run):
    titles = ("before training", "after training", "without memory", "best without adapting")
    assert all(title in trained.stdout for title in (*titles, "best learner"))
    # Mean of both seats: non-adapting .125, Bayes-optimal third episode .238
    assert re.search(r"\n\s+3 .*\+0\.125 +\+0\.238", trained.stdout)
    for line in ("plot", "page", "summary", "run folder"):
        assert Path(re.search(rf"^{line} +(.+)$", trained.stdout, re.MULTILINE)[1].strip()).exists()  # type: ignore[index]
    told = (
        "model embedded, 0.2 M parameters, on cpu",
        "update 2 (select)",
        "update 3 of 3",
        "left",
    )
    assert all(line in trained.stderr for line in (*told, "memory emptied (final test)"))
    page = next(run.rglob("report.html")).read_text()
    said = json.loads(re.search(r'"verdict":(\[.*?\]),', page)[1])  # type: ignore[index]
    assert any(re.match(r"Episode 3, after training, scores", sentence) for sentence in said)
    assert [sentence for sentence in said if sentence not in trained.stdout] == []


def test_a_finished_run_is_reported_without_training_an_unfinished_one_with_the_way_on(run, copy):
    told = call("train --resume", run).stderr
    assert f"{run} finished at update 3 of 3: nothing is left to train. To train longer" in told
    assert f"mage train {run}/recipe.toml --run.updates=..." in " ".join(told.split())
    before = (run / "metrics.jsonl").read_bytes()
    for told in (read("train --resume", run), read("report", run)):
        assert (told["finished"], told["updates"]) == (True, 3)
        assert len(told["after"]["test"]["episodes"]) == 3
        assert told["files"][0].endswith(".png")
    assert all(Path(path).exists() for path in told["files"])
    assert (run / "metrics.jsonl").read_bytes() == before
    assert f"mage train --resume {copy}" in call("report", copy).stdout
    assert read("report", copy)["finished"] is False


@pytest.mark.e2e
def test_overrides_are_accepted_in_any_order_and_can_name_the_run(place, tmp_path):
    few = "--evaluate.final_size=1 --run.name=other --runs"
    told = read("train --run.updates=0", place / "small.toml", few, tmp_path)
    assert told["updates"] == 0
    assert RunFolder.open(tmp_path / "other").recipe.run.updates == 0
    assert "exists already" in refused("train", place / "small.toml", few, tmp_path)


def test_a_second_ctrl_c_stops_immediately():
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)  # in the background of a shell it is ignored
    with StopSignals(said.append) as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGINT)
        assert interrupt()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1
    assert signal.getsignal(signal.SIGINT) is before


# --- the live display ----------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["", "cfr"])
def test_the_display_shows_scores_the_ceilings_of_these_opponents_and_the_time_left(
    test, place, run
):
    words = ["--run.updates=4", f"--opponents.test={{{test} = 1}}"]
    recipe = load_recipe(place / "small.toml", words if test else words[:1])
    bounds, text = read_run_results(RunFolder.open(run)).bounds, StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with TerminalCallback(recipe, console, bounds) as display:
        display.on_tasks_played(1, 12, "select_000000")
        for update, score in ((1, 0.1), (2, 0.3)):
            figures = {"score_1": 0.0, "score_2": score, "action_entropy": 0.5}
            display.on_update(update, 4, figures | {"illegal_rate": 0.25}, {"total": 2.0 * update})
        display.display.refresh()
    shown = re.sub(r"\x1b\[[^m]*m", "", text.getvalue())
    assert "+0.000  +0.200  (mean of 2 updates)" in shown
    assert ("+0.125  +0.203  +0.238  (without adapting +0.125)" in shown) == (test == "")
    assert "action entropy 0.500, illegal replies 25.0 %" in shown
    assert "update 2 of 4" in shown
    assert "0:00:06 left" in shown  # two updates of (2 + 4) / 2 seconds; no panel has been timed


def test_the_time_left_includes_the_remaining_panels(place):
    words = ["--run.updates=10", "--run.evaluate_every=4", "--evaluate.final_size=12"]
    pace = Pace(load_recipe(place / "small.toml", words))
    assert pace.left(0) is None
    pace.updates.extend([1.0, 3.0])
    pace.panels["select"] = 5.0
    # 8 updates of 2 s, select panels after updates 4, 8 and 10, two final panels of twice the size
    assert pace.left(2) == pytest.approx(16 + 3 * 5 + 2 * 10)
    pace.panels |= {"before": 7.0, "after": 8.0}
    assert pace.left(10) == pytest.approx(8)
    timed = Pace(load_recipe(place / "small.toml", [*words, "--run.minutes=0.1"]))
    for seconds in (1.0, 3.0):
        timed.updated(seconds)
    timed.panels["select"] = 5.0
    # One more update of 2 s makes 6 s, and it is the last one.
    assert timed.left(2) == pytest.approx(2 + 5 + 2 * 10)


# --- mistakes ------------------------------------------------------------------------------------


def test_a_mistake_is_no_bug():
    assert is_user_error(ConfigError("wrong"))
    assert not is_user_error(ValueError("wrong"))


REFUSED = """
train small.toml --play.grops=3 | play.grops is unknown (did you mean 'groups'?)
train small.toml --model.path=/nowhere | has no config.json
train small.toml --play.groups no | play.groups
train small.toml two names | --section.option=value
train small.toml --groups=3 | did you mean --play.groups=3?
train demo --seed 3 | did you mean --run.seed=3?
train demo --episodes 3 | did you mean --play.episodes=3 or --evaluate.episodes=3?
evaluate demo --sise 7 | --sise is not an option (did you mean --size?)
train demo --runs small.toml | cannot create small.toml/demo-1: Not a directory. Choose another
warmup demo --out small.toml/warm | --out small.toml/warm: cannot write there
train demo+react+ | there is no part ''
train alfworld --environments.data=. | holds no ALFWorld games
train alfworld --environments.data=gone | gone
train paper_webshop --environments.data=. | one file items_shuffle*.json
train paper_webshop --environments.data=gone | there is no folder gone
train kuhn_demo --engines.context=20 | engines.context = 20 is smaller than one prompt
train kuhn_demo --engines.context=100 | Set engines.context to
train kuhn_demo --agent.window=0 | agent.window
train kuhn_demo --agent.window=-3 | agent.window
train kuhn_demo --agent.window=1.5 | agent.window
train kuhn_demo --agent.window=many | agent.window
train dem0 | there is no recipe 'dem0'
train none.toml | there is no recipe
train | no recipe is given
train --resume . | is not a run folder
report none | is not a run folder
evaluate none | there is no recipe
check kuhn_pokr | did you mean 'kuhn_poker'?
check nim | there is no environment and no opponent 'nim'
check random --write | --write has no effect
check kuhn_poker --environment tic_tac_toe | --environment has no effect
check conservative --environment tic_tac_toe | conservative does not play tic_tac_toe
evaluate runs/smal-1 | did you mean 'runs/small-1'?
report runs/smal-1 | did you mean 'runs/small-1'?
train --resume runs/smal-1 | did you mean 'runs/small-1'?
train --resume . --play.groups=3 | leave out --play.groups=3
list opponent | did you mean 'opponents'
list optoins | did you mean 'options'?
show demoo | did you mean 'demo'?
show demo+lamr | did you mean 'lamer'?
show demo --lern.lr=1 | [lern] is unknown (did you mean 'learn'?)
show demo --engines.slotz=1 | did you mean 'slots'?
show | no recipe is given
cluster demo --learn.lr=-1 | learn.lr = -1
cluster demo --ranks 2 --gpus 0.5 | --gpus 0.5: ranks of a cluster cannot share a GPU
credit gone.jsonl --recipe kuhn_poker | gone.jsonl cannot be read: No such file
credit empty.jsonl --recipe kuhn_poker | is empty; it needs one JSON object
credit small.toml --recipe kuhn_pokr | did you mean 'kuhn_poker'?
credit small.toml --recipe as_published | is a part of a recipe
ceilings doors --safe 1.5 | Give values in this range
ceilings doors --arms 1 | 2 to 100 doors
ceilings doors --discount 2 | discount between 0 and 1
ceilings doors --population random | has no opponents
ceilings mastermind --length=4 --colours=6 | Lower length or colours
play kuhn_poker | no opponent is given
play kuhn_poker --against pattern-1 | pattern-1 does not play kuhn_poker
play kuhn_pokr --against random | did you mean 'kuhn_poker'?
play kuhn_poker --against random --memory none | --memory has no effect
play kuhn_poker --against random --sead 3 | --sead is not an option of this command (did you mean
play demo | To train it: mage train demo. For figures: mage evaluate demo
play demo+lamer | To train it: mage train demo+lamer
play small.toml | small.toml is a recipe, not an environment. To play yourself: mage play
play runs/small-1 | --watch --run runs/small-1. For its figures: mage evaluate runs/small-1
play kuhn_poker --against random --environments.restat=same | (did you mean 'restart'?)
play kuhn_poker --against random --json | --json has no effect
play kuhn_poker --against random --environments.colour=red | --environments.colour is unknown
play openspiel --against random --environments.game=ludo | OpenSpiel has no game
play kuhn_poker --against agent --run . | is not a run folder
play alfworld --environments.data=official | data
play webshop --environments.data=/nowhere | data
play sokoban --environments.levels=/nowhere | levels
evaluate small.toml --checkpoint best | has no effect
ceilings kuhn_poker --weights conservative | conservative
ceilings kuhn_poker --weights conservative=x | conservative=x
ceilings kuhn_poker --weights conservative=0 | conservative
ceilings kuhn_poker --weights conservative=1,conservative=1 | conservative
ceilings kuhn_poker --weights pattern-0=1 | pattern-0 does not play kuhn_poker
ceilings kuhn_poker --weights nobody=1 | nobody
ceilings kuhn_poker --weights random=1 --objective=.25,1 | .25,1
ceilings kuhn_poker --weights random=1 --objective=chips | chips
ceilings kuhn_poker --weights random=1 --objective=0,0,0 | 0,0,0
ceilings kuhn_poker --weights random=1 --objective=-1,0,1 | -1,0,1
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_a_mistake_is_one_message_and_creates_nothing(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    (tmp_path / "runs" / "small-1").mkdir(parents=True)
    for path in (tmp_path / "small.toml", tmp_path / "runs" / "small-1" / "recipe.toml"):
        path.write_text(RECIPE)
    (tmp_path / "empty.jsonl").write_text("\n")
    words, message = row.split(" | ")
    told = refused(words)
    assert message in told
    assert told.count("\n") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small-1"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [("chat_template.jinja", "no chat template"), ("model.safetensors", "no *.safetensors")],
)
def test_an_incomplete_model_folder_is_refused(place, tmp_path, missing, message):
    folder = Path(shutil.copytree(SHIPPED / "embedded", tmp_path / "model"))
    (folder / missing).unlink()
    words = ("train", place / "small.toml", f"--model.path={folder}", "--runs", tmp_path / "runs")
    assert message in refused(*words, late=True)
    assert not list(tmp_path.glob("runs/*"))
    watch = ("play kuhn_poker --watch --against random --model", folder)
    assert message in refused(*watch, late=True)


def test_a_broken_checkpoint_is_reported_and_nothing_is_changed(copy):
    newest = max((copy / "checkpoints").iterdir())
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + bytes([weights.read_bytes()[-1] ^ 1]))
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    for words in ("train --resume", "evaluate", "evaluate --checkpoint latest"):
        assert f"checkpoint {newest} is broken" in refused(words, copy, late=True)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


@pytest.mark.e2e
def test_a_gpu_error_is_reported_and_the_last_checkpoint_is_whole(place, tmp_path, monkeypatch):
    """The second update finds no memory; after the resume, it finds a broken driver."""
    real, done = Learner.update, list[int]()
    errors = [torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError)]

    def update(self: Learner, *arguments: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) > 1:
            raise errors[len(done) - 2]("CUDA: something is wrong\nand a long trace")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Learner, "update", update)
    train = ("train", place / "small.toml", "--evaluate.before=false --runs", tmp_path)
    resume = ("train --resume", tmp_path / "small-1")
    for words, error in zip((train, resume), errors, strict=True):
        told = refused(*words, late=True)
        assert "CUDA: something is wrong" in told
        assert "long trace" not in told
        assert "The checkpoint of update 1 " in told
        assert ("learn.micro_tokens" in told) == (error is torch.OutOfMemoryError)
        assert f"mage train --resume {tmp_path / 'small-1'}" in told
    assert call("check", tmp_path / "small-1").exit_code == 0


def test_a_full_gpu_is_reported_without_training_too(run, monkeypatch):
    def full(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 20.00 MiB.\nand a long trace")

    monkeypatch.setattr("mage.training.build.load_model", full)
    told = refused("evaluate", run, "--size 6", late=True)
    assert "out of GPU memory: CUDA out of memory. Tried 20.00 MiB." in told
    assert "engines.slots" in told
    assert "long trace" not in told


def fill_gpu() -> None:
    """In a process: the engine's first step finds no memory."""

    def step(self: LocalEngine) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nand a long trace")

    LocalEngine.step = step  # type: ignore[method-assign]


@pytest.mark.e2e
def test_a_gpu_that_is_full_in_the_middle_of_a_game_is_one_message(tmp_path):
    """In a process of its own, because Python prints warnings about lost coroutines at its end."""
    words = ["play", "kuhn_poker", "--against", "random", "--watch"]
    assert wait(start_mage(words, tmp_path, tmp_path / "log", prepare=fill_gpu)) == 2
    lines = (tmp_path / "log").read_text().splitlines()
    told = [line for line in lines if line and not line.startswith("note: ")]
    assert told[-2] == "mage: out of GPU memory: CUDA out of memory."
    assert "engines.context" in told[-1]
    assert "never awaited" not in "".join(lines)


def test_bugs_keep_their_traceback(monkeypatch):
    def slip(kind: str, with_options: bool) -> list[Any]:
        return [*zip([1], [], strict=True)]

    monkeypatch.setattr("mage.cli.verbs.catalog.read_menu", slip)
    with pytest.raises(ValueError, match="zip"):
        call("list")
    monkeypatch.setattr("mage.cli.arguments.names", lambda kind: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        call("train")


# --- evaluate ------------------------------------------------------------------------------------


def overall(run: Path, name: str) -> Any:
    return json.loads((run / "evaluations" / f"{name}.json").read_text())["overall"]


def test_a_run_is_evaluated_at_the_given_checkpoint(run):
    newest = max(int(path.name[7:]) for path in (run / "checkpoints").iterdir())
    chosen = json.loads((run / "summary.json").read_text())["chosen_update"]
    best = read("evaluate", run)
    assert best["update"] == chosen
    assert best["evaluation"]["overall"] == overall(run, "after_test")
    emptied = read("evaluate", run, f"--memory none --checkpoint {chosen}")
    assert emptied["evaluation"]["overall"] == overall(run, "emptied_test")
    assert read("evaluate", run, "--checkpoint latest --size 2")["update"] == newest
    copied = run / "checkpoints" / "update_000010.bak"  # not a checkpoint
    copied.mkdir()
    assert "Allowed are best, latest" in refused("evaluate", run, "--checkpoint 77", late=True)
    copied.rmdir()


def test_memories_are_swapped_and_written_by_another_agent(run, place):
    words = ("evaluate", run, "--size 4 --episodes 2")
    kept, swapped = (read(*words, more) for more in ("", "--memory swapped"))
    assert swapped["memory"] == "swapped"
    other = read(*words, "--writer", place / "small.toml")
    assert other["writer"] == str(place / "small.toml")
    first = [one["evaluation"]["overall"]["episodes"][0]["score"] for one in (kept, swapped, other)]
    assert first[0] == first[1] == first[2]
    assert "plays no panel" in refused("evaluate", run, "--exact --memory swapped")
    assert "plays no panel" in refused("evaluate", run, "--population cfr --writer", run)
    late = (("--memory none --writer", run), ("--memory swapped --memory.keep=none",))
    assert "holds no reflections" in refused(*words, *late[0], late=True)
    assert "nothing can be swapped" in refused(*words, *late[1], late=True)


def test_an_evaluation_needs_no_state_of_the_optimizer(copy):
    for path in (copy / "checkpoints").glob("*/optimizer.safetensors"):
        path.unlink()
    assert read("evaluate", copy)["evaluation"]["overall"] == overall(copy, "after_test")
    assert "optimizer.safetensors is missing" in refused("train --resume", copy)


def test_an_evaluation_prints_the_overall_rows_and_others_on_request(run):
    words = ("evaluate", run, "--size 12 --episodes 2 --panel select")
    cell = r"^ (?:all|conservative|aggressive|intermediate) +(?:both|first|second) "
    told = call(*words).stdout
    assert "select test panel" in told
    assert "Pass@k" in told
    assert not re.findall(cell, told, re.MULTILINE)
    every = call(*words, "--by opponent,seat").stdout
    assert len(re.findall(cell, every, re.MULTILINE)) == 12 * 2
    assert "allowed are opponent, seat and kind" in refused(*words, "--by player")


def test_a_recipe_is_evaluated_untrained_and_compared_pairwise(run, place):
    told = read("evaluate", run, "--compare", place / "small.toml")
    assert told["compared_with"]["update"] == 0
    first, second = (
        one["evaluation"]["overall"]["episodes"] for one in (told, told["compared_with"])
    )
    for number, episode in enumerate(told["comparison"]["episodes"]):
        difference = first[number]["score"]["value"] - second[number]["score"]["value"]
        assert episode["score"]["difference"]["value"] == pytest.approx(difference)
    file, packed = place / "small.jsonl", place / "small.jsonl.gz"
    call("evaluate", place / "small.toml", "--tasks", file, "--json")
    later = read("evaluate", run, "--compare", file)
    assert later["compared_with"] == {"file": "small.jsonl"}
    assert later["plays"] == 1
    assert later["comparison"] == told["comparison"], "stored outcomes are those of a new play"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    shown = call("evaluate", run, "--compare", packed).stdout
    assert "minus small.jsonl.gz, paired over 6 tasks" in shown
    packed.write_bytes(packed.read_bytes()[:-9])
    (place / "other.jsonl").write_text("{}")
    for words, message in (
        (("--compare", packed), "gzip cannot unpack it"),
        (("--compare", place / "none.jsonl"), "no such file"),
        (("--compare", file, "--size 4"), "holds 6 tasks, and "),
        (("--compare", place / "other.jsonl"), "line 1 is not a task row"),
        (("--tasks", place / "none" / "x.jsonl"), "there is no folder"),
        (("--tasks", place / "x.txt"), "ends with .jsonl"),
        (("--tasks", run / "metrics.jsonl"), "the file exists already"),
        (("--tasks", Path("/proc/x.jsonl")), "cannot write there"),
        (("--split ood",), "no opponents for split 'ood'"),
    ):
        assert message in refused("evaluate", run, *words, late=True)


@end_to_end
def test_an_evaluation_that_was_stopped_continues(place, tmp_path, monkeypatch):
    """Every finished part of 128 tasks is kept beside the file of --tasks."""
    file, whole = tmp_path / "some.jsonl", tmp_path / "whole.jsonl"
    words = (
        "evaluate",
        place / "small.toml",
        "--size 260 --episodes 1 --engines.slots=8 --memory none --tasks",
    )
    assert "were played before" not in call(*words, whole).stderr
    added = ShardStore.add

    def add_one(store: ShardStore, shard: Any) -> None:
        added(store, shard)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "add", add_one)
        assert call(*words, file).exit_code
    assert not file.exists()
    changed = [*words[:2], words[2].replace("--memory none", "--environments.max_turns=9")]
    other = shutil.copy(f"{file}.partial", f"{tmp_path / 'other.jsonl'}.partial")
    assert "were played before" not in call(*changed, tmp_path / "other.jsonl").stderr
    assert not Path(other).exists()
    monkeypatch.setattr("mage.cli.terminal.counting._EVERY", 0.0)
    told = " ".join(call(*words, file).stderr.split())
    assert f"128 of 260 meta-episodes were played before and are in {file}.partial" in told
    assert "small.toml: episode 132 of 132, about 0:00:00 left" in told
    assert file.read_bytes() == whole.read_bytes()
    assert not Path(f"{file}.partial").exists()


# --- play ----------------------------------------------------------------------------------------


def test_a_person_sees_the_legal_moves_and_the_result():
    typed = "raise\n?\nBET\nbet\nbet\nbet\n"
    told = call("play kuhn_poker --against conservative --seed 3", typed=typed).stdout
    assert "There are three cards" in told
    assert "You act first." in told
    assert "'raise' is not a legal move here" in told
    assert "legal moves: pass, bet" in told
    found = re.findall(r"You (won|lost) (\d) chip", told)
    results = [float(chips) * (1 if verb == "won" else -1) for verb, chips in found]
    assert len(results) == 3
    assert f"Your score: {sum(results):+g} over 3 games." in told


def test_a_person_sees_the_last_position_and_a_short_form_of_wrong_input():
    """One box, one move from solved: after it the box stands on the target."""
    room = "--environments.boxes=1 --environments.shortest=1 --environments.longest=1"
    typed = [f"{'x' * 100_000}\n{move}\n" for move in ("up", "down", "left", "right")]
    shown = (call("play sokoban --seed 3 --episodes 1", room, typed=one).stdout for one in typed)
    told = next(one for one in shown if "You solved the room" in one)
    assert len(told) < 3000
    assert "Boxes on targets: 1 of 1." in told
    assert "*" in told.split("You made")[1]


@pytest.mark.parametrize(
    ("typed", "score"),
    [("q\n", "No game was finished."), ("", "No game was finished."), ("bet\nq\n", "over 1 game.")],
)
def test_a_person_can_quit_at_any_time(typed, score):
    result = call("play kuhn_poker --against conservative --seed 3", typed=typed)
    assert result.exit_code == 0
    assert "You quit." in result.stdout
    assert score in result.stdout.split("You quit.")[1]


def test_a_person_can_choose_the_second_seat_and_the_game():
    second = "play tic_tac_toe --against pattern-0 --seat second --episodes 1"
    told = call(second, typed="1\n7\n4\n").stdout
    assert "You are O and move second." in told
    assert "opponent: 5" in told  # pattern 0 opens in the centre
    assert "Your cells in order: 1 7 4." in told
    assert "You won." in told
    nim = "play openspiel --environments.game=nim --against random --seed 1"
    assert "legal moves: " in call(nim, typed="?\nq\n").stdout


def test_a_person_plays_against_the_agent(run):
    words = ("play kuhn_poker --against agent --run", run, "--episodes 2 --seed 3")
    told = call(*words, typed="bet\nbet\nbet\nbet\n").stdout
    assert len(re.findall(r"You (won|lost) \d chip", told)) == 2
    assert "over 2 games." in told
    assert "You quit." in call("play kuhn_poker --against agent --seat second", typed="").stdout
    other = refused("play tic_tac_toe --watch --against random --run", run)
    assert "was trained on kuhn_poker" in other


def test_watching_an_agent_shows_prompts_notes_and_memory(run):
    words = ("play kuhn_poker --watch --against aggressive --run", run, "--seed 5 --memory both")
    told, episodes = call(*words).stdout, read(*words)["episodes"]
    assert told.count("There are three cards") == 1, "only new lines are shown"
    assert "game 1 of 3, memory: empty" in told
    assert "Write a short note" in told
    assert [episode["memory"].count("\n") for episode in episodes] == [0, 1, 3]
    for episode in episodes:
        texts = [episode["recap"], episode["memory"], *(one["text"] for one in episode["replies"])]
        assert all(text in told for text in texts)
    assert episodes[0]["reflection"] is None
    assert " ".join(episodes[1]["reflection"].split()) in episodes[1]["memory"]


# --- list, ceilings ------------------------------------------------------------------------------


def test_menus_are_listed_with_their_options():
    told = read("list")
    menus = ("environments", "opponents", "memory", "engines", "advantages", "recipes", "parts")
    assert set(told) == {*menus, "options"}
    opponents = {item["name"]: item for item in told["opponents"]}
    simulations = {"name": "simulations", "default": 100, "description": ""}
    assert opponents["mcts"]["options"] == [simulations]
    assert opponents["conservative"]["plays"] == ["kuhn_poker"]
    names = {item["name"] for item in told["environments"]}
    assert {"kuhn_poker", "tic_tac_toe", "openspiel"} <= names
    assert "mcts-100" in call("list opponents").stdout
    assert "restart = fresh" in call("list environments").stdout


@pytest.mark.parametrize(
    ("seat", "expected"),
    [("first", (0.0833, 0.2426, 0.2833)), ("second", (0.1667, 0.2333, 0.2667))],
)
def test_ceilings_equal_the_known_figures(seat, expected):
    words = ("ceilings kuhn_poker --seat", seat, "--episodes 3 --weights", STYLES)
    told = read(*words)
    found = [told[key] for key in ("non_adapting", "bayes_final", "knows_opponent")]
    assert tuple(round(one, 4) for one in found) == expected
    assert f"{expected[1]:+.4f}" in call(*words).stdout


def test_ceilings_of_pass_at_k_need_a_replayed_deal():
    words = "ceilings kuhn_poker --population cfr --objective pass --episodes 10 --seat second"
    told = read(words, "--environments.restart=same")
    assert told["pass_at"]["10"] == pytest.approx(0.666, abs=1e-3)
    assert "4 of 6" in call(words, "--environments.restart=same").stdout
    assert "--environments.restart=same" in refused(words)


def test_ceilings_of_a_weighted_sum_are_shown_by_episode():
    words = ("ceilings kuhn_poker --weights", STYLES, "--objective .25,.25,1")
    seats = (read(*words, "--seat", seat)["weighted"] for seat in ("first", "second"))
    means = [(a + b) / 2 for a, b in zip(*seats, strict=True)]
    assert means == pytest.approx([0.117, 0.194, 0.237], abs=6e-4)  # of the project log
    assert "sum .25,.25,1, episode 3" in call(*words).stdout


@pytest.mark.e2e
def test_a_tree_too_large_for_a_learner_gives_best_responses(monkeypatch):
    """The limit is enough for the best response, and a quick end of the learner's tree."""
    monkeypatch.setattr("mage.evaluation.exact.game_tree.MAX_NODES", 20_000)
    told = read("ceilings tic_tac_toe --weights random=1,pattern-0=1 --objective win")
    assert told["bayes_final"] is None
    assert "more than 20,000 positions" in told["note"]
    # .995 against random, 1 against a pattern
    assert told["best_response"] == pytest.approx({"random": 0.9948, "pattern-0": 1.0}, abs=1e-4)
    assert told["knows_opponent"] == pytest.approx(0.9974, abs=1e-4)


# --- check ---------------------------------------------------------------------------------------


def test_an_environment_is_compared_with_its_golden_play_through(tmp_path, monkeypatch):
    words = ("check tic_tac_toe --golden", tmp_path, "--games 5")
    assert "optional: --write stores three random games" in call(*words).stdout
    assert call(*words, "--write").exit_code == 0
    assert "three games are equal" in call(*words).stdout
    monkeypatch.setattr(TicTacToe, "rules", lambda self: "Other rules.")
    changed = call(*words)
    assert changed.exit_code == 1
    assert "line 2 was" in changed.stdout
    assert json.loads(call(*words, "--json").stdout)["faults"]


@pytest.fixture
def odd_players(tmp_path, monkeypatch):
    source = """
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
    """
    (tmp_path / "odd_players.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("odd_players", None)
    find.cache_clear()


def test_opponents_that_learn_or_cheat_are_found(odd_players):
    learner = call("check odd_players.Learner --environment kuhn_poker --games 20")
    assert learner.exit_code == 1
    assert "not stationary" in learner.stdout
    cheat = call("check odd_players.Cheat --environment kuhn_poker --games 5")
    assert cheat.exit_code == 1
    assert "'peek' is not a legal move" in cheat.stdout
    assert "probabilities that sum to 1" in cheat.stdout


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux: /dev/full is always full")
def test_an_error_that_cannot_be_printed_keeps_its_exit_code():
    with open("/dev/full", "w") as full:
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        words = [sys.executable, "-m", "mage", "show", "typo"]
        done = subprocess.run(words, stderr=full, env=buffered)
    assert done.returncode == 2


class Unread(StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_display_whose_reader_has_ended_is_silent(tmp_path, monkeypatch):
    """Ctrl-C also ends `tee`; the run must still be saved."""
    monkeypatch.setattr(sys, "stderr", Unread())
    display = open_display(RunFolder.create(tmp_path / "run", load_recipe("demo", [])))
    display.say("nobody reads this")
    assert display.console.quiet
