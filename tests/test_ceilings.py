"""Ceilings agree with values computed by hand, OpenSpiel, published constants and brute force."""

from functools import cache
from itertools import product

import pyspiel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mage.evaluation.exact.beliefs
import mage.evaluation.exact.game_tree
import mage.opponents.search
from mage.config.loading import load_recipe
from mage.environments.kuhn_poker import DEALS, KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.tic_tac_toe import TicTacToe
from mage.evaluation.exact.ceilings import (
    best_response,
    ceilings,
    equilibrium_value,
    exploitation,
    optimum,
)
from mage.evaluation.exact.game_tree import TooLarge
from mage.evaluation.exact.replayed import RARE, at_least_once, panel_bound, pass_bound, win_chances
from mage.evaluation.panels import make_panel
from mage.opponents.base import find, population_of

STYLES = {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}
KUHN, TIC_TAC_TOE = KuhnPoker(), TicTacToe()
# The situations in which the agent moves, as its anchors name them.
SITUATIONS = {
    0: [f"{c}{m}" for c in "JQK" for m in ("", " pass bet")],
    1: [f"{c} {m}" for c in "JQK" for m in ("pass", "bet")],
}


def play_out(plan, opponent, seat, deal):
    """One game of a pure plan against a pure opponent in the real environment: score, recap."""
    state = KUHN.start(deal)
    while (mover := state.turn()) is not None:
        state.apply(
            plan[state.anchor(seat)] if mover == seat else max(find(opponent).policy(state, mover))
        )
    return state.scores()[seat], state.recap(seat)


@cache
def all_games(seat):
    """Every pure plan x style x deal."""
    plans = [dict(zip(SITUATIONS[seat], moves)) for moves in product(("pass", "bet"), repeat=6)]
    return [
        {
            style: [play_out(plan, style, seat, deal) for deal in range(len(DEALS))]
            for style in STYLES
        }
        for plan in plans
    ]


def average(games, style):
    return sum(score for score, _ in games[style]) / len(DEALS)


@pytest.mark.parametrize(
    ("seat", "non_adapting", "two", "three", "knows"),
    [(0, 0.0833, 0.1944, 0.2426, 0.2833), (1, 0.1667, 0.2111, 0.2333, 0.2667)],
)
def test_the_ceilings_are_those_of_the_method_page(seat, non_adapting, two, three, knows):
    second, third = ceilings(KuhnPoker(), STYLES, seat, 2), ceilings(KuhnPoker(), STYLES, seat, 3)
    found = (third.non_adapting, second.bayes_final, third.bayes_final, third.knows_opponent)
    assert found == pytest.approx((non_adapting, two, three, knows), abs=5e-5)


@pytest.mark.parametrize("seat", [0, 1])
def test_no_pure_plan_beats_the_non_adapting_ceiling_and_one_reaches_it(seat):
    best = max(mean_score(games) for games in all_games(seat))
    assert best == pytest.approx(ceilings(KuhnPoker(), STYLES, seat, 1).non_adapting)


def mean_score(games):
    return sum(share * average(games, style) for style, share in STYLES.items())


@cache
def all_pairs(seat):
    """For every first plan: its score, and that of the best second plan for each thing seen."""
    replies = [{style: average(games, style) for style in STYLES} for games in all_games(seat)]

    def best_after(first):
        seen = {}
        for style, share in STYLES.items():
            for _, recap in first[style]:
                seen.setdefault(recap, dict.fromkeys(STYLES, 0.0))[style] += share / len(DEALS)
        return sum(
            max(sum(joint[style] * reply[style] for style in STYLES) for reply in replies)
            for joint in seen.values()
        )

    return [(mean_score(first), best_after(first)) for first in all_games(seat)]


@pytest.mark.parametrize("seat", [0, 1])
def test_two_episodes_agree_with_trying_every_pair_of_plans(seat):
    found, pairs = ceilings(KuhnPoker(), STYLES, seat, 2), all_pairs(seat)
    assert found.bayes_final == pytest.approx(max(second for _, second in pairs))
    # A learner that counts both episodes sometimes folds, and a fold hides the opponent's card.
    assert found.bayes_mean == pytest.approx(max(map(sum, pairs)) / 2)
    for a, b in ((0.25, 1.0), (1.0, 1.0), (1.0, 0.3)):
        expected = max(pairs, key=lambda pair, a=a, b=b: a * pair[0] + b * pair[1])
        assert optimum(KuhnPoker(), STYLES, seat, (a, b)) == pytest.approx(expected, abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.floats(0.01, 1)] * 4), st.sampled_from([0, 1]), st.integers(1, 4))
def test_knowing_is_worth_more_than_learning_and_learning_more_than_not_adapting(
    shares, seat, episodes
):
    weights = dict(zip((*STYLES, "random"), shares, strict=True))
    found = ceilings(KuhnPoker(), weights, seat, episodes)
    fewer = ceilings(KuhnPoker(), weights, seat, max(1, episodes - 1))
    assert found.knows_opponent >= found.bayes_final - 1e-9
    assert found.bayes_final >= fewer.bayes_final - 1e-9
    assert found.bayes_final >= found.bayes_mean - 1e-9
    assert found.bayes_mean >= found.non_adapting - 1e-9
    if episodes == 1:
        assert found.bayes_final == pytest.approx(found.non_adapting)


@pytest.mark.parametrize("seat", [0, 1])
def test_against_one_opponent_there_is_nothing_to_learn(seat):
    found = ceilings(KuhnPoker(), {"aggressive": 2.0}, seat, 3)
    assert found.non_adapting == pytest.approx(found.knows_opponent)
    assert found.non_adapting == pytest.approx(best_response(KUHN, "aggressive", seat))


def test_a_learner_adapts_to_mixed_opponents():
    """Likelihoods of a mixed strategy are not only 0, 1/2 and 1; no episode is conclusive."""
    found = ceilings(KuhnPoker(), {**STYLES, "cfr": 0.5}, 1, 6)
    assert found.non_adapting < found.bayes_final < found.knows_opponent


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (ceilings, (KUHN, {**STYLES, "cfr": 0.123}, 0, 6), "more than 100 beliefs"),
        (ceilings, (TIC_TAC_TOE, {"random": 1}, 0, 1), "more than 1,000 positions"),
        (best_response, (OpenSpiel(game="connect_four"), "random", 0), "more than 1,000 positions"),
        (equilibrium_value, (OpenSpiel(game="leduc_poker"), 0), "more than 1,000 positions"),
        (ceilings, (KuhnPoker(restart="same"), STYLES, 0, 2), "fresh deals"),
        (ceilings, (KUHN, {}, 0, 2), "at least one opponent"),
        (best_response, (TIC_TAC_TOE, "aggressive", 0), "does not play tic_tac_toe"),
        (best_response, (KUHN, "aggressive", 2), "seats 0 to 1"),
    ],
)
def test_too_large_or_wrong_arguments_give_a_clear_message(
    function, arguments, message, monkeypatch
):
    monkeypatch.setattr("mage.evaluation.exact.beliefs.MAX_BELIEFS", 100)
    monkeypatch.setattr("mage.evaluation.exact.game_tree.MAX_NODES", 1_000)
    kind = TooLarge if message.startswith("more than") else ValueError
    with pytest.raises(kind, match=message):
        function(*arguments)


def test_equilibria_are_the_known_ones():
    assert equilibrium_value(KUHN, 0) == pytest.approx(-1 / 18, abs=1e-6)
    assert equilibrium_value(KUHN, 1) == pytest.approx(1 / 18, abs=1e-6)
    assert equilibrium_value(TIC_TAC_TOE, 0) == equilibrium_value(TIC_TAC_TOE, 1) == 0


@pytest.mark.parametrize("seat", [0, 1])
def test_best_responses_agree_with_openspiel_and_the_equilibrium_cannot_be_exploited(seat):
    for game in ("kuhn_poker", "leduc_poker"):
        spiel = pyspiel.load_game(game)
        uniform = pyspiel.UniformRandomPolicy(spiel)  # held by name: the next one keeps a pointer
        response = pyspiel.TabularBestResponse(spiel, seat, uniform)
        ours = best_response(KUHN if game == "kuhn_poker" else OpenSpiel(game=game), "random", seat)
        assert ours == pytest.approx(response.value_from_state(spiel.new_initial_state()))
    safe = equilibrium_value(KUHN, seat)
    assert best_response(KUHN, "cfr", seat) == pytest.approx(safe, abs=1e-3)


@pytest.mark.parametrize(
    ("opponent", "first", "second"),
    [*((f"pattern-{n}", 1, 1) for n in range(6)), ("random", 0.995, 0.939)],
)
def test_chances_to_win_tic_tac_toe_are_those_of_the_method_page(opponent, first, second):
    found = [best_response(TIC_TAC_TOE, opponent, seat, "win") for seat in (0, 1)]
    assert found == pytest.approx([first, second], abs=5e-4)


@pytest.mark.e2e
def test_the_first_player_wins_about_six_games_in_ten_against_mcts_100(monkeypatch):
    """Known value: .59. Fewer searches a state are faster; the estimate is a little higher."""
    monkeypatch.setattr(mage.opponents.search, "_POLICY_DRAWS", 30)
    assert 0.56 < best_response.__wrapped__(TIC_TAC_TOE, "mcts-100", 0, "win") < 0.66


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("style", STYLES)
def test_the_best_score_and_chance_to_win_agree_with_trying_every_plan(style, seat):
    plans = [[score for score, _ in games[style]] for games in all_games(seat)]
    assert best_response(KUHN, style, seat) == pytest.approx(
        max(sum(scores) for scores in plans) / len(DEALS)
    )
    assert best_response(KUHN, style, seat, "win") == pytest.approx(
        max(sum(score > 0 for score in scores) for scores in plans) / len(DEALS)
    )


def test_exploitation_runs_from_safe_play_to_the_best_response():
    assert exploitation(-1 / 18, -1 / 18, 1 / 3) == 0
    assert exploitation(1 / 3, -1 / 18, 1 / 3) == pytest.approx(1)
    assert exploitation(0.1, 0.0, 0.001) is None


# --- Pass@k of a replayed deal


@pytest.mark.parametrize(("seat", "expected"), [(0, 0.6167), (1, 0.55)])
def test_pass_at_k_of_a_replayed_deal_does_not_grow_against_fixed_styles(seat, expected):
    """The three styles are deterministic, so a deal is won at once or never."""
    game = KuhnPoker(restart="same")
    for episodes in (1, 10):
        assert pass_bound(game, STYLES, seat, episodes) == pytest.approx(expected, abs=1e-4)


def test_a_card_that_cannot_win_is_lost_in_every_episode():
    """By hand: the first seat beats CFR only with the higher card, or by a bluff with the J."""
    chances = dict(zip(DEALS, win_chances(KuhnPoker(restart="same"), "cfr", 0), strict=True))
    assert chances[2, 0] == chances[2, 1] == chances[1, 0] == 1.0
    assert max(chances[0, 2], chances[1, 2]) < RARE
    assert chances[0, 1] == pytest.approx(2 / 3, abs=0.01)


def test_the_bound_of_a_panel_is_the_mean_over_its_own_deals():
    recipe = load_recipe("paper_kuhn_poker")
    world = recipe.environment()
    tasks = make_panel(world, population_of(recipe), "test", size=12, episodes=3)
    expected = 0.0
    for task in tasks:
        deal = world.stratum(world.episode_seed(task.seed, 0))
        expected += at_least_once(win_chances(world, task.opponent, task.seat)[deal], 10) / 12
    assert panel_bound(world, tasks, 10) == pytest.approx(expected)
