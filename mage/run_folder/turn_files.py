"""What is stored about turns beside the transcripts: their credit, and chances of legal moves.

`episodes/NAME.credit.jsonl.gz` and `episodes/NAME.moves.jsonl.gz` have one JSON line for each turn.
The viewer shows from them why a turn was rewarded and what else could have been played. This file
loads no torch; `mage.learn.move_probabilities` computes the probabilities.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from mage.run_folder import RunError
from mage.run_folder.files import read_packed, write_packed
from mage.types import Credit

MOST_LISTED = 32  # moves that are listed for one turn, the most likely first


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The credit of one turn; a reflection has index -1.

    `value` is G_{n,t}, `episode_value` is G_{n,1}, `reward` is the task reward R_n of the episode,
    `penalty` is the own cost of the reply, and `advantage` is the sum of `parts`.
    """

    group: int
    member: int
    episode: int
    index: int
    penalty: float
    reward: float
    value: float
    episode_value: float
    advantage: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TurnMoves:
    """What the policy could have played in one turn.

    `moves` are the most likely legal moves with their probabilities. `count` is the number of all
    legal moves, and `legal` is their total probability. The rest of the probability belongs to
    replies that are no legal move in its plain spelling.
    """

    group: int
    member: int
    episode: int
    index: int
    count: int
    legal: float
    moves: tuple[tuple[str, float], ...]


_RECORDS: dict[str, TypeAdapter[Any]] = {
    "credit": TypeAdapter(TurnCredit),
    "moves": TypeAdapter(TurnMoves),
}
_Kind = Literal["credit", "moves"]


def write_credits(run: Path, update: int, credits: Iterable[Credit]) -> Path:
    """Store the credit of all turns of an update in a run folder."""
    return _write(run, f"step_{update:06d}", "credit", map(_record, credits))


def read_credits(run: Path, name: str) -> list[TurnCredit]:
    """The credit of the turns stored under a name such as `step_000040`; empty if there is none."""
    return _read(run, name, "credit")


def write_moves(run: Path, name: str, moves: Iterable[TurnMoves]) -> Path:
    """Store the probabilities of a set of meta-episodes such as `after_test`."""
    return _write(run, name, "moves", moves)


def read_moves(run: Path, name: str) -> list[TurnMoves]:
    """The stored probabilities of a set; empty if there are none."""
    return _read(run, name, "moves")


def _write(run: Path, name: str, kind: _Kind, records: Iterable[Any]) -> Path:
    lines = (json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in records)
    return write_packed(_path(run, name, kind), "".join(lines))


def _read(run: Path, name: str, kind: _Kind) -> list[Any]:
    path = _path(run, name, kind)
    if not path.exists() and not path.is_symlink():
        return []
    lines = read_packed(path)
    try:
        return [_RECORDS[kind].validate_python(json.loads(line)) for line in lines]
    except (ValidationError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged and cannot be read ({type(error).__name__})") from None


def _path(run: Path, name: str, kind: _Kind) -> Path:
    return run / "episodes" / f"{name}.{kind}.jsonl.gz"


def _record(credit: Credit) -> TurnCredit:
    source = credit.source
    return TurnCredit(
        group=source.where.group,
        member=source.where.member,
        episode=source.where.episode,
        index=source.where.index,
        penalty=source.turn.penalty,
        reward=source.episode_reward,
        value=source.value,
        episode_value=source.episode_value,
        advantage=credit.advantage,
        parts=dict(credit.parts),
    )
