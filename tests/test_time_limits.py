"""The time limit of a phase follows from its expected duration, and its message says so."""

import pytest

from gpubench.authoring.task import Stage, Work
from gpubench.measuring import time_limits
from gpubench.measuring.time_limits import LEAST_S, Phase, TimeLimits


class PhaseClock:
    """A clock whose time a test sets."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time_limits.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return PhaseClock(monkeypatch)


@pytest.fixture
def announced():
    return []


@pytest.fixture
def limits(clock, announced):
    return TimeLimits(announced.append)


def stage(**work):
    return Stage(lambda: None, Work(**work))


def building(limits, clock, seconds, is_gpu=True, tier="quick"):
    limits.building("gemm/square", tier, is_gpu)
    clock.now += seconds


def test_a_kind_of_case_that_took_long_or_may_compile_has_more_time(limits, clock, announced):
    building(limits, clock, 2.0)
    building(limits, clock, 2.0)
    limits.building("gemm/batched", "quick", True)
    first, second, third = announced
    assert (first.name, first.limit_s) == ("building the case", 120.0)
    assert first.basis == "120 s for the first case of its kind, where kernels are compiled"
    assert (second.limit_s, second.basis) == (60.0, "60 s after earlier cases of its kind")
    assert third.limit_s == 120.0
    building(limits, clock, 45.0)
    limits.building("gemm/square", "quick", True)
    assert announced[-1] == Phase("building the case", 450.0, "10 times the 45 s of earlier cases of its kind")


def test_the_full_tier_may_take_five_times_as_long_on_the_host(limits, clock, announced):
    building(limits, clock, 1.0, tier="full")
    limits.calling([stage(items=1)])
    assert [phase.limit_s for phase in announced] == pytest.approx([600.0, 300.0], rel=1e-3)


def test_an_endless_kernel_is_ended_after_ten_seconds_plus_its_time_on_the_slowest_device(limits, clock, announced):
    building(limits, clock, 1.0)
    limits.calling([stage(moved=12e9)])
    clock.now += 1e-4
    limits.waiting([stage(moved=12e9)])
    assert announced[-1].limit_s == 22.0
    assert announced[-1].basis == "10 s, and 12 s for the counted work on the slowest device"
    limits.waiting([stage(items=1)])
    assert (announced[-1].limit_s, announced[-1].basis) == (pytest.approx(LEAST_S, rel=1e-3), "10 s")


@pytest.mark.parametrize(
    ("took_s", "moved", "limit_s", "basis"),
    [
        (0.01, 100e9, 20.0, "10 s, and 10 s for the counted work on a device 10 times as slow as in earlier cases"),
        (5.0, 1e9, 11.0, "10 s, and 1 s for the counted work on the slowest device"),  # never less
    ],
)
def test_earlier_cases_show_how_fast_the_device_is(limits, clock, announced, took_s, moved, limit_s, basis):
    building(limits, clock, 1.0)
    limits.waiting([stage(moved=1e9)])
    clock.now += took_s
    building(limits, clock, 1.0)
    limits.waiting([stage(moved=moved)])
    assert (announced[-1].limit_s, announced[-1].basis) == (pytest.approx(limit_s), basis)


def test_a_warm_up_may_take_ten_times_the_first_calls_of_its_own_case(limits, clock, announced):
    building(limits, clock, 1.0, is_gpu=False)
    limits.calling([stage(items=1)])
    clock.now += 1.0
    limits.waiting([stage(items=1)])
    assert announced[-1].name == "making the first calls", "the host has nothing to wait for"
    clock.now += 2.0
    limits.warming_up("hot", rest_s=0.5)
    assert announced[-1] == Phase("warming up hot", 45.0, "10 s and 10 calls of 3.50 s")
    building(limits, clock, 1.0)
    limits.calling([stage(items=1)])
    clock.now += 30.0
    building(limits, clock, 1.0)
    limits.warming_up("hot", 0.0)
    assert announced[-1].limit_s == LEAST_S


def test_sampling_may_take_thirty_batches_since_its_last_sign_of_life(limits, clock, announced):
    limits.sampling("hot", 0.2)
    assert announced == [Phase("sampling hot", 16.0, "10 s and 30 batches of 200 ms")]
    for _ in range(100):
        clock.now += 0.05
        limits.report_progress()
    assert len(announced) == 5, "told once a second at the most"
    assert set(announced) == {announced[0]}


def test_sampling_without_a_warm_up_has_ten_first_calls_and_a_checked_batch_thirty(limits, clock, announced):
    building(limits, clock, 1.0)
    limits.calling([stage(items=1)], batch_s=2.0)
    assert announced[-1].limit_s == pytest.approx(120.0)
    assert announced[-1].basis.endswith("first calls compile and load, and 30 batches of 2.00 s")
    clock.now += 11.0
    limits.warming_up("self", rest_s=0.0)
    limits.sampling("self", 0.0)
    assert announced[-1] == Phase("sampling self", 120.0, "10 s and 10 calls of 11.0 s")


@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
def test_no_phase_has_less_than_ten_seconds(limits, announced, tier):
    limits.opening()
    limits.building("a/b", tier, True)
    limits.calling([])
    limits.waiting([])
    limits.checking([])
    limits.warming_up("hot", 0.0)
    limits.sampling("hot", 1e-6)
    limits.attending()
    limits.closing()
    assert len(announced) == 9
    assert min(phase.limit_s for phase in announced) == LEAST_S
