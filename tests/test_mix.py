"""Several worlds in one training: shares, panels, figures by world, and equality with one world."""

from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from mage.api.agents import find_player
from mage.api.report import write_report
from mage.cli.main import app
from mage.config.errors import ConfigError, UserError
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe, build_recipe
from mage.environments.base import check, golden
from mage.environments.doors import Doors
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.mix import Mix
from mage.evaluation.kinds import figures_by_kind
from mage.evaluation.panels import make_panel, recipe_panel
from mage.evaluation.swapped import partners
from mage.opponents._frozen import FrozenAgent
from mage.opponents.base import find, population_of
from mage.play import PlaySetup
from mage.report.run_results import read_rows, read_run_results
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.tasks import draw_tasks
from mage.types import Task
from mage.viewer.runs import describe_run
from tests.marks import end_to_end

THREE = {
    "doors": {"share": 0.4, "safe": [0.2, 0.8]},
    "kuhn_poker": {"share": 0.3},
    "rock_paper_scissors": {"share": 0.3},
}
POOL = {"conservative": 0.25, "aggressive": 0.75, "dirichlet-0.5": 1.0}


def make(worlds: dict[str, Any], pool: dict[str, float] = POOL, **changes: Any) -> Recipe:
    tables = {
        "run": {"updates": 2, "save_every": 1, "evaluate_every": 2, "threads": 1},
        "environments": {"name": "mix", "worlds": worlds},
        "opponents": {"train": pool},
        "play": {"episodes": 2, "groups": 3, "members": 2},
        "agent": {"max_tokens": 8},
        "memory": {"keep": "history"},
        "engines": {"slots": 64, "context": 1024},
        "learn": {"lr": 1e-3},
        "evaluate": {"size": 6, "final_size": 6, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
    }
    for section, values in changes.items():
        tables[section] = tables.get(section, {}) | values
    return build_recipe(tables)


def never() -> bool:
    return False


# --- Options


@pytest.mark.parametrize(
    ("worlds", "message"),
    [
        ({"doors": {"share": 0.5}}, "the shares must sum to 1, but 0.5 = 0.5"),
        ({"doors": {"share": 0.7}, "kuhn_poker": {"share": 0.7}}, "but 0.7 + 0.7 = 1.4"),
        ({"doors": {"share": 0}, "kuhn_poker": {"share": 1}}, "doors.share = 0: a share is above"),
        ({"doors": {"share": "much"}}, 'doors.share = "much" is not a number'),
        ({"doors": {}}, "doors has no share: write share = ..."),
        ({}, "at least 1 item"),
        ({"dors": {"share": 1}}, "mage/environments/ has no 'dors' (did you mean 'doors'?)"),
        ({"mix": {"share": 1}}, "a mix cannot be a world of a mix"),
        ({"doors": {"share": 1, "arm": 3}}, "doors.arm is unknown (did you mean 'arms'?)"),
        ({"doors": {"share": 1, "arms": 1}}, "doors.arms = 1: arms = 1: a search needs 2 to 100"),
    ],
)
def test_wrong_worlds_are_one_message(worlds, message):
    with pytest.raises(ConfigError) as error:
        make(worlds)
    (line,) = str(error.value).splitlines()
    assert message in line
    assert line.endswith(
        "change it in [environments] of the recipe, or use --environments.worlds=..."
    )


def test_an_option_of_a_world_does_not_belong_to_the_mix():
    with pytest.raises(ConfigError, match=r"restart.*write it below environments\.worlds\.NAME"):
        build_recipe({"environments": {"name": "mix", "restart": "same"}})


def test_every_game_needs_an_opponent_that_plays_it():
    with pytest.raises(ConfigError, match="none of them plays kuhn_poker; opponents for kuhn_p"):
        make(THREE, {"dirichlet-0.5": 1.0})
    with pytest.raises(ConfigError, match="pattern does not play kuhn_poker; opponents for kuhn"):
        make({"doors": {"share": 0.5}, "kuhn_poker": {"share": 0.5}}, {"pattern": 1.0})
    with pytest.raises(ConfigError, match=r"opponents\.train is missing: kuhn_poker, rock_paper"):
        make(THREE, {})


def test_a_stored_recipe_gives_the_same_worlds():
    recipe = make(THREE)
    again = build_recipe(recipe.tables())
    assert again == recipe
    assert recipe.environment().shares() == {name: one["share"] for name, one in THREE.items()}
    assert recipe.environment().inside()["doors"] == Doors(safe=(0.2, 0.8))
    assert "restart" not in recipe.tables()["environments"]


def test_the_shipped_recipe_mixes_four_worlds():
    worlds = load_recipe("mix_small").environment().inside()
    assert worlds.keys() == {*THREE, "bandit"}


# --- Tasks and panels


def test_the_agent_of_a_mix_can_be_evaluated_in_a_world_without_opponents():
    options = ["--environments.name=mastermind"]
    with pytest.raises(ConfigError, match=r"use --opponents\.train= with an empty value"):
        load_recipe("qwen_mix", options)
    assert load_recipe("qwen_mix", [*options, "--opponents.train="]).opponents.train == {}


def test_groups_are_drawn_from_all_worlds_in_their_shares():
    recipe = make(THREE, play={"groups": 20})
    tasks = [task for update in range(5) for row in draw_tasks(recipe, update) for task in row]
    assert Counter(task.environment for task in tasks) == {
        "doors": 80,
        "kuhn_poker": 60,
        "rock_paper_scissors": 60,
    }
    for task in tasks:
        world = recipe.environment().world_of(task)
        assert find(task.opponent).plays(world) if world.multi_agent else task.opponent == ""
    played = Counter(task.opponent for task in tasks if task.environment == "kuhn_poker")
    assert played["aggressive"] / 60 == pytest.approx(0.75, abs=0.1)


def test_mixed_groups_stay_in_one_world():
    for row in draw_tasks(make(THREE, play={"groups": 10, "grouping": "mixed"}), 0):
        assert len({task.environment for task in row}) == 1


def test_a_panel_holds_the_panel_of_every_world():
    recipe = make(THREE, evaluate={"size": 10, "final_size": 20})
    tasks = recipe_panel(recipe, "test", "final")
    counts = Counter(task.environment for task in tasks)
    assert counts == {"doors": 8, "kuhn_poker": 6, "rock_paper_scissors": 6}
    alone = make_panel(
        KuhnPoker(), population_of(recipe).playing(KuhnPoker()), "test", size=6, episodes=2
    )
    assert {task for task in tasks if task.environment == "kuhn_poker"} == set(alone)
    with pytest.raises(UserError, match="2 tasks is too small for a mix of 3 worlds"):
        recipe_panel(recipe, "test", "final", 2)


def test_memories_are_swapped_within_a_world():
    recipe = make(THREE, evaluate={"final_size": 60})
    tasks = recipe_panel(recipe, "test", "final")
    for task, other in zip(tasks, partners(recipe.environment(), tasks), strict=True):
        assert tasks[other].environment == task.environment


def test_what_needs_one_world_says_so():
    mix = make(THREE).environment()
    with pytest.raises(UserError, match=r"one world only.*--environments\.name=doors"):
        mix.start(0)
    alone = Mix(worlds={"doors": {"share": 1}})
    assert alone.start(3).observe(0) == Doors().start(3).observe(0)


def test_a_frozen_copy_plays_the_world_of_the_task():
    copy = FrozenAgent(agent=None, environment=make(THREE).environment())
    found = copy.in_world_of(Task("kuhn_poker", 0, 0, "league", "train"))
    assert isinstance(found, FrozenAgent)
    assert found.environment == KuhnPoker()
    assert found._dialogues is copy._dialogues
    task = Task("kuhn_poker", 0, 0, "league", "train")
    assert PlaySetup(KuhnPoker(), None, None, rivals={"league": found}).meet(task) is found  # type: ignore[arg-type]


def test_the_contract_of_every_world_is_checked(tmp_path):
    mix = Mix(worlds=THREE)
    assert check(mix, 5) == []
    assert golden(mix).count("## game 0") == 3
    result = CliRunner().invoke(app, ["check", "mix", "--games", "3", "--golden", str(tmp_path)])
    assert (result.exit_code, "mix: no faults" in result.output) == (0, True)


# --- Training


@pytest.mark.e2e
def test_a_share_of_one_equals_the_training_of_that_world(tmp_path):
    pool = {"conservative": 0.25, "aggressive": 0.75}
    mixed = make({"kuhn_poker": {"share": 1.0, "reward_scale": 2.0}}, pool)
    alone = mixed.in_world("kuhn_poker")
    folders = [RunFolder.create(tmp_path / name, one) for name, one in (("a", alone), ("m", mixed))]
    for folder in folders:
        train(folder.path, Callback(), never)
    one, other = folders
    assert alone.environments.name == "kuhn_poker"
    assert one.metrics() == other.metrics()
    assert one.evaluation_names() == other.evaluation_names()
    for name in one.evaluation_names():
        assert one.read_evaluation(name) == other.read_evaluation(name)
    assert read_rows(one, "after_test") == read_rows(other, "after_test")


@pytest.fixture(scope="module")
@end_to_end
def whole(tmp_path_factory):
    folder = RunFolder.create(tmp_path_factory.mktemp("mix") / "run", make(THREE))
    train(folder.path, Callback(), never)
    return folder


@pytest.mark.e2e
def test_figures_are_given_for_every_world(whole):
    assert {f"{name}_score_2" for name in THREE} <= set(whole.metrics()[-1])
    results = read_run_results(whole)
    found = results.finals["after", "test"]
    assert [(one.environment, one.overall.tasks) for one in found.worlds] == [
        ("doors", 2),
        ("kuhn_poker", 2),
        ("rock_paper_scissors", 2),
    ]
    assert found.overall.tasks == 6
    assert found.overall.expert is None
    assert {cell.opponent for cell in found.worlds[1].by_opponent} <= {"conservative", "aggressive"}
    rows = results.rows("after", "test")
    assert rows is not None
    kinds = figures_by_kind(whole.recipe.environment(), rows)
    assert [kind.kind for kind in kinds] == list(THREE)
    assert [one.environment for one in results.by_world()] == list(THREE)
    assert len(results.by_world()[0].rows("after", "test") or ()) == 2


@pytest.mark.e2e
def test_viewer_and_report_show_every_world(whole, no_pictures):
    (panel,) = describe_run(whole)["panels"]
    assert [one["world"] for one in panel["worlds"]] == list(THREE)
    assert panel["worlds"][1]["stages"][0]["overall"]["tasks"] == 2
    page = next(path for path in write_report(whole) if path.suffix == ".html")
    assert "rock_paper_scissors" in page.read_text()
    result = CliRunner().invoke(app, ["report", str(whole.path)])
    assert result.exit_code == 0, result.output
    for name in THREE:
        assert f"{name}, test panel of 2 tasks" in result.output


@pytest.mark.e2e
def test_a_run_plays_one_of_its_worlds(whole):
    found = find_player("kuhn_poker", KuhnPoker(), (), whole.path, None)
    recipe = found.components.recipe
    assert recipe.environments.name == "kuhn_poker"
    assert recipe.opponents.train == {"conservative": 0.25, "aggressive": 0.75}
    result = CliRunner().invoke(app, ["evaluate", str(whole.path), "--by", "kind,opponent"])
    assert result.exit_code == 0, result.output
    assert "kuhn_poker, 2 tasks" in result.output
