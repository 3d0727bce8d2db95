"""The credit of the published code of MAGE, which the recipes `paper_*` use.

It is GiGPO (`gigpo.py`) with these differences. Use it with `returns.penalties = false`, as these
recipes do; `tests/test_credit.py` compares it with outputs of the published code.

- A baseline is the mean over ROWS, the own row included: long episodes have more weight.
- All episode positions share it: a late episode gets credit for its position.
- An episode scores its meta-reward r_n and the penalty of the row, not its return.
- A reflection scores 0, so it gets a negative advantage in a good group. Reflections are compared
  with each other in the step advantage.
- The anchor of a turn contains the opponent's name, so `grouping = "mixed"` pools episodes only.
- `mean_std` divides by the deviation of the sample (n - 1).
"""

from collections.abc import Hashable, Sequence
from statistics import fmean, stdev

from mage.credit.advantages.base import SMALLEST_DEVIATION, Normalise, by_key
from mage.credit.advantages.gigpo import Anchor, Grouping, StepWeight
from mage.types import Credit, Return


def estimate(
    returns: Sequence[Return],
    *,
    anchor: Anchor = "global",
    grouping: Grouping = "stationary",
    normalise: Normalise = "mean",
    step_weight: StepWeight = 1.0,
) -> list[Credit]:
    """Credits in the order of the returns."""
    scores = [
        (item.meta_reward if item.where.index >= 0 else 0.0) + item.turn.penalty for item in returns
    ]
    groups = [
        (item.where.group, item.where.opponent if grouping == "stationary" else "")
        for item in returns
    ]
    states = [_state(item, anchor) for item in returns]
    episode = _against_rows(scores, groups, normalise)
    step = _against_rows([item.value for item in returns], states, normalise)
    return [
        Credit.of(item, episode=own, step=step_weight * other)
        for item, own, other in zip(returns, episode, step, strict=True)
    ]


def _state(item: Return, anchor: Anchor) -> Hashable:
    """What turns must share to be compared; `local` compares turns of one episode only."""
    where = item.where
    episode = where.episode if anchor == "local" else None
    return where.group, where.opponent, item.turn.kind, item.turn.anchor, episode


def _against_rows(
    values: Sequence[float], keys: Sequence[Hashable], normalise: Normalise
) -> list[float]:
    """Each value minus the mean of all values with its key."""
    compared = [0.0] * len(values)
    for rows in by_key(range(len(values)), keys.__getitem__).values():
        pool = [values[row] for row in rows]
        mean, scale = fmean(pool), 1.0
        if normalise == "mean_std":
            scale = (stdev(pool) if len(pool) > 1 else 0.0) + SMALLEST_DEVIATION
        for row in rows:
            compared[row] = (values[row] - mean) / scale
    return compared
