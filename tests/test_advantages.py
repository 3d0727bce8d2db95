"""Advantages against values that were computed by hand."""

import re
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import episode, meta

from mage.config.errors import UserError
from mage.config.sections import ReturnOptions
from mage.credit.advantages import gigpo, grpo, published
from mage.credit.advantages.base import against_others
from mage.credit.returns import compute_returns
from mage.credit.samples import assign_credit
from mage.ranks.dealing import share_credit
from mage.ranks.ranks import Ranks
from mage.types import Completion, Credit, Episode, MetaEpisode, Task, Turn


def returns_of(*metas, **options):
    options = {"kind": "cumulative", "step_discount": 1.0, "episode_discount": 0.0} | options
    return [found for one in metas for found in compute_returns(one, **options)]


def part(credits, name, member, episode, index=0):
    where = [
        c
        for c in credits
        if (c.source.where.member, c.source.where.episode, c.source.where.index)
        == (member, episode, index)
    ]
    return dict(where[0].parts)[name]


def test_grpo_normalises_the_first_return_over_the_group():
    credits = grpo.estimate(returns_of(meta((10, 0), 0), meta((-10, 0), 1)))
    assert {round(c.advantage, 3) for c in credits if c.source.where.member == 0} == {1.0}
    assert {round(c.advantage, 3) for c in credits if c.source.where.member == 1} == {-1.0}


def test_grpo_takes_the_first_turn_where_the_first_episode_ends_before_the_agent_moves():
    """Episode 1 has no turn, so the values are those of episode 2: 10 and -10."""
    pair = []
    for member, reward in enumerate((10, -10)):
        played = meta((0, reward), member)
        pair.append(replace(played, episodes=(episode(0, ()), played.episodes[1])))
    credits = grpo.estimate(returns_of(*pair), normalise="mean")
    assert [credit.advantage for credit in credits] == [10.0] * 4 + [-10.0] * 4


def test_gigpo_compares_an_episode_with_the_same_position_of_the_other_members():
    credits = gigpo.estimate(returns_of(meta((10, -10), 0), meta((0, -10), 1), meta((-10, 10), 2)))
    # episode 1: 10 against mean(0, -10) = -5; episode 2: -10 against mean(-10, 10) = 0
    assert part(credits, "episode", 0, 0) == pytest.approx(15)
    assert part(credits, "episode", 0, 1) == pytest.approx(-10)
    assert part(credits, "episode", 2, 1) == pytest.approx(20)


def test_a_reflection_gets_the_episode_advantage_only():
    credits = gigpo.estimate(returns_of(meta((0, 10), 0), meta((0, -10), 1)))
    assert part(credits, "episode", 0, 1, index=-1) == pytest.approx(20)
    assert part(credits, "step", 0, 1, index=-1) == 0


def test_local_anchors_compare_one_position_and_unmatched_turns_get_zero():
    first, second = meta((10,), 0, anchors=("a", "b")), meta((-10,), 1, anchors=("a", "c"))
    credits = gigpo.estimate(returns_of(first, second), anchor="local")
    assert part(credits, "step", 0, 0, 0) == pytest.approx(20)
    assert part(credits, "step", 0, 0, 1) == 0


def test_global_anchors_centre_each_position_and_then_pool_episodes():
    # Position means are 0 and 20; centred values: member 0: +10, +20; member 1: -10, -20.
    credits = gigpo.estimate(
        returns_of(meta((10, 40), 0, anchors=("a",)), meta((-10, 0), 1, anchors=("a",)))
    )
    assert part(credits, "step", 0, 0) == pytest.approx(10 + 15)
    assert part(credits, "step", 1, 1) == pytest.approx(-20 - 15)


def test_as_published_later_episodes_get_credit_for_their_position():
    # All members are equal, but without centring the position itself gets an advantage.
    same = returns_of(meta((-10, 10), 0, anchors=("a",)), meta((-10, 10), 1, anchors=("a",)))
    credits = published.estimate(same)
    assert part(credits, "step", 0, 1) == pytest.approx(10)
    assert part(credits, "step", 0, 0) == pytest.approx(-10)
    assert all(credit.advantage == 0 for credit in gigpo.estimate(same))


def test_as_published_long_episodes_have_more_weight():
    long, short = meta((10,), 0, anchors=("a", "b", "c")), meta((-10,), 1, anchors=("d",))
    rows, fair = (
        published.estimate(returns_of(long, short)),
        gigpo.estimate(returns_of(long, short)),
    )
    assert part(rows, "episode", 1, 0) == pytest.approx(-15)  # row mean 5
    assert part(fair, "episode", 1, 0) == pytest.approx(-20)  # the other member: 10


def test_as_published_reflections_get_negative_advantages_in_good_groups():
    credits = published.estimate(returns_of(meta((10, 10), 0), meta((10, 10), 1)))
    assert part(credits, "episode", 0, 1, index=-1) < 0


def test_stationary_grouping_separates_opponents_and_mixed_does_not():
    strong, weak = meta((-10,), 0, opponent="strong"), meta((10,), 1, opponent="weak")
    assert all(credit.advantage == 0 for credit in gigpo.estimate(returns_of(strong, weak)))
    assert part(
        gigpo.estimate(returns_of(strong, weak), grouping="mixed"), "episode", 1, 0
    ) == pytest.approx(20)


def test_as_published_mean_std_divides_by_the_deviation_of_the_sample():
    credits = published.estimate(
        returns_of(meta((10,), 0, anchors=("a",)), meta((-10,), 1, anchors=("b",))),
        normalise="mean_std",
    )
    # deviation of 10 and -10 over n - 1: sqrt(200)
    assert part(credits, "episode", 0, 0) == pytest.approx(10 / 200**0.5, abs=1e-5)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_leave_one_out_advantages_are_scaled_mean_centred_advantages(numbers):
    values = dict(enumerate(numbers))
    others, everyone = against_others(values, True, "mean"), against_others(values, False, "mean")
    count = len(values)
    assert sum(others.values()) == pytest.approx(0, abs=1e-9)
    assert [others[m] for m in values] == pytest.approx(
        [everyone[m] * count / (count - 1) for m in values], abs=1e-9
    )


def stopped(member: int, gains: tuple[float, ...]) -> MetaEpisode:
    """One episode whose length the policy decides; every turn scores its gain."""
    reply = Completion((1,), (0.0,), "", "stop", 0)
    turns = tuple(
        Turn("play", f"turn {k}", "", (), reply, "go", (), True, 0.0) for k in range(len(gains))
    )
    episode = Episode(turns, None, (), sum(gains), sum(gains), "won", "finished", "", gains=gains)
    task = Task("walk", 0, 0, "", "train")
    return MetaEpisode(task, 0, member, (episode,), ("",), 0)


def test_a_policy_that_decides_when_to_stop_is_paid_for_going_on():
    """The known counter-example to normalising rewards by the index of the turn.

    Going on scores 1 in the second turn, always; stopping scores 0. A baseline for each index has
    only those who went on at the second turn: it takes their reward away, and going on looks no
    better than stopping. Returns from each turn on, compared over all members, do not have this
    bias.
    """
    gains = [(0.0, 1.0), (0.0, 1.0), (0.0,), (0.0,)]
    reached = [[own[k] for own in gains if len(own) > k] for k in range(2)]
    by_index = [
        sum(own[k] - sum(reached[k]) / len(reached[k]) for k in range(len(own))) for own in gains
    ]
    assert by_index == [0.0, 0.0, 0.0, 0.0]
    metas = [stopped(member, own) for member, own in enumerate(gains)]
    returns = returns_of(*metas, kind="single", per_turn=True)
    for estimate in (gigpo.estimate, grpo.estimate):
        credits = estimate(returns)
        first = [one.advantage for one in credits if one.source.where.index == 0]
        assert first[0] == first[1] > 0 > first[2] == first[3]
    # Against the others: 1 - 1/3 and 0 - 2/3, in the episode and in the step of equal states.
    parts = [dict(one.parts) for one in gigpo.estimate(returns) if one.source.where.index == 0]
    assert [one["episode"] for one in parts] == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3])


def worth(one, advantage):
    return Credit(one, advantage, ())


WRONG_RESULTS = {
    "None": lambda returns: None,
    "6 credits": lambda returns: [worth(one, 1.0) for one in returns[1:]],
    "8 credits": lambda returns: [worth(one, 1.0) for one in [*returns, returns[0]]],
    "1.0 in row 0, which is no Credit": lambda returns: [1.0 for _ in returns],
    "the advantage nan in row 2": lambda returns: (
        [worth(one, 0.0) for one in returns[:2]] + [worth(one, float("nan")) for one in returns[2:]]
    ),
    "the advantage -inf in row 0": lambda returns: [worth(one, float("-inf")) for one in returns],
    "the advantage None in row 0": lambda returns: [worth(one, None) for one in returns],
    "two credits for one return": lambda returns: [worth(returns[0], 1.0) for _ in returns],
}


@pytest.mark.parametrize("fault", WRONG_RESULTS)
@pytest.mark.parametrize("ranks", ["one process", "ranks that share"])
def test_wrong_results_of_an_estimator_are_named(fault, ranks):
    def estimate(returns, *, scale=1.0):
        return WRONG_RESULTS[fault](returns)

    given = ([meta((10, 0))], ReturnOptions(), partial(estimate, scale=2.0))
    message = (
        rf"the estimator test_advantages\..*estimate returned {re.escape(fault)}.*: it must return "
        "a list with one Credit for each of the 7 returns"
    )
    with pytest.raises(UserError, match=message):
        assign_credit(*given) if ranks == "one process" else share_credit(*given, Ranks())


def test_credits_in_another_order_are_allowed():
    def estimate(returns):
        return [worth(replace(one), 1.0) for one in reversed(returns)]

    assert len(assign_credit([meta((10, 0))], ReturnOptions(), estimate)) == 7
