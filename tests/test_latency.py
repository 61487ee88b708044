"""The walk through a ring: its rings, its check, its points, and its figures on the host."""

import dataclasses
import itertools
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from _modules import suite_module

from gpubench import plugins, stats
from gpubench.analysis.quantities import judged_values
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring import plan as planning
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case, Device, Facts, Tier

H200 = Device(
    "cuda:0",
    "cupy",
    "NVIDIA H200",
    "sm_90",
    memory_bytes=140 * 2**30,
    cache_bytes=60 * 2**20,
    units=132,
    peers=("cuda:1",),
    dtypes=("float32",),
    details=(("shared.unit_bytes", str(228 * 2**10)),),
)
SUITE = plugins.load("suites", "latency")


module = partial(suite_module, "latency")


ORDER = module("_ring").RingOrder


def cases(device: Device, tier: Tier, name: str = "chase") -> list[Case]:
    return [case for case in SUITE.cases(Target(Facts((device,)), device, tier)) if case.name == name]


def sizes(device: Device, tier: Tier) -> list[int]:
    return [int(case.param("size_bytes")) for case in cases(device, tier)]


def build(name: str, backend: str = "host", seed: int = 0, **params: Any) -> tuple[Any, Task]:
    """Return an open device and the task of a case of the suite."""
    room = plugins.load("backends", backend)
    device = room.devices()[0]
    opened = room.open(device)
    case = Case("latency", name, tuple(params.items()))
    return opened, SUITE.build(Bench(opened, case, Target(Facts((device,)), device), SUITE.package, seed))


def walk_of(task: Task) -> Any:
    return task.check.__self__  # type: ignore[attr-defined]


def ring_of(task: Task) -> Any:
    """Return the host's ring, the first argument of the walk's kernel."""
    return next(
        cell.cell_contents
        for cell in walk_of(task).advance.__closure__
        if isinstance(cell.cell_contents, np.ndarray) and cell.cell_contents.size > 1
    )


def host_target(tier: Tier) -> Target:
    device = plugins.load("backends", "host").devices()[0]
    return Target(Facts((device,)), device, tier)


@pytest.mark.parametrize("nodes", [3, 7, 11, 63, 1001, 4095])
def test_an_order_visits_every_node_once(nodes: int) -> None:
    order = ORDER.drawn(np.random.default_rng(nodes), nodes, 128, 128)
    assert sorted(order.at(i) for i in range(nodes)) == list(range(nodes))


def test_the_steps_of_an_order_look_random() -> None:
    nodes = 2**15 - 1
    order = ORDER.drawn(np.random.default_rng(5), nodes, 128, 128)
    visited = np.array([order.at(i) for i in range(nodes)])
    jumps = np.abs(np.diff(visited)) / nodes
    assert abs(jumps.mean() - 1 / 3) < 0.01
    assert abs(np.corrcoef(visited[1:], visited[:-1])[0, 1]) < 0.03
    for bit in range(15):
        bits = visited >> bit & 1
        assert abs((bits[1:] == bits[:-1]).mean() - 0.5) < 0.03, bit


def test_nodes_of_a_wide_stride_lie_on_random_lines_within_it() -> None:
    order = ORDER.drawn(np.random.default_rng(1), 1023, 2**21, 128)
    offsets = np.array([order.offset(i) for i in range(1023)])
    assert sorted(offsets // 2**21) == list(range(1023))
    assert (offsets % 128 == 0).all()
    assert len(set((offsets % 2**21).tolist())) > 950


@pytest.mark.parametrize("size_bytes", [2**10, 1536, 2**14, 2**20])
def test_the_ring_is_a_single_cycle_over_all_lines_but_one(size_bytes: int) -> None:
    task = build("chase", size_bytes=size_bytes)[1]
    ring, start = ring_of(task), int(walk_of(task).state[0])
    here, visited = start, set()
    while here not in visited:
        visited.add(here)
        here = int(ring[here])
    assert here == start
    assert len(visited) == size_bytes // 64 - 1
    assert len({word * 8 // 64 for word in visited}) == len(visited)


def test_a_sample_goes_on_from_where_the_last_one_ended() -> None:
    task = build("chase", size_bytes=2**18)[1]
    call, walk = task.stages[""].call, walk_of(task)
    ends = []
    for _ in range(4):
        call()
        task.check()
        ends.append(int(walk.state[0]))
    assert len(set(ends)) == len(ends)


def test_a_ring_that_closes_too_early_fails_the_check() -> None:
    task = build("chase", size_bytes=2**14)[1]
    ring, here = ring_of(task), int(walk_of(task).state[0])
    start = here
    for _ in range(20):
        here = int(ring[here])
    ring[here] = start
    task.stages[""].call()
    with pytest.raises(WrongAnswer, match="the walk is at"):
        task.check()


@pytest.mark.parametrize("size_bytes", [2**10, 2**14, 2**20])
def test_a_kernel_that_does_not_walk_fails_the_check(size_bytes: int) -> None:
    walk = dataclasses.replace(walk_of(build("chase", size_bytes=size_bytes)[1]), advance=lambda: None)
    walk.call()
    with pytest.raises(WrongAnswer, match="the walk is at"):
        walk.check()


def test_rings_of_every_tier_exceed_the_cache_fit_the_memory_and_end_no_sample_where_it_began() -> None:
    small = dataclasses.replace(H200, memory_bytes=2**32)
    assert max(sizes(small, "full")) == 3 * 2**30, "at most three quarters of the memory"
    assert max(int(case.param("reach_bytes")) for case in cases(small, "full", "reach")) == 3 * 2**30
    for tier in ("smoke", "quick", "full"):
        assert max(sizes(H200, tier)) >= 4 * H200.cache_bytes
        for line, device in ((128, H200), (64, host_target("quick").device)):
            assert all((size // line - 1) % 2 for size in sizes(device, tier)), "an even number of nodes"


@pytest.mark.slow
def test_memory_is_slower_than_the_first_cache() -> None:
    figures = []
    for size_bytes in sizes(host_target("smoke").device, "smoke"):
        opened, task = build("chase", size_bytes=size_bytes)
        series = Engine(opened, POLICIES["smoke"]).measure(task).series[0]
        figures.append(stats.median(judged_values(series).tolist()))
    assert figures[-1] > 3 * figures[0]


def test_the_curve_of_an_h200_goes_from_a_kibibyte_to_beyond_tlb_reach() -> None:
    quick, full = sizes(H200, "quick"), sizes(H200, "full")
    assert (quick[0], quick[-1]) == (2**10, 96 * 2**30)
    assert full[-1] == quick[-1] <= H200.memory_bytes * 3 // 4
    assert set(quick) <= set(full)
    assert max(later / earlier for earlier, later in itertools.pairwise(quick)) <= 2


@pytest.mark.parametrize("level", [256 * 2**10, 60 * 2**20])
def test_points_are_dense_around_the_cache_sizes_of_the_device(level: int) -> None:
    near = [size for size in sizes(H200, "quick") if 0.6 * level <= size <= 1.4 * level]
    assert max(later / earlier for earlier, later in itertools.pairwise(near)) <= 1.125


def test_the_headline_is_a_memory_latency_within_tlb_reach_and_the_host_has_the_cases_that_need_no_gpu() -> None:
    target = Target(Facts((H200,)), H200, "quick")
    assert [case.id for case in planning.headline(SUITE, target)] == ["latency/chase[size=4GiB]"]
    assert [case.name for case in planning.headline(SUITE, host_target("quick"))] == ["chase"]
    assert {case.name for case in SUITE.cases(host_target("full"))} == {"chase", "core_to_core", "pages"}


def test_a_case_with_a_peer_needs_two_devices() -> None:
    wanted = {case.id: case.devices for case in SUITE.cases(Target(Facts((H200,)), H200, "quick"))}
    assert {wanted[f"latency/{name}[space=peer]"] for name in ("load", "atomic")} == {2}
    assert {count for case_id, count in wanted.items() if "peer" not in case_id} == {1}


def test_a_device_without_kernels_is_skipped_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    room = SUITE.package.rpartition(".")[0]
    monkeypatch.setitem(sys.modules, f"{room}._host", None)
    monkeypatch.delattr(f"{room}._host", raising=False)
    with pytest.raises(Skip, match=r"numba.*gpubench-suite\[host\]"):
        build("chase", size_bytes=2**14)


@pytest.mark.parametrize("name", ["chase", "pages"])
def test_too_little_memory_is_a_skip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = plugins.load("backends", "host")
    opened = room.open(room.devices()[0])
    monkeypatch.setattr(opened, "free_bytes", lambda: 2**20)
    params = (("page", "4KiB"), ("size_bytes", 2**24))[name == "chase" :]
    case = Case("latency", name, params)
    with pytest.raises(Skip, match=r"needs 16\.00 MiB of memory, 1\.000 MiB are free"):
        SUITE.build(Bench(opened, case, host_target("quick"), SUITE.package))


def test_a_ring_on_small_pages_has_no_large_page_and_one_on_large_pages_needs_them(monkeypatch) -> None:
    assert build("pages", page="4KiB", size_bytes=2**24)[1].notes["pages"].startswith("0 of")
    monkeypatch.setattr(module("_host"), "_huge_bytes", lambda address: 2**21)
    with pytest.raises(Skip, match="transparent_hugepage"):
        build("pages", page="2MiB", size_bytes=2**24)


def test_a_word_goes_from_core_to_core_and_back() -> None:
    if plugins.load("backends", "host").devices()[0].units < 2:
        pytest.skip("needs two cores")
    task = build("core_to_core", other=1)[1]
    seconds = task.stages[""].call()
    task.check()
    assert 1e-9 < seconds / task.stages[""].work.items < 1e-3  # type: ignore[operator]


def test_a_core_that_does_not_answer_fails_the_check_and_one_that_is_not_there_is_a_skip() -> None:
    pair = module("_round_trips").RoundTrips(np.zeros(64, np.uint64), 32, 4096, 100)
    assert pair.ask(1, 5) == 0
    with pytest.raises(WrongAnswer, match="1 of 4096 requests were sent, 0 were answered"):
        pair.check()
    with pytest.raises(Skip, match="needs 100001 cores"):
        build("core_to_core", other=100_000)
