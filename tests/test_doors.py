"""Doors: the contract, and best learners equal to a computation over all hidden doors."""

import json
from functools import cache
from itertools import pairwise, product

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from mage.cli.main import app
from mage.environments.base import check
from mage.environments.doors import Doors
from mage.evaluation.exact.learners import RETURNS, learner_ceilings, return_weights
from mage.seeds import derive

SEARCH = (0.375, 0.875, 1.0)


def hidden_paths(arms, episodes, change):
    """Every sequence of paying doors with its probability."""
    for path in product(range(arms), repeat=episodes):
        chance = 1 / arms
        for before, after in pairwise(path):
            chance *= (1 - change) * (before == after) + change / arms
        if chance:
            yield path, chance


def by_enumeration(kind, g, arms, safe, choices, episodes, change=0.0, price=None):
    """The scores of the best learner, from the set of hidden paths that fit what it saw."""
    paths = dict(hidden_paths(arms, episodes, change))

    @cache
    def best(fitting, step):
        if step == choices * episodes:
            return (0.0,) * episodes
        episode = step // choices
        found = []
        for move in ("safe", *range(arms), *(["map"] if price is not None else [])):
            seen = {}
            for path in fitting:
                paid = {"safe": safe, "map": None}.get(move, float(path[episode] == move))
                shown = ("map", path[episode]) if move == "map" else paid
                seen.setdefault(shown, []).append(path)
            scores = [0.0] * episodes
            for shown, some in seen.items():
                share = sum(map(paths.get, some)) / sum(map(paths.get, fitting))
                paid = -price if move == "map" else shown
                for n, score in enumerate(best(tuple(some), step + 1)):
                    scores[n] += share * (score + paid / choices * (n == episode))
            weights = (0.0,) * episode + return_weights(kind, episodes - episode, g)
            value = sum(w * s for w, s in zip(weights, scores))
            found.append((round(value, 11), round(sum(scores[episode:]), 11), scores))
        return tuple(max(found, key=lambda one: one[:2])[2])

    return best(tuple(paths), 0)


@pytest.mark.parametrize(
    ("safe", "searching"),
    [
        (0.55, RETURNS),
        (0.642, RETURNS),
        (0.643, ("differential", "final", "sum")),
        (0.7199, ("differential", "final", "sum")),
        (0.7201, ("final", "sum")),
        (0.7499, ("final", "sum")),
        (0.7501, ("final",)),
        (0.999, ("final",)),
    ],
)
def test_each_return_searches_below_its_own_line(safe, searching):
    found = learner_ceilings(Doors(safe=(safe,)), 3, 0.6)
    for kind in RETURNS:
        expected = SEARCH if kind in searching else (safe,) * 3
        assert found[kind] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "case",
    [
        {"arms": 4, "safe": 0.68, "choices": 2, "episodes": 3},
        {"arms": 3, "safe": 0.71, "choices": 1, "episodes": 4},
        {"arms": 6, "safe": 0.4, "choices": 3, "episodes": 2},
        {"arms": 2, "safe": 0.9, "choices": 2, "episodes": 5},
        {"arms": 4, "safe": 0.7, "choices": 1, "episodes": 3, "price": 0.3},
        {"arms": 3, "safe": 0.6, "choices": 1, "episodes": 3, "change": 0.3},
        {"arms": 2, "safe": 0.66, "choices": 2, "episodes": 3, "change": 0.1, "price": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("g", [0.0, 0.6, 0.9, 1.0])
def test_best_learners_equal_an_enumeration_of_hidden_doors(case, g):
    options = {"map" if key == "price" else key: value for key, value in case.items()}
    episodes = options.pop("episodes")
    found = learner_ceilings(Doors(**options), episodes, g)
    for kind in RETURNS:
        assert found[kind] == pytest.approx(by_enumeration(kind, g, **case), abs=1e-9)


def test_several_safe_boxes_give_the_mean_of_their_tasks():
    both, one, other = (learner_ceilings(Doors(safe=s), 3, 0.6) for s in ((0.5, 0.9), 0.5, 0.9))
    for kind in RETURNS:
        mean = [(a + b) / 2 for a, b in zip(one[kind], other[kind])]
        assert both[kind] == pytest.approx(mean, abs=1e-12)


def searcher_scores(world, task_seed, episodes):
    """Plays the searcher in the environment: known door, else the first door not yet opened."""
    known, empty, scores = None, set(), []
    for episode in range(episodes):
        state = world.start(world.episode_seed(task_seed, episode))
        while state.turn() is not None:
            left = [door for door in world.moves() if door != "safe" and door not in empty]
            move = known or left[0]
            state.apply(move)
            if state.paid[-1][1] == 1:
                known = move
            else:
                empty.add(move)
                known = left[1] if len(left) == 2 else known
        scores.append(state.scores()[0])
    return scores


def test_the_environment_pays_the_searcher_what_theory_says():
    world, rows = Doors(safe=(0.3, 0.7)), {}
    for seed in range(200):
        rows.setdefault(world.stratum(world.episode_seed(seed, 0)), searcher_scores(world, seed, 3))
    assert len(rows) == world.strata() == 8
    means = [sum(row[k] for row in rows.values()) / 8 for k in range(3)]
    assert means == pytest.approx(SEARCH)


def test_doors_change_with_their_probability_and_the_safe_box_stays():
    world = Doors(safe=(0.1, 0.2, 0.3), change=0.5)
    moved = 0
    for task in range(400):
        first, second = (world.start(world.episode_seed(derive(task), k)) for k in (0, 1))
        assert first.safe == second.safe
        moved += first.door != second.door
    assert 0.30 < moved / 400 < 0.45  # change x 3/4 = .375
    fresh = Doors(restart="fresh")
    assert len({fresh.episode_seed(1, k) for k in range(5)}) == 5


@pytest.mark.parametrize("world", [Doors(), Doors(map=0.2, change=0.3, safe=(0.1, 0.5), choices=3)])
def test_doors_keep_the_contract(world):
    assert check(world, games=40) == []


def test_texts_name_the_payoff_at_once_and_accept_the_word_door():
    world = Doors(safe=0.68)
    state = world.start(0)
    assert state.observe(0) == "The safe box pays 0.68. Choice 1."
    move = state.read("Door 1")
    assert move == "1"
    state.apply(move)
    assert state.observe(0) == "Door 1 paid 1. The safe box pays 0.68. Choice 2."
    state.apply("safe")
    assert state.recap(0) == "Door 1 paid 1, The safe box paid 0.68."
    assert state.scores() == (0.84,)
    with_map = Doors(map=0.2).start(1)
    with_map.apply("map")
    assert with_map.observe(0).startswith("The map shows door 2. ")
    assert with_map.scores() == (-0.1,)


@pytest.mark.parametrize(
    "options", [{"safe": 1.5}, {"safe": "nan"}, {"arms": 1}, {"choices": 3, "max_turns": 2}]
)
def test_invalid_options_say_what_to_choose(options):
    with pytest.raises(ValidationError, match=r"Give|Choose|Leave"):
        Doors(**options)


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr("mage.evaluation.exact.learners.MAX_STATES", 2_000)
    done = CliRunner().invoke(app, ["ceilings", "doors", "--change=0.1", "--episodes=12"])
    assert done.exit_code != 0
    assert "Choose fewer episodes" in f"{done.output}{done.exception}"


def test_the_command_prints_the_scores_of_every_return():
    words = "doors --arms 4 --safe 0.68 --choices 2 --episodes 3 --discount 0.6 --json"
    found = json.loads(CliRunner().invoke(app, ["ceilings", *words.split()]).stdout)
    assert list(found) == ["cumulative", "differential", "final", "sum"]
    for kind, scores in found.items():
        expected = [0.68] * 3 if kind == "cumulative" else SEARCH
        assert scores == pytest.approx(expected, abs=1e-9)
