"""Intervals against scipy.stats, textbook values and hand-worked sums."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mage.statistics import Estimate, bootstrap, mean, paired, sign_test, stratified_mean, wilson


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=50, deadline=None)
def test_wilson_agrees_with_scipy(count, share, level):
    successes = round(share * count)
    expected = stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    found = wilson(successes, count, level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert found.low <= found.value <= found.high


def test_wilson_of_eight_in_ten_is_the_textbook_interval():
    found = wilson(8, 10)
    assert (found.value, found.count) == (0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.4902, 0.9433), abs=5e-5)


def test_a_rate_of_nobody_is_an_error():
    with pytest.raises(ValueError, match="at least one task"):
        wilson(0, 0)
    with pytest.raises(ValueError, match="at most one success"):
        wilson(3, 2)


def test_the_mean_has_students_interval():
    """Values 1..5: mean 3, s^2 = 2.5, error sqrt(.5) = .7071, t(4) = 2.7764: 3 -+ 1.9632."""
    found = mean([1, 2, 3, 4, 5])
    assert found.value == 3
    assert (found.low, found.high) == pytest.approx((3 - 1.9632, 3 + 1.9632), abs=1e-4)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, 3, stats.sem([1, 2, 3, 4, 5])))


def test_one_task_has_no_finite_interval():
    assert mean([0.5]) == Estimate(0.5, -math.inf, math.inf, 1) == stratified_mean([0.5], ["a"])
    with pytest.raises(ValueError, match="at least one value"):
        mean([])


def test_strata_that_explain_everything_leave_no_uncertainty():
    found = stratified_mean([1, 1, -1, -1], ["K", "K", "J", "J"])
    assert (found.low, found.value, found.high) == (0, 0, 0)
    assert mean([1, 1, -1, -1]).high > 1


def test_the_stratified_error_is_the_sum_of_the_errors_within():
    """A = (0, 2): s^2 = 2; B = (5, 5, 8): s^2 = 3. Error^2 = (2 x 2 + 3 x 3) / 25 = .52; t(3) = 3.1824."""
    found = stratified_mean([0, 5, 2, 5, 8], ["A", "B", "A", "B", "B"])
    assert found.value == pytest.approx(4)
    assert found.high - found.value == pytest.approx(3.182446 * math.sqrt(0.52), abs=1e-5)


def test_strata_of_one_task_are_pooled():
    """Four strata of one task each are a plain sample; a single lone task joins another stratum."""
    assert stratified_mean([1, 2, 4, 8], "abcd") == mean([1, 2, 4, 8])
    lone = stratified_mean([0, 2, 1], "AAB")
    assert lone.high - lone.value == pytest.approx(mean([0, 2, 1]).high - 1)


def test_the_bootstrap_of_a_mean_is_close_to_students_interval_and_repeats():
    values = list(np.random.default_rng(0).normal(1.0, 2.0, 400))
    found, exact = bootstrap(values, seed=1), mean(values)
    assert found == bootstrap(values, seed=1) != bootstrap(values, seed=2)
    assert (found.value, found.low, found.high) == pytest.approx((exact.value, exact.low, exact.high), abs=0.03)
    assert bootstrap([1, 2, 30], seed=0, statistic=np.median).value == 2


def test_the_paired_difference_agrees_with_scipy():
    first, second = [0.1, -1.0, 2.0, 0.5, 1.0], [1.0, -0.5, 2.0, 2.5, 0.0]
    found, expected = paired(first, second), stats.ttest_rel(second, first)
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.value == pytest.approx(0.48)


def test_a_difference_without_spread_is_certain_and_none_is_no_difference():
    assert paired([1, 2, 3], [2, 3, 4]).p_value == 0
    assert paired([1, 2, 3], [1, 2, 3]).p_value == 1


def test_the_sign_test_is_the_exact_binomial_one():
    assert sign_test(9, 1) == pytest.approx(2 * 11 / 1024) == pytest.approx(stats.binomtest(9, 10).pvalue)
    assert sign_test(0, 0) == sign_test(3, 3) == 1
    assert 0 < sign_test(2000, 1500) < 1e-15
