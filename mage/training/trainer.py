"""The trainer: play -> credit -> learn -> save -> evaluate, from a recipe to a run folder.

Every random choice of update k is derived from (run seed, k), and the engine starts every update with an empty cache. So the
whole state of a run is its weights, its optimizer and the number k: a run killed at any point and resumed ends with the same
metrics as one that was not. Wall-clock figures are kept apart, in `timing.jsonl`.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from mage.agent.agent import Agent, Sampling, worked_examples
from mage.agent.chat import Chat
from mage.config.recipe import Recipe
from mage.engines.base import Engine
from mage.evaluation.figures import Evaluation, summarise_rows, write_tasks
from mage.learn import checkpoint
from mage.learn.learner import Learner
from mage.models.loading import load_model
from mage.learn.ranks import Team, work_together
from mage.memory.base import Memory
from mage.config.menus import find_item
from mage.config.errors import DeviceTrouble
from mage.models.base import is_adapter
from mage.opponents.base import spread
from mage.evaluation.panels import Name, make_panel
from mage.play import Setting, play_groups
from mage.report.tensorboard import EventWriter
from mage.credit.returns import compute_returns
from mage.run_folder import RunFolder
from mage.seeds import derive
from mage.evaluation.shards import Store, play_sittings
from mage.training.metrics import credit_tally, means, play_tally
from mage.types import Credit, MetaEpisode, Sample, Split, Task

Figures = dict[str, Any]
ACCELERATOR_ERRORS: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
TRANSCRIPTS = 60
TINY = 1_000_000


class Watcher:
    """Who looks on: the terminal, a log, a test. Nothing a watcher does changes a run; this one does nothing at all."""

    def updated(self, done: int, total: int, figures: Figures, seconds: float) -> None:
        """An update is done."""

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        """A panel has been played."""

    def played(self, done: int, total: int, name: str) -> None:
        """So many tasks of a panel are done."""

    def warmed(self, line: str) -> None:
        """How far the warm-up is."""

    def warned(self, line: str) -> None:
        """Something a person should know."""


class Stopped(Exception):
    """The run was asked to stop and has saved; its folder is the argument."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a recipe makes: one model, shared by the engine that plays and the learner; None if the engine's is elsewhere."""

    recipe: Recipe
    model: PreTrainedModel | None
    chat: Chat
    engine: Engine

    def weights(self) -> PreTrainedModel:
        """The model, for those who change it."""
        if self.model is None:
            name = self.recipe.engines.name
            raise ValueError(f'engines.name = "{name}": its model is elsewhere and cannot be trained or take a checkpoint; use it with mage evaluate RECIPE')
        return self.model

    def agent(self, evaluating: bool) -> Agent:
        own, test = self.recipe.agent, self.recipe.evaluate
        draw = test if evaluating else own
        sampling = Sampling(draw.temperature, draw.top_p, draw.top_k, own.max_tokens, own.reflection_tokens)
        return Agent(self.engine, self.chat, sampling, worked_examples(self.recipe.environment(), own.examples) if own.examples else ())

    def setting(self, evaluating: bool = False, memory: Memory | None = None) -> Setting:
        play = self.recipe.play
        return Setting(
            environment=self.recipe.environment(),
            agent=self.agent(evaluating),
            memory=memory or self.recipe.memory(),
            episodes=self.recipe.evaluation_episodes() if evaluating else play.episodes,
            numbered=play.numbered,
            stop_on_success=play.stop_on_success and not evaluating,
            illegal_penalty=play.illegal_penalty,
            length_penalty=play.length_penalty,
        )


def build(recipe: Recipe) -> Parts:
    """Load the model and put an engine around it, unless the engine's model is elsewhere."""
    own = find_item("engines", recipe.engines.name).own_chat()
    if own is not None:
        return Parts(recipe, None, own, recipe.engine()(own))
    folder = recipe.model_folder()
    chat = Chat.load(recipe.base_folder())
    model = load_model(folder, recipe.model.dtype, recipe.run.device)
    torch.set_num_threads(recipe.run.threads or _good_threads(model, recipe.run.workers))
    return Parts(recipe, model, chat, recipe.engine()(model, chat))


def _good_threads(model: PreTrainedModel, workers: int) -> int:
    """One for a tiny model, whose operations are too small to share (and many times slower if cores are busy); else the cores, shared out."""
    return 1 if model.num_parameters() < TINY else max(1, (os.cpu_count() or 1) // workers)


def draw_tasks(recipe: Recipe, update: int) -> list[list[Task]]:
    """The tasks of an update, one row a group: opponents and seats in their exact shares, deals from the run's seed."""
    pool = recipe.population().pool("train") or {"": 1.0}
    seats = {"first": (0,), "second": (1,), "both": (0, 1)}[recipe.play.seats][: recipe.environment().seats]
    pairs = {f"{name}\n{seat}": share / len(seats) for name, share in pool.items() for seat in seats}
    seed = derive(recipe.run.seed, "train", update)
    groups, members = recipe.play.groups, recipe.play.members
    mixed = recipe.play.grouping == "mixed"
    drawn = spread(pairs, groups * members if mixed else groups, seed)
    rows = [drawn[k * members : (k + 1) * members] if mixed else [drawn[k]] * members for k in range(groups)]
    return [[_task(recipe, pair, derive(seed, k)) for pair in row] for k, row in enumerate(rows)]


def _task(recipe: Recipe, pair: str, seed: int) -> Task:
    opponent, seat = pair.split("\n")
    return Task(recipe.environments.name, seed, int(seat), opponent, "train")


def credit(recipe: Recipe, metas: Sequence[MetaEpisode]) -> list[Credit]:
    """Returns of all turns, against their baselines."""
    options = recipe.returns
    found = [
        value
        for meta in metas
        for value in compute_returns(
            meta,
            kind=options.kind,
            step_discount=options.step_discount,
            episode_discount=options.episode_discount,
            propagation=options.propagation,
            weights=options.weights or (),
        )
    ]
    return list(recipe.estimator()(found))


def make_samples(credits: Sequence[Credit], *, reflections: bool = True) -> list[Sample]:
    """Training rows: the very ids and logprobs that were sampled. An empty reply has nothing to learn from.

    Without `reflections` they get no credit, good or bad; a KL still holds them where they are.
    """
    return [
        Sample(
            prompt_ids=turn.prompt_ids,
            reply_ids=turn.completion.token_ids,
            old_logprobs=turn.completion.logprobs,
            advantage=found.advantage if reflections or turn.kind == "play" else 0.0,
            choices=turn.choices,
            kind=turn.kind,
            where=found.source.where,
        )
        for found in credits
        if (turn := found.source.turn).completion.token_ids
    ]


def train(path: Path, watcher: Watcher, stop: Callable[[], bool]) -> Figures:
    """Train the run in a folder to its end, from its newest whole checkpoint if it has one; returns the summary.

    `stop` is asked after every update: if it says yes, the run is saved and `Stopped` raised.
    """
    folder = RunFolder.open(path)
    try:
        if folder.recipe.warmup.first and not folder.warm.exists():
            from mage.training.warm_start import make_warm_start  # it builds on this file

            make_warm_start(folder.recipe, folder.warm, watcher.warmed)
        return work_together(folder.recipe.run.workers, _train, path, watcher=watcher, stop=stop)
    except torch.OutOfMemoryError as error:
        raise DeviceTrouble(_out_of_memory(folder, error)) from error
    except ACCELERATOR_ERRORS as error:
        raise DeviceTrouble(f"the GPU reported an error: {str(error).splitlines()[0]}\n{_what_is_safe(folder)}") from error


def _out_of_memory(folder: RunFolder, error: torch.OutOfMemoryError) -> str:
    recipe = folder.recipe
    advice = [f"learn.micro_tokens (now {recipe.learn.micro_tokens})", "engines.slots or engines.context"]
    again = "" if recipe.learn.recompute else "; learn.recompute = true needs less for learning"
    place = folder.path / "recipe.toml"
    return f"out of GPU memory: {str(error).splitlines()[0]}\nIn {place} lower {' or '.join(advice)}{again}.\n{_what_is_safe(folder)}"


def _what_is_safe(folder: RunFolder) -> str:
    found = checkpoint.latest(folder.checkpoints).path
    return "No checkpoint was written yet." if found is None else f"The checkpoint of update {checkpoint.update_of(found)} is whole."


def _train(team: Team, path: Path, watcher: Watcher | None = None, stop: Callable[[], bool] = lambda: False) -> Figures:
    trainer = Trainer(RunFolder.open(path), team, watcher or Watcher(), stop)
    trainer.resume()
    return trainer.run()


class Trainer:
    """One member's part of a run; the leader alone writes into the folder and has a watcher that looks on."""

    def __init__(self, folder: RunFolder, team: Team, watcher: Watcher, stop: Callable[[], bool]) -> None:
        self.recipe, self.folder, self.team, self.watcher, self.stop = folder.begun_recipe(), folder, team, watcher, stop
        self.parts = build(self.recipe)
        self.learner = Learner(
            self.parts.weights(),
            self.recipe.learn,
            seed=self.recipe.run.seed,
            temperature=self.recipe.agent.temperature,
            total_updates=self.recipe.run.updates,
            team=team,
            start=source if is_adapter(source := self.recipe.model_folder()) else None,
        )
        self.events: EventWriter | None = None
        self.done = 0
        self.best: tuple[float, int] | None = None

    def resume(self) -> None:
        """Go back to the newest whole checkpoint, where there is one; broken ones are passed over and told."""
        found = self.team.tell(checkpoint.latest(self.folder.checkpoints) if self.team.leads else None)
        assert found is not None, "the leader has looked"
        if found.path is not None:
            loaded = self.learner.load(found.path)
            self.done, self.best = loaded.update, _pair(loaded.state.get("best"))
        self.parts.engine.refresh(self.done)
        if self.team.leads:
            self.folder.rewind(self.done)
            self.events = EventWriter(self.folder)
            for line in found.broken:
                self.watcher.warned(line)

    def run(self) -> Figures:
        """Train to the end, then measure the chosen checkpoint on the final panel; returns the summary."""
        if self.recipe.run.updates == 0:
            return self._measure_only()
        if self.done == 0:
            self._measure_start()
        while self.done < self.recipe.run.updates:
            self._update()
            if self.team.tell(self.stop()):
                self._save()
                if self.team.leads:
                    raise Stopped(str(self.folder.path))
                return {}
        return self._conclude()

    def _measure_only(self) -> Figures:
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
        clock, spent = [time.perf_counter()], self.parts.engine.spent()
        number = self.done + 1
        self.parts.engine.refresh(self.done)
        setting, tasks_PG = self.parts.setting(), draw_tasks(self.recipe, number)
        numbers = self.team.share(range(len(tasks_PG)))
        metas = play_groups(setting, self.team.share(tasks_PG), derive(self.recipe.run.seed, "play", number), numbers=numbers, gather=self.team.gather)
        played = self.parts.engine.spent()
        clock.append(time.perf_counter())
        credits = credit(self.recipe, metas)
        clock.append(time.perf_counter())
        entropy = self.recipe.learn.entropy_at(self.done, self.recipe.run.updates)
        samples = make_samples(credits, reflections=self.done >= self.recipe.learn.reflect_from)
        learned = self.learner.update(samples, entropy=entropy, update=self.done)
        self.done = number
        self.parts.engine.refresh(number)  # evaluations come next, with the new weights
        clock.append(time.perf_counter())
        figures = {"update": number} | means(self.team.gather(play_tally(metas) | credit_tally(credits))) | asdict(learned)
        timing = dict(zip(("play", "credit", "learn"), (after - before for before, after in itertools.pairwise(clock)), strict=True))
        timing["total"] = clock[-1] - clock[0]
        timing |= {f"play_{name}": seconds - spent[name] for name, seconds in played.items()} | memory_in_use()
        if self.events is not None:
            self.folder.append_metrics(figures)
            self.folder.append_timing({"update": number} | timing)
            self.events.add(number, figures)
            self.events.add(number, timing, "time")
        self.watcher.updated(number, self.recipe.run.updates, figures, timing["total"])
        self._keep(metas)

    def _keep(self, metas: Sequence[MetaEpisode]) -> None:
        run = self.recipe.run
        last = self.done == run.updates
        if self.team.leads and run.episodes_every and (last or self.done % run.episodes_every == 0):
            self.folder.write_episodes(self.done, metas)
        if last or (run.evaluate_every and self.done % run.evaluate_every == 0):
            self._choose()
        if last or self.done % run.save_every == 0:
            self._save()

    def _save(self) -> None:
        if self.team.leads:
            self.learner.save(self.folder.checkpoints, update=self.done, state={"best": self.best})
            checkpoint.prune(self.folder.checkpoints, keep=self.recipe.run.keep, also={self.best[1]} if self.best else ())
        self.team.tell(None)  # nobody goes on, or loads, before the files are there

    def _choose(self) -> None:
        """Measure on the select panel; the best last-episode score names the checkpoint that the final figures are of."""
        evaluation = self.evaluate("test", "select", f"select_{self.done:06d}")
        if self.events is not None:
            self.events.add_evaluation(self.done, evaluation.overall)
        score = evaluation.overall.episodes[-1].score
        assert score is not None, "a panel is never empty"
        if self.best is None or score.value > self.best[0]:
            self.best = (score.value, self.done)
            self._save()

    def _conclude(self) -> Figures:
        """Load the chosen checkpoint and measure it on the final panel, as it is and with its memory emptied."""
        assert self.best is not None, "the start is measured before the first update"
        self.learner.load(checkpoint.place(self.folder.checkpoints, self.best[1]))
        self.parts.engine.refresh(self.best[1])
        after = self._final("after")
        emptied = self._final("emptied", cast("Memory", find_item("memory", "notes")(keep="none")))
        return self._close({"after": after, "memory_emptied": emptied})

    def _close(self, found: dict[str, dict[Split, Evaluation]]) -> Figures:
        """The leader sums up; what finished evaluations left for the case of a kill is no longer needed."""
        if not self.team.leads:
            return {}
        summary = self._summary(found)
        self.folder.write_summary(summary)
        self.folder.forget_sittings()
        return summary

    def _final(self, name: str, memory: Memory | None = None) -> dict[Split, Evaluation]:
        return {split: self.evaluate(split, "final", f"{name}_{split}", memory) for split in self.recipe.evaluate.splits}

    def _summary(self, found: dict[str, dict[Split, Evaluation]]) -> Figures:
        stages = {stage: {split: one.to_json()["overall"] for split, one in evaluations.items()} for stage, evaluations in found.items()}
        if self.recipe.run.updates:
            stages["before"] = {split: self.folder.read_evaluation(f"before_{split}")["overall"] for split in found["after"]}
        return {
            "run": str(self.folder.path),
            "recipe": self.recipe.run.name or self.folder.path.name,
            "seed": self.recipe.run.seed,
            "updates": self.done,
            "chosen_update": self.best[1] if self.best else 0,
            "seconds": sum(record["total"] for record in self.folder.timing()),
            **stages,
        }

    def evaluate(self, split: Split, panel: Name, name: str, memory: Memory | None = None) -> Evaluation:
        """Play a fixed panel with the weights as they are; the leader stores the result."""
        size = self.recipe.evaluate.size if panel == "select" else self.recipe.evaluate.final_size
        about = {"of": name, "update": self.parts.engine.policy_version, "tasks": size, "episodes": self.recipe.evaluation_episodes()}
        evaluation, _ = evaluate_panel(
            self.parts,
            split,
            panel,
            size,
            memory,
            self.team,
            lambda done: self.watcher.played(done, size, name),
            transcripts=TRANSCRIPTS if panel == "final" else 0,
            store=Store(self.folder.sittings(name), about),
            on_transcripts=partial(self._write_transcripts, name),
        )
        if self.team.leads:
            self.folder.write_evaluation(name, evaluation.to_json())
            if panel == "final":
                write_tasks(self.folder.path / "evaluations" / f"{name}.tasks.jsonl", evaluation.rows)
            else:
                self.folder.sittings(name).unlink(missing_ok=True)
        self.watcher.evaluated(name, evaluation)
        return evaluation

    def _write_transcripts(self, name: str, metas: list[MetaEpisode]) -> None:
        self.folder.write_episodes_of(name, metas)


def evaluate_panel(
    parts: Parts,
    split: Split,
    panel: Name,
    size: int,
    memory: Memory | None = None,
    team: Team | None = None,
    on_played: Callable[[int], None] = lambda done: None,
    *,
    transcripts: int | None = None,
    store: Store | None = None,
    on_transcripts: Callable[[list[MetaEpisode]], None] = lambda metas: None,
) -> tuple[Evaluation, list[MetaEpisode]]:
    """Play a fixed panel and sum it up; also this member's meta-episodes of the first `transcripts` tasks (None = of all).

    Seeds come from the panel alone, so every method and every checkpoint faces the same tasks with the same luck. What
    `store` holds is not played again.
    """
    recipe, team, setting = parts.recipe, team or Team(), parts.setting(evaluating=True, memory=memory)
    seats, population = recipe.play.seats, recipe.population()
    tasks = make_panel(setting.environment, population, split, size=size, seats=seats, name=panel, episodes=setting.episodes)
    seed = derive("panel", panel, split)
    rows, metas = play_sittings(setting, tasks, seed, team=team, transcripts=transcripts, store=store, on_played=on_played, on_transcripts=on_transcripts)
    return summarise_rows(rows, setting.environment, population, split), metas


def memory_in_use() -> dict[str, float]:
    """Gigabytes of this process, on the host (where the system tells it) and on the GPU: in use now (a leak shows as a line that rises), and held.

    What is held is what another training on the same card cannot have: the most that was ever in use, and some air.
    """
    statm = Path("/proc/self/statm")
    host = {"memory_host": int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9} if statm.is_file() else {}
    if not torch.cuda.is_available():
        return host
    return host | {"memory_device": torch.cuda.memory_allocated() / 1e9, "memory_device_held": torch.cuda.memory_reserved() / 1e9}


def _pair(value: list[Any] | None) -> tuple[float, int] | None:
    return (float(value[0]), int(value[1])) if value else None
