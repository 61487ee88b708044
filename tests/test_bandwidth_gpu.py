"""The bandwidth suite on a real GPU: every kind of case is checked, and its checks can fail."""

import itertools
from typing import Any

import numpy as np
import pytest
from _bandwidth import MIB, assert_checked, build_on
from _earlier import expect_found
from _poison import overwrite
from test_bandwidth import MOVED, stream_of

from gpubench.base.errors import Skip
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES

pytestmark = pytest.mark.gpu

ENGINES = ("load-store", "memcpy", "async-copy", "bulk-copy")
TIERS = ("plain", "shared", "window", "evict_first", "evict_last", "prefetch", "bulk_prefetch")
MEMORIES = ("pinned", "pageable", "registered", "write-combined", "zero-copy")


CASES = {  # a case with the values of its axes, of which every combination is checked
    **{name: {"dtype": ("float32", "float64"), "size_bytes": (64 * MIB,)} for name in MOVED},
    "access_width": {"kernel": MOVED, "width_bytes": (4, 8, 16), "size_bytes": (64 * MIB,)},
    "occupancy": {"kernel": MOVED, "threads": (64, 128, 512, 1536), "size_bytes": (64 * MIB,)},
    "working_set": {"kernel": ("read", "write", "copy"), "size_bytes": (2 * MIB, 64 * MIB)},
    "shared": {"access": ("read", "write"), "width_bytes": (4, 8, 16)},
    "strided": {"access": ("read", "write"), "stride_bytes": (4, 32, 256), "size_bytes": (64 * MIB,)},
    "random": {"access": ("read", "write"), "chunk_bytes": (4, 8, 16, 32, 128), "size_bytes": (64 * MIB,)},
    "device_copy": {"engine": ENGINES, "size_bytes": (8, 16, 24, 4096, MIB + 8, 64 * MIB)},
    "device_copy_on": {"engine": {*ENGINES} - {"memcpy"}, "units": (1, 7, 64), "size_bytes": (16 * MIB + 8,)},
    **{name: {"memory": MEMORIES, "size_bytes": (8, MIB)} for name in ("h2d", "d2h")},
    "cluster_shared": {"blocks": (2, 8, 16)},
    "tiers": {"tier": TIERS, "reuse": (1, 16), "size_bytes": (4 * 132 * 2**15,)},
}
POINTS = [
    (name, dict(zip(axes, values, strict=True)))
    for name, axes in CASES.items()
    for values in itertools.product(*(sorted(values) for values in axes.values()))
]


@pytest.mark.parametrize(("name", "params"), POINTS, ids=str)
def test_every_kind_of_case_is_checked(gpu: Any, name: str, params: dict[str, Any]) -> None:
    try:
        assert_checked(build_on(gpu, name, **params), gpu)
    except Skip as reason:  # an engine, a tier or a cluster that this architecture does not have
        if not {"engine", "tier", "blocks"} & params.keys():
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize("memory", ["pinned", "registered", "write-combined", "zero-copy"])
def test_both_ways_are_checked_and_each_is_timed(gpu: Any, memory: str) -> None:
    task = build_on(gpu, "duplex", memory=memory, size_bytes=16 * MIB)
    times = [float(task.stages[name].call()) for name in ("h2d", "d2h")]  # type: ignore[arg-type]
    assert all(16 * MIB / 200e9 < seconds < 1 for seconds in times)
    assert_checked(task, gpu)


def test_a_product_and_a_copy_are_timed_beside_each_other(gpu: Any) -> None:
    task = build_on(gpu, "beside_gemm", engine="memcpy")
    measured = Engine(gpu, POLICIES["smoke"]).measure(task)
    slowdowns = {series.label: np.median(series.values) for series in measured.series if "slowdown" in series.label}
    assert set(slowdowns) == {"gemm.slowdown", "copy.slowdown"}
    assert all(0.9 < value < 20 for value in slowdowns.values())
    overwrite(task)
    expect_found(task, gpu)


def test_a_gpu_draws_the_same_data_as_the_host() -> None:
    for dtype in ("float32", "float64"):
        near, far = stream_of(dtype), stream_of(dtype, backend="cupy")
        np.testing.assert_array_equal(near.drawn().array, far.drawn().array.get())


def test_bytes_per_clock_of_shared_memory_stay_below_the_width_of_its_banks(gpu: Any) -> None:
    task = build_on(gpu, "shared", access="read", width_bytes=16)
    task.stages[""].call()
    rate = task.stages[""].probe()["per_clock"]  # type: ignore[misc]
    assert 100 < rate.value <= 128.5  # type: ignore[union-attr]
