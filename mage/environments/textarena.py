"""Any TextArena game for one or two players, by its name: `--environments.game=TicTacToe-v0`.

The raw game is played, without the wrappers that accumulate text. Every episode has an object and
global random numbers of its own.

TextArena has no list of legal moves. Possible moves are those that the game's texts name in
brackets, with other numbers in the place of theirs, or those of `environments.moves`. Each is tried
on a copy of the game, so an illegal reply costs MAGE's penalty and never loses the game. Copies are
made by pickle, which is six times faster than `copy.deepcopy`. Equal games accept equal moves if
the trials draw no random numbers, so these are kept: members of a group often meet one position.
"""

import contextlib
import copy
import io
import pickle
import re
import zlib
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import product
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mage.config.errors import UserError, did_you_mean
from mage.environments._foreign import (
    ForeignCalls,
    check_seeds,
    missing_package,
    read_arguments,
    small_seed,
)
from mage.environments.base import Environment, State, named
from mage.types import Outcome

_BRACKETS = re.compile(r"\[[^\[\]\n<]{1,60}\]")
_NUMBER = re.compile(r"\d+")
_MOST_CANDIDATES = 150
_LISTED = 6  # a text that names so many moves of one shape names all of them
_RANGES = {1: range(21), 2: range(8)}  # numbers in a move -> numbers that are tried
_OPENROUTER = "it asks a model on the network (OPENROUTER_API_KEY)"
_WORDS = "it downloads word lists of NLTK at run time"
# Folder of the game in TextArena 0.7.4 -> why it is refused.
_REFUSED = {
    "Bandit": "it pays the regret: the best arm scores 0 and bad arms score more",
    **dict.fromkeys(("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"), _OPENROUTER),
    **dict.fromkeys(("Codenames", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee"), _WORDS),
    **dict.fromkeys(("WordChains", "WordLadder", "WordSearch", "Wordle"), _WORDS),
}
_DEFAULT = "KuhnPoker-v0"
Told = tuple[str, str]  # kind of a message in TextArena's words, and its text
# Digest of a game and of the moves that were tried on it -> those that it accepts.
_TRIED: dict[bytes, tuple[str, ...]] = {}
_MOST_TRIED = 10_000


class TextArenaState(State):
    """One game. `logs[seat]`: all messages of a seat; `fresh[seat]`: those since its last move."""

    def __init__(self, world: "TextArena", seed: int) -> None:
        self.world, self.call = world, ForeignCalls(world.title(), seed)
        self.game = self.call("making it", _make, world.game, world.arguments)
        self.moves: list[tuple[int, str]] = []
        self.logs: list[list[Told]] = [[] for _ in range(world.seats)]
        self.fresh: list[list[Told]] = [[] for _ in range(world.seats)]
        self.opening = [0] * world.seats  # checksum of the prompt, which may hold secrets
        self.done = False
        self.known_legal: tuple[str, ...] | None = None  # computed when it is asked for
        self.call("reset", self._reset, small_seed(seed))

    # --- State interface ---

    def turn(self) -> int | None:
        return None if self.done else int(self.game.state.current_player_id)

    def legal(self) -> tuple[str, ...]:
        """The possible moves that the game accepts; an example if it accepts none of them."""
        if self.known_legal is None:
            self.known_legal = self._accepted(self._candidates())
        return self.known_legal or (_first_move(self.world.prompt(0)),)

    def read(self, written: str) -> str | None:
        """The move as written, or with brackets around it, if the game accepts it."""
        bracketed = written if "[" in written else f"[{written}]"
        known = named(bracketed, self.known_legal or ())
        return known or next(iter(self._accepted([bracketed, written])), None)

    def apply(self, action: str) -> None:
        seat = self.turn()
        assert seat is not None, "the game is over"
        self.fresh[seat] = []
        self.moves.append((seat, action))
        self.known_legal = None
        self.call(f"step({action!r})", self._step, action)

    def observe(self, seat: int) -> str:
        return "\n".join(_with_last_board(self.fresh[seat])) or "It is your turn."

    def anchor(self, seat: int) -> str:
        """All that the seat was told: one message does not contain the state of a game."""
        return " / ".join([f"game {self.opening[seat]:x}", *_with_last_board(self.logs[seat])])

    def scores(self) -> tuple[float, ...]:
        rewards = self.game.state.rewards or {}
        return tuple(_number(rewards.get(seat, 0)) for seat in range(self.world.seats))

    def recap(self, seat: int) -> str:
        names = {seat: "you", **({1 - seat: "opponent"} if self.world.multi_agent else {})}
        moves = ", ".join(f"{names[mover]} {action}" for mover, action in self.moves)
        reason = str(self.game.state.game_info.get(seat, {}).get("reason") or "").strip()
        score = self.scores()[seat]
        outcome = self.world.outcome(score)
        result = f"You {'drew' if outcome == 'drawn' else outcome} ({score:+g})."
        return " ".join(filter(None, [f"Moves: {moves or 'none'}.", reason, result]))

    # --- Texts and moves ---

    def _reset(self, seed: int) -> None:
        _quiet(self.game.reset, num_players=self.world.seats, seed=seed)
        self._listen()

    def _step(self, action: str) -> None:
        self.done, _ = _quiet(self.game.step, action)
        self._listen()

    def _listen(self) -> None:
        """Take the new messages of every seat out of the game."""
        state = self.game.state
        if not self.done:  # some games write the board when they are asked
            seat, messages = self.game.get_observation()
            self._note(int(seat), messages)
        for seat in range(self.world.seats):
            self._note(seat, state.observations.get(seat, []))
            state.observations[seat] = []

    def _note(self, seat: int, messages: Any) -> None:
        for sender, message, type_ in messages:
            kind, text = getattr(type_, "name", ""), str(message).strip()
            sender = sender if isinstance(sender, int) else -1  # some games swap the fields
            if kind == "PROMPT":
                self.opening[seat] = zlib.crc32(text.encode(), self.opening[seat])
                self.fresh[seat].append((kind, text))
            elif sender != seat and text:
                told = kind, text if sender < 0 else f"Player {sender}: {text}"
                self.logs[seat].append(told)
                self.fresh[seat].append(told)

    def _candidates(self) -> list[str]:
        """Moves that the game may accept now, in the order in which its texts name them."""
        if self.world.moves:
            return list(self.world.moves)
        seat = self.turn()
        assert seat is not None, "the game is over"
        told = [text for _, text in (*self.logs[seat], *self.fresh[seat])]
        text = "\n".join([self.world.prompt(seat), *told])
        found = list(dict.fromkeys(_BRACKETS.findall(text)))
        return list(dict.fromkeys([*found, *_vary(found)]))[:_MOST_CANDIDATES]

    def _accepted(self, moves: list[str]) -> tuple[str, ...]:
        """Those of the moves that the game accepts now."""
        if self.done:
            return ()
        packed = _pack(self.game)
        key = sha256(b"\n".join([packed, *map(str.encode, moves)])).digest() if packed else b""
        if key in _TRIED:
            return _TRIED[key]
        accepted, drew = self.call.aside(_try_all, self.game, packed, moves)
        if key and not drew:
            if len(_TRIED) >= _MOST_TRIED:
                _TRIED.clear()
            _TRIED[key] = accepted
        return accepted


class TextArena(Environment):
    """A TextArena game for one or two players, named as TextArena names it."""

    name: ClassVar[str] = "textarena"

    game: str = Field(_DEFAULT, min_length=1, description="TextArena's name of the game")
    arguments: str = Field("", description="arguments of the game, as in max_rounds=3")
    moves: tuple[str, ...] = Field(
        (),
        description="all moves that may ever be legal, as in [up],[down]; "
        "empty = those that the texts of the game name",
    )
    players: int = Field(
        0, ge=0, le=2, description="1 or 2; 0 = two if the game can be played by two, else one"
    )
    restart: Literal["same", "fresh"] = Field(
        "same", description="same = one seed in all episodes of a task; fresh = a new one in each"
    )
    max_turns: int = Field(
        30, ge=1, description="replies the agent may give in one episode, illegal ones included"
    )

    @field_validator("game")
    @classmethod
    def _without_wrappers(cls, name: str) -> str:
        """The name of the game; the suffixes choose wrappers, which are not used."""
        return name.removesuffix("-raw").removesuffix("-train")

    @model_validator(mode="after")
    def _count_players(self) -> "TextArena":
        """Recipes store the number, so that a run can be read without the package."""
        if not self.players:
            count = count_players(self.game, self.arguments)
            object.__setattr__(self, "players", count)  # the record is frozen
        return self

    @property
    def seats(self) -> int:  # type: ignore[override]
        return self.players

    @property
    def multi_agent(self) -> bool:  # type: ignore[override]
        return self.seats == 2

    def title(self) -> str:
        """The game in messages."""
        return f"TextArena's {self.game}"

    def start(self, seed: int) -> TextArenaState:
        return TextArenaState(self, seed)

    def prompt(self, seat: int) -> str:
        """The explanation that TextArena gives a seat at the start, with the deal of one seed."""
        return _first_prompt(self.game, self.arguments, self.players, seat)

    def rules(self) -> str:
        title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.game.partition("-v")[0])
        who = " against one opponent" if self.multi_agent else ""
        return (
            f"You play {title}{who}. The first message of the game explains it. Moves are written "
            "in square brackets."
        )

    def instance(self, seat: int) -> str:
        same = "The game is the same" if self.restart == "same" else "The game is dealt anew"
        who = f"You are player {seat}. " if self.multi_agent else ""
        return f"{who}{same} in every episode."

    def example_action(self) -> str:
        return self.moves[0] if self.moves else _first_legal(self)

    @property
    def forfeit_score(self) -> float:
        return -1.0

    def outcome(self, score: float) -> Outcome:
        if self.multi_agent:
            return super().outcome(score)
        return "won" if score >= 1 else "lost"

    def check_data(self) -> None:
        """The game can be made, its seed decides it, and both seats always know a legal move."""
        check_seeds(self.title(), self._opening)
        if self.multi_agent:
            for seed in range(3):
                self._check_moves(seed)

    def _opening(self, seed: int) -> str:
        state = self.start(seed)
        return "\n".join(state.observe(seat) for seat in range(self.seats))

    def _check_moves(self, seed: int) -> None:
        """Play known moves; refuse the game if a position has none."""
        state = self.start(seed)
        for number in range(60):
            if (seat := state.turn()) is None:
                return
            legal = state.legal()
            if not state.known_legal:
                raise UserError(
                    f"{self.title()}: no legal move of player {seat} is known after "
                    f"{number} moves, so an opponent cannot move. Name all moves of the game with "
                    "environments.moves"
                )
            state.apply(legal[(seed + number) % len(legal)])


def _with_last_board(told: list[Told]) -> list[str]:
    """The messages without repetitions; only the last of several boards."""
    boards = [number for number, (kind, _) in enumerate(told) if kind == "GAME_BOARD"]
    kept = [text for number, (_, text) in enumerate(told) if number not in boards[:-1]]
    return list(dict.fromkeys(kept))


def _number(reward: Any) -> float:
    """A reward. Some games pay the text of their refusal for an illegal move."""
    return float(reward) if isinstance(reward, int | float) else -1.0


def _vary(found: list[str]) -> Iterator[str]:
    """Moves with other numbers, for shapes of which the texts give a few examples only."""
    shapes: dict[str, int] = {}
    for move in found:
        shape = _NUMBER.sub("#", move)
        shapes[shape] = shapes.get(shape, 0) + 1
    for shape, count in shapes.items():
        numbers = _RANGES.get(shape.count("#"))
        if numbers is None or count >= _LISTED:
            continue
        for chosen in product(numbers, repeat=shape.count("#")):
            words = iter(map(str, chosen))
            yield re.sub("#", lambda _, words=words: next(words), shape)  # type: ignore[misc]


def _pack(game: Any) -> bytes:
    """The game as bytes, without its logs, which are long and not needed; empty if it cannot be."""
    logs, game.state.logs = game.state.logs, []
    try:
        return pickle.dumps(game, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError):
        return b""
    finally:
        game.state.logs = logs


def _try_all(game: Any, packed: bytes, moves: list[str]) -> tuple[str, ...]:
    """Those of the moves that copies of the game take."""

    def copied() -> Any:
        if packed:
            return pickle.loads(packed)
        return copy.deepcopy(game, {id(game.state.logs): []})

    return tuple(move for move in moves if _accepts(copied(), move))


def _accepts(trial: Any, move: str) -> bool:
    """Whether a copy of the game takes the move. An error of the game counts as a refusal."""
    trial.state.error_count = 0
    seat = trial.state.current_player_id
    try:
        _quiet(trial.step, move)
    except Exception:
        return False
    refused = trial.state.game_info.get(seat, {}).get("invalid_move")
    return not (trial.state.error_count or refused)


def _quiet(function: Any, *args: Any, **named: Any) -> Any:
    """Call a function of a game; some games print."""
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*args, **named)


def _make(name: str, arguments: str) -> Any:
    """A new raw game."""
    try:
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError:
        raise missing_package("textarena", "textarena") from None
    raw = f"{name}-raw"
    if raw not in ENV_REGISTRY:
        known = [one.removesuffix("-raw") for one in ENV_REGISTRY if one.endswith("-raw")]
        raise UserError(
            f"TextArena has no game {name!r}{did_you_mean(name, known)}; it has "
            f"{len(known)} games, such as {', '.join(known[:8])}"
        )
    folder = str(ENV_REGISTRY[raw].entry_point).split(".envs.")[-1].split(".")[0]
    if folder in _REFUSED:
        raise UserError(f"TextArena's {name} is refused: {_REFUSED[folder]}")
    return _quiet(textarena.make, raw, **read_arguments(arguments))


@cache
def count_players(name: str, arguments: str) -> int:
    """2 if the game can be reset for two players, else 1."""
    if name == _DEFAULT:  # known without the package, for the lists of all environments
        return 2
    call, faults = ForeignCalls(f"TextArena's {name}", 0), []
    for count in (2, 1):
        game = call("making it", _make, name, arguments)
        try:
            call("reset", _quiet, game.reset, num_players=count, seed=0)
        except UserError as error:
            faults.append(str(error))
        else:
            return count
    raise UserError(f"TextArena's {name} is no game for one or two players: {faults[0]}")


@cache
def _first_prompt(name: str, arguments: str, players: int, seat: int) -> str:
    call = ForeignCalls(f"TextArena's {name}", 0)
    game = call("making it", _make, name, arguments)
    call("reset", _quiet, game.reset, num_players=players, seed=0)
    told = game.state.observations.get(seat, [])
    return "\n".join(text for _, text, kind in told if getattr(kind, "name", "") == "PROMPT")


def _first_move(prompt: str) -> str:
    """The first move that a text names."""
    found = _BRACKETS.findall(prompt)
    return str(found[0]) if found else "[move]"


@cache
def _first_legal(world: TextArena) -> str:
    """A legal move at the start of the game with one seed."""
    return world.start(0).legal()[0]
