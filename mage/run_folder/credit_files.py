"""The credit of stored turns, kept as `episodes/step_000040.credit.jsonl.gz` in a run folder.

One JSON line for each turn, in the order of the update. The viewer shows why a turn was rewarded
from these records and from the meta-episodes of the same update.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mage.run_folder import RunError
from mage.run_folder.files import read_packed, write_packed
from mage.types import Credit


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


_CREDIT = TypeAdapter(TurnCredit)


def write_credits(run: Path, update: int, credits: Iterable[Credit]) -> Path:
    """Store the credit of all turns of an update in a run folder."""
    text = "".join(json.dumps(asdict(_record(credit))) + "\n" for credit in credits)
    return write_packed(_path(run, f"step_{update:06d}"), text)


def read_credits(run: Path, name: str) -> list[TurnCredit]:
    """The credit of the turns stored under a name such as `step_000040`; empty if there is none."""
    path = _path(run, name)
    if not path.exists() and not path.is_symlink():
        return []
    lines = read_packed(path)
    try:
        return [_CREDIT.validate_python(json.loads(line)) for line in lines]
    except (ValidationError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged and cannot be read ({type(error).__name__})") from None


def _path(run: Path, name: str) -> Path:
    return run / "episodes" / f"{name}.credit.jsonl.gz"


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
