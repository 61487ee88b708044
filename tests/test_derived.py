"""Quantities derived from the views of a run: levels beside known cache sizes, transfer models and crossovers."""

import dataclasses
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis.summary import Summary
from gpubench.analysis.views.staircases import Staircase, known_sizes
from gpubench.analysis.views.table import derived
from gpubench.analysis.views.transfers import Transfers
from gpubench.model import Series, SuiteInfo, View, Work, store

KIB, MIB, GIB = 2**10, 2**20, 2**30
RECORDING = Path(__file__).parent / "recordings" / "h200-quick.jsonl.gz"
LADDER = View("staircase", "Latency over working set", ("chase",), x="size_bytes", series="hot", log_x=True, log_y=True)
COPIES = View("transfer", "Copies by engine", ("copy",), x="size_bytes", by=("engine", "memory"))


def with_view(run, suite, view):
    """Return the same run, whose suite asks for this view alone."""
    suites = tuple(
        dataclasses.replace(info, views=(view,)) if info.name == suite else info for info in run.manifest.suites
    )
    return dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, suites=suites))


def recorded():
    return with_view(store.read_run(RECORDING), "latency", LADDER)


def test_the_levels_of_a_recorded_h200_are_listed_with_its_cache_sizes():
    on_gpu, *_ = derived(Summary(recorded()), Staircase)
    first, second, memory = on_gpu.steps
    assert [round(step.height.centre * 1e9, 1) for step in on_gpu.steps] == [16.2, 141.8, 336.8]
    assert [step.unit for step in on_gpu.steps] == ["s"] * 3
    assert 31 < first.cycles < 33
    assert 270 < second.cycles < 290
    assert [size.name for size in first.known_sizes] == ["L1"]
    assert [size.bytes for size in second.known_sizes] == [60 * MIB]
    assert (memory.end, memory.known_sizes) == (None, ())
    assert (first.smallest, memory.largest) == (16 * KIB, 4 * GIB)


def test_the_known_sizes_of_a_device_are_named_with_their_source():
    gpu = make.device(cache_bytes=60 * MIB, details=(("shared.unit_bytes", str(228 * KIB)), ("ecc", "on")))
    assert [(size.name, size.bytes) for size in known_sizes(gpu)] == [
        ("shared memory", 228 * KIB),
        ("L1", 256 * KIB),
        ("last-level cache", 60 * MIB),
    ]
    host = make.device("host", "CPU", arch="x86_64", cache_bytes=300 * MIB, details=(("cache.l3", str(300 * MIB)),))
    assert [(size.name, size.source) for size in known_sizes(host)] == [
        ("L3", "cache.l3, reported by the driver of host")
    ]
    assert known_sizes(make.device(arch="sm_00")) == []


def copy(engine, size, seconds, memory="pinned", **fields):
    series = Series("hot", "s", (seconds,) * 3, work=Work(payload=float(size)), quantity="payload", better="more")
    return make.result(series, of=make.case("copy", engine=engine, memory=memory, size_bytes=size), **fields)


def path(engine, alpha_s, beta, memory="pinned", **fields):
    return [copy(engine, 2**power, alpha_s + 2**power / beta, memory, **fields) for power in range(3, 31)]


def copies(*results, view=COPIES):
    return Summary(make.run(*results, suites=(SuiteInfo("bandwidth", "copies", (view,)),)))


def test_the_paths_of_a_view_have_models_and_cross_where_they_were_measured_to():
    (transfer,) = derived(copies(*path("kernel", 2e-6, 3e10), *path("engine", 6e-6, 5.5e10)), Transfers)
    kernel = transfer.paths[0]
    assert (kernel.line.label, kernel.unit) == ("kernel · pinned", "B/s")
    assert kernel.model.pieces[0].alpha_s == pytest.approx(2e-6)
    assert kernel.rate(kernel.model.pieces[0]) == pytest.approx(3e10)
    (crossover,) = transfer.crossovers
    assert (crossover.below, crossover.above) == ("kernel · pinned", "engine · pinned")
    assert crossover.size.low < 264_000 < crossover.size.high
    assert crossover.fitted == pytest.approx(264_000, rel=1e-3)


def test_paths_that_differ_in_two_axes_do_not_cross_and_few_points_have_no_model():
    (transfer,) = derived(copies(*path("kernel", 2e-6, 3e10), *path("engine", 6e-6, 5.5e10, "pageable")), Transfers)
    assert transfer.crossovers == ()
    assert derived(copies(copy("kernel", 1024, 1e-6)), Transfers) == []
    assert derived(copies(view=LADDER), Staircase) == []
    runs = [path("kernel", 2e-6 * (1 + share), 3e10, replicate=index) for index, share in enumerate((0.0, 0.1, -0.1))]
    (transfer,) = derived(copies(*(result for results in runs for result in results)), Transfers)
    assert transfer.paths[0].model.pieces[0].alpha_s == pytest.approx(2e-6), "replicates are one line"


def test_times_without_a_rate_and_rates_of_more_bytes_than_the_size_are_paths_too():
    series = [
        Series("hot", "s", (1e-6 + n / 1e12,) * 3, work=Work(moved=2 * n), quantity="moved") for n in (1e5, 1e6, 1e7)
    ]
    results = [
        make.result(timing, of=make.case("copy", engine="e", memory="m", size_bytes=int(timing.work.moved / 2)))
        for timing in series
    ]
    (transfer,) = derived(copies(*results), Transfers)
    (only,) = transfer.paths
    assert only.model.pieces[0].beta == pytest.approx(1e12)
    assert only.rate(only.model.pieces[0]) == pytest.approx(2e12)
    results = [
        make.result(make.timing(1e-6 + n / 1e9, items=1.0), of=make.case("copy", engine="e", size_bytes=n))
        for n in (1024, 4096, 16384)
    ]
    (transfer,) = derived(copies(*results), Transfers)
    assert transfer.paths[0].unit == "B/s"
    assert transfer.paths[0].model.pieces[0].beta == pytest.approx(1e9)
