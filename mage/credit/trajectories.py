"""Credit of trajectories from a file, to check credit assignment by hand.

Every line of the file is one JSON object. `trajectories` lists its meta-episodes:

    {"trajectories": [
        {"group": 0, "member": 0, "episodes": [
            {"reward": -10, "reflection_cost": null, "turns": [{"state": "s3", "cost": 0}]},
            {"reward": 10, "reflection_cost": -0.5, "turns": [{"state": "s3", "cost": -2}]}]}]}

A trajectory may name its `opponent` and `seat`. A cost is a penalty: 0 or negative.
`reflection_cost` belongs to the reflection before the episode; null means that there is none. Rows
have the order of the file: for each episode the reflection, then the turns. Other keys of a line
are ignored.
"""

import io
import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mage.config.errors import ConfigError
from mage.config.recipe import Recipe
from mage.credit.samples import assign_credit
from mage.types import Completion, Credit, Episode, MetaEpisode, Task, Turn, TurnRef


@dataclass(frozen=True, slots=True)
class RowCredit:
    """The credit of one row: a turn or a reflection."""

    where: TurnRef
    step_return: float
    episode_advantage: float
    step_advantage: float
    advantage: float
    parts: dict[str, float]


def credit_rows(
    metas: Sequence[MetaEpisode], recipe: Recipe, state: dict[str, float] | None = None
) -> list[RowCredit]:
    """The credit of every row under [returns] and [advantages] of the recipe, in row order.

    An estimator without a step part has `step_advantage` 0. `state` is what an estimator with
    running values has kept from earlier lines.
    """
    _check_weights(metas, recipe)
    credits = assign_credit(metas, recipe.returns, recipe.estimator(state))
    return [_row(credit) for credit in credits]


def _row(credit: Credit) -> RowCredit:
    parts = dict(credit.parts)
    step = parts.get("step", 0.0)
    return RowCredit(
        where=credit.source.where,
        step_return=credit.source.value,
        episode_advantage=parts.get("episode", credit.advantage - step),
        step_advantage=step,
        advantage=credit.advantage,
        parts=parts,
    )


def _check_weights(metas: Sequence[MetaEpisode], recipe: Recipe) -> None:
    weights = recipe.returns.weights
    longest = max((len(meta.episodes) for meta in metas), default=0)
    if weights is not None and recipe.returns.kind == "final" and longest > len(weights):
        raise ConfigError(
            f"a trajectory has {longest} episodes, but returns.weights has {len(weights)} weights; "
            f"use --play.episodes={longest} and --returns.weights with {longest} weights"
        )


# --- Reading --------------------------------------------------------------------------------------


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


_MOST_UNPACKED, _MOST_RATIO = 256 << 20, 100  # bytes, and bytes for each byte of an .xz file
_LARGEST = 1e12  # rewards and costs; sums and squares of much larger numbers are not finite


class _Turn(_Record):
    state: str
    cost: float = Field(0.0, le=0, ge=-_LARGEST)


class _Episode(_Record):
    reward: float = Field(ge=-_LARGEST, le=_LARGEST)
    reflection_cost: float | None = Field(None, le=0, ge=-_LARGEST)
    turns: list[_Turn]


class _Trajectory(_Record):
    group: int
    member: int
    opponent: str = ""
    seat: int = Field(0, ge=0)
    episodes: list[_Episode] = Field(min_length=1)


class _Line(_Record):
    model_config = ConfigDict(extra="ignore")
    trajectories: list[_Trajectory] = Field(min_length=1)


def read_trajectories(path: Path) -> Iterator[tuple[int, list[MetaEpisode]]]:
    """Line number (from 1) and meta-episodes of every line; empty lines are skipped."""
    lines = [(number, line) for number, line in enumerate(_read_lines(path), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty; it needs one JSON object per line")
    for number, line in lines:
        try:
            record = _Line.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(f"{path}, line {number}: {_explain(error)}") from None
        _check_members(path, number, record)
        yield number, [_meta(trajectory) for trajectory in record.trajectories]


def _read_lines(path: Path) -> list[bytes]:
    """The lines of a text file, or of an .xz file that contains one."""
    try:
        data = path.read_bytes()
        return (_unpack(path, data) if path.suffix == ".xz" else data).splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except (lzma.LZMAError, EOFError) as error:
        raise ConfigError(f"{path} is not a valid .xz file: {error}") from None


def _unpack(path: Path, data: bytes) -> bytes:
    """A file of 1 MB can hold 7 GB: the size has a limit."""
    most = _MOST_UNPACKED + _MOST_RATIO * len(data)
    with lzma.open(io.BytesIO(data)) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ConfigError(
            f"{path} holds more than {most:,} bytes: it is not a file of trajectories"
        )
    return text


def _explain(error: ValidationError) -> str:
    """The first fault as one sentence."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"]))
    if fault["type"] == "json_invalid":
        return f"this is not a JSON object ({fault['ctx']['error']})"
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "extra_forbidden":
        return f"{key} is unknown"
    text = fault["msg"].replace("Input should", "must").replace("List should", "must")
    return f"{key}: {text}" if key else f"this is not a JSON object: {text}"


def _check_members(path: Path, number: int, record: _Line) -> None:
    places = Counter((one.group, one.member) for one in record.trajectories)
    (group, member), count = places.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{path}, line {number}: member {member} of group {group} occurs {count} times; "
            "give each trajectory of a group its own member number"
        )


def _meta(trajectory: _Trajectory) -> MetaEpisode:
    task = Task("", 0, trajectory.seat, trajectory.opponent, "train")
    episodes = tuple(map(_episode, trajectory.episodes))
    memories = ("",) * len(episodes)
    return MetaEpisode(task, trajectory.group, trajectory.member, episodes, memories, 0)


def _episode(record: _Episode) -> Episode:
    cost = record.reflection_cost
    return Episode(
        turns=tuple(_turn(one.state, one.cost) for one in record.turns),
        reflection=None if cost is None else _turn("reflection", cost, is_reflection=True),
        moves=(),
        score=record.reward,
        reward=record.reward,
        outcome="won" if record.reward > 0 else "lost" if record.reward < 0 else "drawn",
        ending="finished",
        recap="",
    )


def _turn(anchor: str, penalty: float, *, is_reflection: bool = False) -> Turn:
    return Turn(
        kind="reflect" if is_reflection else "play",
        anchor=anchor,
        observation="",
        prompt_ids=(),
        completion=Completion((), (), "", "stop", 0),
        action=None,
        choices=(),
        legal=True,
        penalty=penalty,
    )
