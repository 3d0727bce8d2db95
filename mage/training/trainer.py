"""The training loop: play -> credit -> learn -> save -> evaluate.

Every random choice of update k derives from (run seed, k), and the engine starts every update with
an empty cache. So weights, optimizer and k are the whole state of a run: a run that was killed and
resumed ends with the same metrics as one that was not. Wall-clock figures are kept apart, in
`timing.jsonl`.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from mage.config.errors import DeviceError
from mage.config.menus import find_item
from mage.credit.samples import assign_credit, make_samples
from mage.credit.store import write_credits
from mage.evaluation.figures import Evaluation
from mage.evaluation.panels import PanelName
from mage.evaluation.rows import write_tasks
from mage.evaluation.run import evaluate_panel
from mage.evaluation.shards import ShardStore
from mage.learn import checkpoint
from mage.learn.learner import Learner
from mage.learn.ranks import Ranks
from mage.memory.base import Memory
from mage.models.base import is_adapter
from mage.play import play_groups
from mage.run_folder import RunFolder
from mage.seeds import derive
from mage.training.build import build_components
from mage.training.callbacks import Callback, Metrics, Stopped
from mage.training.distributed import launch_ranks
from mage.training.metrics import credit_sums, means, play_sums
from mage.training.tasks import draw_tasks
from mage.training.warm_start import make_warm_start
from mage.types import Credit, MetaEpisode, Split

ACCELERATOR_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
)
TRANSCRIPTS = 60  # tasks of a final panel whose meta-episodes are stored


def train(path: Path, callback: Callback, stop: Callable[[], bool]) -> Metrics:
    """Train the run in a folder to its end, from its newest whole checkpoint if it has one; returns the summary.

    `stop` is asked after every update: if it says yes, the run is saved and `Stopped` raised.
    """
    folder = RunFolder.open(path)
    try:
        if folder.recipe.warmup.first and not folder.warm.exists():
            make_warm_start(folder.recipe, folder.warm, callback.on_warmup)
        return launch_ranks(folder.recipe.run.workers, _train, path, callback=callback, stop=stop)
    except torch.OutOfMemoryError as error:
        raise DeviceError(_out_of_memory(folder, error)) from error
    except ACCELERATOR_ERRORS as error:
        raise DeviceError(
            f"the GPU reported an error: {str(error).splitlines()[0]}\n{_what_is_safe(folder)}"
        ) from error


def _out_of_memory(folder: RunFolder, error: torch.OutOfMemoryError) -> str:
    recipe = folder.recipe
    advice = [
        f"learn.micro_tokens (now {recipe.learn.micro_tokens})",
        "engines.slots or engines.context",
    ]
    again = "" if recipe.learn.recompute else "; learn.recompute = true needs less for learning"
    place = folder.path / "recipe.toml"
    return f"out of GPU memory: {str(error).splitlines()[0]}\nIn {place} lower {' or '.join(advice)}{again}.\n{_what_is_safe(folder)}"


def _what_is_safe(folder: RunFolder) -> str:
    found = checkpoint.latest(folder.checkpoints).path
    return (
        "No checkpoint was written yet."
        if found is None
        else f"The checkpoint of update {checkpoint.update_of(found)} is whole."
    )


def _train(
    ranks: Ranks,
    path: Path,
    callback: Callback | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Metrics:
    trainer = Trainer(RunFolder.open(path), ranks, callback or Callback(), stop)
    trainer.resume()
    return trainer.run()


class Trainer:
    """One member's part of a run; the leader alone writes into the folder and has a callback that looks on."""

    def __init__(
        self, folder: RunFolder, ranks: Ranks, callback: Callback, stop: Callable[[], bool]
    ) -> None:
        self.recipe, self.folder, self.ranks, self.callback, self.stop = (
            folder.begun_recipe(),
            folder,
            ranks,
            callback,
            stop,
        )
        self.components = build_components(self.recipe)
        self.learner = Learner(
            self.components.weights(),
            self.recipe.learn,
            seed=self.recipe.run.seed,
            temperature=self.recipe.agent.temperature,
            total_updates=self.recipe.run.updates,
            ranks=ranks,
            start=source if is_adapter(source := self.recipe.model_folder()) else None,
        )
        self.done = 0
        self.best: tuple[float, int] | None = None

    def resume(self) -> None:
        """Go back to the newest whole checkpoint, where there is one; broken ones are passed over and told."""
        found = self.ranks.broadcast(
            checkpoint.latest(self.folder.checkpoints) if self.ranks.is_main else None
        )
        assert found is not None, "the leader has looked"
        if found.path is not None:
            loaded = self.learner.load(found.path)
            self.done, self.best = loaded.update, _pair(loaded.state.get("best"))
        self.components.engine.refresh(self.done)
        if self.ranks.is_main:
            self.folder.rewind(self.done)
            self.callback.on_start(self.folder, self.done)
            for line in found.broken:
                self.callback.on_warning(line)

    def run(self) -> Metrics:
        """Train to the end, then measure the chosen checkpoint on the final panel; returns the summary."""
        if self.recipe.run.updates == 0:
            return self._measure_only()
        if self.done == 0:
            self._measure_start()
        while self.done < self.recipe.run.updates:
            self._update()
            if self.ranks.broadcast(self.stop()):
                self._save()
                if self.ranks.is_main:
                    raise Stopped(str(self.folder.path))
                return {}
        return self._conclude()

    def _measure_only(self) -> Metrics:
        """Without training there is nothing to choose and no difference: the final panel is played once."""
        found = self._final("after")
        score = next(iter(found.values())).overall.episodes[-1].score
        assert score is not None, "a panel is never empty"
        self.best = (score.value, 0)
        self._save()
        return self._close({"after": found})

    def _measure_start(self) -> None:
        self._choose()
        self._final("before")

    def _update(self) -> None:
        clock, spent = [time.perf_counter()], self.components.engine.spent()
        number = self.done + 1
        self.components.engine.refresh(self.done)
        setting, tasks_PG = self.components.setting(), draw_tasks(self.recipe, number)
        numbers = self.ranks.split(range(len(tasks_PG)))
        metas = play_groups(
            setting,
            self.ranks.split(tasks_PG),
            derive(self.recipe.run.seed, "play", number),
            numbers=numbers,
            gather=self.ranks.gather,
        )
        played = self.components.engine.spent()
        clock.append(time.perf_counter())
        credits = assign_credit(metas, self.recipe.returns, self.recipe.estimator())
        clock.append(time.perf_counter())
        entropy = self.recipe.learn.entropy_at(self.done, self.recipe.run.updates)
        samples = make_samples(credits, reflections=self.done >= self.recipe.learn.reflect_from)
        learned = self.learner.update(samples, entropy=entropy, update=self.done)
        self.done = number
        self.components.engine.refresh(number)  # evaluations come next, with the new weights
        clock.append(time.perf_counter())
        figures = (
            {"update": number}
            | means(self.ranks.gather(play_sums(metas) | credit_sums(credits)))
            | asdict(learned)
        )
        timing = dict(
            zip(
                ("play", "credit", "learn"),
                (after - before for before, after in itertools.pairwise(clock)),
                strict=True,
            )
        )
        timing["total"] = clock[-1] - clock[0]
        timing |= {
            f"play_{name}": seconds - spent[name] for name, seconds in played.items()
        } | memory_in_use()
        if self.ranks.is_main:
            self.folder.append_metrics(figures)
            self.folder.append_timing({"update": number} | timing)
            self.callback.on_update(number, self.recipe.run.updates, figures, timing)
        self._keep(metas, credits)

    def _keep(self, metas: Sequence[MetaEpisode], credits: Sequence[Credit]) -> None:
        run = self.recipe.run
        last = self.done == run.updates
        if (
            self.ranks.is_main
            and run.episodes_every
            and (last or self.done % run.episodes_every == 0)
        ):
            self.folder.write_episodes(self.done, metas)
            write_credits(self.folder.path, self.done, credits)
        if last or (run.evaluate_every and self.done % run.evaluate_every == 0):
            self._choose()
        if last or self.done % run.save_every == 0:
            self._save()

    def _save(self) -> None:
        if self.ranks.is_main:
            self.learner.save(self.folder.checkpoints, update=self.done, state={"best": self.best})
            checkpoint.prune(
                self.folder.checkpoints,
                keep=self.recipe.run.keep,
                also={self.best[1]} if self.best else (),
            )
        self.ranks.broadcast(None)  # nobody goes on, or loads, before the files are there

    def _choose(self) -> None:
        """Measure on the select panel; the best last-episode score names the checkpoint that the final figures are of."""
        evaluation = self.evaluate("test", "select", f"select_{self.done:06d}")
        score = evaluation.overall.episodes[-1].score
        assert score is not None, "a panel is never empty"
        if self.best is None or score.value > self.best[0]:
            self.best = (score.value, self.done)
            self._save()

    def _conclude(self) -> Metrics:
        """Load the chosen checkpoint and measure it on the final panel, as it is and with its memory emptied."""
        assert self.best is not None, "the start is measured before the first update"
        self.learner.load(checkpoint.place(self.folder.checkpoints, self.best[1]))
        self.components.engine.refresh(self.best[1])
        after = self._final("after")
        emptied = self._final("emptied", cast("Memory", find_item("memory", "notes")(keep="none")))
        return self._close({"after": after, "memory_emptied": emptied})

    def _close(self, found: dict[str, dict[Split, Evaluation]]) -> Metrics:
        """The leader sums up; what finished evaluations left for the case of a kill is no longer needed."""
        if not self.ranks.is_main:
            return {}
        summary = self._summary(found)
        self.folder.write_summary(summary)
        self.folder.delete_shards()
        return summary

    def _final(self, name: str, memory: Memory | None = None) -> dict[Split, Evaluation]:
        return {
            split: self.evaluate(split, "final", f"{name}_{split}", memory)
            for split in self.recipe.evaluate.splits
        }

    def _summary(self, found: dict[str, dict[Split, Evaluation]]) -> Metrics:
        stages = {
            stage: {split: one.to_json()["overall"] for split, one in evaluations.items()}
            for stage, evaluations in found.items()
        }
        if self.recipe.run.updates:
            stages["before"] = {
                split: self.folder.read_evaluation(f"before_{split}")["overall"]
                for split in found["after"]
            }
        return {
            "run": str(self.folder.path),
            "recipe": self.recipe.run.name or self.folder.path.name,
            "seed": self.recipe.run.seed,
            "updates": self.done,
            "chosen_update": self.best[1] if self.best else 0,
            "seconds": sum(record["total"] for record in self.folder.timing()),
            **stages,
        }

    def evaluate(
        self, split: Split, panel: PanelName, name: str, memory: Memory | None = None
    ) -> Evaluation:
        """Play a fixed panel with the weights as they are; the leader stores the result."""
        size = self.recipe.evaluate.size if panel == "select" else self.recipe.evaluate.final_size
        about = {
            "of": name,
            "update": self.components.engine.policy_version,
            "tasks": size,
            "episodes": self.recipe.evaluation_episodes(),
        }
        evaluation, _ = evaluate_panel(
            self.components.setting(evaluating=True, memory=memory),
            self.recipe.population(),
            split,
            panel,
            size,
            self.recipe.evaluation_seats(),
            ranks=self.ranks,
            on_played=lambda done: self.callback.on_tasks_played(done, size, name),
            transcripts=TRANSCRIPTS if panel == "final" else 0,
            store=ShardStore(self.folder.shards(name), about),
            on_transcripts=partial(self._write_transcripts, name),
        )
        if self.ranks.is_main:
            self.folder.write_evaluation(name, evaluation.to_json())
            if panel == "final":
                write_tasks(
                    self.folder.path / "evaluations" / f"{name}.tasks.jsonl", evaluation.rows
                )
            else:
                self.folder.shards(name).unlink(missing_ok=True)
            self.callback.on_evaluation(name, self.components.engine.policy_version, evaluation)
        return evaluation

    def _write_transcripts(self, name: str, metas: list[MetaEpisode]) -> None:
        self.folder.write_episodes_of(name, metas)


def memory_in_use() -> dict[str, float]:
    """Gigabytes of this process, on the host (where the system tells it) and on the GPU: in use now (a leak shows as a line that rises), and held.

    What is held is what another training on the same card cannot have: the most that was ever in use, and some air.
    """
    statm = Path("/proc/self/statm")
    host = (
        {"memory_host": int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9}
        if statm.is_file()
        else {}
    )
    if not torch.cuda.is_available():
        return host
    return host | {
        "memory_device": torch.cuda.memory_allocated() / 1e9,
        "memory_device_held": torch.cuda.memory_reserved() / 1e9,
    }


def _pair(value: list[Any] | None) -> tuple[float, int] | None:
    return (float(value[0]), int(value[1])) if value else None
