"""Joining counters to cases, by device and by time."""

import _make as make
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.counters import CounterTable, Track, extremes, figure_of
from gpubench.model import Counter, Measure, Samples


def track(at, values, counter=make.POWER, device="cuda:0"):
    return Track(counter, device, np.array(at, dtype=float), np.array(values, dtype=float))


def figures(table):
    return {
        (figure.counter.name, figure.device): (figure.mean, figure.low, figure.high, figure.samples) for figure in table
    }


READINGS = make.samples([1, 2, 3, 4, 5], power=[100, 200, 400, 300, 900], energy=[0, 100, 300, 600, 600])


@pytest.mark.parametrize(
    ("window", "power", "energy"),
    [
        ((2.0, 4.0), (300, 200, 400, 3), (150, 150, 150, 5)),
        ((2.5, 3.5), (400, 400, 400, 1), (250, 250, 250, 3)),
        ((2.25, 2.5), None, (200, 200, 200, 2)),  # no reading of the gauge, and a rise between two of the counter
    ],
)
def test_a_gauge_is_the_mean_of_the_window_and_a_cumulative_counter_its_rise_around_it(window, power, energy):
    seen = figures(CounterTable.of_run(make.run(sampled=[READINGS])).during(make.result(window=window)))
    assert (seen.get(("nvml.power", "cuda:0")), seen["nvml.energy", "cuda:0"]) == (power, energy)


def test_a_failed_reading_does_not_count_as_zero_and_a_result_that_was_never_timed_has_no_counters():
    table = CounterTable.of_run(make.run(sampled=[make.samples([1, 2, 3], power=[100, None, 300])]))
    assert table.tracks[0].at.tolist() == [1, 3]
    assert figures(table.during(make.result(window=(0.0, 9.0)))) == {("nvml.power", "cuda:0"): (200, 100, 300, 2)}
    assert table.during(make.result(status="skipped")) == []
    chunks = [make.samples([1.0], name, power=[value]) for name, value in (("cuda:0", 1), ("cuda:1", 2), ("host", 3))]
    table = CounterTable.of_run(make.run(sampled=chunks))
    assert figures(table.during(make.result(window=(0.0, 2.0), devices=("cuda:1",)))) == {
        ("nvml.power", "cuda:1"): (2, 2, 2, 1),
        ("nvml.power", "host"): (3, 3, 3, 1),
    }, "those of its devices and of the host"


def test_a_window_includes_its_bounds_and_a_cumulative_counter_needs_two_readings():
    assert figure_of(track([1.0], [5.0], make.ENERGY)) is None
    assert figure_of(track([1.0, 1.0], [5.0, 6.0], make.ENERGY)) is None
    assert figure_of(track([], [])) is None
    assert track([1, 2, 3], [1, 2, 3]).during(1.0, 3.0).values.tolist() == [1, 2, 3]
    assert track([1, 2, 3], [1, 2, 3]).during(1.5, 2.5).values.tolist() == [2]


def test_chunks_of_a_counter_are_one_track_in_the_order_of_the_manifest():
    sampled = [make.samples([1, 3], power=[10, 30]), make.samples([2], power=[20]), make.samples([4], energy=[0])]
    power, energy = CounterTable.of_run(make.run(sampled=sampled)).tracks
    assert (power.at.tolist(), power.values.tolist()) == ([1, 2, 3], [10, 20, 30])
    assert energy.at.tolist() == [4]
    sampled = [make.samples([1.0], energy=[1], power=[2], unheard=[3])]
    names = [track.counter.name for track in CounterTable.of_run(make.run(sampled=sampled)).tracks]
    assert names == ["nvml.power", "nvml.energy"]


def test_a_counter_is_found_by_its_measure_and_not_by_its_name():
    acme_power = Counter("acme.watts", "W", "gauge", 0.1, "acme --power", Measure.BOARD_POWER)
    sampled = Samples("acme", "cuda:0", (1.0,), (("acme.watts", (250.0,)),))
    table = CounterTable((acme_power,), (sampled,))
    (track,) = table.of("cuda:0", Measure.BOARD_POWER)
    assert track.values.tolist() == [250.0]
    assert table.of("cuda:1", Measure.BOARD_POWER) == ()
    assert table.of("cuda:0", Measure.CORE_CLOCK) == ()


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(2, 60))
def test_a_drawing_of_too_many_samples_keeps_their_extremes_in_order(values, most):
    array = np.asarray(values)
    kept = extremes(array, most)
    assert len(kept) <= max(most, 2)
    assert (np.diff(kept) > 0).all()
    if values:
        assert array[kept].max() == array.max()
        assert array[kept].min() == array.min()
    kept = extremes(np.sin(np.arange(10_000) / 7.0), 600)
    assert len(kept) <= 600
    assert np.diff(kept).max() < 2 * 10_000 / 300, "no long stretch is left out"
