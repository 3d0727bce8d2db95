"""The engine contract: a request in, a completion out, whoever waits is batched.

Play is written as plain coroutines that `await engine.sample(request)`. `run` drives them: it lets every coroutine go on
until all wait, and only then asks an engine for one step. Who waits is counted once, here, for all engines together,
so a second model (an opponent, say) can never starve the first. No event loop, no threads: the order is deterministic.
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
    """Completes requests. `submit` takes one in, `step` works and hands finished ones out."""

    policy_version: int = 0
    capacity: int | None = (
        None  # conversations it can keep in its cache at a time; None = any number
    )

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Take a request in; it is answered by a later `step`."""

    @abstractmethod
    def step(self) -> list[tuple[Request, Completion]]:
        """Do one piece of work for all requests in hand and return those that are finished (perhaps none)."""

    def refresh(self, policy_version: int) -> None:
        """The weights have changed: forget what was computed with the old ones."""
        self.policy_version = policy_version

    @classmethod
    def own_chat(cls) -> Chat | None:
        """The chat of an engine whose model is elsewhere, so that it takes no weights; None for one that is given a model and its chat."""
        return None

    def bill(self) -> dict[str, float]:
        """What was used of somebody else's machine, and what it cost; nothing where the model is here."""
        return {}

    def spent(self) -> dict[str, float]:
        """Seconds since it was made, by what they went into; for figures of where time goes."""
        return {}

    def sample(self, request: Request) -> "PendingSample":
        """Awaitable for use inside a coroutine that `run` drives."""
        return PendingSample(self, request)


@dataclass(frozen=True, slots=True)
class PendingSample:
    """What a coroutine waits on; `run` sends the completion back in."""

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
    """Drive coroutines to their ends and return their results in order; at most `limit` are under way at a time.

    The engine with the most waiting requests works next, so batches are as full as they can be without a barrier.
    """
    drive = _Drive(on_result)
    for number, coroutine in enumerate(coroutines):
        while limit is not None and len(drive.waiting) >= limit:
            drive.advance()
        drive.resume(number, coroutine, None)
    while drive.waiting:
        drive.advance()
    return [drive.results[number] for number in sorted(drive.results)]


class _Drive:
    """The coroutines under way: who waits for which request, and how many requests each engine has in hand."""

    def __init__(self, on_result: Callable[[Any], None] | None) -> None:
        self.on_result = on_result
        self.results: dict[int, Any] = {}
        self.waiting: dict[Request, tuple[int, Coroutine[Any, Any, Any]]] = {}
        self.in_hand: dict[Engine, int] = {}

    def resume(
        self, number: int, coroutine: Coroutine[Any, Any, Any], completion: Completion | None
    ) -> None:
        """Let a coroutine go on until it waits again or ends."""
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
        """One step of the busiest engine; whoever got an answer goes on."""
        busiest = max(self.in_hand, key=lambda engine: self.in_hand[engine])
        for request, completion in busiest.step():
            self.in_hand[busiest] -= 1
            self.resume(*self.waiting.pop(request), completion)


class ScriptedEngine(Engine):
    """Replies by rule: `reply(request)` gives the text, `encode` its ids. Tests and demonstrations use it as the model.

    `batch` limits how many requests one step answers, so tests can make sequences finish out of order.
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
