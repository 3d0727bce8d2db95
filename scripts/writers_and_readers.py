"""Does an agent learn to write notes or to read them? `python scripts/writers_and_readers.py RUN`.

Four combinations play the final panel of a run: the notes are written by the untrained or by the
trained model, and the games are played by the untrained or by the trained one. Each cell is what
`mage evaluate READER --writer WRITER` shows; here the models are loaded once. With `--out FOLDER`
the outcomes of all tasks are written (`mage evaluate --compare` reads them).

    python scripts/writers_and_readers.py runs/qwen_rps-1 --size 320 --out writers_and_readers
"""

import argparse
import json
from itertools import product
from pathlib import Path

from mage.api.agents import Candidate, play_panel
from mage.evaluation.figures import Evaluation
from mage.evaluation.rows import write_tasks
from mage.run_folder import RunFolder
from mage.training.build import build_components, fit_to_gpu
from mage.training.weights import load_weights


def load_both(run: Path, checkpoint: str) -> dict[str, Candidate]:
    """The model that the run began with, and its checkpoint."""
    folder = RunFolder.open(run)
    begun = build_components(fit_to_gpu(folder.recipe, 1))
    loaded = load_weights(folder, folder.recipe, checkpoint, print)
    return {
        "untrained": Candidate("untrained", 0, begun),
        "trained": Candidate(str(run), loaded.update, loaded.components),
    }


def play_all(
    agents: dict[str, Candidate], size: int | None, out: Path | None
) -> dict[tuple[str, str], Evaluation]:
    """The figures of each (writer, reader); every outcome is written to the folder `out`."""
    found = {}
    for writer, reader in product(agents, repeat=2):
        played = play_panel(agents[reader], "test", "final", size, None, writer=agents[writer])
        found[writer, reader] = played
        if out is not None:
            write_tasks(out / f"{writer}_writer_{reader}_reader.jsonl", played.rows)
    return found


def table(found: dict[tuple[str, str], Evaluation]) -> str:
    """Scores by episode with the 95 % interval of the last one, as a Markdown table."""
    lines = ["| writer | reader | score by episode | last episode |", "|---|---|---|---|"]
    for (writer, reader), played in found.items():
        scores = [one.score for one in played.overall.episodes]
        means = " / ".join(f"{score.value:+.3f}" for score in scores if score is not None)
        last = scores[-1]
        assert last is not None, "a panel is never empty"
        lines.append(f"| {writer} | {reader} | {means} | [{last.low:+.3f}, {last.high:+.3f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--size", type=int, help="tasks of the panel; default: as in the recipe")
    parser.add_argument("--out", type=Path, help="a new folder for the outcomes of all tasks")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True)
    found = play_all(load_both(given.run, given.checkpoint), given.size, given.out)
    print(table(found))
    if given.out is not None:
        cells = {f"{w}_writer_{r}_reader": one.to_json() for (w, r), one in found.items()}
        (given.out / "figures.json").write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
