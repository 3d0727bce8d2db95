"""The prompt of an episode from its turns, with a window and a limit on tokens.

The prompt is append-only while all turns fit. If the window or the context is exceeded, the oldest
turns are folded into one line that names their actions. The first turn is always shown, because it
contains the task. `window = 0` shows no past turn: every prompt is an opening with the present
observation, for environments whose observation is complete. Example with `window = 2` after five
turns:

    opening, reply 1, (turns 2 to 3 in one line) observation 4, reply 4, observation 5, reply 5, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mage.agent.chat import Chat, Ids
from mage.agent.prompts import template

_ACTION_LENGTH = 60  # characters of an action in the line of folded turns


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A finished turn: the message before it, its reply as ids, and its action."""

    message: str
    reply: Ids
    action: str | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn. `fits`: the reply has room for all its tokens in the context."""

    ids: Ids
    folded: int = 0  # turns that are shown in one line only
    fits: bool = True


@dataclass(slots=True)
class History:
    """The turns of one episode. `room` is the largest prompt in tokens; None = no limit.

    Turns beyond the window are folded `fold` at a time. Between two folds the prompt is append-only
    and shows `window` to `window + fold - 1` turns besides the first.
    """

    chat: Chat
    window: int | None = None
    room: int | None = None
    fold: int = 1
    opening: Ids = ()
    turns: list[PastTurn] = field(default_factory=list)
    _whole: Ids = ()  # the prompt without folding, extended turn by turn

    def begin(self, opening: Ids) -> Prompt:
        """The prompt of the first turn."""
        self.opening = self._whole = opening
        return Prompt(opening, fits=self._fits(opening))

    def add(self, turn: PastTurn) -> None:
        """Store a finished turn."""
        self.turns.append(turn)
        self._whole += turn.reply

    def next(self, message: str) -> Prompt:
        """The prompt of the next turn, with as few folded blocks as window and room allow."""
        self._whole += self.chat.next(message)
        count = len(self.turns)
        beyond = 0 if self.window is None else max(0, count - self.window - 1)
        prompt = self._prompt(message, beyond // self.fold * self.fold)
        while not prompt.fits and (more := self.fold_more(prompt, message)) is not None:
            prompt = more
        return prompt

    def fold_more(self, prompt: Prompt, message: str) -> Prompt | None:
        """The same prompt with `fold` more turns folded; None if only the first turn is left.

        With `window = 0` a prompt has no past turns.
        """
        if self.window == 0 or prompt.folded + 1 >= len(self.turns):
            return None
        return self._prompt(message, min(prompt.folded + self.fold, len(self.turns) - 1))

    def _prompt(self, message: str, folded: int) -> Prompt:
        ids = self._fold(message, folded) if folded else self._whole
        return Prompt(ids, folded, self._fits(ids))

    def _fold(self, message: str, folded: int) -> Ids:
        """Opening, first reply, one line for turns 2 to folded + 1, then the turns after them."""
        kept = self.turns[folded + 1 :]
        messages = [*(turn.message for turn in kept[:]), message]
        line = folded_line([turn.action for turn in self.turns[1 : folded + 1]])
        ids = self.opening + self.turns[0].reply + self.chat.next(f"{line}\n{messages[0]}")
        for turn, following in zip(kept, messages[1:], strict=True):
            ids += turn.reply + self.chat.next(following)
        return ids

    def _fits(self, ids: Ids) -> bool:
        return self.room is None or len(ids) <= self.room


def folded_line(actions: Sequence[str | None]) -> str:
    """One line for folded turns; the first of them is turn 2.

    >>> folded_line(["open drawer 1", None])
    '(Turns 2 to 3 are not shown. Actions: open drawer 1; ?)'
    """
    names = [short(action or "?") for action in actions]
    turns = "Turn 2 is" if len(names) == 1 else f"Turns 2 to {len(names) + 1} are"
    return template("folded").format(turns=turns, actions="; ".join(names))


def short(action: str) -> str:
    """An action in one line of limited length."""
    text = " ".join(action.split())
    return text if len(text) <= _ACTION_LENGTH else f"{text[:_ACTION_LENGTH]}.."
