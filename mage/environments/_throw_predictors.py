"""Simple predictors of rock-paper-scissors, and how well they did in the running game.

Five predictors count what the opponent threw in a context: always, after its own last throw, after
the reader's last throw, after the last throws of both, after the last two throws of both. Five more
count the reader's own throws in the same contexts: an opponent that predicts the reader uses such
counts. The guess of a predictor is the most frequent throw of its context.

A throw follows a predictor with a shift: 1 beats the guess, 0 copies it, 2 loses to it. Each of the
ten predictors has a record for each shift: what the reader would have scored with it lately.
"""

from collections.abc import Callable, Hashable, Sequence
from math import sqrt

Pair = tuple[int, int]  # the reader's throw and the opponent's throw, 0 to 2
Context = Callable[[Sequence[Pair]], Hashable | None]  # None: the game is too short for it

COUNT_DECAY = 0.97  # older throws of a context count less by this factor
RECORD_DECAY = 0.95  # older scores of a record count less: about the last 20 throws count
EVEN, HIGHEST = 3, 9  # the digit of a record of 0, and the highest digit
_STEPS = 1.5  # digits for each standard deviation above or below 0

CONTEXTS: tuple[Context, ...] = (
    lambda pairs: (),
    lambda pairs: pairs[-1][1] if pairs else None,
    lambda pairs: pairs[-1][0] if pairs else None,
    lambda pairs: pairs[-1] if pairs else None,
    lambda pairs: (pairs[-2], pairs[-1]) if len(pairs) > 1 else None,
)


class Predictor:
    """Counts of one player's throws in one kind of context."""

    def __init__(self, context: Context, player: int) -> None:
        self.context, self.player = context, player
        self.counts: dict[Hashable, list[float]] = {}
        self.records = [0.0, 0.0, 0.0]  # by shift

    def guess(self, pairs: Sequence[Pair]) -> int | None:
        """The most frequent throw of the present context; None if the context is new."""
        context = self.context(pairs)
        counts = None if context is None else self.counts.get(context)
        return None if counts is None else counts.index(max(counts))

    def learn(self, pairs: Sequence[Pair], pair: Pair) -> None:
        """Update records and counts with the throws that followed `pairs`."""
        guess = self.guess(pairs)
        for shift in range(3):
            gain = 0 if guess is None else payoff((guess + shift) % 3, pair[1])
            self.records[shift] = self.records[shift] * RECORD_DECAY + gain
        context = self.context(pairs)
        if context is not None:
            counts = self.counts.setdefault(context, [0.0, 0.0, 0.0])
            counts[:] = [count * COUNT_DECAY for count in counts]
            counts[pair[self.player]] += 1


class Predictors:
    """All predictors of one reader in one game."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self.weight = 0.0  # total weight of the throws in a record
        self.all = [Predictor(context, player) for player in (1, 0) for context in CONTEXTS]

    def add(self, pair: Pair) -> None:
        """Take in one throw of both players."""
        for predictor in self.all:
            predictor.learn(self.pairs, pair)
        self.weight = self.weight * RECORD_DECAY + 1
        self.pairs.append(pair)

    def digits(self) -> tuple[tuple[int, ...], ...]:
        """For each throw, one digit per predictor: the record of the shift that leads to it."""
        rows: list[list[int]] = [[], [], []]
        for predictor in self.all:
            guess = predictor.guess(self.pairs)
            for throw in range(3):
                known = guess is not None
                record = predictor.records[(throw - guess) % 3] if guess is not None else 0.0
                rows[throw].append(self._digit(record) if known else EVEN)
        return tuple(map(tuple, rows))

    def _digit(self, record: float) -> int:
        """A record in standard deviations of a random one, as a digit."""
        deviations = record / sqrt(max(self.weight, 1.0))
        return min(HIGHEST, max(0, round(_STEPS * deviations) + EVEN))


def payoff(own: int, other: int) -> int:
    """+1 if `own` beats `other`, -1 if it loses, else 0."""
    return (0, 1, -1)[(own - other) % 3]
