"""The sizes of runs. `paper`: the sizes of the paper. `small`: the embedded model on a CPU.
`qwen`: the recipes `qwen_*` on one GPU.

At scale `small` a training takes about six minutes on one core. This is enough for adaptation in
Kuhn poker (it appears between 0.25 and 0.5 million hands) and doubles the success in Tic-Tac-Toe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mage.config.recipe import Recipe

Name = Literal["small", "qwen", "paper"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Core-seconds of 1,000 episodes of training and of evaluation with the embedded model."""

    training: float
    evaluation: float


@dataclass(frozen=True, slots=True)
class Scale:
    """`base` names the recipe of an environment, `bases` the exceptions.

    Overrides, as on a command line, apply to every run, by environment, by part or kind of returns,
    by both, and to agents that write reflections.
    """

    base: str
    worlds: tuple[str, ...]
    bases: Mapping[str, str] = field(default_factory=dict)
    every: str = ""
    by_world: Mapping[str, str] = field(default_factory=dict)
    by_part: Mapping[str, str] = field(default_factory=dict)
    by_both: Mapping[tuple[str, str], str] = field(default_factory=dict)
    reflecting: str = ""
    without: tuple[str, ...] = ()  # tables that are refused
    pace: Mapping[str, Pace] = field(default_factory=dict)

    def base_of(self, world: str) -> str:
        """The recipe of an environment, which may have parts of its own."""
        return self.bases.get(world, self.base.format(world))

    def overrides(self, world: str, parts: tuple[str, ...], recipe: Recipe) -> list[str]:
        """The overrides of this scale for a recipe."""
        names = tuple(dict.fromkeys((*parts, recipe.returns.kind)))
        tuned = [self.by_part.get(name, "") for name in names]
        tuned += [self.by_both.get((world, name), "") for name in names]
        reflecting = self.reflecting if recipe.memory().reflects else ""
        return " ".join([self.every, self.by_world.get(world, ""), *tuned, reflecting]).split()


SCALES: Mapping[Name, Scale] = {
    "small": Scale(
        base="{}",
        worlds=("kuhn_poker", "tic_tac_toe", "demo", "doors"),
        every="--run.workers=1 --run.threads=1",
        by_world={
            "kuhn_poker": "--run.updates=100 --run.save_every=20 --run.evaluate_every=20 "
            "--run.episodes_every=0 --evaluate.size=600 --evaluate.final_size=3600",
            "tic_tac_toe": "--run.updates=90 --run.save_every=18 --run.evaluate_every=18 "
            "--run.episodes_every=0",
            # The methods credit whole games, and their two advantages add up. With game rewards of
            # -1 to 1 these are as large as those of the recipe, so the entropy bonus fits.
            "demo": "--run.updates=64 --run.episodes_every=0 --environments.reward_scale=1.0",
            # The step discount would change the weights of the episodes (docs/exploration.md).
            "doors": "--run.evaluate_every=0 --run.episodes_every=0 --returns.step_discount=1.0 "
            "--returns.per_turn=true --advantages.anchor=local --advantages.episode_weight=0.0 "
            "--evaluate.before=false",
        },
        # GRPO divides by the standard deviation of the rewards (6 to 8 here), so its advantages
        # are smaller by this factor, and the entropy bonus must be smaller too.
        by_part={"grpo": "--learn.entropy=0.15 --learn.entropy_final=0.02"},
        reflecting="--agent.reflection_tokens=32",
        pace={"kuhn_poker": Pace(1.3, 1.0), "tic_tac_toe": Pace(8.5, 3.7)},
    ),
    # Parts of methods replace the returns and advantages of a recipe, so what suits its world
    # stands here. Untrained arms have no supervised start.
    "qwen": Scale(
        base="qwen_{}",
        bases={
            "demo": "qwen_rps+memory_history",
            "kuhn_poker": "qwen_kuhn_poker+memory_history",
        },
        worlds=("demo", "kuhn_poker", "tic_tac_toe", "alfworld", "sokoban", "webshop"),
        every="--run.evaluate_every=0 --run.move_probabilities=false --evaluate.before=false",
        by_world={
            "demo": "--run.updates=50 --engines.context=768 --returns.step_discount=0.8 "
            "--returns.per_turn=true --advantages.episode_weight=0.0",
            "kuhn_poker": "--run.updates=60 --engines.context=768 --play.groups=64 "
            "--play.members=4 --learn.entropy=1.0 --learn.entropy_final=0.3 "
            "--returns.step_discount=1.0",
            "tic_tac_toe": "--run.updates=90 --learn.entropy=3.5 --returns.step_discount=1.0",
        },
        by_part={
            "react": "--warmup.first=false",
            "reflexion": "--warmup.first=false",
            "gigpo": "--advantages.anchor=local",
            "lamer": "--advantages.anchor=local",
            "mage": "--advantages.anchor=local",
            "final": "--advantages.anchor=local",
            "differential": "--returns.own_difference=false",
        },
        by_both={
            ("demo", "cumulative"): "--returns.episode_discount=0.8",
            ("demo", "differential"): "--returns.episode_discount=0.8",
            ("kuhn_poker", "gigpo"): "--play.members=12",
            ("kuhn_poker", "grpo"): "--play.members=12",
            ("kuhn_poker", "cumulative"): "--returns.episode_discount=0.8",
            ("kuhn_poker", "differential"): "--returns.episode_discount=0.8",
            ("tic_tac_toe", "lamer"): "--advantages.reflection_weight=0.5",
            ("tic_tac_toe", "mage"): "--advantages.reflection_weight=0.5",
            ("tic_tac_toe", "final"): "--advantages.reflection_weight=0.5",
            ("tic_tac_toe", "cumulative"): "--returns.episode_discount=0.3",
            ("tic_tac_toe", "differential"): "--returns.episode_discount=0.3",
        },
        without=("anchor", "published"),  # they need global anchors
    ),
    "paper": Scale(
        base="paper_{}",
        worlds=("kuhn_poker", "tic_tac_toe", "alfworld", "sokoban", "webshop"),
        every="--evaluate.episodes=10",
    ),
}
