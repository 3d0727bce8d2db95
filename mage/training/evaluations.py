"""The evaluations of a run: its panels are played with the present weights, rank 0 stores them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mage.config.recipe import Recipe
from mage.evaluation.figures import Evaluation
from mage.evaluation.panels import PanelName, recipe_panel
from mage.evaluation.rows import write_tasks
from mage.evaluation.run import evaluate_panel
from mage.evaluation.shards import ShardStore
from mage.memory.base import Memory
from mage.opponents.base import population_of
from mage.ranks.rank_log import log
from mage.ranks.ranks import Ranks
from mage.ranks.stop import StopRequest
from mage.run_folder import RunFolder
from mage.training.build import Components
from mage.training.callbacks import Callback
from mage.training.transcripts import TRANSCRIPTS, TranscriptStore
from mage.types import Split


def last_score(evaluation: Evaluation) -> float:
    """The mean score of the last episode; it chooses the checkpoint."""
    score = evaluation.overall.episodes[-1].score
    assert score is not None, "a panel is never empty"
    return score.value


def illegal_share(evaluation: Mapping[str, Any]) -> float:
    """The share of replies that are no legal moves, as a stored evaluation has it."""
    shares = [one["illegal"] or 0.0 for one in evaluation["overall"]["episodes"]]
    return sum(shares) / len(shares)


class RunEvaluations:
    """Plays the panels of a run. All ranks take part."""

    def __init__(
        self,
        folder: RunFolder,
        components: Components,
        ranks: Ranks,
        callback: Callback,
        stop: StopRequest,
    ) -> None:
        self.folder, self.components, self.ranks = folder, components, ranks
        self.callback, self.stop = callback, stop
        self.transcripts = TranscriptStore(folder, ranks, components)

    @property
    def recipe(self) -> Recipe:
        return self.components.recipe

    def select(self, update: int) -> Evaluation:
        """The figures on the select panel; the last score chooses the checkpoint."""
        split = self.recipe.evaluate.select_split
        return self.evaluate(split, "select", f"select_{update:06d}")

    def final(self, name: str, memory: Memory | None = None) -> dict[Split, Evaluation]:
        """The final panel of every split, with the recipe's memory or another one."""
        return {
            split: self.evaluate(split, "final", f"{name}_{split}", memory)
            for split in self.recipe.evaluate.splits
        }

    def evaluate(
        self, split: Split, panel: PanelName, name: str, memory: Memory | None = None
    ) -> Evaluation:
        """Play a fixed panel with the present weights; rank 0 stores the result."""
        recipe, version = self.recipe, self.components.engine.policy_version
        size, plays = recipe.panel_size(panel), recipe.plays_of(panel)
        about = {
            "of": name,
            "update": version,
            "tasks": size,
            "episodes": recipe.evaluation_episodes(),
            **({"plays": plays} if plays > 1 else {}),
        }
        log.info("update %d: evaluate %s", version, name)
        setup = self.components.begin_play(evaluating=True, memory=memory)
        with self.stop.section(self.ranks):
            evaluation, _ = evaluate_panel(
                setup,
                population_of(recipe),
                recipe_panel(recipe, split, panel),
                panel,
                plays=plays,
                with_ceilings=recipe.evaluate.ceilings,
                ranks=self.ranks,
                on_played=lambda done: self.callback.on_tasks_played(done, size * plays, name),
                transcripts=TRANSCRIPTS if panel == "final" else 0,
                store=ShardStore(self.folder.shards(name), about, self.callback.on_warning),
                on_transcripts=partial(self.transcripts.write_panel, name, setup.agent),
            )
        if self.ranks.is_main:
            self._store(name, panel, evaluation)
        return evaluation

    def _store(self, name: str, panel: PanelName, evaluation: Evaluation) -> None:
        if panel == "final":
            self.folder.delete_evaluation(name)  # it depends on the rows, which are written first
            write_tasks(self.folder.rows(name), evaluation.rows)
        self.folder.write_evaluation(name, evaluation.to_json())
        if panel == "select":
            self.folder.shards(name).unlink(missing_ok=True)
        self.callback.on_evaluation(name, self.components.engine.policy_version, evaluation)


def summarise_run(
    folder: RunFolder,
    evaluations: Mapping[str, Mapping[Split, Evaluation]],
    *,
    updates: int,
    chosen_update: int,
) -> dict[str, Any]:
    """What summary.json holds: the run's identity and the overall figures of every stage."""
    recipe = folder.recipe
    stages = {
        stage: {split: one.to_json()["overall"] for split, one in found.items()}
        for stage, found in evaluations.items()
    }
    if recipe.run.updates and recipe.evaluate.before:
        stages["before"] = {
            split: folder.read_evaluation(f"before_{split}")["overall"]
            for split in evaluations["after"]
        }
    return {
        "run": str(folder.path),
        "recipe": recipe.run.name or folder.path.name,
        "seed": recipe.run.seed,
        "updates": updates,
        "chosen_update": chosen_update,
        "evaluations": folder.evaluation_names(),
        "seconds": sum(record["total"] for record in folder.timing()),
        **stages,
    }
