"""Success by kind of task and episode: `python scripts/study_worlds.py RUN [PANEL ...]`.

Reads the stored task rows of a run's evaluations (all panels, or those whose name contains one of
the words). A kind is the task type in ALFWorld, the number of boxes and the solution length in
Sokoban, the number of options in WebShop. Intervals are Wilson's, 95 %.
"""

import sys
from collections import defaultdict
from pathlib import Path

from mage.environments.base import Environment
from mage.evaluation.rows import TaskRow, read_tasks
from mage.evaluation.statistics import wilson
from mage.run_folder import RunFolder


def tabulate(rows: list[TaskRow], environment: Environment) -> list[tuple[str, list[str]]]:
    """One line per kind and one for all tasks; one cell per episode."""
    kinds: dict[str, list[TaskRow]] = defaultdict(list)
    for row in rows:
        world = environment.for_split(row.task.split)
        kinds[world.task_kind(world.episode_seed(row.task.seed, 0))].append(row)
    lines = [(kind, _cells(found)) for kind, found in sorted(kinds.items())]
    return [*lines, ("all", _cells(rows))] if len(lines) > 1 else lines


def _cells(rows: list[TaskRow]) -> list[str]:
    episodes = max(len(row.outcomes) for row in rows)
    cells = [f"{len(rows):5}"]
    for episode in range(episodes):
        won = [row.outcomes[episode] == "won" for row in rows if len(row.outcomes) > episode]
        found = wilson(sum(won), len(won))
        cells.append(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")
    return cells


def main(words: list[str]) -> None:
    folder = RunFolder.open(Path(words[0]))
    environment = folder.recipe.environment()
    for path in sorted((folder.path / "evaluations").glob("*.tasks.jsonl")):
        if len(words) > 1 and not any(word in path.name for word in words[1:]):
            continue
        print(f"\n{path.name}: tasks, then success in episode 1, 2, ..")
        for kind, cells in tabulate(list(read_tasks(path)), environment):
            print(f"{kind:28}", *cells)


if __name__ == "__main__":
    main(sys.argv[1:])
