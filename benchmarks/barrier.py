"""Rollout without a turn barrier against the batch-synchronous kind, where nobody goes on before all have answered.

The barrier is the mildest there is: whose game is over goes straight on to its note while others still play.
The embedded model answers in three tokens. With `long replies` every answer comes after 8 to 128 tokens that are thrown away
(lengths even in the logarithm), as where a model thinks before it acts. On an accelerator a step costs about the same however
many share it, so there the ratio of steps is what counts.
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
    """An engine in front of another one."""

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
    """Hands out answers only when it has all of them. `run` asks for a step only when all coroutines wait: so this is a turn barrier."""

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
    """Tokens still to be written before the question itself is put."""

    question: Request
    left: int


class Thinking(Wrapped):
    """Has the model write a number of tokens that depends on the request's seed alone, then puts the request itself."""

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
        """Whether this was a thought; one that the model ended too early is continued."""
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
    """Meta-episodes played a second; a case is a game, a number of groups and whether replies are long."""
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
    work = f"{members} side by side; {taken[0]:,} and {taken[1]:,} engine steps, ratio {taken[1] / taken[0]:.1f}"
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
