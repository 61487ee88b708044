"""The pointer chase: its rings, its check, its points."""

import dataclasses
from typing import Any

import pytest

from gpubench import plugins, stats
from gpubench.errors import Skip, WrongAnswer
from gpubench.measure import Engine
from gpubench.model import Case, Device, Facts, Tier
from gpubench.stopping import RULES
from gpubench.suite import Bench, Target, Task
from gpubench.summary import judged_values

H200 = Device(
    "cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, dtypes=("float32",)
)
SUITE = plugins.load("suites", "latency")


def ids(device: Device, tier: Tier) -> list[str]:
    return [case.id for case in SUITE.cases(Target(Facts((device,)), device, tier))]


def build(name: str, size_bytes: int, backend: str = "host", seed: int = 0) -> tuple[Any, Task]:
    room = plugins.load("backends", backend)
    device = room.devices()[0]
    opened = room.open(device)
    case = Case("latency", name, (("size_bytes", size_bytes),))
    return opened, SUITE.build(Bench(opened, case, Target(Facts((device,)), device), SUITE.package, seed))


def walk_of(task: Task) -> Any:
    return task.check.__self__  # type: ignore[attr-defined]


@pytest.mark.parametrize("size_bytes", [2**14, 2**20])
def test_the_ring_is_a_single_cycle_over_all_lines_but_one(size_bytes: int) -> None:
    ring = walk_of(build("chase", size_bytes)[1]).ring
    start = here = int(walk_of(build("chase", size_bytes)[1]).state[0])
    visited = set()
    while here not in visited:
        visited.add(here)
        here = int(ring[here])
    assert here == start
    assert len(visited) == size_bytes // 64 - 1
    assert len({word * 8 // 64 for word in visited}) == len(visited)


def test_another_seed_is_another_ring() -> None:
    assert walk_of(build("chase", 2**14, seed=1)[1]).order.tolist() != walk_of(build("chase", 2**14)[1]).order.tolist()


def test_a_sample_goes_on_from_where_the_last_one_ended() -> None:
    task = build("chase", 2**18)[1]
    call, walk = task.stages[""].call, walk_of(task)
    ends = []
    for _ in range(4):
        call()
        task.check()
        ends.append(int(walk.state[0]))
    assert len(set(ends)) == len(ends)


def test_a_ring_that_closes_too_early_fails_the_check() -> None:
    task = build("chase", 2**14)[1]
    walk = walk_of(task)
    walk.ring[int(walk.order[20]) * walk.node] = int(walk.order[0]) * walk.node
    task.stages[""].call()
    with pytest.raises(WrongAnswer, match="the walk stands at"):
        task.check()


@pytest.mark.parametrize("size_bytes", [2**14, 2**20])
def test_a_kernel_that_does_not_walk_fails_the_check(size_bytes: int) -> None:
    walk = dataclasses.replace(walk_of(build("chase", size_bytes)[1]), advance=lambda: None)
    walk.call()
    with pytest.raises(WrongAnswer, match="the walk stands at"):
        walk.check()


def test_a_ring_that_fits_the_cache_is_walked_whole_each_sample() -> None:
    for size_bytes in (2**14, 2**18, 2**23):
        assert build("chase", size_bytes)[1].stages[""].work.items >= size_bytes // 64


def test_memory_is_slower_than_the_first_cache() -> None:
    sizes = [case.param("size_bytes") for case in SUITE.cases(host_target("smoke"))]
    figures = []
    for size_bytes in sizes:
        opened, task = build("chase", int(size_bytes))
        series = Engine(opened, RULES["smoke"]).measure(task).series[0]
        figures.append(stats.median(judged_values(series).tolist()))
    assert figures[-1] > 3 * figures[0]


def host_target(tier: Tier) -> Target:
    device = plugins.load("backends", "host").devices()[0]
    return Target(Facts((device,)), device, tier)


def test_quick_on_an_h200_goes_from_the_first_cache_to_memory() -> None:
    assert ids(H200, "quick") == [
        "latency/chase[size=16KiB]",
        "latency/chase[size=64KiB]",
        "latency/chase[size=256KiB]",
        "latency/chase[size=1MiB]",
        "latency/chase[size=4MiB]",
        "latency/chase[size=16MiB]",
        "latency/chase[size=256MiB]",
        "latency/chase[size=1GiB]",
        "latency/chase[size=4GiB]",
        "latency/shared[size=16KiB]",
        "latency/launch",
    ]


def test_every_tier_ends_at_four_caches_or_more() -> None:
    for tier in ("smoke", "quick", "full"):
        cases = [case for case in SUITE.cases(Target(Facts((H200,)), H200, tier)) if case.name == "chase"]
        assert max(int(case.param("size_bytes")) for case in cases) >= 4 * H200.cache_bytes


def test_a_small_gpu_is_not_asked_for_more_than_a_quarter_of_its_memory() -> None:
    small = dataclasses.replace(H200, memory_bytes=2**32)
    cases = [case for case in SUITE.cases(Target(Facts((small,)), small, "full")) if case.name == "chase"]
    assert max(int(case.param("size_bytes")) for case in cases) == 2**30


def test_the_host_has_no_shared_memory_case() -> None:
    assert {case.name for case in SUITE.cases(host_target("full"))} == {"chase"}


def test_a_device_without_kernels_is_skipped_with_the_way_to_get_them() -> None:
    with pytest.raises(Skip, match=r"numba.*gpubench-suite\[host\]"):
        build("chase", 2**14, backend="clockwork")


def test_too_little_memory_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    room = plugins.load("backends", "host")
    opened = room.open(room.devices()[0])
    monkeypatch.setattr(opened, "free_bytes", lambda: 2**20)
    case = Case("latency", "chase", (("size_bytes", 2**24),))
    with pytest.raises(Skip, match=r"needs 32\.00 MiB of memory, 1\.000 MiB are free"):
        SUITE.build(Bench(opened, case, host_target("quick"), SUITE.package))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "size_bytes", "least", "most"),
    [("chase", 2**14, 25, 60), ("chase", 2**22, 150, 400), ("chase", 2**30, 450, 1500), ("shared", 2**14, 18, 60)],
)
def test_cycles_on_a_gpu_are_those_of_the_level_that_the_ring_lies_in(
    name: str, size_bytes: int, least: float, most: float
) -> None:
    opened, task = build(name, size_bytes, backend="cupy")
    measured = {series.name: series for series in Engine(opened, RULES["quick"]).measure(task).series}
    cycles = stats.median(measured["cycles"].values)
    seconds = stats.median(judged_values(measured["hot"]).tolist())
    assert least < cycles < most
    assert 0.8e9 < cycles / seconds < 3e9, "cycles and seconds do not agree on a clock"


@pytest.mark.gpu
def test_a_broken_ring_on_a_gpu_fails_the_check() -> None:
    _, task = build("chase", 2**14, backend="cupy")
    walk = walk_of(task)
    walk.ring.fill(0)
    walk.state.fill(0)
    with pytest.raises(WrongAnswer, match="the walk stands at"):
        task.check()
