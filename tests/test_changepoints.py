"""Change points: the statistic against its definition, where cuts are found, and how often by chance."""

import itertools

import numpy as np
import pytest

from gpubench.stats import changepoints
from gpubench.stats.changepoints import LEAST, ChangePoint, change_points


def by_definition(first, last):
    """Equations 5 and 6 of Matteson & James (2014) with α = 1, sum by sum."""
    n, m = len(first), len(last)
    between = sum(abs(x - y) for x in first for y in last) * 2 / (n * m)
    within = [sum(abs(a - b) for a, b in itertools.combinations(part, 2)) for part in (first, last)]
    means = within[0] / (n * (n - 1) / 2), within[1] / (m * (m - 1) / 2)
    return n * m / (n + m) * (between - sum(means))


def test_the_statistic_of_every_cut_is_that_of_the_paper():
    values = np.random.default_rng(3).lognormal(size=12)
    found = changepoints.divergences(np.abs(values[:, None] - values[None, :]))
    for tau, kappa in itertools.product(range(13), range(13)):
        if tau >= LEAST and kappa - tau >= LEAST:
            assert found[tau, kappa] == pytest.approx(by_definition(values[:tau], values[tau:kappa]))
        else:
            assert found[tau, kappa] == -np.inf


@pytest.mark.parametrize(
    ("lengths", "levels"),
    [((20, 20), (1.0, 1.05)), ((12, 3), (1.0, 0.9)), ((15, 15, 15), (1.0, 1.1, 1.0)), ((8, 9, 10), (3.0, 2.0, 1.0))],
)
def test_every_step_of_a_quiet_series_is_found_where_it_is(lengths, levels):
    quiet = np.random.default_rng(1).lognormal(0, 1e-3, sum(lengths))
    found = change_points(np.repeat(levels, lengths) * quiet)
    assert [point.index for point in found] == list(itertools.accumulate(lengths[:-1]))
    assert all(point.p <= 0.01 for point in found)


def test_a_step_of_constants_is_exact_and_no_permutation_looks_like_it():
    assert change_points([1.0] * 20 + [2.0] * 20) == (ChangePoint(20, 1 / 200),)


def test_a_series_that_changes_only_its_spread_is_cut_too():
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(1, 0.001, 40), rng.normal(1, 0.05, 40)])
    (point,) = change_points(values)
    assert abs(point.index - 40) <= 3


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 50, [7.0, 9.0] * 30])
def test_too_few_equal_or_alternating_values_have_no_change(values):
    assert change_points(values) == ()


def test_two_bad_days_are_no_change_and_a_third_in_a_row_is_one():
    quiet = np.random.default_rng(6).lognormal(0, 1e-3, 30)
    outlier = quiet.copy()
    outlier[[10, 20]] *= 1.5
    assert change_points(outlier) == ()
    lasting = quiet.copy()
    lasting[-3:] *= 1.5
    assert [point.index for point in change_points(lasting)] == [27]


def test_a_series_without_a_change_is_cut_by_chance_in_about_one_of_a_hundred():
    rng = np.random.default_rng(2)
    cut = sum(bool(change_points(rng.lognormal(0, 0.01, 30))) for _ in range(400))
    assert cut <= 12  # binomial, 400 at 1 %: more has a probability below 0.1 %


@pytest.mark.parametrize(("shift", "after", "share"), [(1.05, 3, 0.95), (1.02, 10, 0.6)])
def test_a_step_is_found_soon_after_it_happened(shift, after, share):
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(60):
        values = rng.lognormal(0, 0.01, 40)
        values[-after:] *= shift
        found += any(abs(point.index - (40 - after)) <= 1 for point in change_points(values))
    assert found >= share * 60


def test_neither_the_unit_nor_a_second_look_changes_what_is_found():
    values = np.random.default_rng(8).lognormal(0, 0.01, 60)
    values[35:] *= 1.04
    assert change_points(values) == change_points(values) == change_points(values * 1e12)
