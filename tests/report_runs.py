"""A synthetic run for the tests of reports: scripted play of Kuhn poker, invented metrics."""

import math
import random
import re

from mage.config.recipe import build_recipe
from mage.run_folder import RunFolder
from mage.types import MetaEpisode
from tests import view_runs
from tests.view_runs import store

EVIL = "<script>alert('x')</script> ```\n# not a heading <action>bet</action>"


def metrics_of(update: int, total: int) -> dict:
    """Figures as the trainer writes them, for a run that learns."""
    rng, share = random.Random(update), update / total
    learned = share / (share + 0.2)
    return {
        "update": update,
        **{
            f"score_{k}": -0.25 + learned * (0.2 + 0.14 * k) + rng.gauss(0, 0.04) for k in (1, 2, 3)
        },
        **{f"success_{k}": 0.4 + 0.05 * k * learned for k in (1, 2, 3)},
        "illegal_rate": 0.06 * math.exp(-6 * share),
        "reply_length": 5.0,
        "reflection_length": 21.0 - 4 * share,
        "episodes": 1536,
        "advantage_std": 5.0,
        "return_mean": 0.1,
        "flat_groups": 0.1,
        "policy_loss": -0.01,
        "kl": None,
        "action_entropy": 0.69 - 0.4 * share + rng.gauss(0, 0.01),
        "reflect_entropy": 0.5 - 0.3 * share,
        "clip_fraction": 0.02 * (1 - share),
        "approx_kl": 0.001,
        "gradient_norm": 0.7,
        "lr": 1e-3,
        "steps": 2,
    }


def answer(skill: str):
    """Without skill any legal word; with it, a bet with K and whatever the notes say."""

    def reply(prompt: str) -> str:
        dice = random.Random(prompt)
        if "Write a short note" in prompt:
            return "It bets often. Call with Q."
        card = re.findall(r"Your card: (\w)", prompt)[-1]
        if skill == "evil" and card == "K":
            return EVIL
        wise = card == "K" or (card == "Q" and "Call with Q" in prompt)
        move = ("bet" if wise else "pass") if skill else dice.choice(["pass", "bet", "fold"])
        return f"<action>{move}</action>"

    return reply


def play(skill: str, split: str, size: int, keep: str = "both") -> list[MetaEpisode]:
    return view_runs.play(split, size, reply=answer(skill), keep=keep)


def make_run(path, tables, updates: int = 40, size: int = 30) -> RunFolder:
    """A finished run."""
    folder = RunFolder.create(path, build_recipe(tables | {"run": {"updates": updates}}))
    for update in range(1, updates + 1):
        folder.append_metrics(metrics_of(update, updates))
        folder.append_timing({"update": update, "play": 1.5, "learn": 1.0, "total": 2.5})
    for update in range(0, updates + 1, 10):
        store(folder, f"select_{update:06d}", play("wise" if update > 20 else "", "test", size))
    for name, skill, keep in (
        ("before", "", "both"),
        ("after", "evil", "both"),
        ("emptied", "evil", "none"),
    ):
        store(folder, f"{name}_test", play(skill, "test", size, keep))
    folder.write_episodes(updates, play("wise", "train", 6))
    folder.write_summary({"chosen_update": 30, "updates": updates})
    return folder
