"""Phases: found exactly in synthetic counters, replayed from a recorded GPU, and what a device did in each."""

from dataclasses import replace
from pathlib import Path

import _make as make
import numpy as np
import pytest

from gpubench.analysis import phases
from gpubench.analysis.counters import CounterTable, Track, Window
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.phase_tables import phase_tables
from gpubench.model import Case, Measure, Samples, Series, store
from gpubench.tools import rendering
from gpubench.tools.profile import detection

POWER = make.counter("nvml.power", "W", "gauge", 0.1, "")
BUSY = make.counter("nvml.utilization.gpu", "%", "window", 0.1, "")
CPU = make.counter("program.cpu.busy", "core·s", "cumulative", 0.25, "")
MEMORY = make.counter("nvml.memory.used", "B", "gauge", 0.1, "")
EVENTS = make.counter("nvml.event_reasons", "bit mask", "event", 0.1, "")
ACTIVE = make.counter("gpm.tensor", "%", "window", 0.12, "")
RECORDING = Path(__file__).parent / "recordings/h200-profile.jsonl.gz"


def track(counter, levels, edges, noise=0.0, offset=0.0):
    """Readings at even steps, of these levels between these edges."""
    at = np.arange(edges[0] + offset, edges[-1], counter.period_s)
    values = np.asarray(levels, float)[np.searchsorted(edges, at, "right") - 1]
    return Track(counter, "cuda:0", at, values + np.random.default_rng(8).normal(0, noise, len(at)))


EDGES = (0.0, 10.0, 25.0, 40.0, 60.0)


@pytest.mark.parametrize("noise", [0.0, 15.0])
def test_every_change_is_found_between_the_two_readings_where_it_was(noise):
    tracks = [
        track(POWER, (120, 600, 300, 620), EDGES, noise, offset=0.03),
        track(BUSY, (0, 98, 60, 99), EDGES, noise / 3, offset=0.05),
    ]
    assert detection.changes(tracks, 0.0, 60.0) == pytest.approx(EDGES[1:-1], abs=0.1)


WARM = make.counter("nvml.temperature", "°C", "gauge", 0.1, "")


@pytest.mark.parametrize(
    ("tracks", "end", "changes"),
    [
        ([track(POWER, (300, 300), (0, 20, 50), 3.0), track(BUSY, (90, 10), (0, 20, 50), 3.0)], 50.0, [20.0]),
        ([track(POWER, (600,), (0, 60), 30), track(BUSY, (95,), (0, 60), 10)], 60.0, []),
        ([track(POWER, (100, 640, 650, 100), (0, 10, 20, 30, 40), 2.0)], 40.0, [10.0, 30.0]),
        ([track(WARM, (40, 70), (0, 20, 40))], 40.0, []),
        ([track(POWER, (100, 600), (0, 0.2, 0.4))], 0.4, []),
        ([], 40.0, []),
    ],
    ids=["one-of-two", "noise", "small-step", "no-activity", "too-short", "nothing"],
)
def test_a_lasting_change_of_one_counter_of_activity_begins_a_phase(tracks, end, changes):
    assert detection.changes(tracks, 0.0, end) == pytest.approx(changes, abs=0.1)


def test_a_cumulative_counter_is_judged_by_its_rate():
    at = np.arange(0, 30, 0.25)
    busy = Track(CPU, "host", at, np.interp(at, [0, 10, 20, 30], [0, 10, 10, 20]))
    assert detection.changes([busy], 0.0, 30.0) == pytest.approx([10.0, 20.0], abs=0.25)


def phase(*spans):
    times = Series("time", "s", tuple(end - begin for begin, end in spans), at=tuple(begin for begin, _ in spans))
    case = Case("profile", "phase", (("name", "step"),))
    return make.result(times, of=case, window=(spans[0][0], spans[-1][1]))


def counted(*results):
    """Return ten seconds: 100 W, from 5 s on 300 W at the power cap with its energy, and memory with one peak."""
    at = tuple(np.round(np.arange(0, 10.05, 0.1), 3).tolist())
    late = [moment >= 5 for moment in at]
    after = [moment > 5 for moment in at]  # the reading at 5 s is of the tenth of a second before it
    sampled = make.samples(
        at,
        power=[300.0 if is_late else 100.0 for is_late in late],
        energy=[100.0 * min(m, 5) + 300.0 * max(m - 5, 0) for m in at],
        event_reasons=[4.0 if is_after else 1.0 for is_after in after],
        **{
            "memory.used": [2e9 if m == 7.0 else 1e9 for m in at],
            "utilization.gpu": [90.0 if is_after else 10.0 for is_after in after],
        },
    )
    return make.run(*results, sampled=[sampled], counters=(POWER, make.ENERGY, EVENTS, MEMORY, BUSY))


def figures(result):
    return phases.figures(result, CounterTable.of_run(counted(result)), "cuda:0")


def test_the_energy_of_a_phase_is_the_rise_of_the_counter_or_says_that_it_is_mean_power_times_time():
    single, double = figures(phase((1.03, 4.03))), figures(phase((1.0, 2.0), (6.0, 7.0)))
    assert (single.energy.joules, single.energy.watts) == pytest.approx((300, 100))
    assert not single.energy.is_integrated
    assert (double.energy.joules, double.seconds, double.times) == (pytest.approx(400), pytest.approx(2.0), 2)
    short = figures(phase(*((6 + n, 6.15 + n) for n in range(4))))
    assert short.energy.is_integrated
    assert short.energy.joules == pytest.approx(300 * 0.6)
    ((table),) = phase_tables(Summary(counted(phase(*((6 + n, 6.15 + n) for n in range(4))))))
    assert any(cell.startswith("~180") for cell in table.rows[0])
    assert "mean power × time" in table.note
    for too_few_or_beyond in ((6.0, 6.15), (8.0, 30.0)):
        assert figures(phase(too_few_or_beyond)).energy is None
    sampled = CounterTable.of_run(counted(phase((0.0, 1.0))))
    window = Window(sampled, "cuda:0", [(1.0, 2.0), (8.0, 9.0)])
    assert window.rate(Measure.ENERGY).value == pytest.approx((100 + 300) / 2), "without the rise between them"
    assert Window(sampled, "cuda:0", [(1.0, 9.0)]).rate(Measure.ENERGY).value == pytest.approx((400 + 1200) / 8)


def test_peaks_shares_and_throttle_reasons_are_of_the_phase_alone():
    early, late = figures(phase((0.05, 4.95))), figures(phase((5.05, 9.95)))
    assert (early.memory_bytes, late.memory_bytes) == (1e9, 2e9)
    assert (early.shares[Measure.BUSY], late.shares[Measure.BUSY]) == (pytest.approx(0.1), pytest.approx(0.9))
    assert early.throttled == ()
    assert [(reason.name, reason.share) for reason in late.throttled] == [("power cap", 1.0)]


def of_phase(counter, at, values, *spans):
    readings = Samples("nvml", "cuda:0", tuple(at), ((counter.name, tuple(values)),))
    run = make.run(phase(*spans), sampled=[readings], counters=(counter,))
    return phases.figures(run.results[0], CounterTable.of_run(run), "cuda:0")


def test_readings_count_by_the_share_of_their_interval_that_the_phase_covers():
    # Steps of 28 ms follow a first, idle one of half a second, which alone holds whole intervals of the counter.
    steps = [(1.0, 1.5), *((1.5 + 0.03 * n, 1.528 + 0.03 * n) for n in range(200))]
    at = np.arange(1, 81) * 0.12
    share = of_phase(ACTIVE, at, [95.0 if 1.5 < moment <= 7.5 else 0.0 for moment in at], *steps).shares
    assert share[Measure.TENSOR_ACTIVITY] == pytest.approx(0.95 * 5.6 / 6.1, abs=0.01)
    at = (1.0, 1.1, 1.2, 1.3)
    one_and_a_quarter = of_phase(BUSY, at, (0, 80, 40, 0), (1.0, 1.125))
    assert one_and_a_quarter.shares[Measure.BUSY] == pytest.approx((0.8 + 0.25 * 0.4) / 1.25)
    nested = of_phase(BUSY, at, (0, 80, 40, 0), (1.0, 1.125), (1.02, 1.06))
    assert nested.shares == pytest.approx(one_and_a_quarter.shares), "a phase inside itself counts once"
    in_one = of_phase(BUSY, at, (0, 80, 40, 0), (1.11, 1.138))
    assert in_one.shares[Measure.BUSY] == pytest.approx(0.4)
    (reason,) = of_phase(EVENTS, (1.0, 1.1, 1.2, 1.3), (0, 0, 4, 0), (1.05, 1.175)).throttled
    assert reason.share == pytest.approx(0.75 / 1.25)
    assert reason.seconds == pytest.approx(0.125 * 0.6)


def test_a_phase_of_which_readings_cover_less_than_half_has_no_figure():
    at, values = (1.0, 1.1, 1.2), (50.0, 50.0, 50.0)
    assert of_phase(BUSY, at, values, (0.9, 1.49)).shares == {Measure.BUSY: pytest.approx(0.5)}
    assert of_phase(BUSY, at, values, (0.9, 1.51)).shares == {}
    assert of_phase(BUSY, at, values, (1.5, 1.5)).shares == {}
    assert of_phase(EVENTS, at, (4, 4, 4), (0.9, 1.51)).throttled == ()
    pause = (1.0, 2.0)  # the second reading covers the tenth of a second before it, not the pause
    assert of_phase(BUSY, pause, (10.0, 90.0), (1.0, 2.0)).shares == {}
    assert of_phase(BUSY, pause, (10.0, 90.0), (1.85, 2.0)).shares == {Measure.BUSY: pytest.approx(0.9)}


def test_a_gauge_counts_where_it_lies():
    gauge = replace(BUSY, kind="gauge")
    spans = (1.05, 1.15), (1.29, 1.31)
    assert of_phase(gauge, (1.0, 1.1, 1.2, 1.3), (0, 80, 0, 40), *spans).shares == {Measure.BUSY: pytest.approx(0.6)}
    assert of_phase(gauge, (1.0, 1.1), (80, 80), (1.01, 1.09)).shares == {}


@pytest.fixture(scope="module")
def recorded():
    """Return a training loop of three seconds on an H200: it builds and warms up, trains, and rests."""
    return store.read_run(RECORDING)


def test_the_phases_of_the_recording_are_found_again(recorded):
    program, *parts = recorded.results
    tracks = CounterTable.of_run(recorded).tracks
    assert detection.changes(tracks, *program.window) == pytest.approx([part.window[0] for part in parts[1:]])
    assert len(parts) == 3
    for kind in ("html", "md"):
        text = rendering.report(kind).render(recorded)
        assert ("Phases" in text, "Best figures" in text) == (True, False), "no phase is called the best"


def test_training_is_the_phase_of_the_recording_that_works(recorded):
    table = CounterTable.of_run(recorded)
    before, training, after = (phases.figures(part, table, "cuda:0") for part in recorded.results[1:])
    assert training.seconds == pytest.approx(3.2, abs=0.1)
    assert 550 < training.energy.watts < 700
    assert training.shares[Measure.BUSY] > 0.9
    assert training.shares[Measure.TENSOR_ACTIVITY] > 0.2
    assert before.energy.watts < 200
    assert after.energy.watts < 200
    program = phases.figures(recorded.results[0], table, "cuda:0")
    assert program.energy.joules == pytest.approx(
        sum(part.energy.joules for part in (before, training, after)), rel=1e-6
    )


def test_samples_from_before_the_death_of_a_gpu_are_kept(recorded):
    """The counters of one of several devices may end during a run."""
    middle = recorded.results[2].window[0] + 2.0
    cut = []
    for samples in recorded.samples:
        count = sum(moment < middle for moment in samples.at) if samples.device == "cuda:0" else len(samples.at)
        columns = tuple((name, values[:count]) for name, values in samples.columns)
        cut.append(replace(samples, at=samples.at[:count], columns=columns))
    (table,) = phase_tables(Summary(replace(recorded, samples=tuple(cut))))
    place = table.heads.index("busy")
    assert [row[place] for row in table.rows][1:] == ["2 %", "97 %", "–"]
