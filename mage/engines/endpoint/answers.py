"""Stored answers of an endpoint, and the budget: nothing is paid twice or beyond the budget.

An answer is written as soon as it arrives, so a kill loses only requests in flight. Truncated lines
are skipped. The key of an answer is a digest of everything that it depends on, without secrets.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mage.engines.endpoint.http import KEPT, EndpointError
from mage.engines.endpoint.replies import parse_json, printable, read_count


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, whether the length limit cut it off, and its token counts."""

    text: str
    cut_off: bool
    tokens_in: int
    tokens_out: int

    @property
    def is_too_long(self) -> bool:
        """Whether the prompt did not fit into the context of the model."""
        return self == TOO_LONG


TOO_LONG = Answer("", True, 0, 0)


class Answers:
    """A file of answers by key. Several processes may append; each reads it once, at its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        self._known = dict(_read(text))
        self._lost = _read_lost(text)
        if text and not text.endswith(b"\n"):
            self._append(b"\n")

    def find(self, key: str) -> Answer | None:
        return self._known.get(key)

    def add(self, key: str, answer: Answer) -> None:
        with self._lock:
            self._known[key] = answer
            self._append((json.dumps({"key": key} | asdict(answer)) + "\n").encode())

    def lose(self, key: str, cost: float) -> None:
        """Store that a request was sent and got no answer: the server may have charged it."""
        with self._lock:
            self._append((json.dumps({"lost": key, "cost": cost}) + "\n").encode())

    def lost(self, key: str) -> float:
        """What such requests of earlier processes may have cost. Reported once for each key."""
        with self._lock:
            return self._lost.pop(key, 0.0)

    def _append(self, line: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)


def _read(text: bytes) -> Iterator[tuple[str, Answer]]:
    """All valid lines; damaged ones are skipped, so their requests are sent again."""
    for line in text.splitlines():
        record = parse_json(line)
        if isinstance(record, dict) and isinstance(record.get("key"), str):
            answer = _answer(record)
            if answer is not None:
                yield record["key"], answer


def _read_lost(text: bytes) -> dict[str, float]:
    """The possible cost of lost requests by key."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        record = parse_json(line)
        if isinstance(record, dict) and isinstance(record.get("lost"), str):
            cost = record.get("cost")
            if isinstance(cost, float) and 0 <= cost < float("inf"):
                found[record["lost"]] = found.get(record["lost"], 0.0) + cost
    return found


def _answer(record: dict[str, Any]) -> Answer | None:
    """A stored answer; None if a field is missing, of another type or impossible."""
    text, cut_off = record.get("text"), record.get("cut_off")
    read, written = read_count(record.get("tokens_in")), read_count(record.get("tokens_out"))
    if not isinstance(text, str) or not isinstance(cut_off, bool) or read is None:
        return None
    return None if written is None else Answer(printable(text), cut_off, read, written)


class Budget:
    """Spending against a budget; prices are for a million tokens.

    Before a request is sent, its largest possible cost is reserved. So concurrent requests stay
    within the budget too. Stored answers count as well: the budget covers the whole evaluation,
    including interrupted parts. A request that was sent and got no answer counts with its largest
    possible cost, because the server may have charged it.
    """

    def __init__(self, price_in: float, price_out: float, limit: float | None) -> None:
        self.price_in, self.price_out, self.limit = price_in, price_out, limit
        self.spent = 0.0
        self._reserved: list[float] = []
        self._change = threading.Condition()

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6

    def pay(self, answer: Answer) -> None:
        with self._change:
            self.spent += self.cost(answer.tokens_in, answer.tokens_out)

    def charge(self, cost: float) -> None:
        """Count a cost; raises EndpointError if no room is left for the requests in flight."""
        with self._change:
            self.spent += cost
            if cost and self.limit is not None and self.spent + sum(self._reserved) > self.limit:
                raise EndpointError(self._used_up(max(self._reserved, default=0.0)))

    @contextmanager
    def reserve(self, most: float) -> Iterator[None]:
        """Reserve the cost of one request; waits for requests in flight if they may free some."""
        with self._change:
            while self.limit is not None and self.spent + sum(self._reserved) + most > self.limit:
                if not self._reserved:
                    raise EndpointError(self._used_up(most))
                self._change.wait()
            self._reserved.append(most)
        try:
            yield
        finally:
            with self._change:
                self._reserved.remove(most)
                self._change.notify_all()

    def _used_up(self, most: float) -> str:
        left = f"{self.spent:.4g} is spent and the next request may cost {most:.4g}"
        return f"engines.budget = {self.limit:g} is used up: {left}. {KEPT}, with a larger budget"
