"""Panels: balance, shares of the population, no overlap, the same tasks on every machine."""

from collections import Counter
from itertools import combinations
from typing import ClassVar, Literal

import pytest
from corridor import Corridor
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.config.menus import menu
from mage.environments.alfworld import Alfworld
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.evaluation.panels import check_panel_sizes, make_panel
from mage.opponents.base import Population, population_of
from mage.seeds import derive

KUHN = KuhnPoker()
STYLES = Population(
    train={"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}, ood={"cfr": 1}
)
GOLDEN = [(7112480182061938446, 1, "conservative"), (835537364843124896, 1, "aggressive")]


# Games of the official release after ALFWorld's own filter.
OFFICIAL_GAMES = {"train": 3553, "test": 140, "ood": 134}
OFFICIAL_SHOP = ("paper_webshop", "qwen_webshop")  # recipes that need WEBSHOP_DATA


def deals(tasks, *episodes, environment=KUHN):
    return Counter(
        tuple(environment.stratum(environment.episode_seed(task.seed, n)) for n in episodes)
        for task in tasks
    )


def block(panel, opponent, seat):
    return [task for task in panel if (task.opponent, task.seat) == (opponent, seat)]


def test_opponents_and_seats_have_their_shares():
    panel = make_panel(KUHN, STYLES, "test", size=240)
    counts = Counter((task.opponent, task.seat) for task in panel)
    assert counts == {
        (name, seat): count
        for name, count in (("conservative", 36), ("aggressive", 36), ("intermediate", 48))
        for seat in (0, 1)
    }
    assert {(task.environment, task.split) for task in panel} == {("kuhn_poker", "test")}


def test_every_deal_is_equally_frequent_in_every_episode_of_a_block():
    panel = make_panel(KUHN, STYLES, "test", size=240)
    for opponent, count in (("conservative", 6), ("aggressive", 6), ("intermediate", 8)):
        for seat in (0, 1):
            for episode in range(3):
                assert deals(block(panel, opponent, seat), episode) == {
                    (deal,): count for deal in range(6)
                }


def test_pairs_of_deals_are_balanced_and_a_large_block_is_a_full_factorial():
    panel = make_panel(KUHN, Population(train={"aggressive": 1}), "train", size=216, seats="second")
    assert {task.seat for task in panel} == {1}
    assert deals(panel, 0, 1, 2) == dict.fromkeys(
        ((a, b, c) for a in range(6) for b in range(6) for c in range(6)), 1
    )
    small = make_panel(KUHN, Population(train={"aggressive": 1}), "train", size=36, seats="first")
    assert set(deals(small, 0, 1).values()) == set(deals(small, 0, 2).values()) == {1}
    assert max(deals(small, 1, 2).values()) == 2


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 100),
    st.sampled_from(["first", "second", "both"]),
    st.sampled_from(["select", "final"]),
    st.integers(1, 5),
)
def test_counts_of_deals_differ_by_at_most_one_for_any_size(size, seats, name, episodes):
    panel = make_panel(KUHN, STYLES, "test", size=size, seats=seats, name=name, episodes=episodes)
    assert len(panel) == len({task.seed for task in panel}) == size
    for opponent in STYLES.train:
        for seat in (0, 1):
            for episode in range(min(episodes, 3)):
                counts = deals(block(panel, opponent, seat), episode)
                assert (
                    max(counts.values(), default=0)
                    - min((counts[deal,] for deal in range(6)), default=0)
                    <= 1
                )


def test_panels_share_no_seed_with_each_other_or_with_training():
    panels = [
        make_panel(KUHN, STYLES, split, size=300, name=name)
        for name in ("select", "final")
        for split in ("train", "test", "ood")
    ]
    training = {
        derive(run, "train", update, k)
        for run in range(3)
        for update in range(30)
        for k in range(16)
    }
    for one, other in combinations(
        [{task.seed for task in panel} for panel in panels] + [training], 2
    ):
        assert not one & other


def test_a_panel_is_the_same_on_every_machine():
    """Golden values from Linux, Python 3.11. A change makes old figures incomparable."""
    panel = make_panel(KUHN, STYLES, "test", size=12, name="select")
    assert panel == make_panel(KUHN, STYLES, "test", size=12, name="select")
    assert [(task.seed, task.seat, task.opponent) for task in panel[:2]] == GOLDEN


def test_a_replayed_deal_is_balanced_once():
    same = KuhnPoker(restart="same")
    panel = make_panel(same, STYLES, "ood", size=24)
    for seat in (0, 1):
        assert deals(block(panel, "cfr", seat), 0, 1, 2, environment=same) == {
            (deal,) * 3: 2 for deal in range(6)
        }


def test_a_game_without_chance_balances_opponents_and_seats_only():
    panel = make_panel(TicTacToe(), Population(train={"random": 1, "mcts-100": 1}), "train", size=8)
    assert Counter((task.opponent, task.seat) for task in panel) == {
        (name, seat): 2 for name in ("random", "mcts-100") for seat in (0, 1)
    }


def instances(environment, panel, episodes):
    """The instances of all episodes of a panel."""
    count = 1 if environment.restart == "same" else episodes
    return {
        environment.instance_key(environment.episode_seed(task.seed, episode))
        for task in panel
        for episode in range(count)
    }


@pytest.mark.e2e
def test_select_and_final_panels_of_every_recipe_share_no_instance(monkeypatch):
    """Recipes with the same world and the same evaluation have the same panels."""
    monkeypatch.setattr(Alfworld, "_files", lambda self: tuple(range(OFFICIAL_GAMES[self.split])))
    different = {}
    for name, _ in menu("recipes"):
        recipe = load_recipe(name, ["--environments.data="] if name in OFFICIAL_SHOP else [])
        tables = recipe.tables()
        parts = [tables.get(part) for part in ("environments", "evaluate", "opponents")]
        different[str([*parts, recipe.evaluation_episodes()])] = recipe
    assert len(different) > 15
    for recipe in different.values():
        if recipe.evaluate.select_split in recipe.evaluate.splits:  # otherwise nothing is shared
            check_panels(recipe)


def check_panels(recipe):
    options, split = recipe.evaluate, recipe.evaluate.select_split
    # In a game with opponents, a task is its seed; a small panel shows the same.
    single = not recipe.environment().multi_agent
    sizes = (options.size, options.final_size) if single else (60, 120)
    episodes = recipe.evaluation_episodes()
    panels = [
        make_panel(
            recipe.environment(),
            population_of(recipe),
            split,
            size=size,
            name=panel,
            episodes=episodes,
            final_size=sizes[1],
        )
        for panel, size in zip(("select", "final"), sizes, strict=True)
    ]
    world = recipe.environment().for_split(split)
    found = [instances(world, panel, episodes) for panel in panels]
    assert [len(panel) for panel in panels] == list(sizes)
    assert not found[0] & found[1]


def test_the_paper_alfworld_recipe_chooses_checkpoints_on_another_split():
    options = load_recipe("paper_alfworld").evaluate
    assert options.select_split not in options.splits


class Shelf(Corridor):
    """Ten instances; each is a stratum."""

    name: ClassVar[str] = "shelf"
    restart: Literal["same", "fresh"] = "same"

    def strata(self):
        return 10

    def stratum(self, seed):
        return seed % 10

    def instances(self):
        return 10

    def instance_key(self, seed):
        return seed % 10


def test_a_select_panel_uses_each_instance_that_the_final_panel_left_over():
    world, nobody = Shelf(), Population()
    final = make_panel(world, nobody, "test", size=6, final_size=6)
    select = make_panel(world, nobody, "test", size=4, name="select", final_size=6)
    found = [instances(world, panel, 1) for panel in (final, select)]
    assert (len(found[0]), len(found[1])) == (6, 4)
    assert found[0] | found[1] == set(range(10))


def test_the_message_about_too_few_instances_says_how_many_there_are():
    message = "shelf has 10 instances in split 'test', but the select panel needs 5 and the final"
    with pytest.raises(ValueError, match=message):
        make_panel(Shelf(), Population(), "test", size=5, name="select", final_size=6)
    with pytest.raises(ValueError, match=message):
        check_panel_sizes(Shelf(), "test", 5, 6)


def test_a_training_with_too_few_instances_ends_with_one_message(tmp_path):
    words = ["train", "webshop", "--evaluate.size=20", "--runs", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "webshop has 25 instances in split 'test'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_have_clear_messages():
    with pytest.raises(ValueError, match="no opponents for split 'ood'"):
        make_panel(KUHN, Population(train={"random": 1}), "ood", size=6)
    with pytest.raises(ValueError, match="seats must be one of first, second, both"):
        make_panel(KUHN, STYLES, "test", size=6, seats="third")
    with pytest.raises(ValueError, match="at least one task"):
        make_panel(KUHN, STYLES, "test", size=0)
