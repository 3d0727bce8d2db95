"""Prompts in the style of the published code: one user message a turn, without a system message.

The content is that of the published prompts, the words are ours (docs/prompts.md). A message holds
the task, the first observation, the memory, the number of the trial, the latest turns and the
answer format. So the prompts of two turns share a beginning, but none continues the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mage.agent.dialogue import Calls, Dialogue
from mage.agent.history import Prompt, short
from mage.agent.prompts import template
from mage.environments.base import Environment, State, Wording
from mage.types import Completion


@dataclass(frozen=True, slots=True)
class Step:
    """A finished turn: the action, what was seen after it, and what a reflection sees of that."""

    action: str
    view: str
    review: str


class PublishedDialogue(Dialogue):
    """An episode in separate messages. The window is the number of past turns in a message."""

    def begin(self) -> None:
        self.first, self.choices = "", ""
        self.steps: list[Step] = []
        self.action: str | None = None  # of the turn whose result has not been seen yet

    def find_wording(self) -> Wording:
        return self.environment.wording()

    def observe(self, state: State) -> str:
        """The first observation, or the result of the last action."""
        if self.action is None and not self.steps:
            return self.wording.opening(state, self.seat)
        return self.wording.view(state, self.seat)

    def ask(self, state: State) -> Prompt:
        self._see(state)
        self.observation = self.steps[-1].view if self.steps else self.first
        self.choices = self.wording.choices(state)
        window = self.agent.window
        shown = len(self.steps) if window is None else min(window, len(self.steps))
        prompt = self._prompt(shown)
        while not prompt.fits and (shorter := self.shorten(prompt)) is not None:
            prompt = shorter
        return prompt

    def shorten(self, prompt: Prompt) -> Prompt | None:
        """The latest turn is always shown: it holds the present observation."""
        shown = len(self.steps) - prompt.folded - 1
        return self._prompt(shown) if shown >= 1 else None

    def add(
        self, completion: Completion, written: str | None, move: str | None, calls: Calls = ()
    ) -> None:
        if move is None:
            self.action = f"{short(written or 'none')} (not valid)"
        else:
            self.action = self.wording.word(move)

    def review(self, state: State) -> str:
        """First observation and latest turns, as far as a reflection sees them."""
        self._see(state)
        most = self.wording.reviewed
        steps = [(step.action, step.review) for step in self.steps]
        turns = self._write(steps, len(steps) if most is None else most, most)
        return _join(self.first, self._trial(turns))

    def _see(self, state: State) -> None:
        """Store what became of the last action, or the first observation."""
        if self.action is not None:
            review = self.wording.review(state, self.seat, self.training)
            self.steps.append(Step(self.action, self.wording.view(state, self.seat), review))
            self.action = None
        elif not self.steps:
            self.first = self.wording.opening(state, self.seat)

    def _prompt(self, shown: int) -> Prompt:
        """The message with the latest `shown` turns."""
        steps = [(step.action, step.view) for step in self.steps]
        trial = self._trial(self._write(steps, shown, self.wording.boards))
        text = _join(
            self.wording.task(self.seat),
            self.first,
            self.memory,
            trial,
            self.choices,
            self.wording.answer(),
        )
        ids = self.agent.chat.alone(text)
        room = self.agent.room()
        return Prompt(ids, len(steps) - shown, room is None or len(ids) <= room)

    def _trial(self, turns: str) -> str:
        """The number of the trial, if it is not the first one, and its turns."""
        if self.number == 1:
            return turns
        name = "published_trial" if turns else "published_start"
        return "\n".join(filter(None, (template(name).format(number=self.number), turns)))

    def _write(self, steps: Sequence[tuple[str, str]], shown: int, boards: int | None) -> str:
        """The latest `shown` turns, the last `boards` of them with what was seen."""
        if not steps or not shown:
            return ""
        lines = list(self._lines(steps, max(0, len(steps) - shown), boards))
        return template("published_turns").format(turns="\n".join(lines))

    def _lines(
        self, steps: Sequence[tuple[str, str]], first: int, boards: int | None
    ) -> Iterator[str]:
        last = len(steps) - 1
        for number, (action, view) in enumerate(steps[first:], start=first):
            yield f"Turn {number + 1}: {action}"
            if boards is None or last - number < boards:
                yield view if number == last else self.wording.past(view)


def reflection_text(environment: Environment, seat: int, review: str, won: bool) -> str:
    """The request for a reflection: the task, the trial, and whether it was completed."""
    request = template("published_won" if won else "published_lost")
    return _join(environment.wording().task(seat), review, request)


def question_text(environment: Environment, seat: int, question: str) -> str:
    """A question of a memory, after the task."""
    return _join(environment.wording().task(seat), question)


def _join(*parts: str) -> str:
    """Paragraphs; empty ones are left out."""
    return "\n\n".join(filter(None, parts))
