"""The trainer: play -> credit -> learn -> save -> evaluate, from a recipe to a run folder.

Every random choice of update k is derived from (run seed, k), and the engine starts every update with an empty cache. So the
whole state of a run is its weights, its optimizer and the number k: a run killed at any point and resumed ends with the same
metrics as one that was not. Wall-clock figures are kept apart, in `timing.jsonl`.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Protocol, cast

import torch
from transformers import PreTrainedModel

from mage.agent import Agent, Sampling
from mage.chat import Chat
from mage.config import Recipe, find_item
from mage.engines.base import Engine
from mage.evaluate import Evaluation, summarise, write_tasks
from mage.learn import checkpoint
from mage.learn.learner import Learner
from mage.learn.model import load_model
from mage.memory.base import Memory
from mage.opponents.base import spread
from mage.panels import Name, make_panel
from mage.play import Setting, play_groups
from mage.returns import compute_returns
from mage.rundir import RunFolder
from mage.seeds import derive
from mage.types import Credit, MetaEpisode, Sample, Split, Task

Figures = dict[str, Any]
TRANSCRIPTS = 60


class Watcher(Protocol):
    """Who looks on: the terminal, a log, a test. Nothing a watcher does changes a run."""

    def updated(self, done: int, total: int, figures: Figures, seconds: float) -> None: ...

    def evaluated(self, name: str, evaluation: Evaluation) -> None: ...

    def played(self, done: int, total: int, doing: str) -> None: ...


class Stopped(Exception):
    """The run was asked to stop and has saved; `resume` is the folder to go on with."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a recipe makes: one model, shared by the engine that plays and the learner."""

    recipe: Recipe
    model: PreTrainedModel
    chat: Chat
    engine: Engine

    def agent(self, evaluating: bool) -> Agent:
        own, test = self.recipe.agent, self.recipe.evaluate
        draw = test if evaluating else own
        sampling = Sampling(draw.temperature, draw.top_p, draw.top_k, own.max_tokens, own.reflection_tokens)
        return Agent(self.engine, self.chat, sampling)

    def setting(self, evaluating: bool = False, memory: Memory | None = None) -> Setting:
        play = self.recipe.play
        return Setting(
            environment=self.recipe.environment(),
            agent=self.agent(evaluating),
            memory=memory or self.recipe.memory(),
            episodes=self.recipe.evaluation_episodes() if evaluating else play.episodes,
            stop_on_success=play.stop_on_success and not evaluating,
            illegal_penalty=play.illegal_penalty,
            length_penalty=play.length_penalty,
        )


def build(recipe: Recipe) -> Parts:
    """Load the model and put an engine around it."""
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    folder = recipe.model_folder()
    chat = Chat.load(folder)
    model = load_model(folder, recipe.model.dtype, recipe.run.device)
    return Parts(recipe, model, chat, recipe.engine()(model, chat))


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


def make_samples(credits: Sequence[Credit]) -> list[Sample]:
    """Training rows: the very ids and logprobs that were sampled. An empty reply has nothing to learn from."""
    return [
        Sample(
            prompt_ids=turn.prompt_ids,
            reply_ids=turn.completion.token_ids,
            old_logprobs=turn.completion.logprobs,
            advantage=found.advantage,
            action_span=turn.action_span,
            kind=turn.kind,
            where=found.source.where,
        )
        for found in credits
        if (turn := found.source.turn).completion.token_ids
    ]


class Trainer:
    """One run: a recipe, its folder and its parts."""

    def __init__(self, recipe: Recipe, folder: RunFolder, watcher: Watcher) -> None:
        self.recipe, self.folder, self.watcher = recipe, folder, watcher
        self.parts = build(recipe)
        options = {"seed": recipe.run.seed, "temperature": recipe.agent.temperature, "total_updates": recipe.run.updates}
        self.learner = Learner(self.parts.model, recipe.learn, **options)
        self.done = 0
        self.best: tuple[float, int] | None = None
        self.stop_asked = False

    def resume(self) -> list[str]:
        """Go back to the newest whole checkpoint; returns a line for every broken one that was passed over."""
        found = checkpoint.latest(self.folder.checkpoints)
        if found.path is not None:
            loaded = self.learner.load(found.path)
            self.done, self.best = loaded.update, _pair(loaded.state.get("best"))
        self.folder.rewind(self.done)
        self.parts.engine.refresh(self.done)
        return list(found.broken)

    def run(self) -> Figures:
        """Train to the end, then measure the chosen checkpoint on the final panel; returns the summary."""
        if self.done == 0:
            self._measure_start()
        while self.done < self.recipe.run.updates:
            self._update()
            if self.stop_asked:
                self._save()
                raise Stopped(str(self.folder.path))
        return self._conclude()

    def _measure_start(self) -> None:
        self._choose()
        self._final("before")

    def _update(self) -> None:
        began = time.perf_counter()
        number = self.done + 1
        setting, tasks_PG = self.parts.setting(), draw_tasks(self.recipe, number)
        metas = play_groups(setting, tasks_PG, derive(self.recipe.run.seed, "play", number))
        played = time.perf_counter()
        credits = credit(self.recipe, metas)
        samples = make_samples(credits)
        credited = time.perf_counter()
        entropy = self.recipe.learn.entropy_at(self.done, self.recipe.run.updates)
        learned = self.learner.update(samples, entropy=entropy, update=self.done)
        self.done = number
        self.parts.engine.refresh(number)
        ended = time.perf_counter()
        figures = {"update": number} | play_figures(metas, setting.episodes) | credit_figures(credits) | asdict(learned)
        self.folder.append_metrics(figures)
        timing = {"play": played - began, "credit": credited - played, "learn": ended - credited, "total": ended - began}
        self.folder.append_timing({"update": number} | timing)
        self._keep(metas)
        self.watcher.updated(number, self.recipe.run.updates, figures, ended - began)

    def _keep(self, metas: Sequence[MetaEpisode]) -> None:
        run = self.recipe.run
        if run.episodes_every and (self.done % run.episodes_every == 0 or self.done == run.updates):
            self.folder.write_episodes(self.done, metas)
        if run.evaluate_every and self.done % run.evaluate_every == 0 or self.done == run.updates:
            self._choose()
        if self.done % run.save_every == 0 or self.done == run.updates:
            self._save()

    def _save(self) -> None:
        self.learner.save(self.folder.checkpoints, update=self.done, state={"best": self.best})
        checkpoint.prune(self.folder.checkpoints, self.recipe.run.keep, {self.best[1]} if self.best else set())

    def _choose(self) -> None:
        """Measure on the select panel; the best last-episode score names the checkpoint that the final figures are of."""
        evaluation = self.evaluate("test", "select", f"select_{self.done:06d}")
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
        emptied = self._final("emptied", find_memory("notes", keep="none"))
        summary = self._summary(after, emptied)
        self.folder.write_summary(summary)
        return summary

    def _final(self, name: str, memory: Memory | None = None) -> dict[Split, Evaluation]:
        return {split: self.evaluate(split, "final", f"{name}_{split}", memory) for split in self.recipe.evaluate.splits}

    def _summary(self, after: dict[Split, Evaluation], emptied: dict[Split, Evaluation]) -> Figures:
        before = {split: self.folder.read_evaluation(f"before_{split}") for split in after}
        return {
            "run": str(self.folder.path),
            "recipe": self.recipe.run.name or self.folder.path.name,
            "seed": self.recipe.run.seed,
            "updates": self.done,
            "chosen_update": self.best[1] if self.best else 0,
            "seconds": sum(record["total"] for record in self.folder.timing()),
            "before": {split: one["overall"] for split, one in before.items()},
            "after": {split: one.to_json()["overall"] for split, one in after.items()},
            "memory_emptied": {split: one.to_json()["overall"] for split, one in emptied.items()},
        }

    def evaluate(self, split: Split, panel: Name, name: str, memory: Memory | None = None) -> Evaluation:
        """Play a fixed panel with the weights as they are and store the result."""
        size = self.recipe.evaluate.size if panel == "select" else self.recipe.evaluate.final_size
        evaluation, metas = evaluate_panel(self.parts, split, panel, size, memory, lambda done: self.watcher.played(done, size, name))
        self.folder.write_evaluation(name, evaluation.to_json())
        if panel == "final":
            write_tasks(self.folder.path / "evaluations" / f"{name}.tasks.jsonl", evaluation.rows)
            self.folder.write_episodes_of(name, metas[:TRANSCRIPTS])
        self.watcher.evaluated(name, evaluation)
        return evaluation


def evaluate_panel(
    parts: Parts, split: Split, panel: Name, size: int, memory: Memory | None, on_played: Callable[[int], None]
) -> tuple[Evaluation, list[MetaEpisode]]:
    """Play a fixed panel and sum it up. Seeds come from the panel alone, so every method and checkpoint faces the same."""
    recipe, setting = parts.recipe, parts.setting(evaluating=True, memory=memory)
    tasks = make_panel(
        setting.environment, recipe.population(), split, size=size, seats=recipe.play.seats, name=panel, episodes=setting.episodes
    )
    counter = itertools.count(1)
    metas = play_groups(setting, [[task] for task in tasks], derive("panel", panel, split), lambda _: on_played(next(counter)))
    return summarise(metas, setting.environment, recipe.population(), split), metas


def play_figures(metas: Sequence[MetaEpisode], episodes: int) -> Figures:
    """How an update's meta-episodes went, by episode position."""
    figures: Figures = {}
    for number in range(episodes):
        played = [meta.episodes[number] for meta in metas if len(meta.episodes) > number]
        if played:
            figures[f"score_{number + 1}"] = fmean(episode.score for episode in played)
            figures[f"success_{number + 1}"] = fmean(episode.outcome == "won" for episode in played)
    turns = [turn for meta in metas for episode in meta.episodes for turn in episode.turns]
    notes = [episode.reflection for meta in metas for episode in meta.episodes if episode.reflection is not None]
    figures["illegal_rate"] = fmean(not turn.legal for turn in turns)
    figures["reply_length"] = fmean(len(turn.completion.token_ids) for turn in turns)
    figures["reflection_length"] = fmean(len(note.completion.token_ids) for note in notes) if notes else 0.0
    figures["hands"] = sum(len(meta.episodes) for meta in metas)
    return figures


def credit_figures(credits: Sequence[Credit]) -> Figures:
    """How far apart members of a group were: without any difference there is nothing to learn from."""
    groups: dict[int, set[float]] = {}
    for one in credits:
        groups.setdefault(one.source.where.group, set()).add(round(one.source.episode_reward, 9))
    return {
        "advantage_std": pstdev(one.advantage for one in credits),
        "return_mean": fmean(one.source.value for one in credits),
        "flat_groups": fmean(len(rewards) == 1 for rewards in groups.values()),
    }


def find_memory(name: str, **options: Any) -> Memory:
    return cast("Memory", find_item("memory", name).model_validate(options))


def _pair(value: list[Any] | None) -> tuple[float, int] | None:
    return (float(value[0]), int(value[1])) if value else None
