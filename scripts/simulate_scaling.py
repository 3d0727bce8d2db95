"""Simulate setting, memory, time and balance of ranks: `python scripts/simulate_scaling.py`.

Nothing is measured here. The first table takes the memory plan of paper_alfworld (8 x 8
meta-episodes, replies of 256 tokens) for H200 cards and chooses the first setting of learn.shard
that fits. A decode step reads the weights and the keys and values of the rank's conversations at
3.0 TB/s; with 8,192 serial steps this gives 74 s on one card at 4 B, where 75.6 s were measured.
Learning divides the measured 704,000 tokens of an update by the speed of the plan (0.65 of it, as
measured at 4 B) and by the number of cards, times the load of the busiest rank. It adds the time to
exchange the gradients that the backward pass does not hide.

In the other tables memory is counted per parameter for training of all weights in bfloat16
with float32 masters, before activations, key/value pool and KL reference. Balance is the load of
the busiest rank divided by the mean load, for groups and for members dealt to ranks, with lengths
of meta-episodes drawn from a log-normal distribution: groups (tasks) differ, and members differ.
"""

import random
from collections.abc import Sequence
from statistics import fmean

from mage.config.loading import load_recipe
from mage.models.shapes import PRESETS, ModelShape
from mage.training.dealing import deal_members, task_kind
from mage.training.memory_plan import GB, MemoryPlan, plan_memory
from mage.types import Task

SHAPES = {
    "0.6 B": PRESETS["qwen3-0.6b"],
    "1.7 B": PRESETS["qwen3-1.7b"],
    "4 B": PRESETS["qwen3-4b"],
    "8 B": PRESETS["qwen3-8b"],
    "14 B": ModelShape(40, 5120, 40, 8, 128, 17_408, 151_936, False),
}
CARD = 141 * GB  # an H200
READ = 3.0e12  # bytes per second while decoding, measured at 4 B
DECODE_STEPS = 8192  # 3 episodes of 10 turns and 2 reflections, 256 tokens each
MEAN_CONTEXT = 2048  # tokens of a conversation, on average over an update
LEARNED_TOKENS = 704_000  # of an update, measured
LEARN_SPEED = 0.65  # of the plan's speed: 13,472 tokens/s were measured at 4 B
OPTIMIZER_STEPS = 30
LINK = 200e9  # bytes per second between the cards of a host
HIDDEN = 0.7  # share of the exchange that runs during the backward pass
FULL_SLOWER = 2.0  # learn.shard = "full" runs without compiled layers: an assumption
SIZES = {"0.6 B": 0.6, "1.7 B": 1.7, "4 B": 4.0, "8 B": 8.0, "14 B": 14.0}
RANKS = (1, 2, 4, 8)
# Bytes per parameter that every rank holds, and bytes that the ranks divide. Weights and the
# gradients of one micro-batch are bfloat16 (2 each); gradient sums (4), masters (4) and AdamW's
# two moments (8) are float32.
BYTES = {"none": (20, 0), "optimizer": (8, 12), "full": (2, 16)}


def choose_setting(shape: ModelShape, ranks: int) -> tuple[str, MemoryPlan] | None:
    """The first setting of learn.shard that fits on an H200, with its memory plan."""
    for shard in ("none", "optimizer", "full"):
        changes = ["--agent.max_tokens=256", "--agent.reflection_tokens=256"]
        recipe = load_recipe("paper_alfworld", [*changes, f"--learn.shard={shard}"])
        plan = plan_memory(recipe, shape, CARD, ranks=ranks)
        if plan.fits:
            return shard, plan
    return None


def seconds(plan: MemoryPlan, ranks: int, shard: str) -> tuple[float, float]:
    """Play and learning of one update of paper_alfworld."""
    shape = plan.shape
    cached = 2 * shape.cached_values * MEAN_CONTEXT * 64 / ranks
    play = DECODE_STEPS * (plan.weights + cached) / READ
    exchanged = 2 * 4 * shape.parameters * (ranks - 1) / ranks / LINK
    learn = LEARNED_TOKENS / (LEARN_SPEED * plan.learned_tokens()) / ranks
    learn *= balance(ranks, 8, 8)[1] * (FULL_SLOWER if shard == "full" else 1)
    return play, learn + OPTIMIZER_STEPS * exchanged * (1 - HIDDEN)


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


def print_settings() -> None:
    print("setting, GB per H200, seconds of an update of paper_alfworld (simulated)")
    print("model    GPUs  learn.shard  recompute  GB    play + learn")
    for name, shape in SHAPES.items():
        for ranks in RANKS:
            found = choose_setting(shape, ranks)
            if found is None:
                print(f"{name:8} {ranks:4d}  does not fit")
                continue
            shard, plan = found
            play, learn = seconds(plan, ranks, shard)
            how = "yes" if plan.recompute else "no"
            size = f"{plan.peak / GB:4.0f}"
            print(f"{name:8} {ranks:4d}  {shard:11}  {how:9}  {size}  {play:4.0f} + {learn:.0f} s")
    print()


def main() -> None:
    print_settings()
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
