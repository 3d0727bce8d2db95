"""The tables: arms, environments and the figures of the paper (docs, method, section 8).

An arm is the recipe of an environment plus parts (`mage/recipes/parts/`). So all arms of a table
share environment, model, panels and budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mage.types import Split

Name = Literal[
    "table1",
    "ood",
    "rewards",
    "returns",
    "population",
    "grouping",
    "anchor",
    "memory",
    "stopping",
    "published",
]
MeasureName = Literal["score", "success", "draws"]
GAMES = ("kuhn_poker", "tic_tac_toe")
WORLDS = (*GAMES, "alfworld", "sokoban", "webshop")


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of a table; `parts` are added to the recipe in this order."""

    label: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`paper` holds the rates of the paper (Qwen3-4B): environment -> label -> rate.

    A key may name a variant of the environment: "sokoban, 1 box". `measures` sets what is compared
    in an environment, `more_splits` adds further panels.
    """

    title: str
    arms: tuple[Arm, ...]
    worlds: tuple[str, ...] = WORLDS
    split: Split = "test"
    more_splits: tuple[Split, ...] = ()
    measures: Mapping[tuple[str, Split], MeasureName] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _arms(*labels: str) -> tuple[Arm, ...]:
    return tuple(Arm(label, (label,)) for label in labels)


METHODS = _arms("react", "reflexion", "amem", "memento", "grpo", "gigpo", "lamer", "mage", "final")
_MAGE = Arm("mage", ("mage",))
_TABLE1 = {
    "kuhn_poker": (0.648, 0.648, 0.641, 0.641, 0.648, 0.656, 0.594, 0.656),
    "tic_tac_toe": (0.039, 0.242, 0.016, 0.031, 0.219, 0.414, 0.602, 0.672),
    "alfworld": (0.234, 0.391, 0.375, 0.336, 0.836, 0.883, 0.898, 0.914),
    "sokoban": (0.383, 0.438, 0.367, 0.336, 0.602, 0.719, 0.688, 0.773),
    "webshop": (0.039, 0.039, 0.000, 0.000, 0.711, 0.797, 0.703, 1.000),
}
# MCTS with 1,000 simulations hardly ever loses, so the paper reports the rate of draws.
_DRAWS: Mapping[tuple[str, Split], MeasureName] = {("tic_tac_toe", "ood"): "draws"}

TABLES: Mapping[Name, Table] = {
    "table1": Table(
        "Every method on the opponents and tasks of its own domain",
        METHODS,
        paper={
            world: dict(zip((arm.label for arm in METHODS), rates, strict=False))
            for world, rates in _TABLE1.items()
        },
    ),
    "ood": Table(
        "The same runs on opponents and tasks that training never met",
        METHODS,
        split="ood",
        measures=_DRAWS,
        paper={
            "kuhn_poker": {"mage": 0.508},
            "tic_tac_toe": {"mage": 1.0},
            "alfworld": {"mage": 0.789},
            "sokoban, 1 box": {"mage": 0.914},
            "sokoban, 3 boxes": {"mage": 0.461},
            "webshop": {"gigpo": 0.688, "mage": 0.961},
        },
    ),
    "rewards": Table(
        "What an episode is credited with",
        (
            Arm("differential", ("mage",)),
            Arm("cumulative", ("lamer",)),
            Arm("single", ("mage", "returns_single")),
            Arm("final", ("final",)),
        ),
    ),
    "returns": Table(
        "Returns of the methods against opponents that training never meets",
        _arms("gigpo", "lamer", "mage", "final"),
        worlds=("demo",),
        measures={("demo", "test"): "score"},
    ),
    "population": Table(
        "Whom the agent meets in training",
        (
            Arm("full", ("mage",)),
            Arm("fixed MCTS", ("mage", "population_mcts")),
            Arm("pattern-skewed", ("mage", "population_patterns")),
        ),
        worlds=("tic_tac_toe",),
        more_splits=("ood",),
        measures=_DRAWS,
        paper={"tic_tac_toe": {"full": 0.672, "pattern-skewed": 0.578}},
    ),
    "grouping": Table(
        "Whether members of a group meet one opponent",
        (Arm("stationary", ("mage",)), Arm("mixed", ("mage", "grouping_mixed"))),
        worlds=GAMES,
        paper={"tic_tac_toe": {"stationary": 0.672, "mixed": 0.547}},
    ),
    "anchor": Table(
        "Which turns are compared with each other",
        (Arm("global", ("mage",)), Arm("local", ("mage", "anchor_local"))),
    ),
    "memory": Table(
        "What is carried from episode to episode",
        tuple(
            Arm(keep, ("mage", f"memory_{keep}"))
            for keep in ("reflections", "history", "both", "none")
        ),
    ),
    "stopping": Table(
        "Whether a win ends a meta-episode in training",
        (Arm("plays on", ("mage", "play_on")), Arm("stops", ("mage", "stop_on_success"))),
    ),
    "published": Table(
        "Our credit, and that of the published code",
        (_MAGE, Arm("as published", ("as_published",))),
    ),
}
