"""`mage reproduce`: methods train, plans have equal budgets, a killed reproduction resumes."""

import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from processes import Forked, start_mage, wait
from rich.console import Console, RenderableType
from toys import meta
from typer.testing import CliRunner

from mage.agent.chat import Chat
from mage.cli.main import app
from mage.cli.terminal.markdown import show_markdown
from mage.cli.terminal.tables import plain_table
from mage.cli.verbs.reproduce import read_seeds
from mage.config.loading import load_recipe
from mage.evaluation.statistics import Difference, Estimate
from mage.models.base import model_folder
from mage.opponents.base import population_of
from mage.reproduce import executors
from mage.reproduce.action_shares import count_choices, shares
from mage.reproduce.executors import RUNNER, LocalExecutor
from mage.reproduce.page import write_page
from mage.reproduce.plan import Plan, episodes_of_update, make_plan, open_runs
from mage.reproduce.results import Pair, read_results
from mage.reproduce.runner import Runner, RunnerProgress
from mage.reproduce.tables import TABLES
from mage.reproduce.worker import work
from mage.run_folder import RunError, RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.trainer import Trainer
from tests.marks import end_to_end

TINY = [
    *("--run.updates=1", "--run.evaluate_every=0", "--run.save_every=1"),
    *("--run.move_probabilities=false", "--play.groups=1", "--evaluate.size=2"),
    *("--evaluate.final_size=6", "--engines.slots=64"),
]
KINDS = ("single", "cumulative", "differential", "final")


# The paper has no such experiments.
PAPER_TABLES = [name for name in TABLES if name not in ("returns", "exploration")]


def tiny_plan(*only: str, seeds: Sequence[int] = (0,), more: Sequence[str] = ()) -> Plan:
    overrides = [*TINY, *more]
    return make_plan("table1", worlds=["kuhn_poker"], seeds=seeds, only=only, overrides=overrides)


def train_all(plan: Plan, runs: Path) -> None:
    for job in plan.jobs:
        train(RunFolder.create(runs / job.name, job.recipe).path, Callback(), never)


def ignore(standing: RunnerProgress) -> None:
    pass


def never() -> bool:
    return False


# --- Plans


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, "small") for name in TABLES]
    + [pytest.param(name, "paper", marks=pytest.mark.e2e) for name in PAPER_TABLES]
    + [pytest.param(name, "qwen", marks=pytest.mark.e2e) for name in ("table1", "returns")],
)
def test_every_table_can_be_planned_with_equal_budgets_and_one_panel(name, scale):
    plan = make_plan(name, scale=scale, seeds=[0, 1])  # type: ignore[arg-type]
    for world in plan.worlds:
        jobs = [job for job in plan.jobs if job.world == world]
        assert len({job.training_episodes for job in jobs if job.trains}) == 1
        assert len({json.dumps(job.recipe.tables()["evaluate"]) for job in jobs}) == 1
        assert len({json.dumps(dict(population_of(job.recipe).pool("test"))) for job in jobs}) == 1


def test_the_small_table_takes_less_than_three_hours_on_two_cores():
    plan = make_plan("table1", seeds=range(5))
    assert len(plan.jobs) == 2 * (5 * 5 + 4), (
        "five trained methods with five seeds, four without training once, two worlds"
    )
    assert sum(job.core_seconds for job in plan.jobs) / 2 < 3 * 3600


def test_the_table_of_returns_gives_every_method_its_own_returns():
    """Values of the papers: discounts .95 and .6, rewards at the end of an episode."""
    jobs = {job.arm.label: job for job in make_plan("returns").jobs}
    options = {label: job.recipe.returns for label, job in jobs.items()}
    kinds = dict(zip(("gigpo", "lamer", "mage", "final"), KINDS, strict=True))
    assert {label: one.kind for label, one in options.items()} == kinds
    assert not any(one.per_turn for one in options.values())
    for label in ("lamer", "mage"):
        assert (options[label].step_discount, options[label].episode_discount) == (0.95, 0.6)
    assert options["final"].weights == (0.25, 0.25, 1.0)
    assert jobs["gigpo"].recipe.play.episodes == 1
    assert population_of(jobs["mage"].recipe).pool("test") == {"dirichlet-0.5": 1.0}


def test_a_table_without_an_environment_of_the_scale_is_refused():
    with pytest.raises(ValueError, match="returns has no environment of scale paper"):
        make_plan("returns", scale="paper")
    with pytest.raises(ValueError, match="table anchor is not for scale qwen: use --scale small"):
        make_plan("anchor", scale="qwen")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_table_of_published_credit_compares_two_credits(scale):
    plan = make_plan("published", scale=scale, worlds=["tic_tac_toe"])  # type: ignore[arg-type]
    ours, published = (job.recipe for job in plan.jobs)
    assert (ours.advantages.name, published.advantages.name) == ("gigpo", "published")
    assert (ours.returns.penalties, published.returns.penalties) == (True, False)
    assert ours.returns.kind == published.returns.kind == "differential"


def test_a_budget_sets_the_updates():
    (job,) = make_plan("table1", worlds=["tic_tac_toe"], only=["mage"], budget=3_000).jobs
    assert (job.recipe.run.updates, episodes_of_update(job.recipe)) == (10, 288)
    with pytest.raises(ValueError, match="less than one update"):
        make_plan("table1", worlds=["tic_tac_toe"], only=["mage"], budget=100)


def test_wrong_seeds_and_names_are_refused():
    assert read_seeds("3") == [0, 1, 2]
    assert read_seeds("3-4") == [3, 4]
    for wrong in ("0", "x", "4-3", "-2"):
        with pytest.raises(ValueError, match="--seeds"):
            read_seeds(wrong)
    with pytest.raises(ValueError, match=r"has no arm 'lamr' \(did you mean 'lamer'\?\)"):
        make_plan("table1", only=["lamr"])
    with pytest.raises(ValueError, match="has no world 'sokoban'"):
        make_plan("population", worlds=["sokoban"])


@pytest.mark.parametrize(
    ("table", "world", "arm", "kept"),
    [
        ("returns", "demo", "mage", "rps_history_mage_seed1"),
        ("returns", "demo", "lamer", "rps_history_lamer_seed1"),
        ("returns", "demo", "gigpo", "rps_gigpo_seed1"),
        ("table1", "kuhn_poker", "mage", "kuhn_mage_seed3"),
        ("table1", "kuhn_poker", "lamer", "kuhn_lamer_seed1"),
        ("table1", "kuhn_poker", "gigpo", "kuhn_gigpo_seed1"),
    ],
)
def test_the_scale_qwen_trains_as_the_kept_runs_of_qwen_did(table, world, arm, kept):
    (job,) = make_plan(table, scale="qwen", worlds=[world], only=[arm]).jobs
    runs = Path(__file__).parent.parent / "results" / "qwen" / "more_seeds"
    old, new = load_recipe(str(runs / kept / "recipe.toml")).flat(), job.recipe.flat()
    differ = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    # Without names, GPU memory and sizes of panels. The history has no reflections.
    assert {key for key in differ if not key.startswith(("run.", "evaluate."))} <= {
        *("advantages.reflection_weight", "learn.micro_tokens", "opponents.test")
    }
    assert old["run.updates"] == new["run.updates"]


def test_untrained_arms_of_the_scale_qwen_have_no_supervised_start():
    plan = make_plan(
        "table1", scale="qwen", worlds=["alfworld"], only=["react", "reflexion", "mage"]
    )
    assert [job.recipe.warmup.first for job in plan.jobs] == [False, False, True]


def test_arms_without_training_run_once_under_the_first_seed():
    for seeds, names in (((0, 1), ["react", "mage-seed0", "mage-seed1"]), ((3,), ["mage-seed3"])):
        plan = tiny_plan("react", "mage", seeds=seeds)
        assert [job.name for job in plan.jobs] == [f"kuhn_poker-{name}" for name in names]


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path):
    words = ["reproduce", "table1", "--seeds", "5", "--jobs", "2", "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "58 runs in" in done.output
    assert re.search(r"about 2:\d\d:\d\d on 2 free cores", done.output)
    assert not (tmp_path / "out").exists()


def show_in_window(part: RenderableType, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, force_terminal=True, color_system=None, width=width).print(part)
    return [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]


def test_a_table_breaks_no_word_and_becomes_paragraphs_in_a_narrow_window():
    header = ("world", "training episodes", "step_advantage")
    table = plain_table(header, [("kuhn_poker", "307,200", "0.5")])
    assert show_in_window(table, 60)[0].split() == [
        *("world", "training", "episodes", "step_advantage")
    ]
    lines = show_in_window(table, 36)
    assert [line.split() for line in lines[:2]] == [
        ["training", "step_"],
        ["world", "episodes", "advantage"],
    ]
    assert show_in_window(table, 30) == [
        "kuhn_poker",
        "  training episodes 307,200",
        "  step_advantage 0.5",
    ]


def test_cells_of_a_page_may_be_empty_or_hold_a_bar():
    page = "| a | b |\n|---|---|\n| x \\| y | |\n| 1 |\n"
    lines = [line for part in show_markdown(page) for line in show_in_window(part, 80)]
    assert [line.split() for line in lines if line.strip(" ─")] == [
        ["a", "b"],
        ["x", "|", "y"],
        ["1"],
    ]


def test_the_terminal_shows_a_page_without_signs_of_markdown():
    table = "| arm | won |\n| --- | --- |\n| mage | 1 |"
    page = f"# Title\n\nA **bold** `word`.\n\n{table}\n\n![x](a.svg)\n"
    lines = [line for part in show_markdown(page) for line in show_in_window(part, 80)]
    assert lines[:2] == ["Title", "A bold word."]
    assert [line.split() for line in lines[2:5:2]] == [["arm", "won"], ["mage", "1"]]
    assert lines[-1] == "picture: a.svg"


# --- Running


def go(out: Path, *more: str, prepare: Callable[[], None] | None = None) -> BaseProcess:
    words = ["reproduce", "table1", "--environment", "kuhn_poker", "--seeds", "1", "--jobs", "1"]
    words += ["--out", str(out), "--only", "lamer", *TINY, *more]
    return start_mage(words, out.parent, out.parent / "log", prepare=prepare or fork_workers)


def fork_workers() -> None:
    """In a process of `mage reproduce`: its workers are forked; nothing is loaded again."""
    executors.subprocess = Forked  # type: ignore[assignment]


def kill_in_update_2() -> None:
    """The worker kills the process that has started it when its second update begins."""
    fork_workers()
    whole = Trainer._update

    def begin(trainer: Trainer) -> None:
        if trainer.done == 1:
            runner = os.getppid()
            os.kill(runner, signal.SIGKILL)
            while os.getppid() == runner:
                time.sleep(0.01)
        whole(trainer)

    Trainer._update = begin  # type: ignore[method-assign]


@pytest.mark.e2e
def test_a_killed_reproduction_resumes_and_ends_with_the_same_figures(tmp_path):
    more = ("--run.updates=4", "--play.members=2", "--evaluate.final_size=2")
    assert wait(go(tmp_path / "a", *more, prepare=kill_in_update_2)) == -signal.SIGKILL
    metrics = tmp_path / "a" / "runs" / "kuhn_poker-lamer-seed0" / "metrics.jsonl"
    assert not (metrics.parent / "summary.json").exists(), "a worker without its runner stops"
    assert wait(go(tmp_path / "a", *more)) == 0
    plan = tiny_plan("lamer", more=more)
    whole = RunFolder.create(tmp_path / "whole", plan.jobs[0].recipe)
    train(whole.path, Callback(), never)
    assert whole.metrics() == RunFolder.open(metrics.parent).metrics()
    assert (tmp_path / "a" / "table1.html").is_file()
    shutil.copytree(tmp_path / "a" / "runs", tmp_path / "b" / "runs")  # as from another machine
    copied = Runner(plan, tmp_path / "b" / "runs", LocalExecutor(1))
    reports: list[RunnerProgress] = []
    assert copied.run(reports.append, never)
    assert reports == [], "no worker starts, because nothing is left to run"


@pytest.mark.e2e
def test_a_stopped_reproduction_reports_it_and_leaves_no_worker(tmp_path):
    runner = Runner(tiny_plan("mage"), tmp_path, LocalExecutor(1))
    assert not runner.run(
        ignore, lambda: (tmp_path / "kuhn_poker-mage-seed0" / "worker.log").is_file()
    )
    assert runner.working == {}
    assert runner.failures == []
    assert not (tmp_path / "kuhn_poker-mage-seed0" / "summary.json").exists()


@pytest.mark.e2e
def test_a_run_with_other_options_is_refused(tmp_path):
    (job,) = tiny_plan("react").jobs
    RunFolder.create(tmp_path / job.name, job.recipe)
    assert list(open_runs(tiny_plan("react"), tmp_path)) == [job.name]
    with pytest.raises(RunError, match=r"with other options: evaluate\.size is 2, planned 7"):
        open_runs(tiny_plan("react", more=["--evaluate.size=7"]), tmp_path)


@pytest.mark.e2e
def test_a_failed_run_is_reported_and_the_others_finish(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "subprocess", Forked)
    plan = tiny_plan("react", "reflexion")
    broken = RunFolder.create(tmp_path / plan.jobs[0].name, plan.jobs[0].recipe)
    (broken.path / "checkpoints").rmdir()
    (broken.path / "checkpoints").write_text("no folder")
    runner = Runner(plan, tmp_path, LocalExecutor(2))
    assert runner.run(ignore, never)
    assert [failure.name for failure in runner.failures] == ["kuhn_poker-react"]
    assert "checkpoints" in runner.failures[0].text
    assert (tmp_path / "kuhn_poker-reflexion" / "summary.json").is_file()


class Ended:
    """Stands for a worker that has ended."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def test_a_worker_that_somebody_else_has_stopped_is_a_failure(tmp_path):
    runner = Runner(tiny_plan("react"), tmp_path, LocalExecutor(1))
    runner.working = {"done": Ended(0), "stopped": Ended(130)}
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "worker.log").write_text("Stopped.\n")
    assert runner._collect() == set()
    assert [(one.name, one.text) for one in runner.failures] == [("stopped", "Stopped.")]


def test_a_worker_without_its_runner_stops_after_an_update(tmp_path, monkeypatch):
    """The runner has ended before the worker could look."""
    (job,) = tiny_plan("lamer", more=["--run.updates=4"]).jobs
    folder = RunFolder.create(tmp_path / job.name, job.recipe)
    monkeypatch.setenv(RUNNER, "0")
    assert work(folder.path) == 130
    assert len(folder.metrics()) <= 1


# --- The page


@pytest.fixture(scope="module")
@end_to_end
def reproduced(tmp_path_factory):
    """Two methods and two seeds, really run."""
    out = tmp_path_factory.mktemp("out")
    plan = tiny_plan("reflexion", "gigpo", "mage", seeds=(0, 1))
    train_all(plan, out / "runs")
    return plan, out


def test_the_page_holds_tables_and_pictures_in_one_file(reproduced):
    plan, out = reproduced
    page, table, figures = write_page(plan, out)
    text = page.read_text("utf-8")
    assert "default-src 'none'" in text, "the page may not load anything"
    assert str(out) not in text
    lines = table.read_text()
    for expected in (
        *("mage minus gigpo", "training tokens", "Success in episode k", "p, Holm"),
        *("Pass@k, test panel", "Pass@k, ood panel", "State-action pairs by episode"),
        *("Differences in Pass@3", "Differences in score in episode 3", "Reflections by trial"),
    ):
        assert expected in lines, expected
    assert "the paper," not in lines, "runs of the embedded model stand alone"
    found = json.loads(figures.read_text())
    (world,) = found["results"]
    assert [(arm["label"], arm["tasks"], arm["seeds"]) for arm in world["arms"]] == [
        ("reflexion", 6, [0]),
        ("gigpo", 6, [0, 1]),
        ("mage", 6, [0, 1]),
    ]
    assert "| gigpo | 2 | 6 |" in lines
    assert found["title"] == plan.table.title
    assert re.match(
        r"\d of 3 pairs of arms differ significantly in Pass@3", found["sentences"][0][0]
    )
    assert (world["measure"], world["second"]["measure"]) == ("pass_at", "score")
    drawn = found["pictures"][0]
    assert {kind: len(texts) for kind, texts in drawn.items()} == {
        "curves": 2,  # in and out of domain
        "choices": 3,  # one an arm
        "habits": 2,
    }
    files = sorted(path.name for path in (out / "pictures").iterdir())
    assert files[-2:] == [f"table1_kuhn_poker_test_habits_{k}.svg" for k in (1, 2)]
    assert all(f"(pictures/{name})" in lines for name in files)
    arms = found["choices"][0]["arms"]
    assert [arm["label"] for arm in arms] == ["reflexion", "gigpo", "mage"]


def test_figures_equal_those_of_the_runs(reproduced):
    plan, out = reproduced
    (world,) = read_results(plan, out / "runs")
    folders = open_runs(plan, out / "runs")
    for arm in world.arms:
        held = [folders[job.name] for job in plan.jobs if job.arm.label == arm.label]
        scores = [
            folder.read_summary()["after"]["test"]["episodes"][2]["score"]["value"]
            for folder in held
        ]
        assert arm.episodes[2].score.value == pytest.approx(np.mean(scores))
        assert arm.budget.training_episodes == (24 if arm.trains else 0)
    assert [(pair.first, pair.second, pair.seeds) for pair in world.pairs] == [
        ("reflexion", "gigpo", 2),
        ("reflexion", "mage", 2),
        ("gigpo", "mage", 2),
    ]
    assert world.bounds is not None
    # The mean of both seats, as `mage ceilings kuhn_poker` says (docs/worlds.md).
    assert world.bounds.non_adapting == pytest.approx(0.125, abs=1e-4)
    assert world.budget_faults == ()


def test_one_seed_of_a_trained_arm_is_never_significant():
    sure = Difference(Estimate(0.2, 0.1, 0.3, 100), 0.0002)
    assert not Pair("mage", "final", 1, sure, 0.0002, trained=True).is_real
    assert Pair("mage", "final", 5, sure, 0.0002, trained=True).is_real
    assert Pair("react", "amem", 1, sure, 0.0002, trained=False).is_real
    assert not Pair("mage", "final", 5, sure, 0.06, trained=True).is_real


@pytest.mark.e2e
def test_unequal_budgets_are_reported(tmp_path):
    plan = tiny_plan("gigpo", "mage", more=["--play.members=4", "--evaluate.final_size=2"])
    train_all(plan, tmp_path / "runs")
    (world,) = read_results(plan, tmp_path / "runs")
    assert world.budget_faults[0] == "training episodes differ: gigpo 4, mage 12"


def test_missing_runs_are_named_and_the_page_is_still_written(reproduced):
    _, out = reproduced
    plan = tiny_plan("reflexion", "gigpo", "mage", seeds=(0, 1, 2))
    told = "2 runs are missing: kuhn_poker-gigpo-seed2, kuhn_poker-mage-seed2"
    assert told in write_page(plan, out)[1].read_text()


def test_choices_are_shares_among_all_moves_in_a_state():
    count = count_choices(meta((1.0, -1.0), anchors=("a", "b", "a")))
    assert count == {
        (k, state, "x"): times for k in (0, 1) for state, times in (("a", 2), ("b", 1))
    }
    count[1, "a", "y"] = 6
    np.testing.assert_array_equal(
        shares(count, [("a", "x"), ("a", "y"), ("c", "x")], 2),
        [[1.0, 0.25], [0.0, 0.75], [np.nan, np.nan]],
    )


@pytest.mark.e2e
def test_methods_trained_on_single_games_get_the_same_prompt_in_evaluation(tmp_path):
    """A policy trained on `game 1 of 1` is not evaluated on `game 3 of 3`, an unseen prompt."""
    more = ("--run.workers=1", "--evaluate.episodes=3", "--run.episodes_every=1")
    recipe = load_recipe("kuhn_poker+gigpo", [*TINY, *more])
    folder = RunFolder.create(tmp_path / "run", recipe)
    train(folder.path, Callback(), never)
    chat = Chat.load(model_folder(recipe))
    for metas in (folder.read_episodes(1), folder.read_episodes_of("after_test")):
        prompts = {
            chat.tokenizer.decode(list(turn.prompt_ids))
            for meta in metas
            for episode in meta.episodes
            for turn in episode.turns[:1]
        }
        assert all("Game 1 of 1." in prompt for prompt in prompts)
