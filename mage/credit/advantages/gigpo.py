"""GiGPO over meta-episodes: A = A_episode + w A_step, both relative to the group.

A_episode compares an episode with the same episode position of the other members. A_step compares
a turn with turns of the other members that have the same anchor (the plain state): `global` pools
all episodes (MAGE), `local` compares one episode position only.

Returns of different episode positions have different levels. So returns are centred per position
before episodes are pooled. The published code does not do this. Each difference to the published
code is an option (the part `as_published` sets all of them), so its effect can be measured.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from mage.credit.advantages.base import (
    LeaveOneOut,
    Normalise,
    against_others,
    member_means,
    standard_deviation,
)
from mage.types import Credit, Return

Anchor = Annotated[
    Literal["global", "local"],
    Field(description="global = states of all episodes are compared; local = of one position"),
]
Grouping = Annotated[
    Literal["stationary", "mixed"],
    Field(description="stationary = opponents have separate baselines; mixed = one per group"),
]
StepWeight = Annotated[float, Field(description="factor on the step advantage (w)")]
EpisodeWeight = Annotated[float, Field(description="factor on the episode advantage of moves")]
# A reflection has many tokens and little influence on the outcome until the policy uses it.
ReflectionWeight = Annotated[
    float, Field(description="factor on the episode advantage of reflections")
]
EpisodeScore = Annotated[
    Literal["return", "reward"],
    Field(
        description="return = return of the first turn; "
        "reward = meta-reward of the episode and penalty of the row, as published"
    ),
]
PerPosition = Annotated[
    bool, Field(description="compare equal episode positions; false = as published")
]
PerTrajectory = Annotated[
    bool,
    Field(description="baselines are means over trajectories; false = over rows, as published"),
]
ReflectionsScoreZero = Annotated[
    bool,
    Field(description="reflections score 0 and are compared with each other, as published"),
]
SampleStd = Annotated[
    bool, Field(description="mean_std divides by the sample deviation (n - 1), as published")
]


def estimate(
    returns: Sequence[Return],
    *,
    anchor: Anchor = "global",
    grouping: Grouping = "stationary",
    normalise: Normalise = "mean",
    leave_one_out: LeaveOneOut = True,
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    reflection_weight: ReflectionWeight = 1.0,
    episode_score: EpisodeScore = "return",
    per_position: PerPosition = True,
    per_trajectory: PerTrajectory = True,
    reflections_score_zero: ReflectionsScoreZero = False,
    sample_std: SampleStd = False,
) -> list[Credit]:
    """Credits in the order of the returns."""
    baseline = _Baseline(normalise, leave_one_out, per_trajectory, sample_std)
    keys = [_group_key(item, grouping) for item in returns]
    places = [(key, item.where.episode) for key, item in zip(keys, returns, strict=True)]
    scores = [_score(item, episode_score, reflections_score_zero) for item in returns]
    episode_part = baseline.compare(returns, scores, places if per_position else keys)
    levels = _levels(returns, places) if per_position else {}
    values = [
        item.value - levels.get(place, 0.0) for item, place in zip(returns, places, strict=True)
    ]
    anchors = [
        (pool, item.turn.kind, item.turn.anchor)
        if item.where.index >= 0 or reflections_score_zero
        else None
        for pool, item in zip(places if anchor == "local" else keys, returns, strict=True)
    ]
    step_part = baseline.compare(returns, values, anchors)
    weights = [reflection_weight if item.where.index < 0 else episode_weight for item in returns]
    return [
        _credit(item, weight * episode, step_weight * step)
        for item, weight, episode, step in zip(
            returns, weights, episode_part, step_part, strict=True
        )
    ]


def _group_key(item: Return, grouping: Grouping) -> Hashable:
    """Turns with the same key share a baseline."""
    where = item.where
    return (where.group, where.opponent) if grouping == "stationary" else where.group


def _score(item: Return, kind: EpisodeScore, reflections_score_zero: bool) -> float:
    """The episode score of a row."""
    is_zero = reflections_score_zero and item.where.index < 0
    if kind == "return":
        return 0.0 if is_zero else item.episode_value
    return (0.0 if is_zero else item.meta_reward) + item.turn.penalty


def _levels(returns: Sequence[Return], places: Sequence[Hashable]) -> dict[Hashable, float]:
    """Mean return of each episode position of a group."""
    found: dict[Hashable, list[Return]] = defaultdict(list)
    for item, place in zip(returns, places, strict=True):
        found[place].append(item)
    return {
        place: fmean(member_means(items, lambda item: item.episode_value).values())
        for place, items in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Baseline:
    """How values of one key are compared with each other."""

    normalise: Normalise
    leave_one_out: bool
    per_trajectory: bool
    sample_std: bool

    def compare(
        self, returns: Sequence[Return], values: Sequence[float], keys: Sequence[Hashable | None]
    ) -> list[float]:
        """Each value against the baseline of its key, in order; 0 for rows without a key."""
        rows: dict[Hashable, list[int]] = defaultdict(list)
        for row, key in enumerate(keys):
            if key is not None:
                rows[key].append(row)
        found = [0.0] * len(keys)
        for own in rows.values():
            members = [returns[row].where.member for row in own]
            relative = self._compare_one([values[row] for row in own], members)
            for row, value in zip(own, relative, strict=True):
                found[row] = value
        return found

    def _compare_one(self, values: list[float], members: list[int]) -> list[float]:
        """The values of one key. Row i belongs to member `members[i]`."""
        scale = 1.0
        if self.normalise == "mean_std":
            scale = standard_deviation(values, of_sample=self.sample_std)
        if not self.per_trajectory:
            mean = fmean(values)
            return [(value - mean) / scale for value in values]
        found: dict[int, list[float]] = defaultdict(list)
        for member, value in zip(members, values, strict=True):
            found[member].append(value)
        means = {member: fmean(own) for member, own in found.items()}
        if len(means) < 2:
            return [0.0] * len(values)
        relative = against_others(means, self.leave_one_out, "mean")
        return [
            (value - means[member] + relative[member]) / scale
            for member, value in zip(members, values, strict=True)
        ]


def _credit(item: Return, episode: float, step: float) -> Credit:
    return Credit(item, episode + step, (("episode", episode), ("step", step)))
