"""Options and parts that earlier versions had, so that their files can still be read.

A resolved recipe names every option. Where a deleted option has the value that is now the only
behaviour, it is dropped. Any other value is refused as an unknown option. The name of a deleted
part is refused with the advice in `PARTS`.
"""

from typing import Any

# section, item of the section ("" = any), option -> the value that is now the only behaviour
RETIRED: dict[tuple[str, str, str], Any] = {
    ("advantages", "gigpo", "normalise"): "mean",
    ("advantages", "gigpo", "leave_one_out"): True,
    ("advantages", "gigpo", "episode_score"): "return",
    ("advantages", "gigpo", "per_position"): True,
    ("advantages", "gigpo", "per_trajectory"): True,
    ("advantages", "gigpo", "reflections_score_zero"): False,
    ("advantages", "gigpo", "sample_std"): False,
    ("agent", "", "examples"): 0,
    ("agent", "", "top_k"): 0,
    ("agent", "", "top_p"): 1.0,
    ("environments", "sokoban", "stop_when_lost"): True,
    ("environments", "webshop", "attributes_page"): False,
    ("environments", "webshop", "catalogue_seed"): 0,
    ("environments", "webshop", "draw"): "evenly",
    ("learn", "", "beta1"): 0.9,
}
# name of a deleted part -> what to write instead
PARTS = {"failure_zero": "write --environments.failure_reward=0 after the recipe"}


def drop_retired(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a recipe file without deleted options that change nothing."""
    for (section, item, option), value in RETIRED.items():
        options = tables.get(section)
        if not isinstance(options, dict) or item not in ("", options.get("name", item)):
            continue
        if options.get(option) == value and type(options[option]) is type(value):
            del options[option]
    return tables
