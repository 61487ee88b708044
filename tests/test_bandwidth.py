"""The STREAM kernels and copies: counting, checks, data, points."""

import dataclasses
from typing import Any

import _make as make
import numpy as np
import pytest
from _bandwidth import H200, MIB, SUITE, PlainGpu, assert_checked, bench_of, build, build_on, ids, sibling
from _modules import room_module
from _poison import expect_unwritten

from gpubench import plugins
from gpubench.api.suite import random_words
from gpubench.authoring.axes import Target
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Facts

MOVED = {"read": 1, "write": 1, "copy": 2, "scale": 2, "add": 3, "triad": 3, "dot": 2}


def stream_of(dtype: str, size_bytes: int = MIB, backend: str = "host", **shape: int) -> Any:
    """Return the three arrays of a stream case with their kernels; `shape` fixes the launch."""
    stream = room_module("suites", "_stream")
    bench = bench_of("triad", {"size_bytes": size_bytes, "dtype": dtype}, backend)
    return stream.open_stream(bench, size_bytes, dtype, 3, stream.LaunchShape(**shape))


@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_counts_the_arrays_that_it_names(name: str) -> None:
    work = build(name, size_bytes=MIB, dtype="float64").stages[""].work
    assert work.moved == MOVED[name] * MIB


@pytest.mark.parametrize(("name", "per_element"), [("copy", 0), ("scale", 1), ("add", 1), ("triad", 2), ("dot", 2)])
def test_operations_are_counted_by_element(name: str, per_element: int) -> None:
    assert build(name, size_bytes=MIB, dtype="float32").stages[""].work.flops == per_element * MIB / 4


def test_a_device_copy_says_both_moved_and_payload() -> None:
    stage = build("memcpy", size_bytes=MIB).stages[""]
    assert (stage.quantity, stage.work.moved, stage.work.payload) == ("moved", 2 * MIB, MIB)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_passes_its_check_and_a_poisoned_output_does_not(name: str, dtype: str) -> None:
    assert_checked(build(name, size_bytes=MIB, dtype=dtype))


@pytest.mark.parametrize("name", ["read", "triad", "dot"])
def test_one_thread_gives_the_same_result_as_all_and_the_thread_count_is_restored(name: str) -> None:
    assert_checked(build("occupancy", kernel=name, threads=1, size_bytes=MIB))
    numba = pytest.importorskip("numba")
    assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS


def test_a_copy_that_does_not_happen_fails_its_check() -> None:
    task = build("memcpy", size_bytes=MIB)
    expect_unwritten(task, f"{MIB // 4} of {MIB // 4} elements are wrong")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_element_off_by_one_unit_in_the_last_place_is_found(dtype: str) -> None:
    stream = stream_of(dtype)
    b, c = stream.drawn(), stream.drawn()
    verify = stream.verifier(b.array, (b, c), (0, 1, 0))
    verify()
    b.array[4321] = np.nextafter(b.array[4321], b.array.dtype.type(2))
    with pytest.raises(WrongAnswer, match="1 of"):
        verify()


def test_a_partial_sum_that_misses_an_element_is_out_of_bounds() -> None:
    stream = stream_of("float32", 2**24)
    b = stream.drawn()
    assert np.median(np.abs(b.array)) ** 2 > stream.bound()


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 53)])
def test_the_data_are_splitmix64_of_seed_and_index(dtype: str, bits: int) -> None:
    drawn = stream_of(dtype).drawn()
    for i in (0, 1, 2, 12345, drawn.array.size - 1):
        assert drawn.array[i] == (int(random_words(int(drawn.seed), i, 1)[0]) >> (64 - bits)) * 2.0 ** (1 - bits) - 1


def test_only_arrays_of_at_least_four_caches_are_compared_with_the_memory_bandwidth() -> None:
    cache_bytes = plugins.load("backends", "host").devices()[0].cache_bytes
    small, large = (build("write", size_bytes=size, dtype="float32") for size in (MIB, 4 * cache_bytes))
    assert small.stages[""].limit == ""
    assert "cache" in small.notes
    assert large.stages[""].limit == "dram"
    assert "cache" not in large.notes


def test_quick_on_an_h200_measures_every_topic() -> None:
    names = {case.split("[")[0] for case in ids(H200, "quick")}
    assert names == {f"bandwidth/{name}" for name in SUITE.definitions}
    assert len(ids(H200, "quick")) < 110


@pytest.mark.parametrize("case", ["device_copy", "device_copy_on", "beside_gemm", "beside_gemm_on"])
@pytest.mark.parametrize("engine", ["async-copy", "bulk-copy"])
def test_a_device_without_an_engine_is_skipped_with_the_reason(case: str, engine: str) -> None:
    params: dict[str, Any] = {"engine": engine}
    params |= {"units": 4} if case.endswith("_on") else {}
    params |= {"size_bytes": MIB} if case.startswith("device") else {}
    with pytest.raises(Skip, match=f"sm_70 does not support {engine}"):
        build_on(PlainGpu(), case, **params)


def test_the_arrays_of_a_case_fit_the_memory_in_every_tier() -> None:
    small = dataclasses.replace(H200, memory_bytes=8 * 2**30, cache_bytes=32 * 2**20)
    for tier in ("smoke", "quick", "full"):
        cases = list(SUITE.cases(Target(Facts((small,)), small, tier)))
        sizes = [int(case.param("size_bytes")) for case in cases if "size_bytes" in dict(case.params)]
        assert max(3 * size for size in sizes) < small.memory_bytes


def test_the_host_has_no_link_and_no_multiprocessors() -> None:
    host = plugins.load("backends", "host").devices()[0]
    names = {case.split("[")[0] for tier in ("smoke", "quick", "full") for case in ids(host, tier)}
    gpu_alone = {"h2d", "d2h", "duplex", "shared", "access_width", "device_copy_on", "beside_gemm", "beside_gemm_on"}
    assert not names & {f"bandwidth/{name}" for name in gpu_alone}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("read", {"size_bytes": MIB, "dtype": "float32"}),
        ("triad", {"size_bytes": MIB, "dtype": "float32"}),
        ("memcpy", {"size_bytes": MIB}),
        ("working_set", {"kernel": "read", "size_bytes": MIB}),
        ("strided", {"access": "read", "stride_bytes": 32, "size_bytes": MIB}),
        ("random", {"access": "write", "chunk_bytes": 32, "size_bytes": MIB}),
    ],
)
def test_a_device_without_kernels_is_skipped_with_the_way_to_get_them(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(Skip, match=r"numba.*gpubench-suite\[host\]"):
        build(name, backend="clockwork", **params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("triad", {"size_bytes": 2**30, "dtype": "float32"}),
        ("occupancy", {"kernel": "triad", "threads": 1, "size_bytes": 2**30}),
        ("working_set", {"kernel": "read", "size_bytes": 3 * 2**30}),
        ("strided", {"access": "read", "stride_bytes": 4, "size_bytes": 3 * 2**30}),
        ("random", {"access": "read", "chunk_bytes": 4, "size_bytes": 3 * 2**30}),
    ],
)
def test_too_little_memory_is_a_skip(name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(name, params)
    monkeypatch.setattr(bench.device, "free_bytes", lambda: 2**30)
    with pytest.raises(Skip, match=r"3\.062 GiB of memory, 1\.000 GiB are free"):
        SUITE.build(bench)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("h2d", {"memory": "pinned", "size_bytes": 2**40}),
        ("duplex", {"memory": "pinned", "size_bytes": 2**39}),
        ("device_copy", {"engine": "memcpy", "size_bytes": 2**40}),
        ("device_copy_on", {"engine": "load-store", "units": 1, "size_bytes": 2**40}),
    ],
)
def test_a_copy_beyond_the_memory_of_a_gpu_is_a_skip(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(Skip, match=r"TiB of memory, 1\.000 TiB are free"):
        build_on(PlainGpu(), name, **params)


# ---- Working sets, parts of cache lines, sums in shared memory, strides and random order, on the host.


@pytest.mark.parametrize("kernel", ["read", "write", "copy"])
def test_passes_over_a_working_set_are_checked(kernel: str) -> None:
    assert_checked(build("working_set", kernel=kernel, size_bytes=MIB))


def test_every_pass_is_counted_and_one_that_is_left_out_is_found() -> None:
    task, host = build("working_set", kernel="copy", size_bytes=MIB), sibling("_host")
    call = task.stages[""].call
    call()
    names = call.__code__.co_freevars  # type: ignore[attr-defined]
    bound = {name: cell.cell_contents for name, cell in zip(names, call.__closure__, strict=True)}  # type: ignore[attr-defined]
    host._copy(bound["there"], bound["back"], bound["passes"] - 2)
    with pytest.raises(WrongAnswer, match="turns are not a whole number of calls"):
        task.check()
    read, copy = (build("working_set", kernel=kernel, size_bytes=MIB).stages[""].work for kernel in ("read", "copy"))
    assert read.moved == read.payload >= 2**27
    assert copy.moved == 2 * copy.payload
    assert read.moved % MIB == copy.moved % MIB == 0


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(("name", "params"), [("strided", {"stride_bytes": 32}), ("random", {"chunk_bytes": 32})])
def test_accesses_to_parts_of_lines_are_checked(name: str, params: dict[str, Any], access: str) -> None:
    assert_checked(build(name, access=access, **params, size_bytes=4 * MIB))


@pytest.mark.parametrize(
    ("stride", "payload", "sectors"), [(4, 1, 1), (16, 1 / 4, 1), (64, 1 / 16, 1), (256, 1 / 64, 1 / 4)]
)
def test_a_strided_access_requests_words_and_moves_whole_sectors(stride: int, payload: float, sectors: float) -> None:
    task = build("strided", access="read", stride_bytes=stride, size_bytes=4 * MIB)
    stage = task.stages[""]
    assert stage.work.payload == payload * 4 * MIB
    assert stage.also["sectors"].payload == sectors * 4 * MIB  # 64 bytes, the host's line size
    stage.call()
    assert task.check()["used"].value == payload / sectors  # type: ignore[union-attr]


@pytest.mark.parametrize(("chunk", "used"), [(4, 1 / 16), (64, 1), (128, 1)])
def test_a_chunk_in_random_order_moves_whole_sectors(chunk: int, used: float) -> None:
    stage = build("random", access="read", chunk_bytes=chunk, size_bytes=4 * MIB).stages[""]
    assert stage.work.payload / stage.also["sectors"].payload == used


@pytest.mark.parametrize("bits", [1, 2, 9, 16])
def test_the_random_order_visits_every_chunk_once_and_equals_that_of_the_kernel(bits: int) -> None:
    pytest.importorskip("numba")
    build("random", access="read", chunk_bytes=32, size_bytes=MIB)
    host = sibling("_host")
    pattern = sibling("_pattern").AccessPattern("random", 4, (bits, 0, 12345), 2**bits, 0, 0, 0)
    order = pattern.places(np.arange(2**bits, dtype=np.uint64))
    assert sorted(order.tolist()) == list(range(2**bits))
    kernel = [host._permuted(np.uint64(t), np.uint64(bits), np.uint64(12345)) for t in range(2**bits)]
    assert kernel == order.tolist()


def simulated(access: str, words: np.ndarray, width: int, passes: int) -> list[int]:
    """Return the sums that bandwidth_cache.cu leaves in shared memory, computed thread by thread in Python."""
    threads, lanes = 1024, width // 4
    outputs = []
    for thread in range(threads):
        mine = []
        for turn in range(4):
            at = (turn * threads + (thread if access == "read" else thread ^ 1)) * lanes
            word = [int(x) for x in words[at : at + lanes]]
            total = [0] * lanes
            for _ in range(passes):
                total = [(5 * x + y) % 2**32 for x, y in zip(total, word, strict=True)]
            mine.append(total if access == "read" else word)
        bits = 0
        for word in mine:
            folded = 0
            for lane, value in enumerate(word):
                folded ^= value << (32 * (lane % 2))
            bits = ((bits << 1 | bits >> 63) % 2**64) ^ folded
        outputs.append(bits)
    return outputs


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("access", ["read", "write"])
def test_the_expected_sums_of_shared_memory_are_those_that_its_kernel_computes(access: str, width: int) -> None:
    """Of the other input, the words in reverse order, they differ in almost every thread."""
    words = np.random.default_rng(1).integers(2**32, size=1024 * 4 * width // 4, dtype=np.uint32)
    expected = sibling("_cache")._expected(access, words, width, 7)
    assert expected.tolist() == simulated(access, words, width, 7)
    assert np.mean(expected != sibling("_cache")._expected(access, words[::-1], width, 7)) > 0.99


def target_of(units: int, arch: str = "sm_90") -> Target:
    device = make.device(arch=arch, units=units)
    return Target(make.facts(device), device, "full")


@pytest.mark.parametrize(("units", "size"), [(132, 2**21), (132, 2**24), (108, 2**25), (1, 2**20), (132, 2**28)])
@pytest.mark.parametrize(("cached", "arch"), [(True, "sm_90"), (False, "sm_90"), (False, "sm_89"), (False, "sm_75")])
def test_a_sweep_reads_every_vector_of_its_working_set(units: int, size: int, cached: bool, arch: str) -> None:
    vectors, tile, turns, hop, blocks = sibling("_cache").layout(target_of(units, arch), size, cached)
    tiles = vectors // tile
    assert tiles >= 64
    assert tile % 1024 == 0
    first = np.arange(blocks)[:, None] + hop * np.arange(turns)
    assert set((first % tiles).ravel()) == set(range(tiles))
    assert turns * blocks * tile >= max(vectors, 2**28)


def test_beyond_the_cache_almost_every_tile_is_read_again_only_after_all_others() -> None:
    vectors, tile, turns, hop, blocks = sibling("_cache").layout(target_of(132), 2**28, False)
    order = ((hop * np.arange(turns)[:, None] + np.arange(blocks)) % (vectors // tile)).ravel()
    places = np.argsort(order, kind="stable")
    gaps = np.diff(places)[np.diff(order[places]) == 0]
    assert np.mean(gaps < vectors // tile - 1) < 0.002


def test_the_host_has_a_working_set_in_each_cache_and_one_in_memory() -> None:
    at, bench = sibling("_cache"), bench_of("working_set", {})
    sets = at._set_sizes(bench.target).quick
    assert list(sets) == sorted(set(sets))
    assert sets[-1] >= 4 * bench.target.device.cache_bytes
