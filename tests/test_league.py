"""The league: frozen copies grow with training, hard ones play more, and a resumed run is equal."""

import math
import random
from collections import Counter

import pytest
from safetensors.torch import load_file

from mage.api.check_run import check_run
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.engines.base import run
from mage.environments.kuhn_poker import KuhnPoker
from mage.opponents.base import Population, find
from mage.ranks.stop import Stopped
from mage.run_folder import DamagedError, RunFolder
from mage.training import league
from mage.training.callbacks import Callback
from mage.training.league import Copy, draw_copies
from mage.training.start import train
from mage.training.tasks import draw_tasks
from tests.toys import scripted_agent

SMALL = [
    *("--run.updates=3", "--run.workers=1", "--run.threads=1", "--run.save_every=1"),
    *("--run.keep=5", "--run.evaluate_every=0", "--run.episodes_every=0"),
    '--opponents.train={"league-1-1.0-2" = 0.5, aggressive = 0.5}',
    *("--play.groups=4", "--play.members=2", "--engines.slots=16", "--engines.context=512"),
    *("--evaluate.size=1", "--evaluate.final_size=1", "--evaluate.ceilings=false"),
]


def test_a_hard_copy_plays_more_often():
    """Scores 0 and ln 2 with hardness 1: weights 1 and 1/2, so probabilities 2/3 and 1/3."""
    copies = [Copy(0, "", math.log(2)), Copy(20, "", 0.0)]
    rng = random.Random(0)
    first = Counter(draw_copies(copies, 1.0, 1, rng)[0].update for _ in range(6000))
    assert first[20] / 6000 == pytest.approx(2 / 3, abs=0.03)
    even = Counter(draw_copies(copies, 0.0, 1, rng)[0].update for _ in range(6000))
    assert even[20] / 6000 == pytest.approx(1 / 2, abs=0.03)
    assert {one.update for one in draw_copies(copies, 1.0, 5, rng)} == {0, 20}


def test_a_league_plays_in_no_evaluation():
    pool = Population(train={"league-20": 1.0, "random": 1.0}).pool
    assert pool("train") == {"league-20": 0.5, "random": 0.5}
    assert pool("test") == {"random": 1.0}
    with pytest.raises(ConfigError, match="training only"):
        load_recipe("kuhn_demo", ['--opponents.test={"league-20" = 1.0}'])


def test_a_frozen_agent_sees_its_own_turns_and_answers_bad_replies_with_a_legal_move():
    """It has no memory, so its prompt is the one of the first of three games in training."""
    seen: list[str] = []

    def reply(text: str) -> str:
        seen.append(text)
        return "<action>pass</action>" if len(seen) == 1 else "nothing"

    world, agent = KuhnPoker(), scripted_agent(reply)
    player = find("league-20").freeze(agent, world, 3)  # type: ignore[attr-defined]
    state = world.start(0)

    async def play() -> list[str]:
        moves = [await player.think(state, 0, random.Random(0))]
        state.apply(moves[0])
        state.apply("bet")
        return [*moves, await player.think(state, 0, random.Random(0))]

    ((first, second),) = run([play()])
    assert first == "pass"
    assert second in ("pass", "bet")
    assert "Game 1 of 3" in seen[0]
    assert seen[1].startswith(seen[0])
    assert "opponent bet" in seen[1][len(seen[0]) :]


def test_a_warm_up_plays_without_the_league():
    pool = '--opponents.train={{"league-20" = 1.0{}}}'
    recipe = load_recipe("kuhn_demo", [pool.format(", aggressive = 1.0")])
    assert {task.opponent for row in draw_tasks(recipe, -1) for task in row} == {"aggressive"}
    alone = load_recipe("kuhn_demo", [pool.format("")])
    assert {task.opponent for row in draw_tasks(alone, -1) for task in row} == {"random"}


@pytest.mark.e2e
def test_a_resumed_run_has_the_same_metrics_and_the_same_copies(tmp_path, monkeypatch):
    synced = list[str]()
    monkeypatch.setattr(league, "sync_folder", lambda path: synced.append(path.name))
    recipe = load_recipe("kuhn_demo", SMALL)
    whole = RunFolder.create(tmp_path / "whole", recipe)
    train(whole.path, Callback(), lambda: False)
    assert synced[:2] == ["update_000000.partial", "league"], "written to the disk, then renamed"
    cut = RunFolder.create(tmp_path / "cut", recipe)
    with pytest.raises(Stopped):
        train(cut.path, Callback(), lambda: True)  # stops after update 1
    train(cut.path, Callback(), lambda: False)
    assert cut.metrics() == whole.metrics()
    assert [line["league_copies"] for line in whole.metrics()] == [1, 2, 3]
    copies = sorted(path.name for path in (whole.path / "league").iterdir())
    assert copies == [f"update_{update:06d}.safetensors" for update in range(3)]
    for update, name in enumerate(copies):
        checkpoint = whole.path / "checkpoints" / f"update_{update:06d}" / "model.safetensors"
        trained, frozen = load_file(checkpoint), load_file(whole.path / "league" / name)
        assert all(bool((trained[tensor] == value).all()) for tensor, value in frozen.items())
    assert not check_run(cut).faults
    (cut.path / "league" / copies[1]).write_bytes(b"")
    assert ["frozen copy" in line for line in check_run(cut).faults] == [True]
    (cut.path / "summary.json").unlink()
    with pytest.raises(DamagedError, match="frozen copy"):
        train(cut.path, Callback(), lambda: False)
