"""The bandwidth suite on a real GPU: every kind of case is checked, and its checks can fail."""

from typing import Any

import numpy as np
import pytest
from _bandwidth import MIB, assert_checked, build_on
from _poison import overwrite
from test_bandwidth import MOVED, stream_of

from gpubench import plugins
from gpubench.base.errors import Skip
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES

pytestmark = pytest.mark.gpu

ENGINES = ("load-store", "memcpy", "async-copy", "bulk-copy")


@pytest.fixture(scope="module")
def gpu() -> Any:
    """Return the first GPU, open in this process."""
    device = inventory.facts().devices[0]
    return plugins.load("backends", device.backend).open(device)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_is_checked(gpu: Any, name: str, dtype: str) -> None:
    assert_checked(build_on(gpu, name, size_bytes=64 * MIB, dtype=dtype))


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_of_any_width_is_checked(gpu: Any, name: str, width: int) -> None:
    assert_checked(build_on(gpu, "access_width", kernel=name, width_bytes=width, size_bytes=64 * MIB))


@pytest.mark.parametrize("threads", [64, 128, 512, 1536])
@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_with_a_fixed_number_of_threads_is_checked(gpu: Any, name: str, threads: int) -> None:
    assert_checked(build_on(gpu, "occupancy", kernel=name, threads=threads, size_bytes=64 * MIB))


@pytest.mark.parametrize("size", [2 * MIB, 64 * MIB])
@pytest.mark.parametrize("kernel", ["read", "write", "copy"])
def test_a_working_set_is_checked(gpu: Any, kernel: str, size: int) -> None:
    assert_checked(build_on(gpu, "working_set", kernel=kernel, size_bytes=size))


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("access", ["read", "write"])
def test_shared_memory_is_checked(gpu: Any, access: str, width: int) -> None:
    assert_checked(build_on(gpu, "shared", access=access, width_bytes=width))


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("stride", [4, 32, 256])
def test_strided_accesses_are_checked(gpu: Any, access: str, stride: int) -> None:
    assert_checked(build_on(gpu, "strided", access=access, stride_bytes=stride, size_bytes=64 * MIB))


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("chunk", [4, 8, 16, 32, 128])
def test_random_accesses_are_checked(gpu: Any, access: str, chunk: int) -> None:
    assert_checked(build_on(gpu, "random", access=access, chunk_bytes=chunk, size_bytes=64 * MIB))


@pytest.mark.parametrize("size", [8, 16, 24, 4096, MIB + 8, 64 * MIB])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_by_any_engine_is_checked(gpu: Any, engine: str, size: int) -> None:
    try:
        assert_checked(build_on(gpu, "device_copy", engine=engine, size_bytes=size))
    except Skip as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("units", [1, 7, 64])
@pytest.mark.parametrize("engine", ["load-store", "async-copy", "bulk-copy"])
def test_a_copy_by_a_few_multiprocessors_is_checked(gpu: Any, engine: str, units: int) -> None:
    try:
        assert_checked(build_on(gpu, "device_copy_on", engine=engine, units=units, size_bytes=16 * MIB + 8))
    except Skip as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("memory", ["pinned", "pageable", "registered", "write-combined", "zero-copy"])
@pytest.mark.parametrize("name", ["h2d", "d2h"])
@pytest.mark.parametrize("size", [8, MIB])
def test_a_transfer_is_checked(gpu: Any, name: str, memory: str, size: int) -> None:
    assert_checked(build_on(gpu, name, memory=memory, size_bytes=size))


@pytest.mark.parametrize("memory", ["pinned", "registered", "write-combined", "zero-copy"])
def test_both_ways_are_checked_and_each_is_timed(gpu: Any, memory: str) -> None:
    task = build_on(gpu, "duplex", memory=memory, size_bytes=16 * MIB)
    times = [float(task.stages[name].call()) for name in ("h2d", "d2h")]  # type: ignore[arg-type]
    assert all(16 * MIB / 200e9 < seconds < 1 for seconds in times)
    assert_checked(task)


def test_a_product_and_a_copy_are_timed_beside_each_other(gpu: Any) -> None:
    task = build_on(gpu, "beside_gemm", engine="memcpy")
    measured = Engine(gpu, POLICIES["smoke"]).measure(task)
    slowdowns = {series.label: np.median(series.values) for series in measured.series if "slowdown" in series.label}
    assert set(slowdowns) == {"gemm.slowdown", "copy.slowdown"}
    assert all(0.9 < value < 20 for value in slowdowns.values())
    overwrite(task)


def test_a_gpu_draws_the_same_data_as_the_host() -> None:
    for dtype in ("float32", "float64"):
        near, far = stream_of(dtype), stream_of(dtype, backend="cupy")
        np.testing.assert_array_equal(near.drawn().array, far.drawn().array.get())


def test_bytes_per_clock_of_shared_memory_stay_below_the_width_of_its_banks(gpu: Any) -> None:
    task = build_on(gpu, "shared", access="read", width_bytes=16)
    task.stages[""].call()
    rate = task.stages[""].probe()["per_clock"]  # type: ignore[misc]
    assert 100 < rate.value <= 128.5  # type: ignore[union-attr]
