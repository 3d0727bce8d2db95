"""The report of a synthetic run: scripted agents play Kuhn poker, metrics are invented."""

import io
import json
import re
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from mage.api.report import write_report
from mage.config.recipe import build_recipe
from mage.environments.tic_tac_toe import TicTacToe
from mage.opponents.base import Population
from mage.report.curves import draw_legend
from mage.report.drawing import separate, smooth
from mage.report.run_results import SCORE, read_run_results
from mage.report.transcripts import choose, describe
from mage.report.verdict import tell_verdict
from mage.run_folder import RunError, RunFolder
from mage.types import Completion, Episode, MetaEpisode, Move, Task, Turn
from tests import toys
from tests.marks import end_to_end
from tests.report_runs import make_run, metrics_of, play
from tests.toys import summarise
from tests.view_runs import STYLES, store


@pytest.fixture(scope="module")
@end_to_end
def finished(tmp_path_factory):
    tables = {"environments": {"name": "kuhn_poker"}, "opponents": {"train": STYLES}}
    folder = make_run(tmp_path_factory.mktemp("runs") / "demo-1", tables)
    write_report(folder)
    return folder


def text_of(folder: RunFolder, name: str) -> str:
    return (folder.path / "report" / name).read_text("utf-8")


# --- The picture


def test_the_picture_is_a_png_of_1500_by_1000_and_every_panel_has_ink(finished):
    data = (finished.path / "report" / "curves.png").read_bytes()
    picture = imread(io.BytesIO(data))
    assert (data[:4], picture.shape[:2]) == (b"\x89PNG", (1000, 1500))
    # Every panel has ink: dark or coloured pixels in each of the six places.
    dark = picture[..., :3].min(axis=-1) < 0.8
    lower = [dark[700:940, left : left + 260] for left in (90, 460, 830, 1200)]
    places = [dark[160:590, 90:880], dark[160:590, 1020:1480], *lower]
    assert all(place.sum() > 300 for place in places)
    assert b"<svg" in (finished.path / "report" / "curves.svg").read_bytes()[:1000], "for papers"


def test_smoothing_keeps_a_constant_and_the_length():
    assert smooth([2.0] * 200) == [2.0] * 200
    assert smooth([1.0, 5.0]) == [1.0, 5.0]
    # Eleven values: a window of three, two at the ends.
    assert smooth([0.0] * 10 + [3.0])[-2:] == [1.0, 1.5]


def test_labels_move_apart_and_keep_their_order():
    assert separate([1.0, 1.0], 0.5) == [0.75, 1.25]
    assert separate([3.0, 0.0], 1.0) == [3.0, 0.0]
    assert separate([0.1, 0.3, 0.2], 0.4) == pytest.approx([-0.2, 0.6, 0.2])


# --- The page


def page_data(folder: RunFolder) -> dict:
    """The data of the run in its page: what the scripts hand to the viewer."""
    page = text_of(folder, "report.html")
    calls = re.findall(r"<script>mageData\((\"[^\"]+\"),(.*)\);</script>", page)
    return {json.loads(path): json.loads(value) for path, value in calls}


def test_the_page_holds_figures_ceilings_curves_and_recipe(finished):
    run = page_data(finished)[f"run/{finished.path.name}"]
    stages = {one["stage"]: one["overall"] for one in run["panels"][0]["stages"]}
    last = read_run_results(finished).finals["after", "test"].overall.episodes[-1]
    # Mean of both seats, .125 without adapting and .238 for the
    # third episode of the best learner.
    assert stages["after"]["non_adapting"] == pytest.approx(0.125, abs=1e-4)
    assert stages["after"]["episodes"][2]["ceiling"] == pytest.approx(0.238, abs=5e-4)
    assert stages["after"]["episodes"][2]["score"]["value"] == last.score.value
    assert list(stages) == ["before", "after", "emptied"]
    assert run["played"] == 61_440
    assert "[opponents.train]" in run["toml"]
    assert run["versions"]["packages"]["open_spiel"]


def test_the_page_may_load_nothing_and_quotes_hostile_text(finished):
    page = text_of(finished, "report.html")
    assert "default-src 'none'" in page
    assert "\\u003cscript\\u003ealert" in page, "what the model wrote is in the data"
    assert "<script>alert" not in page


def test_the_verdict_follows_the_interval(finished):
    """It names the side of the line on which the whole interval lies, if it lies on one."""
    found = read_run_results(finished).finals["after", "test"].overall
    score = found.episodes[-1].score
    sides = {
        score.low - 0.1: "interval is above it",
        score.high + 0.1: "interval is below it",
        (score.low + score.value) / 2: "does not decide it",
    }
    for line, side in sides.items():
        told = tell_verdict({"after": replace(found, non_adapting=line)}, SCORE)
        (sentence,) = [one for one in told if "The best policy that does not adapt" in one]
        assert side in sentence


# --- Transcripts


def test_transcripts_hold_memory_moves_result_and_reflection(finished):
    told = text_of(finished, "transcripts.md")
    meta = choose(finished.read_episodes_of("after_test"))[0][1]
    for wanted in (
        *("After training, test panel", "Before training, test panel", "In training, update 40"),
        *(meta.episodes[-1].recap, f"against {meta.task.opponent}, agent"),
        "It bets often. Call with Q.",
    ):
        assert wanted in told


def test_a_reply_cannot_close_its_quotation(finished):
    """The reply holds three backticks and a heading; it stands between fences of four."""
    told = text_of(finished, "transcripts.md")
    reply = "<script>alert('x')</script> ```\n  # not a heading <action>bet</action>"
    assert f"  ````\n  {reply}\n  ````" in told
    assert not re.search(r"^# not a heading", told, re.MULTILINE)


def test_the_choice_holds_every_opponent_gains_and_losses(finished):
    metas = finished.read_episodes_of("after_test")
    chosen = choose(metas)
    gains = [meta.episodes[-1].score - meta.episodes[0].score for meta in metas]
    assert {meta.task.opponent for _, meta in chosen} == set(STYLES)
    assert [reason for reason, _ in chosen][:5] == ["large gain"] * 3 + ["loss"] * 2
    first, loss = chosen[0][1], chosen[3][1]
    assert first.episodes[-1].score - first.episodes[0].score == max(gains)
    assert loss.episodes[-1].score - loss.episodes[0].score == min(gains)


def turn(text: str, legal: bool = True, kind: str = "play", finish: str = "stop") -> Turn:
    plain = toys.turn(reward=0.0 if legal else -0.5, kind=kind)
    said = {"completion": Completion((1,), (0.0,), text, finish, 0), "action": text}
    return replace(plain, observation=f"before {text}", legal=legal, **said)


def test_replies_are_in_order_among_the_moves():
    """The opponent opens, the agent errs once and answers; the reflection follows the result."""
    moves = (Move(0, "pass"), Move(1, "bet"), Move(0, "fold"))
    note = turn("It folds.", kind="reflect", finish="length")
    played, refused = (turn("jump", legal=False), turn("bet")), (turn("?", legal=False),)
    first = Episode(played, None, moves, 1.0, 5.0, "won", "finished", "You won.")
    second = Episode(refused, note, (), -2.0, -10.0, "lost", "illegal", "Forfeited.")
    task, memories = Task("e", 0, 1, "o", "test"), ("", "Note 1: It folds.")
    assert describe(MetaEpisode(task, 0, 0, (first, second), memories, 3), "why") == [
        "### 1. against o, agent second: scores +1, -2",
        "",
        "Chosen as: why (-3 from first to last). e, task seed 0, test split, policy version 3.",
        "",
        "**Episode 1: won, score +1**",
        "",
        "- Memory shown: empty",
        "- Opponent: `pass`",
        "- Sees: `before jump`",
        "- Replies (ILLEGAL: jump, penalty -0.5): `jump`",
        "- Sees: `before bet`",
        "- Replies (legal: bet): `bet`",
        "- Opponent: `fold`",
        "- Result (won, score +1, reward +5): `You won.`",
        "- Reflection (cut off at the length limit): `It folds.`",
        "",
        "**Episode 2: lost, score -2**",
        "",
        "- Memory shown: `Note 1: It folds.`",
        "- Sees: `before ?`",
        "- Replies (ILLEGAL: ?, penalty -0.5): `?`",
        "- Result (lost, score -2, reward -10, ended by illegal): `Forfeited.`",
        "",
    ]


# --- Unfinished runs


@pytest.mark.e2e
def test_an_empty_run_gets_a_report(tmp_path, kuhn_tables):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    assert all(path.is_file() for path in write_report(folder))
    assert page_data(folder)["run/run"]["panels"] == []
    assert "No episodes are stored yet" in text_of(folder, "transcripts.md")


@pytest.mark.e2e
def test_a_killed_run_is_reported_with_the_files_that_exist(tmp_path, kuhn_tables):
    """Killed in update 8, within a line; one evaluation and the episodes of one update exist."""
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    metas = play("", "test", 6)
    store(folder, "select_000000", metas)
    store(folder, "before_test", metas)
    for update in range(1, 8):
        folder.append_metrics(metrics_of(update, 100))
    with open(folder.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"update": 8, "score_1')
    folder.write_episodes(5, play("wise", "train", 6))
    write_report(folder)
    run, told = page_data(folder)["run/run"], text_of(folder, "transcripts.md")
    assert (run["updates"], run["total"], run["state"]) == (7, 100, "running")
    (verdict,) = run["panels"][0]["verdict"]
    assert verdict == "The final panel has not been played after training yet."
    assert "In training, update 5" in told
    assert "It bets often. Call with Q." in told


@pytest.mark.e2e
def test_a_panel_of_one_task_is_reported_without_an_interval(tmp_path, kuhn_tables):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    store(folder, "after_test", play("", "test", 1))
    write_report(folder)
    stage = page_data(folder)["run/run"]["panels"][0]["stages"][0]
    assert stage["overall"]["episodes"][0]["score"]["low"] is None


def test_an_evaluation_of_another_version_gives_one_clear_message(tmp_path, kuhn_tables):
    folder = RunFolder.create(tmp_path / "run", build_recipe(kuhn_tables))
    folder.write_evaluation("after_test", {"environment": "kuhn_poker", "overall": {}})
    with pytest.raises(RunError, match=r"after_test .* has another format"):
        write_report(folder)


@pytest.mark.e2e
def test_without_exact_lines_the_report_shows_success(tmp_path, kuhn_tables):
    tables = {"environments": {"name": "tic_tac_toe"}, "opponents": {"train": {"random": 1.0}}}
    folder = RunFolder.create(tmp_path / "run", build_recipe(tables))
    games = tuple(
        Episode((turn("5"),), None, (Move(0, "5"),), score, 10 * score, said, "finished", "")
        for score, said in ((0.0, "drawn"), (1.0, "won"))
    )
    meta = MetaEpisode(Task("tic_tac_toe", 1, 0, "random", "test"), 0, 0, games, ("", ""), 0)
    evaluation = summarise([meta], TicTacToe(), Population(train={"random": 1.0}), "test")
    folder.write_evaluation("after_test", evaluation.to_json())
    write_report(folder)
    run = page_data(folder)["run/run"]
    assert read_run_results(folder).measure.metric == run["measure"] == "success"
    assert "the success changes by +100.0 percentage points" in run["panels"][0]["verdict"][0]
    draws = run["panels"][0]["stages"][0]["overall"]["episodes"][0]["draws"]
    assert draws["value"] == 1.0


@pytest.mark.parametrize(("game", "measure"), [("kuhn_poker", "score"), ("tic_tac_toe", "success")])
def test_without_exact_lines_a_game_with_stakes_is_reported_by_its_score(tmp_path, game, measure):
    tables = {"environments": {"name": game}, "opponents": {"train": {"random": 1.0}}}
    results = read_run_results(RunFolder.create(tmp_path / "run", build_recipe(tables)))
    assert (results.measure.metric, results.measure_of("test").metric) == (measure, measure)


@pytest.mark.parametrize(
    "stages", [("before training",), ("before training", "after training", "without memory")]
)
def test_the_legend_names_both_exact_lines_for_any_number_of_stages(stages):
    axes = Figure().subplots()
    for name in (*stages, "best without adapting", "best learner"):
        axes.plot([0, 1], [0, 1], label=name)
    draw_legend(axes)
    assert sorted(text.get_text() for text in axes.get_legend().get_texts()) == sorted(
        (*stages, "best without adapting", "best learner")
    )
