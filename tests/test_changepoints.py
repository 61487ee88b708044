"""Change points: the cheapest division, where cuts are found, and how often by chance.

Histories: levels, steps and drifts of a series that is looked at after every run. history_simulation.py has the tables.
"""

import itertools

import history_simulation as simulation
import numpy as np
import pytest
from scipy.stats import kendalltau, theilslopes

from gpubench.stats.stretches import LEAST_RUNS, Stretch, change_points, cheapest_parts, slope, stretches


def test_the_parts_are_the_cheapest_of_all_divisions():
    costs = np.random.default_rng(3).uniform(0, 1, (8, 8)) + np.abs(np.subtract.outer(range(8), range(8)))
    divisions = [
        list(itertools.pairwise([0, *cuts, 8]))
        for size in range(8)
        for cuts in itertools.combinations(range(1, 8), size)
    ]
    best = min(divisions, key=lambda parts: sum(costs[first, end - 1] for first, end in parts))
    assert cheapest_parts(costs) == [(first, end - 1) for first, end in best]


@pytest.mark.parametrize(
    ("lengths", "levels"),
    [((20, 20), (1.0, 1.05)), ((12, 3), (1.0, 0.9)), ((15, 15, 15), (1.0, 1.1, 1.0)), ((8, 9, 10), (3.0, 2.0, 1.0))],
)
def test_every_step_of_a_quiet_series_is_found_where_it_is(lengths, levels):
    quiet = np.random.default_rng(1).lognormal(0, 1e-3, sum(lengths))
    assert change_points(np.repeat(levels, lengths) * quiet) == list(itertools.accumulate(lengths[:-1]))


def test_a_step_between_constants_is_found_and_the_unit_does_not_matter():
    assert change_points([1.0] * 20 + [2.0] * 20) == [20]
    values = np.random.default_rng(8).lognormal(0, 0.01, 60)
    values[35:] *= 1.04
    assert change_points(values) == change_points(values * 1e12) == [35]


# ---- Histories


def noisy(*parts, sigma=0.01, seed=1):
    """Return the parts in sequence, each value with independent normal noise."""
    values = np.concatenate(parts)
    return values + sigma * np.random.default_rng(seed).normal(size=len(values))


@pytest.mark.parametrize("before", [4, 5])
def test_a_figure_that_halves_is_reported_from_nine_runs_on(before):
    values = [1.0] * before + [0.5] * (LEAST_RUNS - before)
    assert stretches(values) == (Stretch(0, before), Stretch(before, LEAST_RUNS))
    assert stretches(values[:-1]) == (Stretch(0, LEAST_RUNS - 1),)


QUIET = np.full(30, 1.0)
RETURN = noisy(np.full(20, 1.0), np.full(10, 0.9), np.full(20, 1.0))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RETURN, (Stretch(0, 20), Stretch(20, 30), Stretch(30, 50))),
        (RETURN * 1e12, (Stretch(0, 20), Stretch(20, 30), Stretch(30, 50))),
        (noisy(np.linspace(1.0, 1.02, 60), sigma=0.005), (Stretch(0, 60, is_drift=True),)),
        # a short step to a value that occurred before is no change
        (noisy(np.tile([1.0, 1.0, 1.1], 10), np.full(3, 1.1), sigma=0.001), (Stretch(0, 33),)),
        (noisy(QUIET, np.full(2, 1.5)), (Stretch(0, 32),)),
        (noisy(QUIET, np.full(2, 1.05)), (Stretch(0, 32),)),
        (noisy(QUIET, np.full(3, 1.05)), (Stretch(0, 30), Stretch(30, 33))),
    ],
)
def test_steps_and_drifts_are_stretches_and_two_bad_runs_in_a_row_are_no_step(values, expected):
    assert stretches(values) == expected


@pytest.mark.parametrize("seed", range(8))
def test_values_that_scatter_more_from_some_run_on_are_no_step(seed):
    rng = np.random.default_rng(seed)
    values = 1 + 0.01 * rng.standard_normal(60) * np.where(np.arange(60) < 30, 1, 3)
    assert all(len(stretches(values[:count])) == 1 for count in range(34, 61, 2))


STEPS = {"step", "perhaps a second state", "a level seen before"}


@pytest.mark.parametrize(
    ("world", "seeds", "looks"),
    [
        ("serial correlation 0.8", range(5, 8), range(30, 61, 10)),
        ("season of 10 to 60 runs, noise half its amplitude", range(3), range(30, 61, 15)),
        ("spread that grows threefold", (5, 12, 30), (60, 66, 70)),
        ("two states that stay, 0.9", range(4), (60,)),
    ],
)
def test_watching_identical_code_that_wanders_tells_no_step(world, seeds, looks):
    length = 100 if world.startswith("spread") else 60
    for seed in seeds:
        values = 1 + 0.01 * simulation.worlds()[world](np.random.default_rng(seed), length)
        assert not any(STEPS & simulation.told(values[:look]) for look in looks), seed


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([1.0] * 3 + [0.9], {"step"}),
        ([1.0, 0.9], {"perhaps a second state"}),
        ([1.0] * 3 + [0.9] + [1.0], {"step", "a level seen before"}),
        ([1.0] * 3 + [0.9] + [1.0] + [0.9], {"two states"}),
        ([1.0] * 3 + [0.9] + [1.0] + [0.9] + [1.2] * 2, {"two states", "step"}),
    ],
)
def test_a_level_that_comes_once_is_a_step_and_one_that_comes_and_goes_is_a_state(levels, expected):
    assert simulation.told(noisy(np.repeat(levels, 10))) == expected


def test_states_and_steps_are_told_with_the_runs_at_which_they_come():
    values = noisy(np.repeat([1.0, 0.9, 1.0, 0.9], 10))
    assert stretches(values) == (Stretch(0, 40, switches=(10, 20, 30)),)
    assert len(stretches(np.repeat([1e300, 2e300, 1e300, 2e300], 5))[0].switches) == 3, "of the largest numbers too"
    levels = (1.0, 1.2, 1.0, 1.3, 1.1, 1.4, 1.2, 1.5, 1.0, 1.2)
    values = noisy(*(np.full(12, level) for level in levels))
    assert [part.start for part in stretches(values)] == list(range(0, 120, 12)), "more than the first limit"
    values = noisy(np.full(30, 1.0), np.full(10, 0.9))
    values[12] = 0.9
    assert simulation.told(values) == {"step"}, "an outlier that meets a later level makes no state"


def test_a_drift_that_begins_late_leaves_the_level_before_it():
    first, last = stretches(noisy(np.full(60, 1.0), np.linspace(1.0, 1.2, 60)))
    assert (first.is_drift, last.is_drift) == (False, True)
    assert abs(last.start - 60) <= 12


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 50, [7.0, 9.0] * 30, [1e300] * 9, [1.0, 1.0 + 1e-7] * 20])
def test_too_few_equal_or_alternating_values_are_one_level(values):
    assert stretches(values) == (Stretch(0, len(values)),)
    assert change_points(values) == []


def test_the_slope_is_that_of_theil_and_sen_with_an_interval_that_holds_it():
    values = np.random.default_rng(3).normal(size=40) + 0.05 * np.arange(40)
    measured, expected = slope(values), theilslopes(values, alpha=0.95)
    low, high = measured.interval.low, measured.interval.high
    assert measured.interval.centre == pytest.approx(expected.slope)
    assert (low, high) == pytest.approx((expected.low_slope, expected.high_slope), rel=0.05)
    assert (slope([3.0] * 12).interval.centre, slope([3.0] * 12).score) == (0.0, 0.0)


def test_the_score_of_independent_values_is_that_of_mann_and_kendall():
    values = np.random.default_rng(3).normal(size=40)
    count = len(values)
    tau = kendalltau(np.arange(count), values).statistic
    expected = tau * count * (count - 1) / 2 / np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    assert abs(slope(values).score) <= abs(expected) + 1e-9
    assert slope(values).score == pytest.approx(expected, rel=0.3)
