"""Success by kind of task and episode: `python scripts/study_worlds.py RUN [PANEL ...]`.

Reads the stored task rows of a run's evaluations (all panels, or those whose name contains one of
the words). A kind is the task type in ALFWorld, the number of boxes and the solution length in
Sokoban, the number of options in WebShop. Intervals are Wilson's, 95 %.
"""

import sys
from pathlib import Path

from mage.evaluation.kinds import figures_by_kind
from mage.evaluation.rows import rate, read_tasks, success_of
from mage.evaluation.statistics import Estimate
from mage.run_folder import RunFolder


def main(words: list[str]) -> None:
    folder = RunFolder.open(Path(words[0]))
    for path in sorted((folder.path / "evaluations").glob("*.tasks.jsonl")):
        if len(words) > 1 and not any(word in path.name for word in words[1:]):
            continue
        rows = read_tasks(path)
        environment = folder.recipe.environment().for_split(rows[0].task.split)
        print(f"\n{path.name}: tasks, then success in episode 1, 2, ..")
        for kind in figures_by_kind(environment, rows):
            cells = [_cell(one.success) for one in kind.episodes]
            print(f"{kind.kind:28}{kind.episodes[0].tasks:5}", *cells)
        episodes = range(max(len(row.scores) for row in rows))
        print(f"{'all':28}{len(rows):5}", *(_cell(rate(rows, success_of(k))) for k in episodes))


def _cell(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


if __name__ == "__main__":
    main(sys.argv[1:])
