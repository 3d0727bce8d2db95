"""Simple predictors of rock-paper-scissors, and how well they did in the running game.

Nine predictors count what the opponent threw in a context: always, or after some of the last throws
of one player or of both. Three more look for the longest earlier passage of the game that equals
its end, and guess what followed. Twelve predict the reader's own throws in the same ways: an
opponent that predicts the reader does so too.

A throw follows a predictor with a shift: 1 beats the guess, 0 copies it, 2 loses to it. Each
predictor has a record for each shift: what the reader would have scored with it lately.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from math import sqrt

import numpy as np

Pair = tuple[int, int]  # the reader's throw and the opponent's throw, 0 to 2
Context = Callable[[Sequence[Pair]], Hashable]

COUNT_DECAY = 0.97  # older throws of a context count less by this factor
RECORD_DECAY = 0.95  # older scores of a record count less: about the last 20 throws count
LONGEST = 20  # throws of the longest passage that is compared
EVEN, HIGHEST = 3, 9  # in `digits`: the digit of a record of 0, and the highest digit
_STEPS = 1.5  # digits for each standard deviation above or below 0
_HIGHEST_WORD = 6  # in `words` 0 is even; 6 is reached in games of 50 throws and of 1,000

# The number of throws that a context needs, and the context.
CONTEXTS: tuple[tuple[int, Context], ...] = (
    (0, lambda pairs: ()),
    (1, lambda pairs: pairs[-1][1]),
    (1, lambda pairs: pairs[-1][0]),
    (1, lambda pairs: pairs[-1]),
    (2, lambda pairs: (pairs[-2], pairs[-1])),
    (2, lambda pairs: (pairs[-2][1], pairs[-1][1])),
    (2, lambda pairs: (pairs[-2][0], pairs[-1][0])),
    (3, lambda pairs: (pairs[-3][1], pairs[-2][1], pairs[-1][1])),
    (3, lambda pairs: (pairs[-3][0], pairs[-2][0], pairs[-1][0])),
)
FIRST_CONTEXTS = 5  # these give the ten predictors of the rules `predictors-best` and `-vote`
_PAYOFF = np.array([0.0, 1.0, -1.0])  # of a throw that lies 0, 1 or 2 steps above the other's


class Counts:
    """Counts of one player's throws in one kind of context."""

    def __init__(self, needs: int, context: Context, player: int) -> None:
        self.needs, self.context, self.player = needs, context, player
        self.counts: dict[Hashable, list[float]] = {}

    def guess(self, pairs: Sequence[Pair]) -> int | None:
        """The most frequent throw of the present context; None if the context is new."""
        counts = self.counts.get(self.context(pairs)) if len(pairs) >= self.needs else None
        return None if counts is None else counts.index(max(counts))

    def learn(self, pairs: Sequence[Pair], pair: Pair) -> None:
        """Count the throws that followed `pairs`."""
        if len(pairs) >= self.needs:
            counts = self.counts.setdefault(self.context(pairs), [0.0, 0.0, 0.0])
            counts[:] = [count * COUNT_DECAY for count in counts]
            counts[pair[self.player]] += 1


class Passages:
    """The game as text, to find the longest earlier passage that equals its end."""

    def __init__(self) -> None:
        self.texts = ["", "", ""]  # throws of both, of the opponent, of the reader

    def add(self, pair: Pair) -> None:
        signs = (str(3 * pair[0] + pair[1]), str(pair[1]), str(pair[0]))
        self.texts = [text + sign for text, sign in zip(self.texts, signs, strict=True)]

    def followed(self) -> list[int | None]:
        """For each text, the throw (its number) after the longest and latest such passage."""
        return [_after_last_match(text) for text in self.texts]


def _after_last_match(text: str) -> int | None:
    found = None
    for length in range(1, min(LONGEST, len(text) - 1) + 1):
        at = text.rfind(text[-length:], 0, len(text) - 1)
        if at < 0:
            break
        found = at + length
    return found


class Predictors:
    """All predictors of one reader in one game, or those of the first contexts only."""

    def __init__(self, only_first: bool = False) -> None:
        self.pairs: list[Pair] = []
        self.weight = 0.0  # total weight of the throws in a record
        contexts = CONTEXTS[:FIRST_CONTEXTS] if only_first else CONTEXTS
        self._counts = [[Counts(*context, player) for context in contexts] for player in (1, 0)]
        self._passages = None if only_first else Passages()
        self._guesses = self._guess()
        self.records = np.zeros((len(self._guesses), 3))  # by predictor and shift

    def add(self, pair: Pair) -> None:
        """Take in one throw of both players."""
        shifts = np.arange(3)
        gains = _PAYOFF[(np.maximum(self._guesses, 0)[:, None] + shifts - pair[1]) % 3]
        self.records = self.records * RECORD_DECAY + np.where(
            self._guesses[:, None] < 0, 0.0, gains
        )
        for own in self._counts:
            for counts in own:
                counts.learn(self.pairs, pair)
        if self._passages is not None:
            self._passages.add(pair)
        self.weight = self.weight * RECORD_DECAY + 1
        self.pairs.append(pair)
        self._guesses = self._guess()
        self.__dict__.pop("words", None)

    def _guess(self) -> np.ndarray:
        """The guess of every predictor; -1 if it has none."""
        found: list[int | None] = []
        places = [] if self._passages is None else self._passages.followed()
        for player, own in zip((1, 0), self._counts, strict=True):
            found += [counts.guess(self.pairs) for counts in own]
            found += [None if place is None else self.pairs[place][player] for place in places]
        return np.array([-1 if guess is None else guess for guess in found])

    def digits(self) -> tuple[tuple[int, ...], ...]:
        """For each throw, one digit per predictor: the record of the shift that leads to it."""
        deviations = _STEPS * self.records / sqrt(max(self.weight, 1.0))
        digits = np.clip(np.rint(deviations) + EVEN, 0, HIGHEST).astype(int)
        rows = [
            [
                EVEN if guess < 0 else int(own[(throw - guess) % 3])
                for guess, own in zip(self._guesses, digits, strict=True)
            ]
            for throw in range(3)
        ]
        return tuple(map(tuple, rows))

    @cached_property
    def words(self) -> tuple[tuple[int, int] | None, ...]:
        """For each predictor: the throw of the shift with the best record, and its digit."""
        shifts = self.records.argmax(1)
        best = self.records.max(1) / sqrt(max(self.weight, 1.0))
        digits = np.clip(np.rint(_STEPS * best), 0, _HIGHEST_WORD).astype(int)
        rows = zip(self._guesses.tolist(), shifts.tolist(), digits.tolist(), strict=True)
        return tuple(
            None if guess < 0 else ((guess + shift) % 3, digit) for guess, shift, digit in rows
        )
