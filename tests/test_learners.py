"""Bandit and Mastermind: best learners equal to computations over whole histories."""

from functools import cache, partial
from itertools import product
from math import prod

import pytest
from pydantic import ValidationError
from scipy.special import beta
from typer.testing import CliRunner

from mage.cli.main import app
from mage.environments.bandit import Bandit
from mage.environments.base import check
from mage.environments.doors import Doors
from mage.environments.mastermind import Mastermind, compare
from mage.evaluation.exact.learners import RETURNS, best_learner, learner_ceilings, return_weights


def best_of(rows, kind, g, episode, episodes):
    """The best rows of scores for a return as an episode sees it; ties by the sum, then early."""
    weights = (0.0,) * episode + return_weights(kind, episodes - episode, g)

    def worth(scores):
        value = sum(w * s for w, s in zip(weights, scores))
        return round(value, 11), round(sum(scores[episode:]), 11), [round(s, 11) for s in scores]

    return max(rows, key=worth)


def bandit_by_histories(kind, g, arms, pulls, episodes, prior, safe=None):
    def likelihood(history):
        counts = [[history.count((arm, pays)) for pays in (1, 0)] for arm in range(arms)]
        return prod(beta(prior[0] + a, prior[1] + b) / beta(*prior) for a, b in counts)

    def best(history):
        if len(history) == pulls * episodes:
            return (0.0,) * episodes
        episode, rows = len(history) // pulls, []
        for arm in [*range(arms), *(["safe"] if safe is not None else [])]:
            scores = [0.0] * episodes
            for pays in (safe,) if arm == "safe" else (1, 0):
                after = (*history, (arm, pays))
                share = likelihood(after) / likelihood(history)
                for n, later in enumerate(best(after)):
                    scores[n] += share * (later + pays / pulls * (n == episode))
            rows.append(scores)
        return best_of(rows, kind, g, episode, episodes)

    return best(())


@pytest.mark.parametrize(
    "case",
    [
        {"arms": 2, "pulls": 1, "episodes": 4, "prior": (1.0, 1.0)},
        {"arms": 2, "pulls": 2, "episodes": 2, "prior": (0.5, 2.0), "safe": 0.4},
        {"arms": 3, "pulls": 1, "episodes": 3, "prior": (1.0, 3.0)},
    ],
    ids=str,
)
def test_the_best_bandit_learners_equal_a_walk_over_histories(case):
    world = Bandit(**{key: value for key, value in case.items() if key != "episodes"})
    for g in (0.0, 0.6, 1.0):
        found = learner_ceilings(world, case["episodes"], g)
        for kind in RETURNS:
            assert found[kind] == pytest.approx(bandit_by_histories(kind, g, **case), abs=1e-9)


def test_the_order_of_the_moves_does_not_decide_ties():
    problem, turned = (Bandit(arms=3, pulls=2, prior=(0.3, 0.3)).problems()[0][1] for _ in "12")
    turned.moves = lambda state: problem.moves(state)[::-1]
    for one in (problem, turned):
        scores = best_learner(one, 3, partial(return_weights, "final", discount=0.6))
        assert scores == pytest.approx((0.578125, 0.585449219, 0.781778971), abs=1e-9)


@pytest.mark.parametrize("world", [Doors(change=0.2), Doors(map=0.3), Bandit(), Mastermind()])
def test_the_balanced_return_has_the_best_policy_of_the_plain_sum(world):
    ((_, problem),) = world.problems()
    found = [
        best_learner(problem, 3, partial(return_weights, kind, discount=0.6))
        for kind in ("balanced", "sum")
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_a_plain_bandit_hardly_tells_mage_from_lamer():
    """Over all episodes they differ by less than .005 a pull."""
    for arms, g in ((2, 0.6), (2, 0.9), (3, 0.6)):
        found = learner_ceilings(Bandit(arms=arms), 3, g)
        means = [sum(found[kind]) / 3 for kind in ("cumulative", "differential")]
        assert abs(means[0] - means[1]) < 0.005


@pytest.mark.parametrize(
    ("options", "best"), [({}, 2 / 3), ({"arms": 3}, 3 / 4), ({"safe": 0.6}, 1 - 0.784 / 3)]
)
def test_the_regret_is_measured_from_the_mean_of_the_best_arm(options, best):
    assert Bandit(**options).restated(0.0)["regret"] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "guesses"),
    [
        ({"length": 2, "colours": 4}, 45 / 16),
        ({"length": 3, "colours": 3}, 73 / 27),
        pytest.param(
            *({"length": 3, "colours": 5, "repeated": False}, 196 / 60), marks=pytest.mark.e2e
        ),
    ],
    ids=str,
)
def test_the_fewest_guesses_equal_the_known_optima(options, guesses):
    world = Mastermind(**options, max_turns=8)
    ((_, problem),) = world.problems()
    (score,) = best_learner(problem, 1, lambda n: (1.0,))
    assert world.restated(score)["guesses"] == pytest.approx(guesses, abs=1e-9)


def mastermind_by_secrets(kind, g, world, episodes):
    """From all sequences of secrets with their probabilities; every code is tried as a guess."""
    most, paths = world.max_turns, {}
    for family in world.families():
        secrets = [(c,) * episodes for c in family]
        secrets = secrets if world.restart == "same" else list(product(family, repeat=episodes))
        for path in secrets:
            paths[path] = paths.get(path, 0) + 1 / len(secrets)

    @cache
    def best(fitting, episode, made):
        if episode == episodes:
            return (0.0,) * episodes
        rows = []
        for guess in world.codes():
            seen, scores = {}, [0.0] * episodes
            for path in fitting:
                seen.setdefault(compare(guess, path[episode]), []).append(path)
            for answer, some in seen.items():
                share = sum(map(paths.get, some)) / sum(map(paths.get, fitting))
                solved = answer[0] == world.length
                ends = solved or made + 1 == most
                paid = 1 - made / most if solved else 0.0
                later = best(tuple(some), episode + ends, 0 if ends else made + 1)
                for n, score in enumerate(later):
                    scores[n] += share * (score + paid * (n == episode))
            rows.append(scores)
        return best_of(rows, kind, g, episode, episodes)

    return best(tuple(paths), 0, 0)


@pytest.mark.parametrize(
    ("options", "episodes"),
    [
        ({"length": 2, "colours": 3, "max_turns": 3}, 2),
        ({"length": 2, "colours": 3, "max_turns": 1}, 3),
        ({"length": 1, "colours": 4, "max_turns": 2}, 3),
        ({"length": 1, "colours": 3, "max_turns": 3, "restart": "fresh", "family": 2}, 3),
        pytest.param(
            *({"length": 2, "colours": 3, "max_turns": 2, "restart": "fresh", "family": 2}, 2),
            marks=pytest.mark.e2e,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("g", [0.6, 1.0])
def test_the_best_code_breakers_equal_an_enumeration_of_secrets(options, episodes, g):
    world = Mastermind(**options)
    found = learner_ceilings(world, episodes, g)
    for kind in RETURNS:
        expected = mastermind_by_secrets(kind, g, world, episodes)
        assert found[kind] == pytest.approx(expected, abs=1e-9)


WORLDS = [
    Bandit(),
    Bandit(arms=3, safe=0.6, prior=(2.0, 5.0)),
    Mastermind(),
    Mastermind(length=3, colours=5, repeated=False),
    Mastermind(restart="fresh", family=2),
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_worlds_keep_the_contract(world):
    assert check(world, games=25) == []


def test_episodes_share_arms_or_secrets_and_differ_in_luck():
    world = Bandit(pulls=20)
    one, two = (world.start(world.episode_seed(7, k)) for k in (0, 1))
    assert one.chances == two.chances
    for state in (one, two):
        while state.turn() is not None:
            state.apply("1")
    assert one.paid != two.paid
    secrets = {Mastermind().secret(Mastermind().episode_seed(3, k)) for k in range(5)}
    assert len(secrets) == 1
    fresh = Mastermind(length=3, restart="fresh", family=2)
    told = ["".join(sorted(fresh.secret(fresh.episode_seed(3, k)))) for k in range(9)]
    assert len(set(told)) > 1
    assert len(set("".join(told))) == 2


def test_free_text_is_read_as_a_move():
    assert Mastermind().start(0).read("1 - 2") == "12"
    assert Mastermind().start(0).read("15") is None
    assert Bandit().start(0).read("Arm 2") == "2"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((Bandit, one) for one in ({"arms": 1}, {"prior": (0.0, 1.0)})),
        (Bandit, {"pulls": 3, "max_turns": 2}),
        (Mastermind, {"length": 4, "colours": 3, "repeated": False}),
        (Mastermind, {"length": 6, "colours": 9}),
        *((Mastermind, one) for one in ({"family": 2}, {"family": 5, "restart": "fresh"})),
    ],
)
def test_invalid_options_say_what_to_choose(kind, options):
    with pytest.raises(ValidationError, match=r"Choose|Lower|Leave|Raise|Set"):
        kind(**options)


def ceilings(words):
    return CliRunner().invoke(app, ["ceilings", "mastermind", *words.split()])


def test_an_option_of_the_environment_may_be_written_with_hyphens():
    told = ceilings("--max-turns 3 --json").output
    assert told == ceilings("--environments.max_turns=3 --json").output
    assert "final" in told
