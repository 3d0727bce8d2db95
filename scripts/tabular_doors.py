"""A tabular learner in doors: does the credit lead to the exact line of each return?

    python scripts/tabular_doors.py --out docs/images

For every value of the safe box a table has one row for each choice and for what is known: the
number of empty doors that were opened, or the paying door. Three moves are different: safe, the
best door (one not yet opened, or the one that pays), and a door that is known to be empty. Learning
is REINFORCE with the mean of the other members as baseline, as `advantages.name = "gigpo"` with
`anchor = "local"`, `episode_weight = 0` and `returns.per_turn`. All pictures take five minutes on
one core.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mage.environments.doors import Doors
from mage.report.drawing import Colour, new_figure, save_figure
from mage.reproduce.exploration import COLOURS, NAMES, search_line

SAFE, DOOR, EMPTY = range(3)
TABLE = (0.55, 0.68, 0.735, 0.85)
SAFES = tuple(sorted({round(0.5 + 0.02 * k, 2) for k in range(25)} | set(TABLE)))
SETTINGS = ((0.6, 3), (0.9, 3), (0.6, 10), (0.9, 10))


@dataclass(frozen=True)
class Training:
    """One training of one return, for all values of the safe box at once."""

    kind: str
    discount: float
    episodes: int
    seed: int
    arms: int = 4
    choices: int = 2
    members: int = 32
    updates: int = 400
    rate: float = 0.5
    entropy: float = 0.06  # of the mean score; it falls linearly to 0


def discounted(gains_EC: np.ndarray, kind: str, discount: float) -> np.ndarray:
    """The return of every choice, as `mage.credit.returns` has it with a step discount of 1.

    The last two axes of `gains` are the episodes and their choices.
    """
    totals_E = gains_EC.sum(-1)
    if kind in ("differential", "final"):
        before = np.concatenate([np.zeros_like(totals_E[..., :1]), totals_E[..., :-1]], -1)
        rewards_E = totals_E - before
    else:
        before, rewards_E = np.zeros_like(totals_E), totals_E
    g = {"final": 1.0, "sum": 1.0}.get(kind, discount)
    later_E = np.zeros_like(totals_E)
    for n in reversed(range(totals_E.shape[-1] - 1)):
        later_E[..., n] = g * (rewards_E[..., n + 1] + later_E[..., n + 1])
    rest_EC = np.flip(np.cumsum(np.flip(gains_EC, -1), -1), -1)
    return rest_EC - before[..., None] + later_E[..., None]


def against_others(returns: np.ndarray) -> np.ndarray:
    """The return minus the mean of the other members; members are the second axis."""
    count = returns.shape[1]
    return (returns - returns.mean(1, keepdims=True)) * count / (count - 1)


def train(job: Training, safes: Sequence[float] = SAFES) -> tuple[np.ndarray, np.ndarray]:
    """P(search) in the first choice, and the scores by episode, for every safe box."""
    rng = np.random.default_rng([job.seed, job.episodes, int(1000 * job.discount)])
    boxes = np.array(safes)
    logits = np.zeros((len(boxes), job.episodes * job.choices, job.arms + 1, 3))
    for update in range(job.updates):
        left = 1 - update / job.updates
        step(logits, boxes, job, rng, job.rate * max(left, 0.05), job.entropy * left)
    _, gains, _, _ = play(logits, boxes, job, rng, 2000)
    return 1 - softmax(logits[:, 0, 0])[:, SAFE], gains.sum(-1).mean(1)


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def play(
    logits: np.ndarray, boxes: np.ndarray, job: Training, rng: np.random.Generator, members: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Moves, what they paid (by episode and choice), what was known, and all probabilities."""
    shape = (len(boxes), members)
    steps, rows = job.episodes * job.choices, np.arange(len(boxes))[:, None]
    known = np.zeros(shape, int)  # empty doors that were opened; `arms` = the paying door
    place = rng.integers(job.arms, size=shape)  # of the paying door in the order of opening
    moves, gains = np.zeros((*shape, steps), int), np.zeros((*shape, steps))
    knew, chances = np.zeros((*shape, steps), int), np.zeros((*shape, steps, 3))
    for at in range(steps):
        chance = softmax(logits[rows, at, known])
        move = (rng.random((*shape, 1)) > chance.cumsum(-1)[..., :2]).sum(-1)
        knew[..., at], chances[..., at, :], moves[..., at] = known, chance, move
        found = known == job.arms
        hit = (move == DOOR) & (found | (place == known))
        gains[..., at] = np.where(move == SAFE, boxes[:, None], hit) / job.choices
        opened = known + ((move == DOOR) & ~found)
        known = np.where(hit | found | (opened == job.arms - 1), job.arms, opened)
    return moves, gains.reshape(*shape, job.episodes, job.choices), knew, chances


def step(
    logits: np.ndarray,
    boxes: np.ndarray,
    job: Training,
    rng: np.random.Generator,
    rate: float,
    entropy: float,
) -> None:
    """Play all groups and move the table along the gradient."""
    moves, gains, knew, chances = play(logits, boxes, job, rng, job.members)
    returns = discounted(gains, job.kind, job.discount)
    credit = against_others(returns).reshape(moves.shape)
    surprise = -np.log(np.maximum(chances, 1e-12))
    bonus = chances * (surprise - (chances * surprise).sum(-1, keepdims=True))
    gradient = credit[..., None] * (np.eye(3)[moves] - chances) + entropy * bonus
    rows = np.arange(len(boxes))[:, None, None]
    steps = np.arange(moves.shape[-1])[None, None]
    total = np.zeros_like(logits)
    np.add.at(total, (rows, steps, knew), gradient)
    logits += rate * total / job.members * 10


def crossing(safes: Sequence[float], search: np.ndarray) -> float:
    """The value of the safe box at which P(search) falls below one half."""
    below = np.flatnonzero(search < 0.5)
    if not len(below) or not below[0]:
        return float("nan")
    k = below[0]
    share = (search[k - 1] - 0.5) / (search[k - 1] - search[k])
    return float(safes[k - 1] + share * (safes[k] - safes[k - 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    trained = cache(lambda *job: train(Training(*job)))  # two returns have no discount
    figures = {
        f"{g:g}, {n} episodes": {
            kind: [
                trained(kind, 1.0 if kind in ("sum", "final") else g, n, seed)
                for seed in range(given.seeds)
            ]
            for kind in NAMES
        }
        for g, n in SETTINGS
    }
    report: dict[str, dict[str, dict[str, Any]]] = {}
    for (g, n), (title, found) in zip(SETTINGS, figures.items(), strict=True):
        lines = {kind: search_line(Doors(), kind, n, g) for kind in NAMES}
        report[title] = {kind: summarise(kind, runs, lines[kind]) for kind, runs in found.items()}
    print(json.dumps(report, indent=1))
    (given.out / "exploration_tabular.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(figures, report, given.out)


def summarise(
    kind: str, runs: Sequence[tuple[np.ndarray, np.ndarray]], line: float
) -> dict[str, Any]:
    crossings = [crossing(SAFES, search) for search, _ in runs]
    rows = {
        f"{safe:g}": {
            "search": [round(float(search[SAFES.index(safe)]), 3) for search, _ in runs],
            "sum": [round(float(scores[SAFES.index(safe)].sum()), 3) for _, scores in runs],
        }
        for safe in TABLE
    }
    return {"line": round(line, 4), "crossings": [round(one, 4) for one in crossings], **rows}


def draw(figures: dict[str, Any], report: dict[str, Any], out: Path) -> None:
    """One panel for each setting: P(search) of every seed, and the exact lines."""
    with new_figure(10, 7, **{"font.size": 10}) as figure:
        for place, (title, found) in enumerate(figures.items(), start=1):
            axes = figure.add_subplot(2, 2, place)
            axes.set_title(f"g = {title}")
            for kind, runs in found.items():
                colour = COLOURS[kind]
                axes.axvline(report[title][kind]["line"], color=colour, ls=":", lw=1.4)
                for k, (search, _) in enumerate(runs):
                    label = NAMES[kind] if k == 0 else None
                    axes.plot(SAFES, search, color=colour, lw=1, alpha=0.8, label=label)
            axes.set_xlim(0.5, 1.005)
            axes.set_ylim(-0.02, 1.02)
            if place > 2:
                axes.set_xlabel("safe box pays s")
            if place % 2:
                axes.set_ylabel("P(search) in the first choice")
        figure.axes[0].legend(frameon=False, labelcolor=Colour.ink, fontsize=9)
        figure.subplots_adjust(left=0.07, right=0.98, bottom=0.08, top=0.93, hspace=0.3)
        for kind in ("svg", "png"):
            (out / f"exploration_tabular.{kind}").write_bytes(save_figure(figure, kind))


if __name__ == "__main__":
    main()
