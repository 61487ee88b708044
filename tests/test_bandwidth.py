"""The STREAM kernels and copies: counting, checks, data, points; every .cu file compiles."""

import dataclasses
import sys
from importlib import resources
from typing import Any

import _nvrtc
import numpy as np
import pytest

from gpubench import plugins
from gpubench.errors import Skip, WrongAnswer
from gpubench.model import Case, Device, Facts, Tier
from gpubench.suite import Bench, Target, Task

H200 = Device(
    "cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, dtypes=("float32",)
)
SUITE = plugins.load("suites", "bandwidth")
MIB = 2**20
MOVED = {"read": 1, "write": 1, "copy": 2, "scale": 2, "add": 3, "triad": 3, "dot": 2}


def ids(device: Device, tier: Tier) -> list[str]:
    return [case.id for case in SUITE.cases(Target(Facts((device,)), device, tier))]


def bench_of(name: str, params: dict[str, Any], backend: str = "host") -> Bench:
    room = plugins.load("backends", backend)
    device = room.devices()[0]
    case = Case("bandwidth", name, tuple(params.items()))
    return Bench(room.open(device), case, Target(Facts((device,)), device), SUITE.package)


def build(name: str, backend: str = "host", **params: Any) -> Task:
    return SUITE.build(bench_of(name, params, backend))


def stream_of(dtype: str, size_bytes: int = MIB, backend: str = "host") -> Any:
    bench = bench_of("triad", {"size_bytes": size_bytes, "dtype": dtype}, backend)
    return sys.modules[f"{SUITE.package}._stream"].open_stream(bench, size_bytes, dtype, 3)


def assert_checked(task: Task) -> None:
    """A poisoned output fails the check, a fresh one passes."""
    task.poison()
    with pytest.raises(WrongAnswer):
        task.check()
    task.stages[""].call()
    task.check()


@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_counts_the_arrays_that_it_names(name: str) -> None:
    work = build(name, size_bytes=MIB, dtype="float64").stages[""].work
    assert work.moved == MOVED[name] * MIB


@pytest.mark.parametrize(("name", "each"), [("copy", 0), ("scale", 1), ("add", 1), ("triad", 2), ("dot", 2)])
def test_operations_are_counted_by_element(name: str, each: int) -> None:
    assert build(name, size_bytes=MIB, dtype="float32").stages[""].work.flops == each * MIB / 4


def test_a_device_copy_says_both_moved_and_payload() -> None:
    stage = build("memcpy", size_bytes=MIB).stages[""]
    assert (stage.quantity, stage.work.moved, stage.work.payload) == ("moved", 2 * MIB, MIB)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_passes_its_check_and_a_poisoned_output_does_not(name: str, dtype: str) -> None:
    assert_checked(build(name, size_bytes=MIB, dtype=dtype))


def test_a_copy_that_does_not_happen_fails_its_check() -> None:
    task = build("memcpy", size_bytes=MIB)
    task.poison()
    with pytest.raises(WrongAnswer, match=f"{MIB // 4} of {MIB // 4} elements are wrong"):
        task.check()


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


def reference(seed: int, i: int, bits: int) -> float:
    """splitmix64 in integers of any width, its upper bits as a number in [-1, 1)."""
    x = (seed + i * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    x ^= x >> 31
    return (x >> (64 - bits)) * 2.0 ** (1 - bits) - 1


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 53)])
def test_the_data_are_splitmix64_of_seed_and_index(dtype: str, bits: int) -> None:
    drawn = stream_of(dtype).drawn()
    for i in (0, 1, 2, 12345, drawn.array.size - 1):
        assert drawn.array[i] == reference(int(drawn.seed), i, bits)


def test_the_data_are_random_seeded_and_never_all_alike() -> None:
    first, again = stream_of("float64"), stream_of("float64")
    b, c = first.drawn(), first.drawn()
    assert b.seed != c.seed
    assert abs(b.array.mean()) < 0.02
    assert abs(np.corrcoef(b.array, c.array)[0, 1]) < 0.02
    np.testing.assert_array_equal(again.drawn().array, b.array)


def test_only_arrays_of_four_caches_are_held_against_memory() -> None:
    cache_bytes = plugins.load("backends", "host").devices()[0].cache_bytes
    small, large = (build("write", size_bytes=size, dtype="float32") for size in (MIB, 4 * cache_bytes))
    assert small.stages[""].limit == ""
    assert "cache" in small.notes
    assert large.stages[""].limit == "dram"
    assert "cache" not in large.notes


def test_notes_say_how_many_threads_ran() -> None:
    assert build("triad", size_bytes=MIB, dtype="float32").notes["threads"]


def test_quick_on_an_h200() -> None:
    assert ids(H200, "quick") == [
        "bandwidth/read[size=8MiB,dtype=float32]",
        "bandwidth/read[size=1GiB,dtype=float32]",
        "bandwidth/read[size=4GiB,dtype=float32]",
        "bandwidth/write[size=1GiB,dtype=float32]",
        "bandwidth/copy[size=8MiB,dtype=float32]",
        "bandwidth/copy[size=1GiB,dtype=float32]",
        "bandwidth/copy[size=4GiB,dtype=float32]",
        "bandwidth/scale[size=1GiB,dtype=float32]",
        "bandwidth/add[size=1GiB,dtype=float32]",
        "bandwidth/triad[size=1GiB,dtype=float32]",
        "bandwidth/triad[size=1GiB,dtype=float64]",
        "bandwidth/dot[size=1GiB,dtype=float32]",
        "bandwidth/memcpy[size=8MiB]",
        "bandwidth/memcpy[size=1GiB]",
        "bandwidth/h2d[memory=pinned,size=1MiB]",
        "bandwidth/h2d[memory=pinned,size=256MiB]",
        "bandwidth/h2d[memory=pageable,size=1MiB]",
        "bandwidth/h2d[memory=pageable,size=256MiB]",
        "bandwidth/d2h[memory=pinned,size=1MiB]",
        "bandwidth/d2h[memory=pinned,size=256MiB]",
        "bandwidth/d2h[memory=pageable,size=1MiB]",
        "bandwidth/d2h[memory=pageable,size=256MiB]",
    ]


def test_three_arrays_fit_the_memory_in_every_tier() -> None:
    small = dataclasses.replace(H200, memory_bytes=8 * 2**30, cache_bytes=32 * 2**20)
    for tier in ("smoke", "quick", "full"):
        cases = list(SUITE.cases(Target(Facts((small,)), small, tier)))
        assert max(3 * int(case.param("size_bytes")) for case in cases) < small.memory_bytes


def test_the_host_has_no_link() -> None:
    host = plugins.load("backends", "host").devices()[0]
    assert not [case for tier in ("smoke", "quick", "full") for case in ids(host, tier) if "h2d" in case]


@pytest.mark.parametrize("name", ["read", "triad", "memcpy"])
def test_a_device_without_kernels_is_skipped_with_the_way_to_get_them(name: str) -> None:
    params = {"size_bytes": MIB} | ({} if name == "memcpy" else {"dtype": "float32"})
    with pytest.raises(Skip, match=r"numba.*gpubench-suite\[host\]"):
        build(name, backend="clockwork", **params)


def test_too_little_memory_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of("triad", {"size_bytes": 2**30, "dtype": "float32"})
    monkeypatch.setattr(bench.device, "free_bytes", lambda: 2**30)
    with pytest.raises(Skip, match=r"3\.062 GiB of memory, 1\.000 GiB are free"):
        SUITE.build(bench)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_on_a_gpu_passes_its_check_and_a_poisoned_output_does_not(name: str, dtype: str) -> None:
    assert_checked(build(name, backend="cupy", size_bytes=64 * MIB, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.parametrize("name", ["h2d", "d2h"])
def test_a_transfer_passes_its_check_and_a_poisoned_target_does_not(name: str, memory: str) -> None:
    assert_checked(build(name, backend="cupy", memory=memory, size_bytes=MIB))


@pytest.mark.gpu
def test_a_gpu_draws_the_same_data_as_the_host() -> None:
    for dtype in ("float32", "float64"):
        near, far = stream_of(dtype), stream_of(dtype, backend="cupy")
        np.testing.assert_array_equal(near.drawn().array, far.drawn().array.get())


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("file", "defines"), [("bandwidth.cu", ("float", "double")), ("latency.cu", ("",))])
def test_the_kernels_compile(file: str, defines: tuple[str, ...], arch: str) -> None:
    if _nvrtc.library() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    folder = resources.files(SUITE.package)
    source = (folder / "prelude.cuh").read_text() + (folder / file).read_text()
    for real in defines:
        options = [f"--gpu-architecture={arch}", *([f"-DREAL={real}"] if real else [])]
        status, log = _nvrtc.compiled(source, options)
        assert status == 0, log
