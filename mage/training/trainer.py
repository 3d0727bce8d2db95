"""The training loop: play -> credit -> learn -> save -> evaluate.

Every random choice of update k derives from (run seed, k), and the engine starts every update with
an empty cache. So a checkpoint is the whole state of a run: weights, optimizer and k, and what
`_write_checkpoint` lists. A run that was killed and resumed ends with the same metrics as one that
was not. Wall-clock figures are kept apart, in `timing.jsonl`.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from mage.config.menus import find_item, keeps_state
from mage.credit.samples import assign_credit, make_samples
from mage.evaluation.figures import Evaluation
from mage.learn import checkpoint
from mage.learn.learner import Learner
from mage.memory.base import Memory
from mage.models.base import adapter_folder
from mage.opponents.base import Opponent
from mage.play import play_groups
from mage.ranks.dealing import (
    SharedCredit,
    SharedQueue,
    deal_members,
    measure_lengths,
    share_credit,
)
from mage.ranks.launch import recipe_of_rank
from mage.ranks.rank_log import log
from mage.ranks.ranks import RankLost, Ranks, RanksStopped
from mage.ranks.stop import Stopped, StopRequest
from mage.run_folder import RunFolder
from mage.run_folder.turn_files import TurnMoves
from mage.run_folder.versions import changed_code, changed_software
from mage.seeds import derive
from mage.training.build import build_components
from mage.training.callbacks import Callback, Metrics
from mage.training.context import check_overflow
from mage.training.engine_probe import EngineProbe
from mage.training.evaluations import RunEvaluations, illegal_share, last_score, summarise_run
from mage.training.fit import choices_of, fit_training
from mage.training.league import FOLDER, LeagueTable, league_of
from mage.training.metrics import Timer, credit_sums, means, memory_usage, play_sums
from mage.training.resume import (
    Best,
    base_record,
    changed_plan,
    check_base,
    check_progress,
    check_rivals,
    check_start,
    find_latest,
    prune,
    read_best,
    read_plan,
)
from mage.training.tasks import draw_tasks
from mage.training.warnings import UpdateWarnings, choice_warnings, panel_warnings, start_warnings
from mage.types import Credit, MetaEpisode, Sample, Split, Task


class Trainer:
    """The part of a run that one rank does. Rank 0 alone writes files."""

    def __init__(
        self, folder: RunFolder, ranks: Ranks, callback: Callback, stop: StopRequest
    ) -> None:
        self.folder, self.ranks, self.callback, self.stop = folder, ranks, callback, stop
        self._kept_plan = ranks.broadcast(read_plan(folder))
        recipe = recipe_of_rank(folder.begun_recipe(), ranks)
        self.recipe, keeps_pools = fit_training(recipe, ranks, kept=self._kept_plan)
        self._plan = choices_of(self.recipe)
        ranks.deals_members = ranks.size > 1 and self.recipe.run.deal == "members"
        self.components = build_components(self.recipe, keeps_pools)
        self.learner = Learner(
            self.components.weights(),
            self.recipe.learn,
            seed=self.recipe.run.seed,
            temperature=self.recipe.agent.temperature,
            total_updates=self.recipe.run.updates,
            ranks=ranks,
            start=adapter_folder(self.recipe),
        )
        self.probe = EngineProbe(
            self.components.engine, self.learner.module, self.recipe.agent.temperature
        )
        self.evaluations = RunEvaluations(folder, self.components, ranks, callback, stop)
        self.transcripts = self.evaluations.transcripts
        self.league = self._make_league()
        # In a checkpoint, with the state of the learner and of the league.
        self.done = 0
        self.best: Best | None = None
        self.lengths: dict[str, float] = {}  # expected tokens, for dealing members to ranks
        self.estimator_state: dict[str, float] = {}  # after update `done`
        self._base = base_record(self.recipe)
        # From `done` and the stored times of all updates.
        self._seconds = 0.0
        self._ended = False  # whether update `done` is the last one
        # Of this process.
        self._saved: tuple[int, Best | None] | None = None  # `done` and `best` of the last save
        # The weights are those after update `done`: not during learning, and not after the best
        # weights are loaded.
        self._can_save = True
        self.warnings = UpdateWarnings(warmed_up=self.recipe.warmup.first)

    def _make_league(self) -> LeagueTable | None:
        """The frozen copies of the agent, if they are among the training opponents."""
        name = league_of(self.recipe)
        if name is None:
            return None
        return LeagueTable(name, self.folder.path / FOLDER, self.components)

    def resume(self) -> None:
        """Load the newest whole checkpoint, if there is one; broken ones give a warning."""
        found = self.ranks.broadcast(find_latest(self.folder) if self.ranks.is_main else None)
        assert found is not None, "rank 0 has searched"
        stored: Sequence[str] = ()
        if found.path is not None:
            loaded = self.learner.load(found.path)
            check_base(loaded.state, self.recipe, self.folder.path)
            check_rivals(loaded.state, self.recipe, self.folder.path)
            self.done, self.best = loaded.update, read_best(loaded.state)
            stored = loaded.state.get("evaluations", ())
            self.lengths = loaded.state.get("lengths", {})
            self.estimator_state = loaded.state.get("estimator", {})
            if self.league is not None:
                self.league.from_state(loaded.state["league"])
        self.components.engine.refresh(self.done)
        if self.ranks.is_main:
            if found.path is None:
                check_start(self.folder)
            check_progress(self.folder, self.done, stored)
            self.folder.rewind(self.done)
            if not found.broken:  # a kill may have come before the prune of the last save
                prune(self.folder, self.best)
            self.callback.on_start(self.folder, self.done)
            for figures in self.folder.metrics():
                self.warnings.check(figures)
            notes = self._changed_since_start() if found.path else []
            notes += changed_plan(self._kept_plan, self._plan)
            lines = [*notes, *found.broken, *self.components.warnings]
            self._warn([*lines, *start_warnings(self.recipe)])
            self._seconds = sum(record["total"] for record in self.folder.timing())
        self._ended = self._is_last()

    def _changed_since_start(self) -> list[str]:
        """Lines about software and code of the user that are not those the run began with."""
        stored = self.folder.read_versions()
        return [*changed_software(stored), *changed_code(stored, self.recipe.toml())]

    def run(self) -> Metrics:
        """Train to the end, evaluate the best checkpoint on the final panel; the summary."""
        # What is loaded by now stays to the end of the run: half a million objects that a garbage
        # collection need not visit. A collection of all took a quarter of a second.
        gc.freeze()
        try:
            return self._run()
        except RanksStopped:
            if self._can_save and self.done:  # the last update, if its weights are complete
                self._save()
            raise Stopped(str(self.folder.path)) from None
        except RankLost:
            # Rank 0 writes without a barrier, which would wait for the lost rank. The weights of
            # sharded ranks are lost with it.
            alone = self.ranks.is_main and not self.learner.is_sharded
            if alone and self._can_save and self.done:
                self._write_checkpoint()
            raise
        finally:
            gc.unfreeze()

    def _run(self) -> Metrics:
        if self.recipe.run.updates == 0:
            return self._evaluate_only()
        if self.done == 0:
            self._evaluate_and_keep_best()
            if self.recipe.evaluate.before:
                self.evaluations.final("before")
        elif self._lacks_select():
            self._evaluate_and_keep_best()
        while not self._ended:
            self._update()
            if any(self.ranks.gather(self.stop())):
                raise RanksStopped
        return self._conclude()

    def _lacks_select(self) -> bool:
        """Whether a stop or a lost rank came before the evaluation of update `done`."""
        due = self._ended or self._is_due(self.recipe.run.evaluate_every, self.done)
        stored = self.folder.evaluation_names()
        return self.ranks.broadcast(due and f"select_{self.done:06d}" not in stored)

    # -- one update

    def _update(self) -> None:
        """Play with the present weights, credit every turn, learn from the credit."""
        timer, number = Timer(), self.done + 1
        with timer.phase("play"):
            metas = self._play(number, timer)
        with timer.phase("credit"):
            moves = self._score_moves(number, metas)
            estimator_state = dict(self.estimator_state)
            credit = self._assign(metas, estimator_state)
        with timer.phase("learn"):
            samples = self._make_samples(credit.own)
            self._leave_play(samples)
            learned = self._learn(number, samples, timer)
            self._finish_learning(number, metas, samples, estimator_state)
        figures = self._figures(metas, credit, learned)
        self._seconds += timer.seconds["total"]
        self._ended = self._is_last()
        self._record(figures, timer.seconds | memory_usage())
        check_overflow(figures, self.recipe)
        self._write_evaluate_save(metas, credit.everyone, moves)

    def _is_last(self) -> bool:
        """Whether update `done` is the last one, by its number or by the clock of rank 0.

        Times are kept with the updates, so a resumed run counts those before the break.
        """
        run = self.recipe.run
        late = run.minutes is not None and self.done > 0 and self._seconds >= 60 * run.minutes
        return self.done >= run.updates or self.ranks.broadcast(late)

    def _play(self, number: int, timer: Timer) -> list[MetaEpisode]:
        """This rank's meta-episodes of update `number`, played with the weights after `done`."""
        engine = self.components.engine
        engine.refresh(self.done)
        log.info("update %d: play", number)
        before = engine.spent()
        with self.stop.section(self.ranks):
            metas = self._deal_and_play(number, draw_tasks(self.recipe, number))
        timer.add(before, engine.spent(), prefix="play_")
        return metas

    def _deal_and_play(self, number: int, tasks_PG: list[list[Task]]) -> list[MetaEpisode]:
        """Share the tasks (`tasks_PG[group][member]`) among the ranks and play those of this rank.

        groups (run.deal): each rank plays its own. members: each rank has members of its own; if
        some of them have to wait for a slot, all ranks take from one queue.
        """
        seed = derive(self.recipe.run.seed, "play", number)
        tasks_PG, copies = self._meet_league(tasks_PG, seed)
        setup = self.components.begin_play(copies=copies)
        play = partial(play_groups, setup, gather=self.ranks.gather)
        if not self.ranks.deals_members:
            numbers = self.ranks.split(range(len(tasks_PG)))
            return play(self.ranks.split(tasks_PG), seed, numbers=numbers)
        rank_of = deal_members(tasks_PG, self.ranks.size, self.lengths)
        queue = SharedQueue(self.ranks, rank_of, f"{self.folder.path.name} update {number}")
        if queue.is_useful(self.components.engine.capacity):
            return queue.give_back(play(tasks_PG, seed, choose=queue.choose))
        return play(tasks_PG, seed, choose=queue.own)

    def _meet_league(
        self, tasks_PG: list[list[Task]], seed: int
    ) -> tuple[list[list[Task]], dict[str, Opponent]]:
        """Tasks with copies in place of the league, and these copies; a new copy if one is due."""
        if self.league is None:
            return tasks_PG, {}
        self.league.grow(self.done, self.learner.trainable, self.ranks)
        return self.league.deal(tasks_PG, seed)

    def _score_moves(self, number: int, metas: Sequence[MetaEpisode]) -> list[TurnMoves]:
        """Probabilities of the legal moves, for the transcripts, by the weights that played."""
        if not self._is_due(self.recipe.run.episodes_every, number):
            return []
        return self.transcripts.score_update(metas)

    def _assign(self, metas: Sequence[MetaEpisode], state: dict[str, float]) -> SharedCredit:
        """Return and advantage of every turn; an estimator with running values changes `state`.

        With run.deal = "members" a rank also gets the credit of the others, for the transcripts.
        With "groups" it keeps its own alone, so the three fields of the result are equal.
        """
        options, estimate = self.recipe.returns, self.recipe.estimator(state)
        if self.ranks.deals_members:
            return share_credit(metas, options, estimate, self.ranks)
        if self.ranks.size > 1 and keeps_state(estimate):
            # From the credit of all ranks, so that the kept values are the same on all of them.
            credits = share_credit(metas, options, estimate, self.ranks).own
        else:
            credits = assign_credit(metas, options, estimate)
        return SharedCredit(own=credits, everyone=credits, counted=credits)

    def _make_samples(self, credits: Sequence[Credit]) -> list[Sample]:
        return make_samples(credits, reflections=self.done >= self.recipe.learn.reflect_from)

    def _leave_play(self, samples: Sequence[Sample]) -> None:
        """Free the memory of play. In the first update of this process, the engine is checked."""
        if not self.probe.began:
            self._check_engine(samples)
        self.components.release()
        if self.league is not None and not self.components.keeps_pools:
            self.league.release()

    def _learn(self, number: int, samples: Sequence[Sample], timer: Timer) -> Metrics:
        """The optimizer steps of the update; their metrics."""
        log.info("update %d: learn", number)
        entropy = self.recipe.learn.entropy_at(self.done, self.recipe.run.updates)
        before, self._can_save = self.learner.compilations(), False
        with self.learner.reporting(self.callback.on_compile):
            learned = asdict(self.learner.update(samples, entropy=entropy, update=self.done))
        timer.add(before, self.learner.compilations())
        return learned

    def _finish_learning(
        self,
        number: int,
        metas: Sequence[MetaEpisode],
        samples: Sequence[Sample],
        estimator_state: dict[str, float],
    ) -> None:
        """The weights are now those after update `number`; evaluations and play use them."""
        if self.ranks.deals_members:
            self.lengths = measure_lengths(metas, self.ranks)
        self.done, self.estimator_state = number, estimator_state
        self.components.engine.refresh(self.done)
        self._check_engine(samples)

    def _check_engine(self, samples: Sequence[Sample]) -> None:
        with self.ranks.together():
            self.probe.check([sample.prompt_ids for sample in samples[:1]], self.done)

    def _figures(
        self, metas: Sequence[MetaEpisode], credit: SharedCredit, learned: Metrics
    ) -> Metrics:
        """The metrics of the update over all ranks, with warnings about them."""
        worlds = self.recipe.environment().inside().values()
        played = play_sums(metas, len(worlds) > 1, any(world.tools() for world in worlds))
        rivals = self.components.rival_sums()
        sums = self.ranks.gather(played | credit_sums(credit.counted) | rivals)
        figures: Metrics = {"update": self.done} | means(sums) | learned
        if self.league is not None:
            self.league.learn_scores(metas, self.ranks)
            figures |= self.league.figures()
        if lines := self.warnings.check(figures):
            figures["warnings"] = lines
        return figures

    def _record(self, figures: Metrics, timing: Mapping[str, float]) -> None:
        if self.ranks.is_main:
            self.folder.append_metrics(figures)
            self.folder.append_timing({"update": self.done, **timing})
            self.callback.on_update(self.done, self.recipe.run.updates, figures, timing)
            self._warn(figures.get("warnings", ()))

    def _warn(self, lines: Sequence[str]) -> None:
        if self.ranks.is_main:
            for line in lines:
                self.callback.on_warning(line)

    def _write_evaluate_save(
        self, metas: Sequence[MetaEpisode], credits: Sequence[Credit], moves: Sequence[TurnMoves]
    ) -> None:
        """Write transcripts, evaluate and save, each if this update is one of its turns."""
        run = self.recipe.run
        if self._is_due(run.episodes_every, self.done):
            self.transcripts.write_update(self.done, metas, credits, moves)
        self._can_save = True  # all that a checkpoint of this update depends on is stored
        # Also with evaluate_every = 0 the last update can be the best one.
        if self._ended or self._is_due(run.evaluate_every, self.done):
            self._evaluate_and_keep_best()
        if self._ended or self._is_due(run.save_every, self.done):
            self._save()
        if self._ended and self.done < run.updates:
            self._warn(
                [
                    f"run.minutes = {run.minutes:g} are over: update {self.done} of {run.updates} "
                    "is the last one. Schedules such as the decay of the learning rate end early"
                ]
            )

    def _is_due(self, every: int, update: int) -> bool:
        return bool(every) and (update == self.recipe.run.updates or update % every == 0)

    def _save(self) -> None:
        if self.ranks.is_main or self.learner.is_sharded:
            self._write_checkpoint()
        self.ranks.barrier()  # wait until the checkpoint is written

    def _write_checkpoint(self) -> None:
        if self._saved == (self.done, self.best):
            return
        log.info("update %d: save", self.done)
        state: dict[str, Any] = {
            "best": self.best,
            "evaluations": self.folder.evaluation_names(),
            "lengths": self.lengths,
            **self._base,
        }
        if self._plan is not None:
            state["plan"] = self._plan
        if self.estimator_state:
            state["estimator"] = self.estimator_state
        if self.league is not None:
            state["league"] = self.league.to_state()
        self.learner.save(self.folder.checkpoints, update=self.done, state=state)
        self._saved = (self.done, self.best)
        if self.ranks.is_main:
            prune(self.folder, self.best)

    # -- evaluations

    def _evaluate_only(self) -> Metrics:
        """A run without training: evaluate the final panel once."""
        after = self.evaluations.final("after")
        self.best = (last_score(next(iter(after.values()))), 0)
        self._save()
        return self._close({"after": after})

    def _evaluate_and_keep_best(self) -> None:
        """Evaluate on the select panel; the best score chooses the checkpoint."""
        found = self.evaluations.select(self.done)
        score = last_score(found)
        if self.done == 0:
            illegal = illegal_share(found.to_json())
            self._warn(panel_warnings(illegal, warmed_up=self.recipe.warmup.first))
        if self.best is None or score > self.best[0]:
            self.best = (score, self.done)
            self._save()

    def _conclude(self) -> Metrics:
        """Evaluate the best checkpoint on the final panel, with its memory and without it."""
        assert self.best is not None, "the select panel is played before the first update"
        self._can_save = False  # a stop must not save the best weights as those of `done`
        chosen = checkpoint.best_whole(self.folder.checkpoints, self.best[1])
        self._warn(chosen.broken)
        assert chosen.path is not None, "the checkpoint of the last update was just written"
        self.best = (self.best[0], self.learner.load(chosen.path).update)
        if self.ranks.is_main:
            first = self.folder.read_evaluation("select_000000")
            self._warn(choice_warnings(self.recipe, self.best[1], illegal_share(first)))
        self.components.engine.refresh(self.best[1])
        after = self.evaluations.final("after")
        no_memory = cast("Memory", find_item("memory", "notes")(keep="none"))
        emptied = self.evaluations.final("emptied", no_memory)
        return self._close({"after": after, "memory_emptied": emptied})

    def _close(self, found: dict[str, dict[Split, Evaluation]]) -> Metrics:
        """Write the summary; the shards of finished evaluations are no longer needed."""
        if not self.ranks.is_main:
            return {}
        chosen = self.best[1] if self.best else 0
        summary = summarise_run(self.folder, found, updates=self.done, chosen_update=chosen)
        self.folder.write_summary(summary)
        self.folder.delete_shards()
        return summary
