"""Open populations for rock-paper-scissors: fixed, Markov and reactive players.

Every player is drawn from its family by the task's seed (`base.Family`). A player sees the finished
throws of the running game only, so it starts anew in every episode. Its parameters stay the same in
all episodes of a meta-episode.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.base import State
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissorsState, Round
from mage.opponents.base import Family

Chances = tuple[float, float, float]
_MAX_NOISE = 0.3
_CONTEXTS = (None, *((own, other) for own in range(3) for other in range(3)))


def draw_chances(alpha: float, rng: random.Random) -> Chances:
    """Probabilities of the three throws from Dirichlet(alpha, alpha, alpha)."""
    while True:
        weights = [rng.gammavariate(alpha, 1.0) for _ in THROWS]
        if (total := sum(weights)) > 0:  # tiny alphas can underflow to 0 in all three
            return weights[0] / total, weights[1] / total, weights[2] / total


class _Thrower(Family):
    """A family of rock-paper-scissors players with probabilities of their own for every throw."""

    plays_only: ClassVar[str] = "rock_paper_scissors"

    alpha: float = Field(0.5, gt=0, le=1000, description="Dirichlet parameter; small = predictable")

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        assert isinstance(state, RockPaperScissorsState), "it plays rock-paper-scissors only"
        return dict(zip(THROWS, self.chances(state.rounds(seat)), strict=True))

    def chances(self, rounds: Sequence[Round]) -> Chances:
        """Probabilities of the next throw after these throws of the game, own throw first."""
        raise NotImplementedError


class Dirichlet(_Thrower):
    """Fixed throw probabilities, drawn from Dirichlet(A, A, A)."""

    name: ClassVar[str] = "dirichlet"

    def chances(self, rounds: Sequence[Round]) -> Chances:
        return _fixed(self.alpha, self.player_seed())


@cache
def _fixed(alpha: float, seed: int) -> Chances:
    return draw_chances(alpha, random.Random(seed))


class Markov(_Thrower):
    """Throw probabilities that depend on both last throws; each row from Dirichlet(A, A, A)."""

    name: ClassVar[str] = "markov"

    def chances(self, rounds: Sequence[Round]) -> Chances:
        context = _numbers(rounds[-1]) if rounds else None
        return _table(self.alpha, self.player_seed())[context]


@cache
def _table(alpha: float, seed: int) -> dict[tuple[int, int] | None, Chances]:
    rng = random.Random(seed)
    return {context: draw_chances(alpha, rng) for context in _CONTEXTS}


Kind = Literal["past", "frequency", "predictor", "switcher"]


@dataclass(frozen=True, slots=True)
class Habit:
    """The parameters of one reactive player.

    past       answers the throw of `source` that was made `lag` throws ago
    frequency  predicts the agent's most frequent throw; older throws count `decay` as much
    predictor  predicts the agent's next throw from what followed its last `lag` rounds before
    switcher   keeps or shifts its own throw, depending on whether the last one won, tied or lost
    The answer is the throw that lies `shift` steps above the reference (1 beats it, 0 copies it).
    With probability `noise` the throw comes from `base` instead.
    """

    kind: Kind
    source: Literal[0, 1]  # 0 = own throws, 1 = the agent's throws
    lag: int
    shift: int
    shifts: tuple[int, int, int]  # switcher: after a tie, a win, a loss
    decay: float
    noise: float
    base: Chances


class Reactive(_Thrower):
    """Players that react and predict: copy or beat past throws, count, predict, switch."""

    name: ClassVar[str] = "reactive"

    def chances(self, rounds: Sequence[Round]) -> Chances:
        habit = draw_habit(self.alpha, self.player_seed())
        answer = _answer(habit, [_numbers(pair) for pair in rounds])
        if answer is None:
            return habit.base
        mixed = [habit.noise * chance for chance in habit.base]
        mixed[answer] += 1 - habit.noise
        return mixed[0], mixed[1], mixed[2]


@cache
def draw_habit(alpha: float, seed: int) -> Habit:
    """The parameters of the reactive player with this seed."""
    rng = random.Random(seed)
    kinds: tuple[Kind, ...] = ("past", "frequency", "predictor", "switcher")
    return Habit(
        kind=rng.choice(kinds),
        source=rng.choice((0, 1)),
        lag=rng.choice((1, 1, 2)),
        shift=rng.randrange(3),
        shifts=(rng.randrange(3), rng.randrange(3), rng.randrange(3)),
        decay=rng.choice((0.8, 0.95, 1.0)),
        noise=rng.uniform(0.0, _MAX_NOISE),
        base=draw_chances(alpha, rng),
    )


def _answer(habit: Habit, rounds: list[tuple[int, int]]) -> int | None:
    """The throw of a reactive player without its noise; None while it has nothing to react to."""
    if habit.kind == "past":
        return None if len(rounds) < habit.lag else _above(rounds[-habit.lag][habit.source], habit)
    if not rounds:
        return None
    if habit.kind == "switcher":
        own, other = rounds[-1]
        return (own + habit.shifts[(own - other) % 3]) % 3
    if habit.kind == "frequency":
        return _above(_most_frequent([other for _, other in rounds], habit.decay), habit)
    predicted = _predict(rounds, habit.lag)
    return None if predicted is None else _above(predicted, habit)


def _above(throw: int, habit: Habit) -> int:
    return (throw + habit.shift) % 3


def _most_frequent(throws: list[int], decay: float) -> int:
    weights = [0.0, 0.0, 0.0]
    for age, throw in enumerate(reversed(throws)):
        weights[throw] += decay**age
    return weights.index(max(weights))


def _predict(rounds: list[tuple[int, int]], lag: int) -> int | None:
    """The agent's most frequent throw after its last `lag` throws, as seen earlier in the game."""
    throws = [other for _, other in rounds]
    last = throws[-lag:]
    followed = Counter(
        throws[at + lag] for at in range(len(throws) - lag) if throws[at : at + lag] == last
    )
    return followed.most_common(1)[0][0] if followed else None


def _numbers(pair: Round) -> tuple[int, int]:
    return THROWS.index(pair[0]), THROWS.index(pair[1])
