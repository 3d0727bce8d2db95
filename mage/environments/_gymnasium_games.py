"""Words for the text-like games of Gymnasium: moves, rules, observations and the worst score."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mage.environments._foreign import show_value

Show = Callable[[Any, Any], str]  # observation and environment -> what the agent reads


@dataclass(frozen=True, slots=True)
class KnownGame:
    """What MAGE says about a game. `moves[k]` is the word for action k."""

    moves: tuple[str, ...] = ()
    rules: str = ""
    worst: float = 0.0
    show: Show = lambda observation, env: show_value(observation)


def show_lake(observation: Any, env: Any) -> str:
    """The map of FrozenLake; P is the player."""
    rows = [[cell.decode() for cell in row] for row in env.unwrapped.desc]
    row, column = divmod(int(observation), len(rows[0]))
    rows[row][column] = "P"
    return "\n".join(" ".join(cells) for cells in rows)


def _show_cliff(observation: Any, env: Any) -> str:
    row, column = divmod(int(observation), 12)
    return f"You stand in row {row + 1}, column {column + 1}."


def _show_blackjack(observation: Any, env: Any) -> str:
    own, dealer, ace = observation
    held = " with an ace that counts 11" if ace else ""
    return f"Your cards sum to {own}{held}. The dealer shows {dealer}."


def _show_taxi(observation: Any, env: Any) -> str:
    row, column, passenger, goal = map(int, env.unwrapped.decode(observation))
    where = "in the taxi" if passenger == 4 else f"at {_STANDS[passenger]}"
    return (
        f"The taxi is in row {row + 1}, column {column + 1}. The passenger is {where} and wants "
        f"to go to {_STANDS[goal]}."
    )


_STANDS = ("R (row 1, column 1)", "G (row 1, column 5)", "Y (row 5, column 1)", "B (row 5, col. 4)")
_LAKE = (
    "You cross a frozen lake. P is you, S the start, F ice, H a hole, G the goal. Each move goes "
    "one cell. A hole ends the attempt; reaching the goal wins."
)
_CLIFF = (
    "A grid has 4 rows and 12 columns. You start in row 4, column 1 and go to row 4, column 12. "
    "The cells between them are a cliff: stepping on one costs 100 and brings you back to the "
    "start. Every other step costs 1."
)
_BLACKJACK = (
    "You play Blackjack against a dealer. Hit takes a card, stick ends your turn. More than 21 "
    "loses. The dealer takes cards up to 17. The higher sum wins. A dealer's 1 is an ace."
)
_TAXI = (
    "You drive a taxi on a grid of 5 rows and 5 columns with some walls. Pick up the passenger and "
    "drop them where they want to go. Every step costs 1, a wrong pickup or dropoff 10; the right "
    "dropoff pays 20."
)
_TAXI_MOVES = ("south", "north", "east", "west", "pickup", "dropoff")
# Name without the version -> words.
KNOWN = {
    "FrozenLake": KnownGame(("left", "down", "right", "up"), _LAKE, 0.0, show_lake),
    "FrozenLake8x8": KnownGame(("left", "down", "right", "up"), _LAKE, 0.0, show_lake),
    "CliffWalking": KnownGame(("up", "right", "down", "left"), _CLIFF, -10_000.0, _show_cliff),
    "Blackjack": KnownGame(("stick", "hit"), _BLACKJACK, -1.0, _show_blackjack),
    "Taxi": KnownGame(_TAXI_MOVES, _TAXI, -2000.0, _show_taxi),
}


def find_known(game: str) -> KnownGame:
    """The words for a registered name such as FrozenLake-v1; empty ones for an unknown game."""
    return KNOWN.get(game.rpartition("-v")[0], KnownGame())


def find_relative(kind: Any) -> KnownGame:
    """The words for a class that extends the class of a known game, such as FrozenLakeEnv."""
    names = [base.__name__.removesuffix("Env") for base in getattr(kind, "__mro__", ())]
    return next((KNOWN[name] for name in names if name in KNOWN), KnownGame())
