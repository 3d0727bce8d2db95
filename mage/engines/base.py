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

from mage.types import Completion

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to complete and how. Two requests are never equal, so a request can be its own ticket.

    `seed` fixes the reply whoever shares the batch; `stop` ends the reply after the first of these strings, which
    stays part of it. `temperature = 0` takes the most likely token.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


class Engine(ABC):
    """Completes requests. `submit` takes one in, `step` works and hands finished ones out."""

    policy_version: int = 0

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Take a request in; it is answered by a later `step`."""

    @abstractmethod
    def step(self) -> list[tuple[Request, Completion]]:
        """Do one piece of work for all requests in hand and return those that are finished (perhaps none)."""

    def refresh(self, policy_version: int) -> None:
        """The weights have changed: forget what was computed with the old ones."""
        self.policy_version = policy_version

    def sample(self, request: Request) -> "Sampling":
        """Awaitable for use inside a coroutine that `run` drives."""
        return Sampling(self, request)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a coroutine waits on; `run` sends the completion back in."""

    engine: Engine
    request: Request

    def __await__(self) -> Generator["Sampling", Completion, Completion]:
        completion = yield self
        return completion


def run(coroutines: Iterable[Coroutine[Any, Any, Result]], on_result: Callable[[Result], None] | None = None) -> list[Result]:
    """Drive coroutines to their ends and return their results in order.

    The engine with the most waiting requests works next, so batches are as full as they can be without a barrier.
    """
    started = list(coroutines)
    results: dict[int, Result] = {}
    waiting: dict[Request, int] = {}
    in_hand: dict[Engine, int] = {}
    ready: deque[tuple[int, Completion | None]] = deque((index, None) for index in range(len(started)))
    while ready or waiting:
        while ready:
            index, completion = ready.popleft()
            try:
                wait: Sampling = started[index].send(completion)
            except StopIteration as end:
                results[index] = end.value
                if on_result is not None:
                    on_result(end.value)
                continue
            wait.engine.submit(wait.request)
            waiting[wait.request] = index
            in_hand[wait.engine] = in_hand.get(wait.engine, 0) + 1
        if waiting:
            busiest = max(in_hand, key=lambda engine: in_hand[engine])
            for request, completion in busiest.step():
                in_hand[busiest] -= 1
                ready.append((waiting.pop(request), completion))
    return [results[index] for index in range(len(started))]


class ScriptedEngine(Engine):
    """Replies by rule: `reply(request)` gives the text, `encode` its ids. Tests and demonstrations use it as the model.

    `batch` limits how many requests one step answers, so tests can make sequences finish out of order.
    """

    def __init__(self, reply: Callable[[Request], str], encode: Callable[[str], tuple[int, ...]], batch: int | None = None) -> None:
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
