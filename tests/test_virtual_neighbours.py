"""Programs that share a device: figures of sharing, an aggressor's queue, groups of SMs."""

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from _modules import bench_on, opened, room_module, suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Device, Facts

SUITE = plugins.load("suites", "virtual")


module = partial(suite_module, "virtual")


AGGRESSOR, LOADS, NEIGHBOUR, GREEN = map(module, ("_aggressor", "_loads", "_neighbour", "_green"))
CHECKS = room_module("suites", "_checks")
GPU = Device(id="cuda:0", backend="cupy", name="NVIDIA H200", arch="sm_90", memory_bytes=150 * 10**9, units=132)


@pytest.fixture
def bench():
    return bench_on(opened(), SUITE, "neighbour", in_tier="smoke")


# figures


def test_rates_are_relative_to_those_alone_and_equal_shares_are_fair():
    assert NEIGHBOUR.jain((0.5, 0.5)) == pytest.approx(1)
    assert NEIGHBOUR.jain((1.0, 0.0)) == pytest.approx(0.5)
    assert NEIGHBOUR.jain((0.9, 0.3)) == pytest.approx(1.44 / 1.8)
    observed = NEIGHBOUR.SharedWindow(1000.0, 50.0, 800.0, 20.0, 1e-3).observed()
    assert {name: observation.value for name, observation in observed.items()} == pytest.approx(
        {"relative": 0.8, "aggressor": 0.4, "sum": 1.2, "jain": 1.44 / 1.6, "alone": 1e-3}
    )
    half = NEIGHBOUR.SharedWindow(1000.0, 50.0, 500.0, 25.0, 1e-3).observed()
    joined = NEIGHBOUR.medians([observed, half, half])
    assert joined["sum"].value == pytest.approx(1.0)
    assert joined["sum"].better == "more"


def test_the_ring_is_one_cycle_over_all_lines():
    lines = 2**12
    place, seen = 0, set()
    for _ in range(lines):
        seen.add(place)
        place = (LOADS._RING_FACTOR * place + LOADS._RING_TERM) % lines
    assert (len(seen), place) == (lines, 0)


# which pairs are measured


def pairs(target):
    return [dict(case.params) for case in SUITE.cases(target) if case.name == "neighbour"]


def test_quick_has_one_pair_and_full_all_of_processes_and_green_contexts():
    quick = pairs(Target(Facts((GPU,)), GPU, "quick"))
    assert quick == [{"victim": "decode", "aggressor": "gemm", "how": "processes"}]
    full = pairs(Target(Facts((GPU,)), GPU, "full"))
    by_way = {kind: [pair for pair in full if pair["how"] == kind] for kind in NEIGHBOUR._WAYS}
    assert {kind: len(pairs) for kind, pairs in by_way.items()} == {
        "processes": 36,
        "green": 36,
        "streams": 4,
        "priority": 4,
        "mps": 4,
    }
    cases = [case for case in SUITE.cases(Target(Facts((GPU,)), GPU, "full")) if case.name == "neighbour"]
    ranks = {(dict(case.params)["how"], dict(case.params)["aggressor"] == "none"): case.ranks for case in cases}
    assert ranks[("processes", True)] == ranks[("green", False)] == 1, "a victim alone is one process"
    assert ranks[("processes", False)] == ranks[("mps", False)] == 2


def test_mps_is_measured_where_its_daemon_runs_and_processes_where_it_does_not(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with pytest.raises(Skip, match="no MPS control daemon runs"):
        NEIGHBOUR.need_way("mps")
    NEIGHBOUR.need_way("processes")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{threading.get_native_id()}\n")
    NEIGHBOUR.need_way("mps")
    with pytest.raises(Skip, match="do not take turns"):
        NEIGHBOUR.need_way("processes")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text("2147483646\n")  # left by a daemon that has ended
    NEIGHBOUR.need_way("processes")


# the aggressor


def sleeping(seconds):
    return CHECKS.CheckedCall(lambda: time.sleep(seconds), LOADS.nothing)


def aggressor(bench, load, board, is_queued=False, ahead_s=0.03):
    idle = LOADS.LaunchQueue(LOADS.nothing, LOADS.nothing)
    return AGGRESSOR.Aggressor(bench, load, idle, board, is_queued, ahead_s)


def test_an_aggressor_runs_only_on_request(bench):
    board = AGGRESSOR.NeighbourBoard.within(bench)
    running = aggressor(bench, sleeping(0.001), board)
    board.wait_until_ready()
    for _ in range(2):
        resting = board.ended
        time.sleep(0.01)
        assert board.ended == resting
        board.run()
        latest = time.monotonic() + 30  # on a machine that is busy
        while board.ended <= resting + 5:
            assert time.monotonic() < latest
            time.sleep(0.001)
        board.rest()
    running.close()
    assert not running._thread._threads or not any(thread.is_alive() for thread in running._thread._threads)


def test_the_failure_of_an_aggressor_is_reported_at_once_and_raised_at_its_end(bench):
    def broken():
        raise ValueError("no memory left")

    board = AGGRESSOR.NeighbourBoard.within(bench)
    failing = aggressor(bench, CHECKS.CheckedCall(broken, LOADS.nothing), board)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="the aggressor has failed"):
        board.wait_until_ready()
    assert time.monotonic() - begin < 20
    with pytest.raises(ValueError, match="no memory left"):
        failing.close()


def test_a_wrong_result_of_an_aggressor_or_of_a_victim_is_found(bench):
    load = LOADS.gemm(bench, 64)
    wrong = CHECKS.CheckedCall(lambda: (load.call(), load.overwrite(bench))[0], load.check, load.outputs)
    board = AGGRESSOR.NeighbourBoard.within(bench)
    running = aggressor(bench, wrong, board)
    board.wait_until_ready()
    with pytest.raises(WrongAnswer, match="relative error"):
        running.close()
    load = LOADS.gemm(bench, 64)
    wrong = CHECKS.CheckedCall(lambda: (load.call(), load.overwrite(bench))[0], load.check, load.outputs)
    board = AGGRESSOR.NeighbourBoard.within(bench)
    neighbour = aggressor(bench, sleeping(0.001), board)
    idle = LOADS.LaunchQueue(LOADS.nothing, LOADS.nothing)
    pair = NEIGHBOUR.NeighbourPair(bench, wrong, idle, board, NEIGHBOUR.SampleSpan(1, 0.002))
    with pytest.raises(WrongAnswer, match="relative error"):
        pair.seconds()
    neighbour.close()


class QueueingDevice:
    """A device that executes its queue at a millisecond per call and publishes the number of finished calls."""

    def __init__(self, call_s=0.001):
        self._call_s = call_s
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        while (call := self._queue.get()) is not None:
            call()

    def call(self):
        self._queue.put(lambda: time.sleep(self._call_s))

    def kernel(self, file, name):
        assert (file, name) == ("sharing.cu", "done")

        def launch(grid, block, args):
            address, calls = (int(arg) for arg in args)
            self._queue.put(lambda: setattr(ctypes.c_uint32.from_address(address), "value", calls))

        return launch

    def wait(self):
        """Wait until the queue has done everything before this call."""
        ended = threading.Event()
        self._queue.put(ended.set)
        assert ended.wait(5)

    def close(self):
        self._queue.put(None)
        self._thread.join(5)


@pytest.fixture
def device():
    opened = QueueingDevice()
    yield opened
    opened.close()


@pytest.mark.parametrize(("call_s", "ahead_s"), [(0.001, 0.03), (0.0, 10.0)], ids=["filled", "no longer than it holds"])
def test_an_aggressor_fills_its_queue_for_ten_to_fifty_milliseconds_and_never_beyond_a_gpus(
    bench, device, call_s, ahead_s
):
    device._call_s = call_s
    board = AGGRESSOR.NeighbourBoard.within(bench)
    load = CHECKS.CheckedCall(device.call, LOADS.nothing)
    running = AGGRESSOR.Aggressor(device, load, LOADS.LaunchQueue(LOADS.nothing, device.wait), board, True, ahead_s)
    board.wait_until_ready()
    board.run()
    depths = []
    while len(depths) < 60 or (call_s and max(depths) <= 10 and len(depths) < 3000):  # a busy machine refills it late
        depths.append(running._issued - board.ended)
        time.sleep(0.001)
    board.rest()
    assert board.ended == running._issued, "it rests before its queue is empty"
    assert max(depths) <= AGGRESSOR._MOST_AHEAD < 500
    if call_s:
        assert 10 < max(depths) < 50
    running.close()


class SerialDevice:
    """A device that serves calls one by one, in the order in which they came."""

    def __init__(self):
        self._changed, self._drawn, self._served = threading.Condition(), 0, 0

    def call(self, seconds):
        """Return a call that takes `seconds` once all earlier calls have been served."""

        def serve():
            with self._changed:
                ticket, self._drawn = self._drawn, self._drawn + 1
                self._changed.wait_for(lambda: self._served == ticket)
            time.sleep(seconds)
            with self._changed:
                self._served += 1
                self._changed.notify_all()

        return CHECKS.CheckedCall(serve, LOADS.nothing)


def test_a_victim_that_takes_turns_with_its_neighbour_keeps_less_of_its_rate(bench):
    turns = SerialDevice()
    board = AGGRESSOR.NeighbourBoard.within(bench)
    neighbour = aggressor(bench, turns.call(0.002), board)
    idle = LOADS.LaunchQueue(LOADS.nothing, LOADS.nothing)
    pair = NEIGHBOUR.NeighbourPair(bench, turns.call(0.001), idle, board, NEIGHBOUR.SampleSpan(3, 0.03))
    beside = pair.seconds()
    kept = {name: observation.value for name, observation in pair.observed().items()}
    neighbour.close()
    assert np.median(beside) > 0.002, "it waited for a call of its neighbour each time"
    assert kept["relative"] < 0.8
    assert kept["sum"] < 1.5, "there is one device"


# green contexts


def test_contexts_that_share_an_sm_or_run_on_more_than_they_have_are_a_wrong_answer():
    GREEN.expect_apart(frozenset(range(8)), frozenset(range(8, 16)), 8, 0)
    with pytest.raises(WrongAnswer, match=r"in round 7 both contexts ran on the SMs \[7\]"):
        GREEN.expect_apart(frozenset(range(8)), frozenset(range(7, 15)), 8, 7)
    with pytest.raises(WrongAnswer, match="a context of 8 SMs ran on 9"):
        GREEN.expect_apart(frozenset(range(9)), frozenset(range(9, 17)), 8, 0)


class SplittingDriver:
    bindings = SimpleNamespace(CUdevResourceType=SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1))

    def __init__(self):
        self.splits: list[tuple[int, int]] = []

    def __call__(self, name, *args):
        if name == "cuDevSmResourceSplitByCount":
            count, total, _, least = args
            self.splits.append((count, least))
            size = -(-least // 8) * 8
            given = min(count, total.sm.smCount // size)
            group = SimpleNamespace(sm=SimpleNamespace(smCount=size))
            return [group] * count, given, group
        return SimpleNamespace(sm=SimpleNamespace(smCount=132)) if name == "cuDeviceGetDevResource" else 0


def test_groups_come_from_one_split_in_multiples_of_what_the_driver_says(monkeypatch):
    driver = SplittingDriver()
    monkeypatch.setattr(GREEN.lib, "Driver", lambda: driver)
    pool = GREEN.SmPool(SimpleNamespace(traits=SimpleNamespace(vendor="nvidia")))
    assert (pool.granularity, pool.units) == (8, 132)
    driver.splits.clear()
    assert [group.sm.smCount for group in pool.halves()] == [64, 64]
    assert driver.splits == [(2, 64)]
    with pytest.raises(Skip, match="multiples of 8 SMs; 12 is no such multiple"):
        pool.groups(12, 2)
    with pytest.raises(Skip, match=r"groups of \[72\] SMs, not 2 of 72"):
        pool.groups(72, 2)
