"""Returns against values that were computed by hand from the formulas of returns.py."""

from dataclasses import replace

import pytest
from toys import episode, meta

from mage.credit.returns import compute_returns, meta_rewards
from mage.types import MetaEpisode, Task


def values(found, episode_number, reflection=False):
    return [
        r.value
        for r in found
        if r.where.episode == episode_number and (r.where.index < 0) == reflection
    ]


def test_differential_returns_of_a_loss_and_a_win():
    found = compute_returns(meta((-10, 10)))
    assert values(found, 1) == pytest.approx([18.05, 19, 20])
    assert values(found, 1, reflection=True) == pytest.approx([18.05])
    assert values(found, 0) == pytest.approx([0.749, 0.7885, 0.83], abs=1e-3)


def test_without_own_difference_the_previous_reward_counts_for_earlier_episodes_only():
    """Won, then lost: episode 2 of the differential return is -10 - 10 = -20 at its last turn.

    Without the known 10 it is -10. Episode 1 still gets 10 + .6 x (-20 x .9025) = -.83.
    """
    found = compute_returns(meta((10, -10)), own_difference=False)
    assert values(found, 1) == pytest.approx([-9.025, -9.5, -10])
    assert values(found, 1, reflection=True) == pytest.approx([-9.025])
    assert values(found, 0) == values(compute_returns(meta((10, -10))), 0)
    assert values(found, 0)[-1] == pytest.approx(-0.83)


@pytest.mark.parametrize("propagation", ["code", "paper"])
def test_a_reflection_before_an_episode_without_turns_gets_what_later_episodes_bring(propagation):
    """The second episode ends before the agent moves: 5 + .6 x 10 = 11, and before it 1 + .6 x 11.

    The first episode gets 7.6 at its only turn.
    """
    first, second, third = meta((1, 5, 10), anchors=("a",)).episodes
    episodes = (first, replace(second, turns=()), third)
    found = compute_returns(
        replace(meta((1, 5, 10)), episodes=episodes), kind="cumulative", propagation=propagation
    )
    assert values(found, 1, reflection=True) == pytest.approx([11])
    assert values(found, 0) == pytest.approx([7.6])


def test_cumulative_returns_of_a_loss_and_a_win():
    found = compute_returns(meta((-10, 10)), kind="cumulative")
    # episode 2: 10 x .95^k; episode 1 ends with -10 + .6 x 9.025 = -4.585
    assert values(found, 1) == pytest.approx([9.025, 9.5, 10])
    assert values(found, 0) == pytest.approx([-4.585 * 0.9025, -4.585 * 0.95, -4.585])


def test_single_returns_ignore_later_episodes():
    found = compute_returns(meta((-10, 10)), kind="single")
    assert values(found, 0) == pytest.approx([-9.025, -9.5, -10])


def test_final_returns_are_weighted_and_have_no_discount_between_episodes():
    found = compute_returns(meta((-10, 10, 10)), kind="final", step_discount=1.0, weights=(0, 0, 1))
    assert values(found, 0) == values(found, 1) == values(found, 2) == pytest.approx([10, 10, 10])


def test_paper_propagation_does_not_apply_the_step_discount_to_later_episodes():
    found = compute_returns(meta((-10, 10, 10)), kind="cumulative", propagation="paper")
    # g_first = 10 x .9025 in episodes 2 and 3; after episode 1: .6 x 9.025 + .36 x 9.025
    beyond = (0.6 + 0.36) * 9.025
    assert values(found, 0) == pytest.approx([-9.025 + beyond, -9.5 + beyond, -10 + beyond])
    assert values(found, 1) == pytest.approx([9.025 + 5.415, 9.5 + 5.415, 10 + 5.415])


def test_balanced_returns_are_the_sum_of_what_remains_over_the_root_of_its_number():
    """Rewards -10, 10, 10: the first episode has 10 / sqrt(3), the second 20 / sqrt(2)."""
    found = compute_returns(meta((-10, 10, 10)), kind="balanced", step_discount=1.0)
    assert values(found, 0) == pytest.approx([5.773503] * 3)
    assert values(found, 1) == pytest.approx([14.142136] * 3)
    assert values(found, 2) == pytest.approx([10.0] * 3)
    assert values(found, 1, reflection=True) == pytest.approx([14.142136])
    assert [item.episode_value for item in found] == [item.value for item in found]


def test_balanced_returns_with_a_step_discount_inside_episodes_only():
    """Later episodes count from their first turn, 10 x .9025 each, at every turn of the first."""
    found = compute_returns(meta((-10, 10, 10)), kind="balanced", propagation="paper")
    own, root = [-9.025, -9.5, -10.0], 3**0.5
    assert values(found, 0) == pytest.approx([(one + 2 * 9.025) / root for one in own])
    assert values(found, 2) == pytest.approx([9.025, 9.5, 10.0])


def test_a_balanced_return_counts_the_penalty_of_a_reflection_at_the_same_scale():
    one = meta((0, 10, 10))
    paid = replace(one.episodes[1].reflection, penalty=-1.0)
    episodes = (one.episodes[0], replace(one.episodes[1], reflection=paid), one.episodes[2])
    found = compute_returns(replace(one, episodes=episodes), kind="balanced", step_discount=1.0)
    assert values(found, 1, reflection=True) == pytest.approx([19 / 2**0.5])
    assert values(found, 1)[0] == pytest.approx(20 / 2**0.5)


def test_differential_weights_of_three_episodes_equal_the_method_page():
    def first_return(rewards):
        return compute_returns(meta(rewards), step_discount=1.0)[0].value

    assert [first_return(unit) for unit in ((1, 0, 0), (0, 1, 0), (0, 0, 1))] == pytest.approx(
        [0.40, 0.24, 0.36]
    )


def test_a_penalty_lowers_the_returns_of_its_turn_and_of_earlier_turns():
    one = episode(10, ("a", "b"), costs=(0.0, -0.5))
    found = compute_returns(MetaEpisode(Task("e", 0, 0, "o", "train"), 0, 0, (one,), ("",), 0))
    assert [r.value for r in found] == pytest.approx([0.95 * 9.5, 9.5])


def test_differential_equals_cumulative_if_failure_pays_zero_and_a_win_ends_play():
    stopped = meta((0, 0, 10))
    differential, cumulative = (
        compute_returns(stopped, kind=kind) for kind in ("differential", "cumulative")
    )
    assert [r.value for r in differential] == [r.value for r in cumulative]


def test_differential_meta_rewards_sum_to_the_final_reward():
    assert sum(meta_rewards([3.0, -2.0, 7.0], "differential")) == pytest.approx(7.0)
