"""The latency suite on a real GPU: figures of the right size, and every check fails on its fault."""

import time

import numpy as np
import pytest
from _earlier import expect_found
from _poison import overwrite
from test_latency import build, walk_of

from gpubench import stats
from gpubench.analysis.quantities import judged_values
from gpubench.authoring.task import Profile
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES

pytestmark = pytest.mark.gpu


def measured(name, **params):
    opened, task = build(name, backend="cupy", **params)
    return {series.label: series for series in Engine(opened, POLICIES["quick"]).measure(task).series}


def median(series):
    return stats.median(judged_values(series).tolist())


@pytest.mark.parametrize(
    ("name", "params", "least", "most"),
    [
        ("load", {"space": "l1"}, 25, 60),
        ("load", {"space": "l2"}, 150, 450),
        ("load", {"space": "dram"}, 450, 1500),
        ("load", {"space": "host"}, 900, 9000),
        ("chase", {"size_bytes": 2**14}, 25, 60),
        ("chase", {"size_bytes": 2**22}, 150, 450),
        ("chase", {"size_bytes": 2**30}, 450, 1500),
        ("shared", {"size_bytes": 2**14}, 18, 60),
        ("register", {"dtype": "float32"}, 3, 8),
        ("constant", {"size_bytes": 2**10}, 20, 90),
    ],
)
def test_cycles_are_those_of_the_space_and_agree_with_the_seconds(name, params, least, most):
    series = measured(name, **params)
    cycles, seconds = stats.median(series["cycles"].values), median(series["hot"])
    assert least < cycles < most
    assert 0.8e9 < cycles / seconds < 3e9, "cycles and seconds do not agree on a clock"


@pytest.mark.parametrize("space", ["l1", "l2"])
def test_a_broken_ring_fails_the_check(space):
    opened, task = build("load", backend="cupy", space=space)
    walk = walk_of(task)
    walk.state.fill(0)
    walk.walked += 1
    opened.synchronize()
    with pytest.raises(WrongAnswer, match="the walk is at"):
        task.check()


def test_a_single_timed_load_takes_as_long_as_one_in_a_chain():
    alone, chained = measured("single", space="l1"), measured("load", space="l1")
    assert stats.median(alone["p50"].values) == pytest.approx(stats.median(chained["cycles"].values), rel=0.1)
    assert stats.median(alone["max"].values) >= stats.median(alone["p99"].values)


def test_the_clock_in_the_kernel_agrees_with_the_events_around_it():
    within, round_it = measured("loaded", units=0), measured("load", space="dram")
    assert median(within["self"]) == pytest.approx(median(round_it["hot"]), rel=0.03)


def test_memory_is_slower_while_others_stream():
    units = build("launch", backend="cupy")[0].device.units
    quiet, busy = measured("loaded", units=0), measured("loaded", units=units - 1)
    assert median(busy["self"]) > 1.2 * median(quiet["self"])
    assert stats.median(busy["streamed"].values) > 1e11


@pytest.mark.parametrize("access", ["load", "atomic"])
def test_every_sm_has_a_row_and_the_near_partition_has_the_lower_latency(access):
    opened, task = build("slices", backend="cupy", access=access, lines=64)
    overwrite(task)
    task.stages[""].call()
    observed = task.check()
    rows = [value for name, value in observed.items() if name.startswith("unit ")]
    assert len(rows) == opened.device.units
    assert all(isinstance(row, Profile) and len(row.values) == observed["line_groups"].value for row in rows)
    assert 50 < observed["near"].value < observed["far"].value < 3000
    expect_found(task, opened)


def test_earlier_sums_of_the_streams_are_found():
    opened, task = build("loaded", backend="cupy", units=4)
    expect_found(task, opened, walk_of(task)._sums)


def test_an_sm_without_a_result_fails_the_check():
    _, task = build("slices", backend="cupy", access="load", lines=64)
    task.stages[""].call()
    walk_of(task)._state[3].fill(0)
    with pytest.raises(WrongAnswer, match="read wrong contents"):
        task.check()


def test_a_barrier_that_is_never_completed_ends_in_bounded_time_as_a_wrong_answer():
    _, task = build("barrier", backend="cupy", blocks=2)
    task.check()
    walk_of(task)._arrived[1] = 10**6
    start = time.perf_counter()
    with pytest.raises(WrongAnswer, match="a block waited for"):
        task.check()
    assert time.perf_counter() - start < 5


def test_requests_by_a_flag_that_are_never_sent_are_a_wrong_answer(monkeypatch):
    _, task = build("host_flag", backend="cupy")
    task.stages[""].call()
    task.check()
    monkeypatch.setattr(walk_of(task), "ask", lambda first, last: 0)
    task.stages[""].call()
    with pytest.raises(WrongAnswer, match="0 of 1000 requests were sent, 0 were answered"):
        task.check()


@pytest.mark.parametrize("space", ["shared", "global", "system", "host"])
def test_a_missing_addition_fails_the_check(space):
    opened, task = build("atomic", backend="cupy", space=space)
    task.stages[""].call()
    task.check()
    case = walk_of(task)
    opened.copy(case._cells[:8], np.arange(8, dtype=np.uint8))
    with pytest.raises(WrongAnswer, match="1 of 64 cells"):
        task.check()


def test_a_cluster_reaches_its_neighbour_or_is_skipped():
    try:
        series = measured("cluster", size_bytes=2**14)
    except Skip:
        return
    assert 60 < stats.median(series["cycles"].values) < 600
