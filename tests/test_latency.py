"""The walk through a ring: its rings, its check, its points, and its figures on the host."""

import dataclasses
import itertools
import sys
from functools import partial

import numpy as np
import pytest
from _modules import bench_on, opened, suite_module

from gpubench import plugins, stats
from gpubench.analysis.quantities import judged_values
from gpubench.authoring.axes import Target
from gpubench.authoring.task import Observed, Profile
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring import plan as planning
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Device, Facts

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


def cases(device, tier, name="chase"):
    return [case for case in SUITE.cases(Target(Facts((device,)), device, tier)) if case.name == name]


def sizes(device, tier):
    return [int(case.param("size_bytes")) for case in cases(device, tier)]


def build(name, backend="host", seed=0, **params):
    device = opened(backend)
    return device, SUITE.build(bench_on(device, SUITE, name, seed, **params))


def walk_of(task):
    return task.check.__self__  # type: ignore[attr-defined]


def ring_of(task):
    """Return the host's ring, the first argument of the walk's kernel."""
    return next(
        cell.cell_contents
        for cell in walk_of(task).advance.__closure__
        if isinstance(cell.cell_contents, np.ndarray) and cell.cell_contents.size > 1
    )


def host_target(tier):
    device = plugins.load("backends", "host").devices()[0]
    return Target(Facts((device,)), device, tier)


@pytest.mark.parametrize("nodes", [3, 7, 11, 63, 1001, 4095])
def test_an_order_visits_every_node_once(nodes):
    order = ORDER.drawn(np.random.default_rng(nodes), nodes, 128, 128)
    assert sorted(order.at(i) for i in range(nodes)) == list(range(nodes))


def test_the_steps_of_an_order_look_random_and_nodes_of_a_wide_stride_lie_on_random_lines():
    nodes = 2**15 - 1
    order = ORDER.drawn(np.random.default_rng(5), nodes, 128, 128)
    visited = np.array([order.at(i) for i in range(nodes)])
    jumps = np.abs(np.diff(visited)) / nodes
    assert abs(jumps.mean() - 1 / 3) < 0.01
    assert abs(np.corrcoef(visited[1:], visited[:-1])[0, 1]) < 0.03
    for bit in range(15):
        bits = visited >> bit & 1
        assert abs((bits[1:] == bits[:-1]).mean() - 0.5) < 0.03, bit
    order = ORDER.drawn(np.random.default_rng(1), 1023, 2**21, 128)
    offsets = np.array([order.offset(i) for i in range(1023)])
    assert sorted(offsets // 2**21) == list(range(1023))
    assert (offsets % 128 == 0).all()
    assert len(set((offsets % 2**21).tolist())) > 950


@pytest.mark.parametrize("size_bytes", [2**10, 1536, 2**14, 2**20])
def test_the_ring_is_a_single_cycle_over_all_lines_but_one(size_bytes):
    task = build("chase", size_bytes=size_bytes)[1]
    ring, start = ring_of(task), int(walk_of(task).state[0])
    here, visited = start, set()
    while here not in visited:
        visited.add(here)
        here = int(ring[here])
    assert here == start
    assert len(visited) == size_bytes // 64 - 1
    assert len({word * 8 // 64 for word in visited}) == len(visited)


def test_a_sample_goes_on_from_where_the_last_one_ended():
    task = build("chase", size_bytes=2**18)[1]
    call, walk = task.stages[""].call, walk_of(task)
    ends = []
    for _ in range(4):
        call()
        task.check()
        ends.append(int(walk.state[0]))
    assert len(set(ends)) == len(ends)


def test_a_ring_that_closes_too_early_fails_the_check():
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
def test_a_kernel_that_does_not_walk_fails_the_check(size_bytes):
    walk = dataclasses.replace(walk_of(build("chase", size_bytes=size_bytes)[1]), advance=lambda: None)
    walk.call()
    with pytest.raises(WrongAnswer, match="the walk is at"):
        walk.check()


def test_rings_of_every_tier_exceed_the_cache_fit_the_memory_and_end_no_sample_where_it_began():
    small = dataclasses.replace(H200, memory_bytes=2**32)
    assert max(sizes(small, "full")) == 3 * 2**30, "at most three quarters of the memory"
    assert max(int(case.param("reach_bytes")) for case in cases(small, "full", "reach")) == 3 * 2**30
    for tier in ("smoke", "quick", "full"):
        assert max(sizes(H200, tier)) >= 4 * H200.cache_bytes
        for line, device in ((128, H200), (64, host_target("quick").device)):
            assert all((size // line - 1) % 2 for size in sizes(device, tier)), "an even number of nodes"


@pytest.mark.slow
def test_memory_is_slower_than_the_first_cache():
    figures = []
    for size_bytes in sizes(host_target("smoke").device, "smoke"):
        opened, task = build("chase", size_bytes=size_bytes)
        series = Engine(opened, POLICIES["smoke"]).measure(task).series[0]
        figures.append(stats.median(judged_values(series).tolist()))
    assert figures[-1] > 3 * figures[0]


def test_the_curve_of_an_h200_goes_from_a_kibibyte_to_beyond_tlb_reach():
    quick, full = sizes(H200, "quick"), sizes(H200, "full")
    assert (quick[0], quick[-1]) == (2**10, 96 * 2**30)
    assert full[-1] == quick[-1] <= H200.memory_bytes * 3 // 4
    assert set(quick) <= set(full)
    assert max(later / earlier for earlier, later in itertools.pairwise(quick)) <= 2
    for level in (256 * 2**10, 60 * 2**20):  # the points are dense around the cache sizes
        near = [size for size in quick if 0.6 * level <= size <= 1.4 * level]
        assert max(later / earlier for earlier, later in itertools.pairwise(near)) <= 1.125


def test_the_headline_is_a_memory_latency_within_tlb_reach_and_the_host_has_the_cases_that_need_no_gpu():
    target = Target(Facts((H200,)), H200, "quick")
    assert [case.id for case in planning.headline(SUITE, target)] == ["latency/chase[size=4GiB]"]
    assert [case.name for case in planning.headline(SUITE, host_target("quick"))] == ["chase"]
    assert {case.name for case in SUITE.cases(host_target("full"))} == {"chase", "core_to_core", "pages"}
    wanted = {case.id: case.devices for case in SUITE.cases(target)}
    assert {wanted[f"latency/{name}[space=peer]"] for name in ("load", "atomic")} == {2}
    assert {count for case_id, count in wanted.items() if "peer" not in case_id} == {1}


def test_a_device_without_kernels_is_skipped_with_the_way_to_get_them(monkeypatch):
    room = SUITE.package.rpartition(".")[0]
    monkeypatch.setitem(sys.modules, f"{room}._host", None)
    monkeypatch.delattr(f"{room}._host", raising=False)
    with pytest.raises(Skip, match=r"numba.*gpubench-suite\[host\]"):
        build("chase", size_bytes=2**14)


@pytest.mark.parametrize("name", ["chase", "pages"])
def test_too_little_memory_is_a_skip(name, monkeypatch):
    device = opened()
    monkeypatch.setattr(device, "free_bytes", lambda: 2**20)
    params = {"size_bytes": 2**24} if name == "chase" else {"page": "4KiB", "size_bytes": 2**24}
    with pytest.raises(Skip, match=r"needs 16\.00 MiB of memory, 1\.000 MiB are free"):
        SUITE.build(bench_on(device, SUITE, name, **params))


def test_a_ring_on_small_pages_has_no_large_page_and_one_on_large_pages_needs_them(monkeypatch):
    assert build("pages", page="4KiB", size_bytes=2**24)[1].notes["pages"].startswith("0 of")
    monkeypatch.setattr(module("_host"), "_huge_bytes", lambda address: 2**21)
    with pytest.raises(Skip, match="transparent_hugepage"):
        build("pages", page="2MiB", size_bytes=2**24)


def test_a_word_goes_from_core_to_core_and_back():
    if plugins.load("backends", "host").devices()[0].units < 2:
        pytest.skip("needs two cores")
    task = build("core_to_core", other=1)[1]
    seconds = task.stages[""].call()
    task.check()
    assert 1e-9 < seconds / task.stages[""].work.items < 1e-3  # type: ignore[operator]


def test_a_core_that_does_not_answer_fails_the_check_and_one_that_is_not_there_is_a_skip():
    pair = module("_round_trips").RoundTrips(np.zeros(64, np.uint64), 32, 4096, 100)
    assert pair.ask(1, 5) == 0
    with pytest.raises(WrongAnswer, match="1 of 4096 requests were sent, 0 were answered"):
        pair.check()
    with pytest.raises(Skip, match="needs 100001 cores"):
        build("core_to_core", other=100_000)


# ---- Computations of the latency suite outside of kernels: chains known in advance, banks, percentiles, slices.


NEAR, SLICES = module("_near"), module("_slices")
WORDS = NEAR._CONFLICT_BYTES // 4


@pytest.mark.parametrize("modulus", [2**32, 2**62])
def test_the_result_of_a_chain_of_multiply_adds_is_computed_without_walking_it(modulus):
    x = 3
    for _ in range(1000):
        x = (5 * x + 7) % modulus
    assert NEAR.chained(3, 5, 7, 1000, modulus) == x
    assert NEAR.chained(15, 1, 15, NEAR._REGISTER_STEPS, 2**62) < 2**24, "exact in single precision"


def test_the_sums_of_atomic_additions_to_alternating_cells_are_computed_in_advance():
    words = np.random.default_rng(2).integers(2**63, size=5, dtype=np.uint64)
    value, cells = words[0], words[1:].copy()
    for step in range(1000):
        before = cells[step % 4 : step % 4 + 1].copy()
        cells[step % 4 : step % 4 + 1] += value  # arrays wrap, as the device's words do
        value = before[0]
    predicted = [int(word) for word in words[1:]]
    assert NEAR.after_additions(int(words[0]), predicted, 1000, 2**64) == int(value)
    assert predicted == cells.tolist()
    for steps in (NEAR._STEPS // 16, NEAR._BUS_STEPS, NEAR._FAR_STEPS):
        assert steps % NEAR._CELLS == 0, "each launch begins at the first cell"


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8, 16, 24, 32])
def test_the_degree_is_the_number_of_lanes_that_conflict_in_a_bank(degree, lanes):
    rings = NEAR.conflict_rings(np.random.default_rng(0), degree, lanes, WORDS)
    used = np.concatenate(rings)
    assert len(set(used.tolist())) == len(used), "two lanes share a word"
    assert used.max() < WORDS
    for lane, ring in enumerate(rings):
        assert len(ring) % 2, "a power of two of steps leads back"
        assert len(ring) > 1
        assert len(set((ring % 32).tolist())) == 1, lane
    for first in range(0, lanes, 32):
        banks = [int(ring[0]) % 32 for ring in rings[first : first + 32]]
        assert max(banks.count(bank) for bank in banks) == degree


def test_the_cost_of_reading_the_clock_is_subtracted_from_single_loads():
    took = np.array([40] * 989 + [300] * 10 + [2000], np.uint32)
    figures = module("_spaces").single_figures(took, np.full(64, 37, np.uint32), 32.0)
    assert figures == {"p50": 35.0, "p90": 35.0, "p99": 295.0, "p99.9": pytest.approx(296.7, abs=1), "max": 1995.0} | {
        "overhead": 5.0
    }


def partitioned(far, units=24, lines=96, noise=0.5):
    """Return latencies (units × lines) of a cache of two partitions, with six groups of units and twelve slices."""
    rng = np.random.default_rng(7)
    unit_place, line_slice = rng.permutation(units) % 6, rng.permutation(lines) % 12
    hops = 10 * np.arange(6)[:, None] + 4 * (np.arange(12)[None, :] * 7 % 12) + rng.integers(0, 9, (6, 12))
    crossing = far * (np.arange(6)[:, None] % 2 != np.arange(12)[None, :] % 2)
    matrix = 250.0 + (hops + crossing)[unit_place][:, line_slice] + rng.normal(0, noise, (units, lines))
    return matrix, unit_place, line_slice


def test_partitions_are_found_by_latency_alone():
    matrix, unit_place, line_slice = partitioned(200.0)
    partition = SLICES.partitions(matrix)
    same = unit_place[:, None] % 2 == line_slice[None, :] % 2
    assert ((partition.of_units[:, None] == partition.of_lines[None, :]) == same).all()
    assert partition.near == np.median(matrix[same])
    assert partition.far == np.median(matrix[~same])
    assert partition.separation > 4
    matrix, _, _ = partitioned(0.0)
    assert SLICES.partitions(matrix).separation < 2


def test_sms_and_lines_are_grouped_by_their_place():
    matrix, unit_place, _ = partitioned(200.0)
    observed = SLICES.places(matrix, list(range(100, 124)))
    assert (observed["unit_groups"].value, observed["line_groups"].value) == (6, 12)
    rows = [name for name in observed if name.startswith("unit ")]
    places = [int(unit_place[int(name.removeprefix("unit ")) - 100]) for name in rows]
    assert len(rows) == 24
    assert sum(first != second for first, second in itertools.pairwise(places)) == 5, "places stand together"
    assert [place % 2 for place in places] == sorted((place % 2 for place in places), reverse=places[0] % 2 == 1)


def test_a_row_of_the_matrix_has_the_mean_latency_to_each_place():
    matrix, _, line_slice = partitioned(200.0, noise=0.0)
    observed = SLICES.places(matrix, list(range(24)))
    row = observed["unit 3"]
    assert isinstance(row, Profile)
    assert row.unit == "cycles"
    assert sorted(row.values) == pytest.approx(
        sorted(matrix[3][line_slice == place].mean() for place in range(12)), abs=1e-9
    )
    assert isinstance(observed["near"], Observed)
