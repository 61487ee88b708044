"""The statistics, compared with scipy and with simulations of a fixed seed."""

import itertools
import math

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gpubench import stats

times = st.lists(st.floats(min_value=1e-9, max_value=1e3), min_size=1, max_size=200)


def test_quantiles_medians_and_half_widths_are_those_of_their_definitions():
    values = [4.0, 1.0, 3.0, 2.0]
    quantiles = [stats.quantile(values, fraction) for fraction in (0.0, 0.5, 0.9, 1.0)]
    assert quantiles == pytest.approx([1.0, 2.5, 3.7, 4.0])
    assert [stats.median(values[:count]) for count in (1, 2, 3, 4)] == [4.0, 2.5, 3.0, 2.5]
    nothing = stats.median_interval([])
    empty = (stats.median([]), stats.quantile([], 0.5), nothing.low, nothing.centre, nothing.high)
    assert all(math.isnan(value) for value in empty)
    assert stats.Interval(90.0, 100.0, 120.0).half_width == 0.15
    assert stats.Interval(-1.0, 0.0, 1.0).half_width == math.inf


@given(times, st.floats(min_value=0, max_value=1))
def test_quantiles_equal_those_of_scipy(values, fraction):
    expected = scipy.stats.quantile(np.array(values), fraction, method="linear")
    assert stats.quantile(values, fraction) == pytest.approx(float(expected), rel=1e-12)


@given(times)
def test_noise_equals_scipys_scaled_median_deviation_over_the_median(values):
    expected = 1.4826 * scipy.stats.median_abs_deviation(values) / np.median(values) if len(values) > 1 else 0.0
    assert stats.noise(values) == pytest.approx(expected, rel=1e-12)
    assert (stats.noise([5.0]), stats.noise([-1.0, 0.0, 1.0])) == (0.0, 0.0), "one value, a median of zero"


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 8])
def test_the_interval_of_up_to_eight_samples_is_their_whole_range(count):
    values = [float(value) for value in range(count, 0, -1)]
    assert stats.median_interval(values) == stats.Interval(1.0, (count + 1) / 2, float(count))


def by_turns(count):
    """Return 1 … count, low and high values alternating, so that neighbours lie on different sides of the median."""
    low, high = range(1, count // 2 + 1), range(count, count // 2, -1)
    return [float(value) for pair in itertools.zip_longest(high, low) for value in pair if value is not None]


@pytest.mark.parametrize(("count", "low", "high"), [(10, 1, 10), (11, 2, 10), (20, 5, 16), (71, 27, 45), (100, 40, 61)])
def test_the_interval_lies_between_the_ranks_of_le_boudecs_formula(count, low, high):
    """floor(n/2 - 0.98·√n) and ceil(n/2 + 1 + 0.98·√n), worked out by hand."""
    assert stats.median_interval(by_turns(count)) == stats.Interval(low, (count + 1) / 2, high)


def test_the_interval_covers_the_median_with_at_least_95_percent_and_not_much_more():
    """Exactly, by the binomial: the median lies below rank k with the chance of fewer than k heads."""
    for count in (*range(6, 60), *range(60, 1000, 47)):
        interval = stats.median_interval(by_turns(count))
        heads = scipy.stats.binom(count, 0.5)
        covered = heads.cdf(interval.high - 1) - heads.cdf(interval.low - 1)
        narrower = heads.cdf(interval.high - 3) - heads.cdf(interval.low + 1)
        assert narrower < 0.95 <= covered, count


@given(times)
def test_the_interval_contains_the_median_and_does_not_depend_on_the_order(values):
    interval = stats.median_interval(values)
    assert interval.low <= interval.centre <= interval.high
    assert interval.centre == pytest.approx(stats.median(values))
    assert stats.median_interval(values[::-1]) == interval


def test_serial_correlation_widens_the_interval_and_its_absence_hardly_does():
    rng = np.random.default_rng(3)
    independent = rng.standard_normal(10_000)
    walk = scipy.signal.lfilter([math.sqrt(1 - 0.8**2)], [1, -0.8], rng.standard_normal(10_000))
    assert stats.serial_inflation(independent.tolist()) == pytest.approx(1.0, abs=0.06)
    expected = 1 + 4 / math.pi * sum(math.asin(0.8**lag) for lag in range(1, 200))
    assert stats.serial_inflation(walk.tolist()) == pytest.approx(expected, rel=0.1)
    assert stats.serial_inflation([1.0] * 20) == 1.0


def levels(rng, count, dwell):
    """Return levels that last `dwell` values on average, as a power cap gives them, around 100."""
    values = np.empty(count)
    place = 0
    while place < count:
        length = 1 + int(rng.exponential(dwell))
        values[place : place + length] = rng.normal()
        place += length
    return (100 + values + 0.01 * rng.normal(size=count)).tolist()


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        ([1.0] * 9, False),
        ([1.0] * 10, True),
        ([9.0, 5.0, 3.0] + [1.0] * 8, True),
        ([9.0, 5.0, 3.0, 2.0, 1.5] + [1.0] * 5, False),
        ([1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.0], True),
        ([1.0 + 0.01 * step for step in range(10)], False),
        ([1.0 + 0.01 * step for step in range(100)], False),
        ([1.0] * 12 + [1.03] * 6, False),
        ([1.0] * 6 + [1.03] * 12 + [1.03] * 6, True),
        ([0.0] * 10, True),
    ],
    ids=["too few", "constant", "after a start", "not yet", "1 %", "drift", "long drift", "late step", "step", "zero"],
)
def test_warm_up_is_over_when_the_transient_is_shorter_than_half(values, steady):
    assert stats.is_steady(values) is steady


@pytest.mark.parametrize("length", [0, 1, 5, 20, 49])
def test_the_transient_is_cut_where_it_ends(length):
    rng = np.random.default_rng(length)
    values = [*(2.0 + 0.01 * rng.standard_normal(length)), *(1.0 + 0.01 * rng.standard_normal(100 - length))]
    assert length <= stats.warm_up_length(values) <= length + 5


FREEDOMS = np.array([1.0, 1.7, 2.0, 4.5, 8.0, 30.0, 1e4])


@pytest.mark.parametrize("score", [0.0, 1e-3, 0.3, 1.0, 2.5, 6.0, 40.0])
def test_the_tail_of_student_equals_that_of_scipy(score):
    expected = 2 * scipy.stats.t.sf(score, FREEDOMS)
    assert stats.student_tail(np.full(FREEDOMS.shape, score), FREEDOMS) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("tail", [0.5, 0.05, 0.01, 0.0027, 1e-4])
def test_the_quantile_of_student_equals_that_of_scipy_and_without_variance_that_of_the_normal(tail):
    expected = scipy.stats.t.isf(tail / 2, FREEDOMS)
    assert stats.student_quantile(FREEDOMS, tail) == pytest.approx(expected, rel=1e-8)
    assert stats.student_quantile(np.array([math.inf])) == pytest.approx(1.959964, rel=1e-5)


@pytest.mark.parametrize(("first", "second"), [(10, 10), (8, 20), (5, 9)])
def test_the_trimmed_test_equals_yuens_of_scipy_and_trims_only_eight_values_or_more(first, second):
    rng = np.random.default_rng(1)
    before, after = rng.standard_normal((3, first)), rng.standard_normal((3, second)) * 2
    ours, pooled = stats.trimmed_welch(before, after)
    if min(first, second) >= 8:
        expected = scipy.stats.ttest_ind(after, before, axis=-1, equal_var=False, trim=0.2)
        assert ours.p == pytest.approx(expected.pvalue)
    untrimmed = stats.trimmed_welch(before[:, :5], after[:, :7])[1]
    student = scipy.stats.ttest_ind(after[:, :7], before[:, :5], axis=-1)
    difference = after[:, :7].mean(-1) - before[:, :5].mean(-1)
    assert difference / untrimmed == pytest.approx(student.statistic)
    assert pooled.shape == (3,)
    quantised = stats.trimmed_welch(np.array([1.0] * 9 + [1.1]), np.array([1.0] * 10))[1]
    assert quantised > 0, "the variance that trimming would remove"


def test_welchs_test_equals_that_of_scipy_and_is_certain_of_constant_values():
    rng = np.random.default_rng(7)
    before, after = rng.normal(1, 1, (20, 5)), rng.normal(2, 3, (20, 8))
    expected = scipy.stats.ttest_ind(after, before, axis=-1, equal_var=False)
    interval = expected.confidence_interval(0.95)
    result = stats.welch(before, after)
    assert result.p == pytest.approx(expected.pvalue)
    assert result.freedom == pytest.approx(expected.df)
    assert result.difference - result.margin == pytest.approx(interval.low)
    assert result.difference + result.margin == pytest.approx(interval.high)
    same, larger = np.full(3, 2.0), np.full(3, 2.5)
    assert (float(stats.welch(same, same).p), float(stats.welch(same, same).margin)) == (1.0, 0.0)
    assert (float(stats.welch(same, larger).p), float(stats.welch(same, larger).margin)) == (0.0, 0.0)


def test_hodges_lehmann_is_the_median_of_all_differences_and_one_outlier_in_five_changes_it_little():
    before, after = np.array([1.0, 2.0, 9.0]), np.array([4.0, 4.5])
    assert float(stats.hodges_lehmann(before, after)) == np.median([3.0, 3.5, 2.0, 2.5, -5.0, -4.5])
    rng = np.random.default_rng(8)
    assert stats.hodges_lehmann(rng.random((4, 5)), rng.random((4, 6))).shape == (4,)
    before, after = np.array([1.00, 1.01, 0.99, 1.02, 0.98]), np.array([1.00, 1.01, 0.99, 1.02, 5.0])
    assert abs(float(stats.hodges_lehmann(before, after))) < 0.03


def test_q_values_equal_those_of_scipy():
    p = np.random.default_rng(9).random(60) ** 3
    assert stats.false_discovery(p.tolist()) == pytest.approx(scipy.stats.false_discovery_control(p))
    assert stats.false_discovery([]).shape == (0,)


def test_the_first_samples_before_a_power_cap_do_not_widen_the_interval_of_a_thousand():
    rng = np.random.default_rng(0)
    capped = [*np.full(5, 1.40), *np.repeat(rng.choice([1.56, 1.59, 1.62], 12), 94)]  # levels of a capped clock
    interval = stats.median_interval(capped)
    assert stats.serial_inflation(capped) > len(capped) / 4, "as few as four independent samples"
    assert 1.55 < interval.low <= interval.centre <= interval.high < 1.63
