"""Any two-player OpenSpiel game as text: chance, seats, legal moves, scores.

`mage play openspiel --environments.game=connect_four` works for every game whose state OpenSpiel
can print. `tic_tac_toe.py`, `kuhn_poker.py` and `rock_paper_scissors.py` only replace the words.
Chance is drawn from the state's seed.

Games with simultaneous moves are played in turns: seat 0 chooses first, and OpenSpiel hides the
choice from seat 1 until both are made (`turn_based_simultaneous_game`).
"""

import random
from functools import cache
from typing import Any, ClassVar

import pyspiel
from pydantic import Field, field_validator

from mage.config.errors import UserError
from mage.environments.base import SEATS, Environment, State, turn_limit

# Short rules by OpenSpiel's name of the game, for a reader who knows only the printed state.
_RULES = {
    "blotto": "Each player spreads coins over the fields. The player with more coins on a field "
    "wins the field; the player with more fields wins the game.",
    "connect_four": "A move names a column from 0 (left) to 6 (right); the mark falls to the "
    "lowest free cell. x moves first. Four own marks in a row, column or diagonal win.",
    "goofspiel": "Each player has cards 1 to n. In every round both bid one card for the point "
    "card. The higher bid wins the points; equal bids win nothing. The player with more points "
    "wins.",
    "leduc_poker": "Cards 0 and 1 are low, 2 and 3 middle, 4 and 5 high. Each player has one "
    "private card; one public card follows after the first round. A pair with the public card "
    "wins, else the higher card. Call adds no more than is owed, Raise adds more, Fold gives up.",
    "liars_dice": "The first number is your die; the bids so far follow. A bid 2-4 claims that two "
    "dice of both players together show 4; a 6 counts as any number. Every bid must be higher than "
    "the last one. Liar ends the game: the bidder wins if the bid is true.",
}
_SIMULTANEOUS = pyspiel.GameType.Dynamics.SIMULTANEOUS


@cache
def load_game(text: str) -> Any:
    """An OpenSpiel game in turns, loaded once per process."""
    game = pyspiel.load_game(text)
    is_simultaneous = game.get_type().dynamics == _SIMULTANEOUS
    return pyspiel.convert_to_turn_based(game) if is_simultaneous else game


@cache
def plain_type(text: str) -> Any:
    """OpenSpiel's description of the game as it is named, before it is played in turns."""
    return pyspiel.load_game(text).get_type()


@cache
def _check_game(text: str) -> None:
    """UserError unless two players can play the game in turns as text."""
    known = pyspiel.registered_names()
    if text.split("(")[0] not in known:
        raise UserError(f"OpenSpiel has no game {text!r}; it has {', '.join(sorted(known))}")
    game_type = load_game(text).get_type()
    if game_type.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise UserError(f"{text!r} cannot be played in turns")
    if not (game_type.provides_observation_string or game_type.provides_information_state_string):
        raise UserError(f"{text!r} cannot print its state")
    if load_game(text).num_players() != 2:
        raise UserError(f"{text!r} is not a game for two players")


class OpenSpielState(State):
    """Wraps a pyspiel state. A game with its own words overrides the methods below."""

    def __init__(self, environment: "OpenSpiel", seed: int) -> None:
        self.environment = environment
        self.spiel = load_game(environment.spiel_game()).new_initial_state()
        self.seed, self.rng = seed, random.Random(seed)
        self.moves: list[tuple[int, str]] = []
        self.hides_moves = plain_type(environment.spiel_game()).dynamics == _SIMULTANEOUS
        self._let_chance_act()

    def turn(self) -> int | None:
        return None if self.spiel.is_terminal() else self.spiel.current_player()

    def legal(self) -> tuple[str, ...]:
        return tuple(self.word(action) for action in self.spiel.legal_actions())

    def apply(self, action: str) -> None:
        seat = self.spiel.current_player()
        self.moves.append((seat, action))
        self.spiel.apply_action(self.number(action))
        self._let_chance_act()

    def observe(self, seat: int) -> str:
        return f"{self._view(seat)}\nYour moves: {', '.join(self.legal())}."

    def anchor(self, seat: int) -> str:
        return self._view(seat)

    def scores(self) -> tuple[float, ...]:
        return tuple(self.spiel.returns())

    def recap(self, seat: int) -> str:
        score = self.scores()[seat]
        outcome = self.environment.outcome(score)
        return f"Moves: {self.past_moves(seat)}. You {outcome} ({score:+g})."

    def past_moves(self, seat: int) -> str:
        """All moves so far, as this seat calls the players."""
        return ", ".join(
            f"{'you' if mover == seat else 'opponent'} {action}" for mover, action in self.moves
        )

    def word(self, action: int) -> str:
        """The agent's word for an OpenSpiel action of the seat to move."""
        seat = self.spiel.current_player()
        return str(self.spiel.action_to_string(seat, action)).removeprefix(f"[P{seat}]").strip()

    def number(self, word: str) -> int:
        """The OpenSpiel action for a legal word."""
        return next(action for action in self.spiel.legal_actions() if self.word(action) == word)

    def _view(self, seat: int) -> str:
        game_type = load_game(self.environment.spiel_game()).get_type()
        if game_type.provides_observation_string:
            text = str(self.spiel.observation_string(seat))
        else:
            text = str(self.spiel.information_state_string(seat))
        lines = [line for line in text.splitlines() if not line.startswith("Current player: ")]
        view = "\n".join(lines).strip()
        return "The game begins." if view in ("", "Non-terminal") else view

    def _let_chance_act(self) -> None:
        while self.spiel.is_chance_node():
            actions, weights = zip(*self.spiel.chance_outcomes(), strict=True)
            self.spiel.apply_action(self.rng.choices(actions, weights)[0])


class OpenSpiel(Environment):
    """A two-player OpenSpiel game, named as OpenSpiel names it."""

    name: ClassVar[str] = "openspiel"
    presentation: ClassVar[tuple[str, ...]] = ("forfeits",)
    game: str = Field(
        "connect_four", description="OpenSpiel's name of the game, with its parameters"
    )
    max_turns: int = turn_limit(100)
    forfeits: bool = Field(
        True,
        description="the turn limit is a loss after any illegal reply; false = it pays 0, as in "
        "the paper",
    )

    @field_validator("game")
    @classmethod
    def _is_playable(cls, text: str) -> str:
        _check_game(text)
        return text

    def spiel_game(self) -> str:
        """The game as `load_game` takes it; games with options of their own override this."""
        return self.game

    def start(self, seed: int) -> OpenSpielState:
        return OpenSpielState(self, seed)

    def rules(self) -> str:
        game_type = plain_type(self.spiel_game())
        rules = f"You play {game_type.long_name} against one opponent."
        return f"{rules} {_RULES.get(game_type.short_name, '')}".strip()

    def instance(self, seat: int) -> str:
        if plain_type(self.spiel_game()).dynamics == _SIMULTANEOUS:
            return f"You are the {SEATS[seat]} player. Both players choose at the same time."
        return f"You play {SEATS[seat]}."

    def example_action(self) -> str:
        return self.start(0).legal()[0]

    def forfeits_at_limit(self) -> bool:
        return self.forfeits

    @property
    def forfeit_score(self) -> float:
        return float(load_game(self.spiel_game()).min_utility())
