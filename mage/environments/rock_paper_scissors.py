"""Repeated rock-paper-scissors: a game has a few throws, and both players throw at the same time.

The score of a game is the mean over its throws: +1 for a throw won, -1 for a throw lost. A throw of
both players is written `rock-paper`: the reader's own throw, then the opponent's.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from mage.environments.openspiel import OpenSpiel, OpenSpielState

THROWS = ("rock", "paper", "scissors")
Round = tuple[str, str]  # one's own throw, the other's throw


class RockPaperScissorsState(OpenSpielState):
    """OpenSpiel's repeated matrix game; a throw is hidden until both players have thrown."""

    environment: "RockPaperScissors"

    def word(self, action: int) -> str:
        return THROWS[action]

    def number(self, word: str) -> int:
        return THROWS.index(word)

    def rounds(self, seat: int) -> list[Round]:
        """All finished throws as this seat knows them."""
        words = [word for _, word in self.moves]
        pairs = zip(words[0::2], words[1::2], strict=False)
        return [(pair[seat], pair[1 - seat]) for pair in pairs]

    def observe(self, seat: int) -> str:
        rounds = self.rounds(seat)
        last = f"{'-'.join(rounds[-1])}. " if rounds else ""
        return f"{last}Throw {len(rounds) + 1}."

    def anchor(self, seat: int) -> str:
        """The number of the throw: every throw of a repeated game is the same decision."""
        return f"throw {len(self.moves) // 2 + 1}"

    def scores(self) -> tuple[float, ...]:
        return tuple(score / self.environment.throws for score in self.spiel.returns())

    def recap(self, seat: int) -> str:
        throws = ", ".join("-".join(pair) for pair in self.rounds(seat))
        return f"{throws}. Score {self.scores()[seat] * self.environment.throws:+g}."


class RockPaperScissors(OpenSpiel):
    """Repeated rock-paper-scissors with `throws` throws a game."""

    name: ClassVar[str] = "rock_paper_scissors"
    scores_every_turn: ClassVar[bool] = True
    game: Literal["matrix_rps"] = Field("matrix_rps", description="OpenSpiel's name of the game")
    throws: int = Field(3, ge=1, le=1000, description="throws in one game (one episode)")
    max_turns: int = Field(
        0, description="replies in one episode, illegal ones included; 0 = twice the throws"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_max_turns(cls, options: dict[str, Any]) -> dict[str, Any]:
        throws = options.get("throws", 3)
        if options.get("max_turns", 0) in (0, "0") and str(throws).isdigit():
            return options | {"max_turns": 2 * int(throws)}
        return options

    @model_validator(mode="after")
    def _can_be_finished(self) -> "RockPaperScissors":
        if self.max_turns < self.throws:
            raise ValueError(
                f"max_turns = {self.max_turns} is less than throws = {self.throws}: "
                "no game could be finished"
            )
        return self

    def spiel_game(self) -> str:
        return f"repeated_game(stage_game=matrix_rps(),num_repetitions={self.throws})"

    def start(self, seed: int) -> RockPaperScissorsState:
        return RockPaperScissorsState(self, seed)

    def rules(self) -> str:
        return (
            "You play rock-paper-scissors against one opponent. Rock beats scissors, scissors "
            "beats paper, paper beats rock. Both players throw at the same time. "
            "rock-paper means: you threw rock, the opponent threw paper."
        )

    def instance(self, seat: int) -> str:
        return "1 throw a game." if self.throws == 1 else f"{self.throws} throws a game."

    def example_action(self) -> str:
        return "rock"

    @property
    def forfeit_score(self) -> float:
        return -1.0
