"""Tiers of locality, shared memory of clusters, atomics and near barriers: kernels on the simulated grid."""

import dataclasses
from typing import Any

import _grid
import _grid_device
import _nvrtc
import numpy as np
import pytest
from _bandwidth import SUITE, PlainGpu, bench_of, build_on, sibling
from _grid import needs_compiler
from _modules import suite_module
from _poison import called

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Case

AT = sibling("_tiers")
GRAIN = 2 * 2**15


def on_paper(name, suite=SUITE, vendor="nvidia", shared=2**17, **params):
    """Return a task whose kernels run on the simulated grid."""
    bench = _grid_device.bench(suite, vendor, **params)
    bench.case = Case(suite.name, name, tuple(params.items()))
    gpu: Any = bench.open_device
    gpu.traits = dataclasses.replace(gpu.traits, max_shared_bytes=shared)
    return suite.build(bench)


@needs_compiler
@pytest.mark.parametrize("tier", sorted(set(AT._TIERS) - {"window"}))
def test_a_set_in_use_is_read_completely_by_each_tier_and_beside_it_the_passing_data(tier):
    task = on_paper("tiers", size_bytes=2 * GRAIN, tier=tier, reuse=16)
    stage = task.stages[""]
    assert (stage.work.payload, stage.work.moved) == (16 * 2 * GRAIN, 16 * (2 * GRAIN + GRAIN))
    for redraw in (lambda: None, stage.inputs, stage.inputs):
        redraw()
        observed = called(task)
        assert observed["latency"].value > 0 < observed["per_clock"].value  # type: ignore[union-attr, operator]


@needs_compiler
def test_a_set_that_is_read_in_256_batches_is_missed_if_it_is_an_earlier_one():
    """With rotations between batches, 16 rounds of 16 batches would cancel out the set."""
    task = on_paper("tiers", size_bytes=15 * GRAIN, tier="plain", reuse=16)
    task.stages[""].call()
    task.check()
    task.stages[""].inputs()
    with pytest.raises(WrongAnswer, match="blocks' results"):
        task.check()


@needs_compiler
def test_a_share_that_exceeds_shared_memory_is_skipped_with_its_size():
    with pytest.raises(Skip, match="share of the set, 65536 bytes, exceeds its 61440 bytes"):
        on_paper("tiers", shared=2**16, size_bytes=2 * GRAIN, tier="shared", reuse=1)
    with pytest.raises(Skip, match="NVIDIA GPU from sm_80"):
        on_paper("tiers", vendor="amd", size_bytes=2 * GRAIN, tier="evict_last", reuse=1)


class Attribute:
    def __init__(self, most, refused=""):
        self.most, self.refused, self.calls = most, refused, []  # type: ignore[var-annotated]
        self.bindings = self

    def __getattr__(self, name):
        return Attribute(self.most) if name[0].isupper() or name[:2] == "CU" else 0

    def __call__(self, *args):
        self.calls.append(args)
        if args[0] == "cuCtxSetLimit" and self.refused:
            raise plugins_driver_error(self.refused)
        return self.most if args[0] == "cuDeviceGetAttribute" else self


def plugins_driver_error(text):
    return AT.lib.DriverCallError(text)


@pytest.mark.parametrize(("driver", "why"), [(Attribute(0), "no carve-out"), (Attribute(1, "UNSUPPORTED"), "MIG")])
def test_persistence_that_the_device_lacks_or_refuses_is_skipped(driver, why, monkeypatch):
    monkeypatch.setattr(AT.lib, "Driver", lambda: driver)
    bench = bench_of("tiers", {})
    with pytest.raises(Skip, match=why):
        AT._Window.over(bench, np.zeros(8))


@needs_compiler
@pytest.mark.parametrize(("space", "cells"), [("global", 1), ("global", 2**10), ("shared", 1), ("shared", 64)])
def test_atomic_additions_are_all_found_in_the_cells(space, cells):
    task = on_paper("atomics", space=space, cells=cells)
    stage = task.stages[""]
    stage.call()
    stage.call()
    task.check()
    threads = 2 * AT._ADDING_BLOCKS * AT._ADDERS
    assert stage.work.items == threads * AT._TURNS * (8 if cells >= 2**10 else 1)
    expected = sum((t % 7 + i) for t in range(threads) for i in range(AT._TURNS))
    assert int(AT.added(threads, cells).sum()) == expected


@needs_compiler
def test_barriers_of_a_block_are_counted_and_checked():
    task = on_paper("near_barrier", suite=plugins.load("suites", "latency"), blocks=1, threads=64)
    stage = task.stages[""]
    near = suite_module("latency", "_near")
    task.check()
    stage.call()
    task.check()
    assert stage.work.items == near._BARRIERS


def test_clusters_are_skipped_where_there_are_none():
    with pytest.raises(Skip, match="sm_90 or newer"):
        build_on(PlainGpu(), "cluster_shared", blocks=2)


@pytest.mark.parametrize("blocks", [2, 3])
def test_the_results_of_a_cluster_are_those_that_its_kernel_computes(blocks):
    data, passes = np.random.default_rng(3).integers(2**32, size=4 * 1024 * 4, dtype=np.uint32), 5
    results = AT.cluster_results(data, blocks, passes)
    for rank, thread in [(0, 0), (blocks - 1, 777)]:
        sums = [0] * 16
        for step in range(passes * (blocks - 1)):
            peer = (rank + 1 + step % (blocks - 1)) % blocks
            for k in range(16):
                word = int(data[(k // 4 * 1024 + thread) * 4 + k % 4]) + peer * 0x9E3779B1
                sums[k] = (5 * sums[k] + word) % 2**32
        bits = 0
        for value in sums:
            bits = (bits << 5 | bits >> 27) % 2**32 ^ value
        assert results[rank, thread] == bits


@pytest.mark.slow
@pytest.mark.skipif(_nvrtc.library() is None, reason="no NVRTC here: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize(("macro", "value"), [*(("TIER", tier) for tier in range(6)), ("CLUSTER", 8), ("CLUSTER", 16)])
def test_every_tier_and_cluster_compiles_for_hopper(macro, value):
    for file in ("bandwidth/tiers.cu", "latency/near.cu"):
        status, log = _nvrtc.compiled(_grid.source(file), ["--gpu-architecture=sm_90a", f"-D{macro}={value}"])
        assert status == 0, log
