"""Simulate memory per GPU and the balance of ranks: `python scripts/simulate_scaling.py`.

Nothing is measured here. Memory is counted per parameter for training of all weights in bfloat16
with float32 masters, before activations, key/value pool and KL reference. Balance is the load of
the busiest rank divided by the mean load, for groups and for members dealt to ranks, with lengths
of meta-episodes drawn from a log-normal distribution: groups (tasks) differ, and members differ.
"""

import random
from collections.abc import Sequence
from statistics import fmean

from mage.training.dealing import deal_members, task_kind
from mage.types import Task

SIZES = {"0.6 B": 0.6, "1.7 B": 1.7, "4 B": 4.0, "8 B": 8.0, "14 B": 14.0}
RANKS = (1, 2, 4, 8)
# Bytes per parameter that every rank holds, and bytes that the ranks divide. Weights and the
# gradients of one micro-batch are bfloat16 (2 each); gradient sums (4), masters (4) and AdamW's
# two moments (8) are float32.
BYTES = {"none": (20, 0), "optimizer": (8, 12), "full": (2, 16)}


def memory(billions: float, ranks: int, shard: str) -> float:
    """Gigabytes per GPU."""
    whole, divided = BYTES[shard]
    return billions * (whole + divided / ranks)


def balance(ranks: int, groups: int, members: int, *, draws: int = 200) -> tuple[float, float]:
    """Busiest rank / mean, with groups in turn and with members by expected length."""
    rng = random.Random(0)
    found = [_balance_once(rng, ranks, groups, members) for _ in range(draws)]
    return fmean(one for one, _ in found), fmean(two for _, two in found)


def _balance_once(rng: random.Random, ranks: int, groups: int, members: int) -> tuple[float, float]:
    expected = [rng.lognormvariate(0.0, 0.6) for _ in range(groups)]
    lengths = [[mean * rng.lognormvariate(0.0, 0.4) for _ in range(members)] for mean in expected]
    tasks = [
        [Task("world", group, 0, f"kind {group}", "train")] * members for group in range(groups)
    ]
    known = {task_kind(row[0]): mean for row, mean in zip(tasks, expected, strict=True)}
    rank_of = deal_members(tasks, ranks, known)
    by_group, by_member = [0.0] * ranks, [0.0] * ranks
    for group, row in enumerate(lengths):
        by_group[group % ranks] += sum(row)
        for member, length in enumerate(row):
            by_member[rank_of[group, member]] += length
    return _ratio(by_group), _ratio(by_member)


def _ratio(loads: Sequence[float]) -> float:
    return max(loads) / fmean(loads)


def main() -> None:
    print("GB per GPU before activations (simulated)")
    print("model    ranks    none optimizer    full")
    for name, billions in SIZES.items():
        for ranks in RANKS:
            parts = [f"{memory(billions, ranks, shard):6.1f}" for shard in BYTES]
            print(f"{name:8} {ranks:5d}  {'   '.join(parts)}")
    print("\nbusiest rank / mean, 16 groups of 8 (simulated)")
    print("ranks  groups  members")
    for ranks in RANKS[1:]:
        groups, members = balance(ranks, 16, 8)
        print(f"{ranks:5d} {groups:7.2f} {members:8.2f}")


if __name__ == "__main__":
    main()
