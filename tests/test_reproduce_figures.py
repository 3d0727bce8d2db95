"""The figures of a reproduction: Pass@k curves, Draw@k, pairs of state and move, reflections."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from toys import meta

from mage.evaluation.statistics import Estimate
from mage.reproduce.action_shares import ILLEGAL, count_choices, frequencies, read_choices
from mage.reproduce.page import name_measure
from mage.reproduce.pictures import draw_choices, draw_curves, draw_habits
from mage.reproduce.plan import make_plan
from mage.reproduce.reflections import quote_reflections
from mage.reproduce.results import ArmCurve, CurvePanel, _paper_rates
from mage.reproduce.tables import TABLES
from mage.types import MetaEpisode, Outcome

SVG = "{http://www.w3.org/2000/svg}"


def played(*outcomes: Outcome, group: int = 0) -> MetaEpisode:
    found = meta((0.0,) * len(outcomes), group=group)
    episodes = zip(found.episodes, outcomes, strict=True)
    return replace(found, episodes=tuple(replace(one, outcome=end) for one, end in episodes))


# --- The paper's figures


@pytest.mark.parametrize(
    ("name", "key", "label", "curve"),
    [
        ("table1", ("webshop", "test"), "mage", {1: 0.664, 5: 1.0, 10: 1.0}),
        ("table1", ("sokoban", "test"), "mage", {1: 0.406, 10: 0.773}),
        ("table1", ("alfworld", "test"), "react", {10: 0.234}),
        ("ood", ("tic_tac_toe", "ood"), "mage", {1: 0.812, 10: 1.0}),
        ("population", ("tic_tac_toe", "ood"), "full", {1: 0.812, 10: 1.0}),
        ("rewards", ("alfworld", "test"), "differential", {10: 0.914}),
        ("rewards", ("webshop", "test"), "differential", {1: 0.664, 5: 1.0, 10: 1.0}),
        ("anchor", ("kuhn_poker", "test"), "global", {1: 0.594, 10: 0.656}),
        ("anchor", ("kuhn_poker", "test"), "local", {1: 0.336}),
    ],
)
def test_the_figures_of_the_paper_are_known_by_episode(name, key, label, curve):
    assert TABLES[name].paper[key][label] == curve  # type: ignore[index]


@pytest.mark.parametrize("table", [one for one in TABLES.values() if one.paper])
def test_tables_with_figures_of_the_paper_compare_what_the_paper_reports(table):
    for (world, split), rates in table.paper.items():
        wanted = "draw_at" if (world, split) == ("tic_tac_toe", "ood") else "pass_at"
        assert table.measure_of(world.partition(",")[0], split) == wanted
        assert set(rates) <= {arm.label for arm in table.arms}
    assert name_measure("pass_at", 10) == "Pass@10"
    assert name_measure("score", 3) == "score in episode 3"


@pytest.mark.parametrize(
    ("model", "is_shown"),
    [
        ("Qwen/Qwen3-4B", True),
        ("qwen3-4b", True),
        ("Qwen/Qwen3-4B-Base", False),
        ("Qwen/Qwen3-4B-Instruct-2507", False),
        ("Qwen/Qwen3-4B-AWQ", False),
        ("Qwen/Qwen3-1.7B", False),
    ],
)
@pytest.mark.parametrize("name", ["table1", "ood"])
def test_the_paper_stands_beside_its_own_model_only(name, model, is_shown):
    plan = make_plan(name, scale="paper", model=model, worlds=["tic_tac_toe"], only=["mage"])
    expected = (((10, 0.672),), ((1, 0.812), (10, 1.0))) if is_shown else ((), ())
    found = tuple(_paper_rates(plan, plan.jobs[0], "", split) for split in ("test", "ood"))  # type: ignore[arg-type]
    assert found == expected


# --- Pairs of state and move


def test_repeats_and_entropy_tell_a_fixed_path_from_a_scattered_one():
    same = meta((0.0, 0.0), anchors=("a", "b"))
    turns = tuple(replace(turn, action=word) for turn, word in zip(same.episodes[1].turns, "yz"))
    other = replace(same.episodes[1], turns=turns)
    changed = replace(same, episodes=(same.episodes[0], other))
    found = read_choices({"fixed": [same, same], "scattered": [same, changed]})
    assert found is not None
    fixed, scattered = (arm.habits for arm in found.arms)
    assert [one.repeats and one.repeats.value for one in fixed] == [None, 1.0]
    assert [one.repeats and one.repeats.value for one in scattered] == [None, 0.5]
    assert fixed[1].entropy == pytest.approx(math.log(2))
    assert scattered[1].entropy == pytest.approx(math.log(4))
    assert (scattered[1].turns, scattered[1].pairs) == (4, 4)


def test_frequencies_are_shares_of_all_turns_and_illegal_replies_are_moves():
    one = meta((0.0,), anchors=("a", "a", "b"))
    turns = one.episodes[0].turns
    illegal = replace(one.episodes[0], turns=(*turns, replace(turns[0], legal=False)))
    count = count_choices(replace(one, episodes=(illegal,)))
    rows = [("a", "x"), ("a", ILLEGAL), ("b", "x")]
    np.testing.assert_allclose(frequencies(count, rows, 2), [[0.5, 0], [0.25, 0], [0.25, 0]])


# --- Reflections


def test_the_first_task_lost_and_later_won_is_quoted_up_to_its_win():
    metas = [
        played("won", "lost", "won", group=0),
        played("lost", "lost", "lost", group=1),
        played("lost", "drawn", "won", "won", group=2),
        played("lost", "won", group=3),
    ]
    quote, none = quote_reflections({"mage": metas, "lamer": metas[:2]})
    assert [(trial.episode, trial.outcome) for trial in quote.trials] == [
        (1, "lost"),
        (2, "drawn"),
        (3, "won"),
    ]
    assert (quote.task, quote.opponent, quote.searched) == (3, "o", 4)
    assert (none.trials, none.searched) == ((), 2)
    silent = replace(metas[3], episodes=metas[3].episodes[:1])
    assert quote_reflections({"react": [silent]}) == (), "this arm writes no reflections"


def test_a_long_reply_is_cut_and_marked():
    found = played("lost", "won")
    note = found.episodes[1].reflection
    assert note is not None
    long = replace(note, completion=replace(note.completion, text="word " * 400))
    second = replace(found.episodes[1], reflection=long)
    (quote,) = quote_reflections({"mage": [replace(found, episodes=(found.episodes[0], second))]})
    text = quote.trials[0].reflection
    assert text.endswith("word ...")
    assert len(text) < 610


# --- Pictures


def curve(label: str, *values: float, paper: tuple[tuple[int, float], ...] = ()) -> ArmCurve:
    found = tuple(Estimate(one, one - 0.1, one + 0.1, 12) for one in values)
    return ArmCurve(label, label != "react", found, paper)


def test_pictures_are_whole_svg_files_with_names_and_the_same_bytes():
    arms = (curve("react", 0.1, 0.2), curve("mage", 0.4, 0.6, paper=((1, 0.3), (2, 0.9))))
    panel = CurvePanel("ood", "1 box", "pass_at", arms)
    text = draw_curves(panel)
    assert text == draw_curves(panel)
    words = {"".join(one.itertext()) for one in ElementTree.fromstring(text).iter(f"{SVG}text")}
    assert {"ReAct", "MAGE", "Pass@k, out of domain, 1 box"} <= words
    choices = read_choices({"mage": [meta((0.0, 0.0))]})
    assert choices is not None
    drawn = [*draw_choices(choices), *draw_habits(choices)]
    assert [ElementTree.fromstring(one).tag for one in drawn] == [f"{SVG}svg"] * 3
