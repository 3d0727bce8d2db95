"""Repeated rock-paper-scissors: a game has a few throws, and both players throw at the same time.

The score of a game is the mean over its throws: +1 for a throw won, -1 for a throw lost. A throw of
both players is written `rock-paper`: the reader's own throw, then the opponent's.

For long games, `summary = "predictors"` makes every observation complete: the last throws, and one
word for each of 24 simple predictors (`predictors.py`): `rock5` is the throw of its best
rule and the record of this rule. Combine it with `agent.past_turns = false`, which shows the
present observation only.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mage.environments.base import FixedLength
from mage.environments.openspiel import OpenSpiel, OpenSpielState
from mage.environments.rock_paper_scissors.predictors import Predictors

THROWS = ("rock", "paper", "scissors")
Round = tuple[str, str]  # one's own throw, the other's throw
_PREDICTORS = (
    "24 simple predictors watch the game. Each has a word: the throw of its best rule, and a digit "
    "for how well this rule did lately. 0 is even, 6 is very good. A dash means no guess."
)


class RockPaperScissorsState(OpenSpielState):
    """OpenSpiel's repeated matrix game; a throw is hidden until both players have thrown."""

    environment: "RockPaperScissors"

    def __init__(self, environment: "RockPaperScissors", seed: int) -> None:
        super().__init__(environment, seed)
        self._rounds: tuple[list[Round], list[Round]] = ([], [])  # as each seat knows them
        self._predictors: dict[tuple[int, bool], Predictors] = {}  # only if they are asked for

    def __copy__(self) -> "RockPaperScissorsState":
        """A copy with records of its own: the game tree continues copies in different ways."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _rounds=([], []), _predictors={})
        return twin

    def word(self, action: int) -> str:
        return THROWS[action]

    def number(self, word: str) -> int:
        return THROWS.index(word)

    def rounds(self, seat: int) -> Sequence[Round]:
        """All finished throws as this seat knows them."""
        known = self._rounds[seat]
        for at in range(2 * len(known), len(self.moves) - 1, 2):
            pair = self.moves[at][1], self.moves[at + 1][1]
            known.append((pair[seat], pair[1 - seat]))
        return known

    def observe(self, seat: int) -> str:
        rounds = self.rounds(seat)
        last = f"{'-'.join(rounds[-1])}. " if rounds else ""
        if self.environment.summary == "predictors":
            return f"{last}Predictors: {self._summary(seat)}"
        return f"{last}Throw {len(rounds) + 1}."

    def predictors(self, seat: int, only_first: bool = False) -> Predictors:
        """The predictors of this seat (all, or the first ten) with all finished throws."""
        known = self._predictors.get((seat, only_first))
        if known is None:
            known = self._predictors[seat, only_first] = Predictors(only_first)
        for own, other in self.rounds(seat)[len(known.pairs) :]:
            known.add((THROWS.index(own), THROWS.index(other)))
        return known

    def _summary(self, seat: int) -> str:
        words = self.predictors(seat).words
        return " ".join("-" if word is None else f"{THROWS[word[0]]}{word[1]}" for word in words)

    def anchor(self, seat: int) -> str:
        """The number of the throw: every throw of a repeated game is the same decision."""
        return f"throw {len(self.moves) // 2 + 1}"

    def scores(self) -> tuple[float, ...]:
        return tuple(score / self.environment.throws for score in self.spiel.returns())

    def recap(self, seat: int) -> str:
        if self.environment.summary == "predictors":
            return f"Score {self.scores()[seat] * self.environment.throws:+g}."
        throws = ", ".join("-".join(pair) for pair in self.rounds(seat))
        return f"{throws}. Score {self.scores()[seat] * self.environment.throws:+g}."


class RockPaperScissors(FixedLength, OpenSpiel):
    """Repeated rock-paper-scissors with `throws` throws a game."""

    name: ClassVar[str] = "rock_paper_scissors"
    presentation: ClassVar[tuple[str, ...]] = ("summary",)
    scores_every_turn: ClassVar[bool] = True
    length: ClassVar[str] = "throws"
    game: Literal["matrix_rps"] = Field("matrix_rps", description="OpenSpiel's name of the game")
    throws: int = Field(3, ge=1, le=1000, description="throws in one game (one episode)")
    summary: Literal["none", "predictors"] = Field(
        "none",
        description="what an observation shows besides the last throws: nothing, or the best throw "
        "and the record of 24 simple predictors in this game",
    )

    def spiel_game(self) -> str:
        return f"repeated_game(stage_game=matrix_rps(),num_repetitions={self.throws})"

    def start(self, seed: int) -> RockPaperScissorsState:
        return RockPaperScissorsState(self, seed)

    def rules(self) -> str:
        rules = (
            "You play rock-paper-scissors against one opponent. Rock beats scissors, scissors "
            "beats paper, paper beats rock. Both players throw at the same time. "
            "rock-paper means: you threw rock, the opponent threw paper."
        )
        return f"{rules} {_PREDICTORS}" if self.summary == "predictors" else rules

    def instance(self, seat: int) -> str:
        if self.summary == "predictors":
            return "A game has many throws."  # the same prompt for games of every length
        return "1 throw a game." if self.throws == 1 else f"{self.throws} throws a game."

    def example_action(self) -> str:
        return "rock"

    @property
    def forfeit_score(self) -> float:
        return -1.0
