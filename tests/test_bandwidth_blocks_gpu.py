"""Copies of many blocks and the host link by NUMA node on a real GPU: checks that can fail, submission, placement."""

import statistics
import time

import numpy as np
import pytest
from _bandwidth import SUITE, assert_checked, build_on, sibling

from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu

WAYS = ("loop", "batch", "kernel", "merged", "binding")


def blocks(gpu, way, direction="h2d", block_bytes=4096, count=256):
    params = {"way": way, "direction": direction, "block_bytes": block_bytes, "count": count, "order": "shuffled"}
    return build_on(gpu, "blocks", **params)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_brings_every_block_to_its_place(gpu, way, direction):
    for block_bytes, count in ((1024, 16), (2**14, 100), (2**18, 3)):
        assert_checked(blocks(gpu, way, direction, block_bytes, count), gpu)


@pytest.mark.parametrize("way", WAYS)
def test_a_case_has_its_time_its_submission_and_the_time_of_a_full_queue(gpu, way):
    task = blocks(gpu, way)
    figures = {
        series.label: float(np.median(series.values)) for series in Engine(gpu, POLICIES["smoke"]).measure(task).series
    }
    task.close()
    assert {"hot", "host", "queued.hot", "queued.host"} <= set(figures)
    assert figures["queued.hot"] <= 1.2 * figures["hot"]
    assert 0 < figures["host"] < figures["hot"] + 100e-6


def test_the_compiled_loop_submits_in_less_time_than_the_binding(gpu):
    def submission_s(way):
        task = blocks(gpu, way)
        call = task.stages[""].call
        times = []
        for _ in range(20):
            gpu.synchronize()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        gpu.synchronize()
        task.close()
        return statistics.median(times)

    assert submission_s("loop") < submission_s("binding")


@pytest.mark.parametrize("direction", ["h2d", "d2h", "both"])
def test_copies_with_memory_on_a_node_are_checked_and_placed(gpu, direction):
    target = Target(inventory.facts(), gpu.device)
    for node in sibling("_host_link").nodes_of(target):
        params = {"device": gpu.device.id, "node": node, "direction": direction, "size_bytes": 2**20}
        case = Case("bandwidth", "host_link", tuple(params.items()))
        task = SUITE.build(Bench(gpu, case, target, SUITE.package))
        assert task.notes["pages by NUMA node"] == f"node {node}: 256"
        assert_checked(task, gpu)


def test_a_missing_numa_node_skips_the_case(gpu):
    with pytest.raises(Skip, match="has no NUMA node 99"):
        build_on(gpu, "host_link", device=gpu.device.id, node=99, direction="h2d", size_bytes=2**20)
