"""The estimator `rae`: baselines by hand, on several ranks, and across a kill."""

from typing import Any

import pytest
from toys import meta

import mage
from mage.config.sections import ReturnOptions
from mage.credit.advantages.rae import estimate
from mage.credit.samples import assign_credit
from mage.learn import checkpoint
from mage.run_folder import RunFolder
from mage.run_folder.turn_files import read_credits
from mage.types import MetaEpisode, Task
from mage.viewer.credit import read_group_credit
from tests.adapter_runs import check_training, tiny_recipe

SINGLE = ReturnOptions(kind="single", step_discount=1.0)


def played(seat: int, *rewards: float, group: int = 0, member: int = 0) -> MetaEpisode:
    one = meta(rewards, member, group, anchors=("a", "b"))
    return MetaEpisode(Task("e", 0, seat, "o", "train"), group, member, *_rest(one))


def _rest(one: MetaEpisode) -> Any:
    return one.episodes, one.memories, one.policy_version


def test_each_seat_has_a_baseline_that_is_taken_before_its_update():
    """By hand, decay .5: seat 0 sees 4, 8, 2 and seat 1 sees -6; baselines begin at 0.

    b = 0, 2, 5 before the three episodes of seat 0, and 3.5 after them.
    """
    state: dict[str, float] = {}
    metas = [
        played(0, 4.0),
        played(0, 8.0, member=1),
        played(1, -6.0, group=1),
        played(0, 2.0, group=2),
    ]
    credits = assign_credit(metas, SINGLE, lambda rows: estimate(rows, state=state, decay=0.5))
    assert [one.advantage for one in credits] == [4, 4, 6, 6, -6, -6, -3, -3], "both turns"
    assert credits[2].parts == (("turn_return", 8.0), ("baseline", -2.0))
    assert state == {"e/0/1": 3.5, "e/1/1": -3.0}
    (first, *_) = assign_credit([played(1, 1.0)], SINGLE, lambda rows: estimate(rows, state=state))
    assert first.advantage == 4, "the next update begins with the baselines of the last one"
    assert state["e/1/1"] == pytest.approx(0.95 * -3 + 0.05 * 1)


def test_episode_positions_have_baselines_of_their_own():
    state: dict[str, float] = {}
    metas = [played(0, 10.0, -10.0), played(0, 10.0, -10.0, member=1)]
    credits = assign_credit(metas, SINGLE, lambda rows: estimate(rows, state=state, decay=0.9))
    found = {(one.source.where.member, one.source.where.episode): one.advantage for one in credits}
    assert found == pytest.approx({(0, 0): 10, (0, 1): -10, (1, 0): 9, (1, 1): -9})


KUHN = {"name": "kuhn_poker"}
RAE: dict[str, Any] = {"advantages": {"name": "rae"}, "opponents": {"train": {"random": 1.0}}}


@pytest.mark.e2e
def test_a_resumed_run_has_the_baselines_of_a_whole_one(tmp_path):
    run = check_training(tiny_recipe(KUHN, **RAE), tmp_path)
    states = []
    for folder in (run, RunFolder.open(tmp_path / "killed")):
        found = checkpoint.place(folder.checkpoints, 2)
        states.append(checkpoint.read_state(found)["estimator"])
    assert states[0] == states[1]
    assert set(states[0]) <= {f"kuhn_poker/{seat}/{n}" for seat in (0, 1) for n in (1, 2)}
    told = read_group_credit(run, "step_000002", 0)
    assert "(turn return)" in told["turns"][0]["sentences"][0]
    assert "(baseline)" in told["turns"][0]["sentences"][0]


@pytest.mark.e2e
def test_ranks_share_the_baselines(tmp_path):
    """The advantages of the first update are those of one process."""
    found = []
    for workers, deal in ((1, "groups"), (2, "groups"), (2, "members")):
        own = {"updates": 1, "workers": workers, "deal": deal}
        run = mage.train(tiny_recipe(KUHN, **RAE).changed(run=own), runs=tmp_path)
        stored = read_credits(run.folder.path, "step_000001")
        found.append({(one.group, one.member, one.episode): one.advantage for one in stored})
        assert run.metrics[0]["advantage_square"] > 0
    alone, *several = found
    assert all(one.items() <= alone.items() for one in several)
