"""Fuzzed trajectory files for `mage credit`: rows of credit, or one message."""

import json
import math
import random
import traceback
from pathlib import Path
from typing import Any

from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.credit.trajectories import credit_rows, read_trajectories
from tests.torture.corruptions import edit_digit, edit_lines, edit_value, flip, garbage, truncate
from tests.torture.result import Result

RECIPES = ("kuhn_poker+as_published", "kuhn_poker+mage", "kuhn_poker+lamer", "openspiel")


def torture(place: Path, attempts: int, seed: int) -> Result:
    """Damage generated files and compute their credit."""
    rng, path, failures = random.Random(seed), place / "fuzzed.jsonl", []
    recipes = [load_recipe(name) for name in RECIPES]
    for _ in range(attempts):
        path.write_text("".join(json.dumps(_line(rng)) + "\n" for _ in range(rng.randrange(1, 4))))
        for corrupt in rng.choices(
            (truncate, flip, garbage, edit_digit, edit_lines, edit_value, edit_value),
            k=rng.choice((0, 1, 1, 2)),
        ):
            corrupt(path, rng)
        try:
            for _, metas in read_trajectories(path):
                rows = credit_rows(metas, rng.choice(recipes))
                if not all(math.isfinite(row.advantage) for row in rows):
                    failures.append(f"an advantage is not finite: {path.read_bytes()[:500]!r}")
        except ConfigError:
            continue
        except Exception:
            failures.append(f"{path.read_bytes()[:500]!r}: {traceback.format_exc()[-900:]}")
    return Result("fuzzed trajectory files", attempts, tuple(failures))


def _line(rng: random.Random) -> dict[str, Any]:
    return {
        "trajectories": [
            {"group": group, "member": member, "episodes": _episodes(rng)}
            for group in range(rng.randrange(1, 3))
            for member in range(rng.randrange(1, 4))
        ]
    }


def _episodes(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "reward": rng.choice((-10, 0, 10, 0.5, 1e12, -1e12, 1e-300)),
            "reflection_cost": rng.choice((None, 0, -0.5)),
            "turns": [
                {"state": rng.choice("abc"), "cost": -rng.random()} for _ in range(rng.randrange(4))
            ],
        }
        for _ in range(rng.randrange(1, 4))
    ]
