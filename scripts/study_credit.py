"""How much of the advantage is signal: `python scripts/study_credit.py RUN UPDATE [UPDATE ...]`.

Reads the stored turns of a Sokoban run. The environment knows the distance to the solution, so
every turn is good (no move wasted), wasteful or lost (no solution is left). The advantages of the
same turns are computed with several returns. R2 is the share of the variance of the advantage that
the three classes explain: with a larger R2 fewer episodes give the same gradient.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev, pvariance

from mage.config.sections import ReturnOptions
from mage.credit.advantages.gigpo import estimate
from mage.credit.samples import Estimator, assign_credit
from mage.environments.base import Environment
from mage.run_folder import RunFolder
from mage.types import MetaEpisode

CLASSES = ("good", "wasteful", "lost")
Place = tuple[int, int, int, int]  # group, member, episode, turn


@dataclass(frozen=True, slots=True)
class Row:
    episode: int
    quality: str
    advantage: float


def judge_turns(metas: list[MetaEpisode], environment: Environment) -> dict[Place, str]:
    """The class of every turn, from the regret of the replayed moves; illegal replies waste."""
    found = {}
    for meta in metas:
        for number, episode in enumerate(meta.episodes):
            state = environment.start(environment.episode_seed(meta.task.seed, number))
            for index, turn in enumerate(episode.turns):
                regret: float | None = 1.0
                if turn.legal:
                    state.apply(str(turn.action))
                    regret = state.regrets[-1]
                place = (meta.group, meta.member, number, index)
                found[place] = "lost" if regret is None else "wasteful" if regret else "good"
    return found


def credit_rows(
    metas: list[MetaEpisode],
    classes: dict[Place, str],
    options: ReturnOptions,
    estimator: Estimator,
) -> list[Row]:
    rows = []
    for credit in assign_credit(metas, options, estimator):
        where = credit.source.where
        if where.index >= 0:
            place = (where.group, where.member, where.episode, where.index)
            rows.append(Row(where.episode, classes[place], credit.advantage))
    return rows


def explained(rows: list[Row]) -> float:
    """The share of the variance between the classes."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.quality].append(row.advantage)
    mean = fmean(row.advantage for row in rows)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values()) / len(rows)
    variance = pvariance(row.advantage for row in rows)
    return between / variance if variance else 0.0


RETURNS = {
    "differential (MAGE)": ReturnOptions(),
    "differential, own_difference = false": ReturnOptions(own_difference=False),
    "cumulative (LaMer)": ReturnOptions(kind="cumulative"),
    "final (.25, .25, 1)": ReturnOptions(
        kind="final", weights=(0.25, 0.25, 1.0), step_discount=1.0
    ),
    "single (GiGPO)": ReturnOptions(kind="single"),
}


def main(words: list[str]) -> None:
    folder = RunFolder.open(Path(words[0]))
    environment = folder.recipe.environment().for_split("train")
    sets = [folder.read_episodes(int(update)) for update in words[1:]]
    classes = [judge_turns(metas, environment) for metas in sets]
    for name, options in RETURNS.items():
        for weight in (1.0, 0.0):
            rows = [
                row
                for metas, own in zip(sets, classes, strict=True)
                for row in credit_rows(metas, own, options, partial(estimate, step_weight=weight))
            ]
            print(f"\n{name}, step_weight {weight:g}: R2 {explained(rows):.4f}")
            for episode in sorted({row.episode for row in rows}):
                own_rows = [row for row in rows if row.episode == episode]
                print(f"  episode {episode + 1}: {describe(own_rows)}")


def describe(rows: list[Row]) -> str:
    """The mean advantage of every class, the deviation of all rows, and R2."""
    means = [
        f"{name} {fmean(found):+.2f}"
        for name in CLASSES
        if (found := [row.advantage for row in rows if row.quality == name])
    ]
    spread = pstdev(row.advantage for row in rows)
    return f"{', '.join(means)}; deviation {spread:.2f}, R2 {explained(rows):.4f}"


if __name__ == "__main__":
    main(sys.argv[1:])
