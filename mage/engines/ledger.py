"""What was asked and answered, in a file, and what it cost: nothing is paid for twice, and nothing beyond the budget.

An answer is written the moment it comes, by whoever got it, so a kill loses only what was on its way. A line that a kill tore is
passed over. The key of an answer is a digest of all that it depends on, and of nothing secret.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mage.engines.client import KEPT, EndpointError


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, whether its length cut it off, and what was counted for it."""

    text: str
    cut_off: bool
    tokens_in: int
    tokens_out: int


class Answers:
    """A file of answers by key. Several processes may add to it; each knows what was there when it began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        self._known = dict(_read(text))
        if text and not text.endswith(b"\n"):
            self._append(b"\n")

    def find(self, key: str) -> Answer | None:
        return self._known.get(key)

    def add(self, key: str, answer: Answer) -> None:
        with self._lock:
            self._known[key] = answer
            self._append((json.dumps({"key": key} | asdict(answer)) + "\n").encode())

    def _append(self, line: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)


def _read(text: bytes) -> Iterator[tuple[str, Answer]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
            yield record.pop("key"), Answer(**record)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


class Purse:
    """Spending against a budget; prices are for a million tokens.

    Before a question goes out the most that it can cost is set aside, so that answers which are on their way together stay
    within the budget as well. Answers from the file count too: the budget is that of the whole evaluation, kills included.
    """

    def __init__(self, price_in: float, price_out: float, budget: float | None) -> None:
        self.price_in, self.price_out, self.budget = price_in, price_out, budget
        self.spent = 0.0
        self._aside: list[float] = []
        self._change = threading.Condition()

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6

    def pay(self, answer: Answer) -> None:
        with self._change:
            self.spent += self.cost(answer.tokens_in, answer.tokens_out)

    @contextmanager
    def set_aside(self, most: float) -> Iterator[None]:
        """Room for one question; waits for those on their way if they may leave some."""
        with self._change:
            while self.budget is not None and self.spent + sum(self._aside) + most > self.budget:
                if not self._aside:
                    raise EndpointError(self._used_up(most))
                self._change.wait()
            self._aside.append(most)
        try:
            yield
        finally:
            with self._change:
                self._aside.remove(most)
                self._change.notify_all()

    def _used_up(self, most: float) -> str:
        left = f"{self.spent:.4g} is spent and one more question may cost {most:.4g}"
        return f"engines.budget = {self.budget:g} is used up: {left}. {KEPT}, with a larger budget"
