"""Probabilities of legal moves, kept as `episodes/NAME.moves.jsonl.gz` beside the transcripts.

One JSON line for each turn. `mage.learn.move_probabilities` computes them; this file loads no
torch, so that the viewer can read them.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mage.run_folder import RunError
from mage.run_folder.files import read_packed, write_packed

MOST_LISTED = 32  # moves that are listed for one turn, the most likely first


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


_MOVES = TypeAdapter(TurnMoves)


def write_moves(run: Path, name: str, found: Iterable[TurnMoves]) -> Path:
    """Store the probabilities of a set of meta-episodes such as `after_test`."""
    text = "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in found)
    return write_packed(_path(run, name), text)


def read_moves(run: Path, name: str) -> list[TurnMoves]:
    """The stored probabilities of a set; empty if there are none."""
    path = _path(run, name)
    if not path.exists() and not path.is_symlink():
        return []
    lines = read_packed(path)
    try:
        return [_MOVES.validate_python(json.loads(line)) for line in lines]
    except (ValidationError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged and cannot be read ({type(error).__name__})") from None


def _path(run: Path, name: str) -> Path:
    return run / "episodes" / f"{name}.moves.jsonl.gz"
