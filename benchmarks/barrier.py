"""Rollouts without a turn barrier against batch-synchronous rollouts.

With the barrier a step waits for all answers; a finished game goes on to its note at once. The
embedded model answers in three tokens. With `long replies` 8 to 128 discarded tokens precede every
answer (lengths uniform in the logarithm), like a model that thinks before it acts. On a GPU the
cost of a step hardly depends on the batch size, so the ratio of steps is the relevant figure.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.measure import Comparison, compare, timed
from benchmarks.workload import make_recipe, play, replies
from mage.engines.base import Engine
from mage.engines.local import LocalEngine
from mage.seeds import derive
from mage.training.build import Components, build_components
from mage.types import Completion, Request

CASES = (("kuhn_poker", 16, False), ("tic_tac_toe", 16, False), ("tic_tac_toe", 4, True))
SHORTEST, LONGEST = 8, 128
Answers = list[tuple[Request, Completion]]


class Wrapped(Engine):
    """An engine that forwards to another engine."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.capacity = inner, inner.capacity

    def submit(self, request: Request) -> None:
        self.inner.submit(request)

    def step(self) -> Answers:
        return self.inner.step()

    def refresh(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self.inner.refresh(policy_version)


class Barrier(Wrapped):
    """Returns answers only when it has all of them.

    `run` asks for a step only when all coroutines wait, so this is a turn barrier.
    """

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.in_hand = 0

    def submit(self, request: Request) -> None:
        self.in_hand += 1
        self.inner.submit(request)

    def step(self) -> Answers:
        answers: Answers = []
        while len(answers) < self.in_hand:
            answers += self.inner.step()
        self.in_hand = 0
        return answers


@dataclass(frozen=True, slots=True)
class Thought:
    """Tokens left to write before the request itself is sent."""

    question: Request
    left: int


class Thinking(Wrapped):
    """Lets the model write a number of tokens that depends on the seed, then sends the request."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.thoughts: dict[Request, Thought] = {}

    def submit(self, request: Request) -> None:
        length = SHORTEST * (LONGEST / SHORTEST) ** random.Random(request.seed).random()
        self._think(request.prompt_ids, Thought(request, round(length)))

    def _think(self, prompt_ids: tuple[int, ...], thought: Thought) -> None:
        request = Request(
            prompt_ids, thought.left, derive(thought.question.seed, "thought", thought.left)
        )
        self.thoughts[request] = thought
        self.inner.submit(request)

    def step(self) -> Answers:
        return [answer for answer in self.inner.step() if not self._goes_on(*answer)]

    def _goes_on(self, request: Request, completion: Completion) -> bool:
        """Whether this was a thought; a thought that ended too early is continued."""
        thought = self.thoughts.pop(request, None)
        if thought is None:
            return False
        left = thought.left - len(completion.token_ids)
        if left > 0:
            self._think(request.prompt_ids + completion.token_ids, Thought(thought.question, left))
        else:
            self.inner.submit(thought.question)
        return True


def measure(
    cases: Sequence[tuple[str, int, bool]] = CASES, rounds: int = 4
) -> Iterator[Comparison]:
    """Meta-episodes per second; a case is a game, a number of groups and long replies or not."""
    for game, groups, thinks in cases:
        yield _measure_case(game, groups, thinks, rounds)


def _measure_case(game: str, groups: int, thinks: bool, rounds: int) -> Comparison:
    free, held = (_parts(game, groups, thinks, barrier) for barrier in (False, True))
    steps = [_steps(parts) for parts in (free, held)]
    one, other = replies(play(free)), replies(play(held))
    same = sum(left == right for left, right in zip(one, other, strict=False))
    taken = [_steps(parts) - before for parts, before in zip((free, held), steps, strict=True)]
    case = f"{game}/{'long replies' if thinks else 'reflections'}"
    ways = (timed(lambda: play(free)), timed(lambda: play(held)))
    members = groups * free.recipe.play.members
    found = compare("barrier", case, ("free", "barrier"), "meta-episodes", members, ways, rounds)
    ratio = taken[1] / taken[0]
    work = f"{members} in parallel; {taken[0]:,} and {taken[1]:,} engine steps, ratio {ratio:.1f}"
    note = f"{work}; {same:,} of {max(len(one), len(other)):,} replies the same"
    return replace(found, note=note)


def _parts(game: str, groups: int, thinks: bool, barrier: bool) -> Components:
    parts = build_components(make_recipe(game, "reflections", groups))
    engine = Thinking(parts.engine) if thinks else Wrapped(parts.engine)
    return replace(parts, engine=Barrier(engine) if barrier else engine)


def _steps(parts: Components) -> int:
    engine = parts.engine
    while isinstance(engine, Wrapped):
        engine = engine.inner
    assert isinstance(engine, LocalEngine), "the benchmark's recipe asks for it"
    return engine.stats.steps
