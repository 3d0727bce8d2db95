"""Rock-paper-scissors and its open populations: hidden throws, drawn players, exact ceilings."""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mage.api.contracts import check_opponent
from mage.cli.main import app
from mage.credit.returns import compute_returns
from mage.environments.base import check
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.evaluation.exact.ceilings import ceilings
from mage.evaluation.exact.throw_ceilings import throw_ceilings
from mage.evaluation.figures import summarise_rows
from mage.evaluation.rows import TaskRow
from mage.memory.notes import Notes
from mage.opponents.base import Population, find, fitting, meet, sample_players
from mage.opponents.throws.players import Habit, _answer, draw_chances
from mage.play import PlaySetup, play_groups
from mage.types import Completion, Episode, MetaEpisode, Task, Turn
from tests.toys import scripted_agent

RPS = RockPaperScissors()
FAMILIES = ("dirichlet-0.5", "markov-0.5", "reactive-0.5", "random_policy-0.5")


def task(seed: int, opponent: str = "dirichlet-0.5", split: str = "train") -> Task:
    return Task("rock_paper_scissors", seed, 0, opponent, split)  # type: ignore[arg-type]


def play(throws: list[tuple[str, str]], games: int = 3):
    state = RockPaperScissors(throws=games, max_turns=games).start(0)
    for pair in throws:
        for word in pair:
            state.apply(word)
    return state


def test_the_game_keeps_the_contract():
    assert check(RPS, games=30) == []


def test_a_throw_is_hidden_until_both_are_made():
    """Seat 1 sees the same text whatever seat 0 has thrown."""
    seen = set()
    for throw in THROWS:
        state = play([("rock", "paper")])
        state.apply(throw)
        assert state.turn() == 1
        seen.add((state.observe(1), state.anchor(1), str(state.rounds(1))))
        seen.add((state.observe(1), state.anchor(1), str(find("markov-1-3").policy(state, 1))))
        seen.add(
            (state.observe(1), state.anchor(1), str(find("random_policy-1-3").policy(state, 1)))
        )
    assert len(seen) == 3


@pytest.mark.parametrize(("own", "other"), product(THROWS, THROWS))
def test_payoffs_are_those_of_rock_paper_scissors(own, other):
    beats = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}
    expected = 1.0 if (own, other) in beats else -1.0 if (other, own) in beats else 0.0
    state = play([(own, other)], games=1)
    assert state.scores() == (expected, -expected)
    assert state.recap(0) == f"{own}-{other}. Score {expected:+g}."


def test_the_score_is_the_mean_over_throws():
    state = play([("rock", "paper"), ("rock", "paper"), ("paper", "rock")])
    assert state.scores() == pytest.approx((-1 / 3, 1 / 3))
    assert state.recap(1) == "paper-rock, paper-rock, rock-paper. Score +1."


def test_a_person_sees_the_throw_of_the_opponent_after_both_throws():
    for seat in ("first", "second"):
        words = ["play", "rock_paper_scissors", "--against", "random", "--seat", seat]
        done = CliRunner().invoke(app, words, input="rock\n" * 3 + "quit\n")
        assert "opponent: " not in done.output
        assert "rock-" in done.output


def test_options_that_allow_no_full_game_are_refused():
    assert RockPaperScissors(throws=50).max_turns == 100
    with pytest.raises(ValueError, match="no episode could be finished"):
        RockPaperScissors(throws=5, max_turns=4)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        RockPaperScissors(throws=0)


@pytest.mark.parametrize("name", [*FAMILIES, "roshambo-greenberg", "roshambo-randbot"])
def test_opponents_are_legal_stationary_and_reproducible(name):
    assert check_opponent(find(name), RPS, games=12) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_the_task_draws_the_player(name):
    """Same task: same player. Another seed or another split: another player."""
    state = play([("rock", "paper")])

    def policy(seed: int, split: str) -> dict[str, float]:
        return dict(meet(task(seed, name, split)).policy(state, 0))

    assert policy(1, "train") == policy(1, "train")
    drawn = [policy(seed, split) for seed in range(20) for split in ("train", "test", "ood")]
    assert len({str(one) for one in drawn}) > 40
    assert policy(1, "train") != policy(1, "test") != policy(1, "ood")


def test_a_family_without_a_player_says_how_to_name_one():
    with pytest.raises(ValueError, match="append a seed"):
        find("dirichlet-0.5").policy(RPS.start(0), 0)
    assert sum(find("dirichlet-0.5-7").policy(RPS.start(0), 0).values()) == pytest.approx(1)


def test_only_games_that_fit_have_these_opponents():
    names = {"dirichlet", "markov", "reactive", "roshambo", "random_policy", "cfr"}
    assert names <= set(fitting(RPS))


def test_draws_have_the_moments_of_the_dirichlet_distribution():
    """Mean 1/3; variance of one entry (1/3)(2/3) / (3A + 1) = .0889 for A = .5."""
    rng = random.Random(0)
    drawn = np.array([draw_chances(0.5, rng) for _ in range(20_000)])
    assert drawn.mean(0) == pytest.approx([1 / 3] * 3, abs=0.01)
    assert drawn.var(0) == pytest.approx([2 / 9 / 2.5] * 3, abs=0.003)


def habit(kind: str, **changes: object) -> Habit:
    options = {"source": 1, "lag": 1, "shift": 1, "shifts": (0, 1, 2), "decay": 1.0, "noise": 0.0}
    return Habit(kind=kind, base=(1.0, 0.0, 0.0), **(options | changes))  # type: ignore[arg-type]


def test_reactive_players_do_what_their_habit_says():
    """Rounds are (own, agent's); 0 rock, 1 paper, 2 scissors; shift 1 beats, shift 0 copies."""
    rounds = [(0, 1), (2, 2), (1, 1), (0, 2), (0, 1)]
    assert _answer(habit("past"), rounds) == 2  # beats the agent's last throw, paper
    assert _answer(habit("past", shift=0, lag=2), rounds) == 2  # copies the one before, scissors
    assert _answer(habit("past", source=0), rounds) == 1  # beats its own last throw, rock
    assert _answer(habit("frequency"), rounds) == 2  # the agent threw paper most often
    assert _answer(habit("predictor"), rounds) == 0  # after paper came scissors twice
    assert _answer(habit("switcher"), rounds) == 2  # rock lost to paper: shift by 2
    assert _answer(habit("predictor"), []) is None


@pytest.mark.parametrize(
    ("alpha", "scores", "knows"),
    [
        (0.3, (0.369, 0.608, 0.636), 0.676),
        (0.5, (0.286, 0.489, 0.523), 0.577),
        (1.0, (0.183, 0.333, 0.371), 0.444),
    ],
)
def test_the_ceilings_are_the_published_ones(alpha, scores, knows):
    found = throw_ceilings(alpha, throws=3, episodes=3)
    assert found.episodes == pytest.approx(scores, abs=5e-4)
    assert found.knows_opponent == pytest.approx(knows, abs=1e-3)


def test_a_simulated_bayes_learner_reaches_the_ceiling():
    """The posterior mean of 40,000 drawn players, throw by throw: no code is shared."""
    rng = np.random.default_rng(1)
    chances = rng.dirichlet([0.5] * 3, size=40_000)
    counts, scores = np.full((40_000, 3), 0.5), []
    for _ in range(6):
        payoff = np.roll(counts, 1, axis=1) - np.roll(counts, -1, axis=1)
        best = payoff.argmax(1)
        true = np.roll(chances, 1, axis=1) - np.roll(chances, -1, axis=1)
        scores.append(true[np.arange(40_000), best].mean())
        throws = (rng.random((40_000, 1)) > chances.cumsum(1)).sum(1).clip(max=2)
        counts[np.arange(40_000), throws] += 1
    found = throw_ceilings(0.5, throws=3, episodes=2)
    assert [np.mean(scores[:3]), np.mean(scores[3:])] == pytest.approx(found.episodes, abs=0.01)
    true_best = (np.roll(chances, 1, 1) - np.roll(chances, -1, 1)).max(1).mean()
    assert true_best == pytest.approx(found.knows_opponent, abs=0.01)


def test_a_family_is_represented_by_a_sample_of_its_players():
    """Against 30 Kuhn players: no adaptation < the best learner's third game < knowing them."""
    pool = sample_players({"random_policy-0.5": 1.0, "cfr": 1.0}, 30)
    assert len(pool) == 31
    assert sum(pool.values()) == pytest.approx(2.0)
    players = {name: share for name, share in pool.items() if name != "cfr"}
    found = ceilings(KuhnPoker(), players, 0, 3)
    assert found.non_adapting < found.bayes_final < found.knows_opponent


def test_the_evaluation_shows_the_ceilings_and_can_leave_them_out():
    ends = ("won",) * 2, ("finished",) * 2
    tasks = [task(seed, split="test") for seed in range(4)]
    rows = [TaskRow(one, 0, (0.3, 0.5), *ends, *[(3, 3)] * 3) for one in tasks]
    population = Population(train={"dirichlet-0.5": 1.0})
    shown = summarise_rows(rows, RPS, population, "test")
    found = [one.ceiling for one in shown.overall.episodes]
    assert found == pytest.approx([0.286, 0.489], abs=5e-4)
    assert shown.overall.knows_opponent == pytest.approx(0.577, abs=1e-3)
    hidden = summarise_rows(rows, RPS, population, "test", with_ceilings=False)
    assert hidden.overall.episodes[0].ceiling is None


def thrown(gains: tuple[float, ...]) -> Episode:
    reply = Completion((1,), (0.0,), "", "stop", 0)
    turns = tuple(
        Turn("play", f"throw {k}", "", (), reply, "rock", (), True, 0.0) for k in range(len(gains))
    )
    score = sum(gains)
    return Episode(turns, None, (), score, score, "drawn", "finished", "", gains=gains)


@pytest.mark.parametrize(
    ("kind", "weights", "expected"),
    [
        # Sums of all later throws: 1 - 1 + 0 + 1 + 1 = 2, 1, 2 | 2, 1.
        ("cumulative", (), (2, 1, 2, 2, 1)),
        ("single", (), (0, -1, 0, 2, 1)),
        ("final", (0.5, 2.0), (4, 3.5, 4, 4, 2)),
        # Differential: the second game also pays -R_1 = 0 at its end.
        ("differential", (), (2, 1, 2, 2, 1)),
    ],
)
def test_returns_of_scored_throws_are_the_sums_of_later_throws(kind, weights, expected):
    meta = MetaEpisode(task(1), 0, 0, (thrown((1.0, -1.0, 0.0)), thrown((1.0, 1.0))), ("", ""), 0)
    options: Any = {"kind": kind, "weights": weights, "per_turn": True}
    found = compute_returns(meta, step_discount=1.0, episode_discount=1.0, **options)
    assert [one.value for one in found] == pytest.approx(expected)


def test_played_episodes_record_what_every_throw_scored():
    """Reward scale 3 and three throws: every throw counts 1."""
    agent = scripted_agent(lambda prompt: "<action>rock</action>")
    world = RockPaperScissors(reward_scale=3.0)
    play_setup = PlaySetup(world, agent, Notes(keep="none"), episodes=1)
    for seed in range(5):
        (meta,) = play_groups(play_setup, [[task(seed)]], seed)
        (episode,) = meta.episodes
        payoff = {"rock": 0.0, "paper": -1.0, "scissors": 1.0}
        others = [move.action for move in episode.moves if move.seat == 1]
        assert episode.gains == pytest.approx([payoff[word] for word in others])
        assert sum(episode.gains) == pytest.approx(episode.reward)
