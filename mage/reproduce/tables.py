"""The tables: arms, environments, what is compared, and the figures of the paper (Qwen3-4B).

An arm is the recipe of an environment plus parts (`mage/recipes/parts/`). So all arms of a table
share environment, model and panels.
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
    "exploration",
]
# Score, success and draws are those of one episode. Pass@k and Draw@k count tasks that were won, or
# drawn, at least once in the first k episodes.
MeasureName = Literal["score", "success", "draws", "pass_at", "draw_at"]
Curve = Mapping[int, float]  # episode k, from 1 -> rate
GAMES = ("kuhn_poker", "tic_tac_toe")
WORLDS = (*GAMES, "alfworld", "sokoban", "webshop")


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of a table; `parts` are added to the recipe in this order."""

    label: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`paper` holds the known rates of the paper, in the measure that the table compares.

    Its keys are an environment and a panel; the environment may be a variant: "sokoban, 1 box".
    `measure` is what is compared, `measures` the exceptions; without either it is the score where
    its exact bounds are known, else success. `more_splits` adds further panels.
    """

    title: str
    arms: tuple[Arm, ...]
    worlds: tuple[str, ...] = WORLDS
    split: Split = "test"
    more_splits: tuple[Split, ...] = ()
    measure: MeasureName | None = None
    measures: Mapping[tuple[str, Split], MeasureName] = field(default_factory=dict)
    paper: Mapping[tuple[str, Split], Mapping[str, Curve]] = field(default_factory=dict)

    def measure_of(self, world: str, split: Split) -> MeasureName | None:
        return self.measures.get((world, split), self.measure)


def _arms(*labels: str) -> tuple[Arm, ...]:
    return tuple(Arm(label, (label,)) for label in labels)


METHODS = _arms("react", "reflexion", "amem", "memento", "grpo", "gigpo", "lamer", "mage", "final")
_TABLE1 = {
    "kuhn_poker": (0.648, 0.648, 0.641, 0.641, 0.648, 0.656, 0.594, 0.656),
    "tic_tac_toe": (0.039, 0.242, 0.016, 0.031, 0.219, 0.414, 0.602, 0.672),
    "alfworld": (0.234, 0.391, 0.375, 0.336, 0.836, 0.883, 0.898, 0.914),
    "sokoban": (0.383, 0.438, 0.367, 0.336, 0.602, 0.719, 0.688, 0.773),
    "webshop": (0.039, 0.039, 0.000, 0.000, 0.711, 0.797, 0.703, 1.000),
}
_LAST = 10  # episodes of the paper's evaluation: Table 1 holds Pass@10
# MAGE at earlier episodes: section 4.2 of the paper (WebShop, Sokoban) and Figure 7 (Kuhn poker).
_MAGE_CURVES: Mapping[str, Curve] = {
    "kuhn_poker": {1: 0.594, _LAST: 0.656},
    "tic_tac_toe": {_LAST: 0.672},
    "alfworld": {_LAST: 0.914},
    "sokoban": {1: 0.406, _LAST: 0.773},
    "webshop": {1: 0.664, 5: 1.0, _LAST: 1.0},
}
# MCTS with 1,000 simulations hardly ever loses, so the paper reports draws, at least one in k.
_DRAWS: Mapping[tuple[str, Split], MeasureName] = {("tic_tac_toe", "ood"): "draw_at"}
_MAGE_DRAWS: Curve = {1: 0.812, _LAST: 1.0}

# Names of arms on pages and pictures.
TITLES = {
    "react": "ReAct",
    "reflexion": "Reflexion",
    "amem": "A-MEM",
    "memento": "Memento",
    "grpo": "GRPO",
    "gigpo": "GiGPO",
    "lamer": "LaMer",
    "mage": "MAGE",
    "final": "weighted final",
    "sum": "plain sum",
    "last": "last episode only",
    "balanced": "balanced sum",
    "differential": "differential (MAGE)",
    "cumulative": "cumulative (LaMer)",
    "single": "single episodes",
    "stationary": "one opponent in a group",
    "mixed": "mixed opponents",
    "global": "global anchors",
    "local": "local anchors",
}


def _table1() -> dict[tuple[str, Split], dict[str, Curve]]:
    labels = [arm.label for arm in METHODS]
    return {
        (world, "test"): {
            label: _MAGE_CURVES[world] if label == "mage" else {_LAST: rate}
            for label, rate in zip(labels, rates, strict=False)
        }
        for world, rates in _TABLE1.items()
    }


TABLES: Mapping[Name, Table] = {
    "table1": Table(
        "Every method on the opponents and tasks of its own domain",
        METHODS,
        measure="pass_at",
        paper=_table1(),
    ),
    "ood": Table(
        "The same runs on opponents and tasks that training never met",
        METHODS,
        split="ood",
        measure="pass_at",
        measures=_DRAWS,
        paper={
            ("kuhn_poker", "ood"): {"mage": {_LAST: 0.508}},
            ("tic_tac_toe", "ood"): {"mage": _MAGE_DRAWS},
            ("alfworld", "ood"): {"mage": {_LAST: 0.789}},
            ("sokoban, 1 box", "ood"): {"mage": {_LAST: 0.914}},
            ("sokoban, 3 boxes", "ood"): {"mage": {_LAST: 0.461}},
            ("webshop", "ood"): {"gigpo": {_LAST: 0.688}, "mage": {_LAST: 0.961}},
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
        measure="pass_at",
        paper={
            (world, "test"): {"differential": _MAGE_CURVES[world]}
            for world in ("alfworld", "webshop")
        },
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
        measure="pass_at",
        measures=_DRAWS,
        paper={
            ("tic_tac_toe", "test"): {"full": {_LAST: 0.672}, "pattern-skewed": {_LAST: 0.578}},
            ("tic_tac_toe", "ood"): {"full": _MAGE_DRAWS},
        },
    ),
    "grouping": Table(
        "Whether members of a group meet one opponent",
        (Arm("stationary", ("mage",)), Arm("mixed", ("mage", "grouping_mixed"))),
        worlds=GAMES,
        measure="pass_at",
        paper={("tic_tac_toe", "test"): {"stationary": {_LAST: 0.672}, "mixed": {_LAST: 0.547}}},
    ),
    "anchor": Table(
        "Which turns are compared with each other",
        (Arm("global", ("mage",)), Arm("local", ("mage", "anchor_local"))),
        measure="pass_at",
        paper={("kuhn_poker", "test"): {"global": _MAGE_CURVES["kuhn_poker"], "local": {1: 0.336}}},
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
        # `mage` keeps the credit of its recipe, which is the published one in `paper_*`.
        (Arm("our credit", ("mage", "our_credit")), Arm("as published", ("as_published",))),
    ),
    "exploration": Table(
        "Which return searches, by what the safe box pays",
        _arms("lamer", "mage", "sum", "last", "balanced"),
        worlds=("doors",),
        measure="score",
    ),
}
