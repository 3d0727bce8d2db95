"""Evaluation in shards: a kill loses at most one shard; stored rows equal played ones."""

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from processes import start as start_process
from processes import wait
from toys import scripted_agent

from mage.config.recipe import build_recipe
from mage.environments.kuhn_poker import KuhnPoker
from mage.evaluation import shards
from mage.evaluation.panels import make_panel
from mage.evaluation.rows import TaskRow, task_row
from mage.evaluation.run import evaluate_panel
from mage.evaluation.shards import ShardStore, play_shards
from mage.memory.base import Memory
from mage.memory.memento import Memento
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import PlaySetup, play_groups
from mage.ranks.ranks import Ranks
from mage.ranks.stop import StopRequest
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.trainer import Trainer
from mage.types import MetaEpisode, Task
from tests.torture.processes import count_operations

STYLES = {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}
TASKS = [Task("kuhn_poker", seed, seed % 2, "aggressive", "test") for seed in range(30)]


def setting_of(memory: Memory) -> PlaySetup:
    return PlaySetup(
        KuhnPoker(),
        scripted_agent(lambda prompt: f"<action>{'bet' if len(prompt) % 3 else 'pass'}</action>"),
        memory,
        episodes=2,
    )


def play(
    memory: Memory, store: ShardStore | None = None, **options: Any
) -> tuple[list[TaskRow], list[MetaEpisode]]:
    return play_shards(
        setting_of(memory), TASKS, 7, ranks=Ranks(), transcripts=5, store=store, **options
    )


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr("mage.evaluation.shards._MIN_SIZE", 12)


class Killed(Exception):
    pass


MEMORIES: dict[str, Memory] = {
    "notes": Notes(keep="both"),
    "memento": Memento(embedding="lexical", wave=10),
}


def test_a_panel_that_is_played_twice_has_two_plays_of_every_task():
    population = Population(train=STYLES)
    play_setup = setting_of(Notes(keep="both"))
    tasks = make_panel(play_setup.environment, population, "test", size=30, episodes=2)
    once, _ = evaluate_panel(play_setup, population, tasks, "final")
    twice, metas = evaluate_panel(play_setup, population, tasks, "final", plays=2)
    assert [meta.group for meta in metas] == list(range(60))  # random numbers depend on the group
    assert twice.rows[:30] == once.rows
    assert [row.task for row in twice.rows[30:]] == [row.task for row in once.rows]
    assert [row.member for row in twice.rows] == [0] * 30 + [1] * 30
    first, second = twice.overall.episodes[0], once.overall.episodes[0]
    assert first.score is not None
    assert second.score is not None
    assert (twice.overall.tasks, first.score.count) == (30, 30)
    mean = (second.score.value + sum(row.scores[0] for row in twice.rows[30:]) / 30) / 2
    assert first.score.value == pytest.approx(mean)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_shards_give_the_rows_of_a_panel_played_at_once(memory):
    rows, metas = play(memory)
    whole = play_groups(setting_of(memory), [[task] for task in TASKS], 7)
    world = setting_of(memory).environment.digest()
    assert rows == [task_row(meta, world) for meta in whole]
    assert metas == whole[:5]


@cache
def whole_rows(name: str) -> list[TaskRow]:
    return play(MEMORIES[name])[0]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("when", [1, 13, 29])
def test_a_killed_evaluation_resumes_from_its_stored_shards(name, when, tmp_path):
    memory = MEMORIES[name]
    counted: list[int] = []

    def kill(done: int) -> None:
        counted.append(done)
        if done >= when:
            raise Killed

    with pytest.raises(Killed):
        play(memory, ShardStore(tmp_path / "s", {"update": 3}), on_played=kill)
    with open(tmp_path / "s", "ab") as file:
        file.write(b'{"rows": [half a li')
    later: list[int] = []
    rows, _ = play(memory, ShardStore(tmp_path / "s", {"update": 3}), on_played=later.append)
    assert rows == whole_rows(name)
    shard = memory.tasks_at_once or 12
    stored = (when - 1) // shard  # whole shards before the kill
    assert later[:stored] == [shard * (k + 1) for k in range(stored)], "read, not played"
    assert later[stored] == stored * shard + 1, "the unfinished shard is played from its start"
    assert len(json.loads((tmp_path / "s").read_text().splitlines()[1])["rows"]) == shard


def test_a_changed_shard_is_played_again_with_a_warning(tmp_path):
    rows, _ = play(Notes(keep="none"), ShardStore(tmp_path / "s", {}))
    lines = (tmp_path / "s").read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"won"', '"lost"', 1)
    (tmp_path / "s").write_text("".join(lines))
    warnings: list[str] = []
    assert len(ShardStore(tmp_path / "s", {}, warnings.append).read()) == 1
    assert "shard 2 does not match its checksum" in warnings[0]
    assert play(Notes(keep="none"), ShardStore(tmp_path / "s", {}))[0] == rows


def test_transcripts_of_an_interrupted_evaluation_are_kept(tmp_path):
    folder = start(tmp_path / "run")
    metas = play(Notes(keep="none"))[1]
    trainer = Trainer(folder, Ranks(), Callback(), StopRequest())
    agent, transcripts = trainer.components.agent(False), trainer.evaluations.transcripts
    transcripts.write_panel("after_test", agent, metas[:3])
    transcripts.write_panel("after_test", agent, metas[2:])
    assert folder.read_episodes_of("after_test") == metas


def test_shards_of_another_evaluation_are_ignored(tmp_path):
    play(Notes(keep="none"), ShardStore(tmp_path / "s", {"update": 3}))
    assert len(ShardStore(tmp_path / "s", {"update": 3}).read()) == 3
    assert ShardStore(tmp_path / "s", {"update": 4}).read() == []


def test_only_the_first_transcripts_are_kept_and_reported_once(tmp_path):
    reported: list[int] = []
    _, metas = play(Notes(keep="none"), on_transcripts=lambda found: reported.append(len(found)))
    assert (reported, [meta.group for meta in metas]) == ([5], [0, 1, 2, 3, 4])


def test_a_killed_evaluation_keeps_the_transcripts_of_its_stored_shards(tmp_path):
    """Memento with shards of 3 tasks, killed after the first: 5 transcripts, not 2."""
    memory, written = Memento(embedding="lexical", wave=3), list[MetaEpisode]()

    def write(metas: list[MetaEpisode]) -> None:
        written.extend(metas)

    def kill(done: int) -> None:
        if done > 3:
            raise Killed

    _, whole = play(memory)
    with pytest.raises(Killed):
        play(memory, ShardStore(tmp_path / "s", {}), on_transcripts=write, on_played=kill)
    assert [meta.group for meta in written] == [0, 1, 2]
    play(memory, ShardStore(tmp_path / "s", {}), on_transcripts=write)
    assert written == whole
    assert len(whole) == 5


def start(path: Path) -> RunFolder:
    tables: dict[str, Any] = {
        "run": {"updates": 0, "threads": 1},
        "environments": {"name": "kuhn_poker"},
        "opponents": {"train": STYLES},
        "agent": {"max_tokens": 8},
        "memory": {"name": "notes", "keep": "history"},
        "engines": {"name": "local", "slots": 6, "context": 512},
        "evaluate": {"final_size": 28, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
    }
    return RunFolder.create(path, build_recipe(tables))


def train_in_shards(path: Path, until: int) -> None:
    """In a process of its own, which ends at this number of stored shards."""
    shards._MIN_SIZE = 12
    stored = RunFolder.open(path).shards("after_test")

    def check(number: int, name: str) -> None:
        if stored.is_file() and stored.read_bytes().count(b"\n") == until:
            os.kill(os.getpid(), signal.SIGKILL)

    count_operations(stored.parent, check)
    train(path, Callback(), lambda: False)


@pytest.mark.e2e
def test_a_killed_and_resumed_run_without_training_has_the_rows_of_an_unkilled_one(tmp_path):
    whole, killed = (start(tmp_path / name) for name in "ab")
    for run, until, code in ((whole, 0, 0), (killed, 2, -signal.SIGKILL), (killed, 0, 0)):
        assert wait(start_process(train_in_shards, run.path, until)) == code
    name = Path("evaluations") / "after_test.tasks.jsonl"
    assert (killed.path / name).read_text() == (whole.path / name).read_text()
    assert not killed.shards("after_test").exists(), "shards are deleted when the run is finished"
    assert killed.read_episodes_of("after_test") == whole.read_episodes_of("after_test")
