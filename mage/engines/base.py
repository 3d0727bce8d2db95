"""The engine contract: requests in, completions out; all waiting requests are batched.

Play is written as plain coroutines that `await engine.sample(request)`. `run` drives them: every
coroutine runs until it waits, and only when all wait does an engine make one step. Waiting
requests are counted here, for all engines together, so a second model (an opponent, for example)
never starves the first. There is no event loop and no thread, so the order is deterministic.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from mage.agent.chat import Chat
from mage.types import Completion, Request

Result = TypeVar("Result")


class Engine(ABC):
    """Completes requests: `submit` accepts a request, `step` works and returns finished ones."""

    policy_version: int = 0
    capacity: int | None = None  # conversations that its cache can hold; None = any number
    context: int | None = None  # longest prompt and reply in tokens; None = unknown
    rounds: bool = False  # whether it computes with fewer bits than the model has

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Accept a request; a later `step` answers it."""

    @abstractmethod
    def step(self) -> list[tuple[Request, Completion]]:
        """Make one step for all accepted requests; return those that are finished, if any."""

    def refresh(self, policy_version: int) -> None:
        """The weights have changed: drop everything that was computed with the old ones."""
        self.policy_version = policy_version

    def empty_cache(self) -> None:  # noqa: B027 - most engines hold nothing
        """Drop what is kept of finished requests, so that later ones are computed from the start.

        Nothing may be open.
        """

    def release(self) -> None:  # noqa: B027 - most engines hold nothing
        """Free memory that only play needs. The next `refresh` makes the engine ready again."""

    @classmethod
    def own_chat(cls) -> Chat | None:
        """The chat format of an engine whose model runs elsewhere.

        None for an engine that is built from a local model and its chat format.
        """
        return None

    def bill(self) -> dict[str, float]:
        """Usage and cost of a remote service; empty for a local model."""
        return {}

    def spent(self) -> dict[str, float]:
        """Seconds since the engine was built, by kind of work."""
        return {}

    def sample(self, request: Request) -> "PendingSample":
        """An awaitable for coroutines that `run` drives."""
        return PendingSample(self, request)


@dataclass(frozen=True, slots=True)
class PendingSample:
    """What a coroutine waits for; `run` sends the completion."""

    engine: Engine
    request: Request

    def __await__(self) -> Generator["PendingSample", Completion, Completion]:
        completion = yield self
        return completion


def run(
    coroutines: Iterable[Coroutine[Any, Any, Result]],
    on_result: Callable[[Result], None] | None = None,
    limit: int | None = None,
) -> list[Result]:
    """Run coroutines to their ends and return their results in order, at most `limit` at a time.

    The engine with the most waiting requests works next, so batches are as full as possible
    without a barrier.
    """
    drive, left = _Drive(on_result), enumerate(coroutines)
    try:
        for number, coroutine in left:
            drive.newest = coroutine
            while limit is not None and len(drive.waiting) >= limit:
                drive.advance()
            drive.resume(number, coroutine, None)
        while drive.waiting:
            drive.advance()
    except BaseException:
        drive.close(coroutine for _, coroutine in left)
        raise
    return [drive.results[number] for number in sorted(drive.results)]


class _Drive:
    """The running coroutines: which request each waits for, and the open requests per engine."""

    def __init__(self, on_result: Callable[[Any], None] | None) -> None:
        self.on_result = on_result
        self.results: dict[int, Any] = {}
        self.waiting: dict[Request, tuple[int, Coroutine[Any, Any, Any]]] = {}
        self.in_hand: dict[Engine, int] = {}
        self.newest: Coroutine[Any, Any, Any] | None = None

    def close(self, others: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """End all coroutines after an error: Python would print a warning about each of them."""
        begun = [coroutine for _, coroutine in self.waiting.values()]
        for coroutine in (*begun, *others, *([self.newest] if self.newest else ())):
            coroutine.close()

    def resume(
        self, number: int, coroutine: Coroutine[Any, Any, Any], completion: Completion | None
    ) -> None:
        """Run a coroutine until it waits again or ends."""
        try:
            wait: PendingSample = coroutine.send(completion)
        except StopIteration as end:
            self.results[number] = end.value
            if self.on_result is not None:
                self.on_result(end.value)
            return
        wait.engine.submit(wait.request)
        self.waiting[wait.request] = (number, coroutine)
        self.in_hand[wait.engine] = self.in_hand.get(wait.engine, 0) + 1

    def advance(self) -> None:
        """One step of the busiest engine; coroutines whose requests are answered continue."""
        busiest = max(self.in_hand, key=lambda engine: self.in_hand[engine])
        for request, completion in busiest.step():
            self.in_hand[busiest] -= 1
            self.resume(*self.waiting.pop(request), completion)


class ScriptedEngine(Engine):
    """Replies by rule: `reply(request)` gives the text, `encode` its ids; for tests and scripts.

    `batch` limits the requests per step, so tests can make sequences finish out of order.
    """

    def __init__(
        self,
        reply: Callable[[Request], str],
        encode: Callable[[str], tuple[int, ...]],
        batch: int | None = None,
    ) -> None:
        self.reply, self.encode, self.batch = reply, encode, batch
        self.queue: deque[Request] = deque()

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def step(self) -> list[tuple[Request, Completion]]:
        count = len(self.queue) if self.batch is None else min(self.batch, len(self.queue))
        return [self._answer(self.queue.popleft()) for _ in range(count)]

    def _answer(self, request: Request) -> tuple[Request, Completion]:
        text = self.reply(request)
        ids = self.encode(text)[: request.max_tokens]
        return request, Completion(ids, (0.0,) * len(ids), text, "stop", self.policy_version)
