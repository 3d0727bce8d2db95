"""`examples/minimal.py`: its credit and loss are those of the package, and it learns to adapt."""

import importlib.util
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from toys import episode

from mage.config.sections import LearnOptions
from mage.credit.advantages import gigpo
from mage.credit.returns import compute_returns
from mage.learn.loss import policy_objective
from mage.types import MetaEpisode, Task

PATH = Path(__file__).parent.parent / "examples" / "minimal.py"


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def random_group(rng: random.Random) -> list[MetaEpisode]:
    """Members with different numbers of episodes and turns. Few states, so anchors repeat."""
    return [
        MetaEpisode(
            Task("game", 0, 0, "opponent", "train"),
            0,
            member,
            tuple(
                episode(rng.uniform(-10, 10), tuple(rng.choices("abcde", k=rng.randint(1, 6))))
                for _ in range(rng.randint(1, 4))
            ),
            (),
            0,
        )
        for member in range(rng.randint(1, 6))
    ]


def minimal_returns(minimal: ModuleType, meta: MetaEpisode) -> list[list[float]]:
    rewards = [one.reward for one in meta.episodes]
    found: list[list[float]] = minimal.compute_returns(
        rewards, [len(one.turns) for one in meta.episodes]
    )
    return found


def test_returns_are_those_of_the_package(minimal):
    rng = random.Random(1)
    for meta in (meta for _ in range(50) for meta in random_group(rng)):
        ours = [value for own in minimal_returns(minimal, meta) for value in own]
        assert ours == pytest.approx([item.value for item in compute_returns(meta)], abs=1e-9)


def test_advantages_are_those_of_the_default_estimator_of_the_package(minimal):
    rng = random.Random(2)
    for _ in range(100):
        group = random_group(rng)
        turns = [
            minimal.Turn(meta.member, n, turn.anchor, value, own[0])
            for meta in group
            for n, own in enumerate(minimal_returns(minimal, meta))
            for turn, value in zip(meta.episodes[n].turns, own, strict=True)
        ]
        credits = gigpo.estimate([item for meta in group for item in compute_returns(meta)])
        assert minimal.compute_advantages(turns) == pytest.approx(
            [credit.advantage for credit in credits], abs=1e-9
        )


def test_credit_of_played_games_keeps_groups_apart_and_in_order(minimal):
    """Two groups of eight. Only member 3 of group 1 differs from its group: it wins episode 2."""
    points = torch.zeros(16, minimal.EPISODES, minimal.THROWS)
    points[11, 1, 2] = 1.0
    played = minimal.Played(points, points, points, points)
    advantages = minimal.assign_credit(played)
    assert advantages[:8].abs().max() == 0
    assert advantages[8:].abs().sum(dim=(1, 2)).argmax() == 3
    # Turn 3 of episode 2: G_{2,3} = 1 - .6 * .95^2, G_{2,1} = .95^2 G_{2,3}; the others have 0, so
    # A_episode = G_{2,1}. The levels are G_{n,1} / 8, and the mean of a level over the episodes is
    # the baseline of the others, negated.
    last = 1 - 0.6 * 0.95**2
    firsts = [0.6 * 0.95**4 * last, 0.95**2 * last, -(0.95**2)]
    expected = firsts[1] + (last - firsts[1] / 8) + sum(firsts) / 8 / 3
    assert advantages[11, 1, 2].item() == pytest.approx(expected, abs=1e-6)


def test_the_objective_is_that_of_the_package(minimal):
    generator = torch.Generator().manual_seed(1)
    ratio = torch.rand(1000, generator=generator, dtype=torch.float64) * 6
    advantages = torch.randn(1000, generator=generator, dtype=torch.float64)
    theirs, _ = policy_objective(ratio, advantages, LearnOptions())
    assert torch.allclose(minimal.policy_objective(ratio, advantages), theirs, atol=1e-12)


def test_the_best_learner_is_that_of_the_method(minimal):
    """The exact figures of `mage train demo`, to the three digits that are published."""
    assert minimal.best_learner() == pytest.approx([0.286, 0.489, 0.523], abs=5e-4)


def test_the_file_does_not_import_the_package():
    assert not re.search(r"^\s*(import|from) mage\b", PATH.read_text(), re.MULTILINE)


@pytest.mark.e2e
def test_a_short_training_learns_to_use_the_memory(minimal):
    """Above the best policy without memory by three standard errors (.008 a throw)."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        policy = minimal.train(updates=12)
        opponents = minimal.new_opponents(10_000)
        scores = minimal.scores(minimal.play(policy, opponents, 1))
        emptied = minimal.scores(minimal.play(policy, opponents, 1, use_memory=False))
    ceiling = minimal.best_learner()
    assert scores[2] > ceiling[0] + 0.03
    assert scores[2] < ceiling[2] + 0.03
    assert max(emptied) < ceiling[0] + 0.03
