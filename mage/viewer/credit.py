"""Why a turn got its advantage: its return, the members it was compared with, and the parts.

The stored credit is what training used. The compared turns are found again by the rules of the
estimator (GiGPO: same episode position, and same anchor; GRPO: all members of the group).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from mage.run_folder import Json, RunFolder
from mage.run_folder.turn_files import TurnCredit, read_credits
from mage.viewer.transcripts import read_group


@dataclass(frozen=True, slots=True)
class _Row:
    """A stored turn with its credit; `number` is the meta-episode in the file."""

    number: int
    opponent: str
    anchor: str
    credit: TurnCredit
    bonuses: tuple[tuple[str, float], ...] = ()

    @property
    def place(self) -> list[int]:
        return [self.number, self.credit.episode, self.credit.index]


def read_group_credit(folder: RunFolder, name: str, group: int) -> Json:
    """The credit of all turns of a group, each with the turns it was compared with."""
    found = {_key(one): one for one in _read_credits(folder, name) if one.group == group}
    members = read_group(folder, name, group) if found else []
    rows = [row for number, meta in members for row in _rows(number, meta, found)]
    estimator, options = folder.recipe.advantages.name, dict(folder.recipe.advantages.options)
    return {
        "available": bool(rows),
        "estimator": estimator,
        "returns": folder.recipe.returns.kind,
        "turns": [_explain(row, rows, estimator, options) for row in rows],
    }


def _read_credits(folder: RunFolder, name: str) -> tuple[TurnCredit, ...]:
    path = folder.path / "episodes" / f"{name}.credit.jsonl.gz"
    if not path.exists() and not path.is_symlink():
        return ()
    return _cached_credits(folder.path, name, path.lstat().st_mtime_ns)


@lru_cache(maxsize=3)
def _cached_credits(run: Path, name: str, changed: int) -> tuple[TurnCredit, ...]:
    return tuple(read_credits(run, name))


def _key(one: TurnCredit) -> tuple[int, int, int]:
    return one.member, one.episode, one.index


def _rows(number: int, meta: Json, found: dict[tuple[int, int, int], TurnCredit]) -> list[_Row]:
    rows: list[_Row] = []
    for k, episode in enumerate(meta["episodes"]):
        turns = list(enumerate(episode["turns"]))
        if episode["reflection"] is not None:
            turns = [(-1, episode["reflection"]), *turns]
        for index, turn in turns:
            credit = found.get((meta["member"], k, index))
            if credit is not None:
                bonuses = tuple((name, value) for name, value in episode.get("bonuses", ()))
                opponent = meta["task"]["opponent"]
                rows.append(_Row(number, opponent, turn["anchor"], credit, bonuses))
    return rows


def _explain(row: _Row, rows: Sequence[_Row], estimator: str, options: dict[str, Any]) -> Json:
    credit = row.credit
    compared = _compared(row, rows, estimator, options)
    return {
        "place": row.place,
        "reward": credit.reward,
        "penalty": credit.penalty,
        "return": credit.value,
        "episode_return": credit.episode_value,
        "advantage": credit.advantage,
        "parts": credit.parts,
        "compared": compared,
        "sentences": _sentences(row, compared, options),
    }


def _compared(
    row: _Row, rows: Sequence[_Row], estimator: str, options: dict[str, Any]
) -> list[Json]:
    """For each part: the own value, the compared turns and the mean over the other members."""
    if estimator == "grpo":
        first = [one for one in rows if one.credit.episode == 0 and one.credit.index <= 0]
        return [_part("meta_episode", row, _first_of_members(first), _episode_value)]
    if estimator != "gigpo":
        return []
    is_mixed = options.get("grouping") == "mixed"
    same = [one for one in rows if is_mixed or one.opponent == row.opponent]
    episode = [one for one in same if one.credit.episode == row.credit.episode]
    parts = [_part("episode", row, _first_of_members(episode), _episode_value)]
    if row.credit.index >= 0:
        levels = _levels(same)
        pool = episode if options.get("anchor") == "local" else same
        equal = [one for one in pool if one.anchor == row.anchor and one.credit.index >= 0]
        parts.append(
            _part("step", row, equal, lambda one: one.credit.value - levels[one.credit.episode])
        )
    return parts


def _first_of_members(rows: Sequence[_Row]) -> list[_Row]:
    """One row for each member and episode."""
    found: dict[tuple[int, int], _Row] = {}
    for row in rows:
        found.setdefault((row.credit.member, row.credit.episode), row)
    return list(found.values())


def _levels(rows: Sequence[_Row]) -> dict[int, float]:
    """The mean episode return of every episode position, over members."""
    found: dict[int, list[float]] = {}
    for row in _first_of_members(rows):
        found.setdefault(row.credit.episode, []).append(row.credit.episode_value)
    return {episode: fmean(values) for episode, values in found.items()}


def _episode_value(row: _Row) -> float:
    return row.credit.episode_value


def _part(name: str, row: _Row, rows: Sequence[_Row], value: Any) -> Json:
    others: dict[int, list[float]] = {}
    for one in rows:
        if one.credit.member != row.credit.member:
            others.setdefault(one.credit.member, []).append(value(one))
    return {
        "part": name,
        "own": value(row),
        "mean": fmean(fmean(values) for values in others.values()) if others else None,
        "members": len(others),
        "turns": [
            {"place": one.place, "member": one.credit.member, "value": value(one)} for one in rows
        ],
    }


def _sentences(row: _Row, compared: Sequence[Json], options: dict[str, Any]) -> list[str]:
    credit = row.credit
    terms = [f"{_signed(value)} ({name.replace('_', ' ')})" for name, value in credit.parts.items()]
    parts = " ".join([*terms[:1], *(f"{term[0]} {term[1:]}" for term in terms[1:])])
    return [
        f"Advantage {_signed(credit.advantage)} = {parts}.",
        *(_part_sentence(row, part) + _weight_sentence(row, part, options) for part in compared),
        *([f"The reply itself cost {abs(credit.penalty):.2f}."] if credit.penalty else []),
        *_bonus_sentences(row),
    ]


def _bonus_sentences(row: _Row) -> list[str]:
    """Which part of the reward came from the functions of `play.rewards`."""
    if not row.bonuses:
        return []
    game = row.credit.reward - sum(value for _, value in row.bonuses)
    terms = [("the game", game), *row.bonuses]
    told = ", ".join(f"{name} {_signed(value)}" for name, value in terms)
    return [f"The reward of the episode {_signed(row.credit.reward)} is {told}."]


def _weight_sentence(row: _Row, part: Json, options: dict[str, Any]) -> str:
    """Why a difference counts less or not at all: the weight of its part in the recipe."""
    of_reflection = part["part"] == "episode" and row.credit.index < 0
    name = "reflection_weight" if of_reflection else f"{part['part']}_weight"
    weight = options.get(name, 1.0)
    if weight == 1:
        return ""
    effect = "so this difference does not count" if weight == 0 else "which scales this difference"
    return f" The recipe sets advantages.{name} = {weight:g}, {effect}."


def _part_sentence(row: _Row, part: Json) -> str:
    what = {
        "episode": f"Episode {row.credit.episode + 1} returned {_signed(part['own'])}",
        "meta_episode": f"The whole meta-episode returned {_signed(part['own'])}",
        "step": f"From the state “{_short(row.anchor)}” this turn returned {_signed(part['own'])} "
        "relative to its episode position",
    }[part["part"]]
    if part["mean"] is None:
        return f"{what}. No other member has a comparable turn, so this part is 0."
    members = "1 other member" if part["members"] == 1 else f"{part['members']} other members"
    return f"{what}; {members} got {_signed(part['mean'])} on average."


def _signed(value: float) -> str:
    """Two digits with a sign; a zero has no minus.

    >>> _signed(-0.001), _signed(-0.14)
    ('+0.00', '−0.14')
    """
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def _short(text: str, most: int = 60) -> str:
    line = " / ".join(text.split("\n"))
    return line if len(line) <= most else f"{line[:most]}…"
