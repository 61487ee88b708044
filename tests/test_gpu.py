"""On a real GPU (`pytest -m gpu`): the clock, the gate, the joins and the faults that only hardware has."""

import os
import subprocess
import sys

import numpy as np
import pytest
from _make import manifest
from test_runner import ListSink

from gpubench import plugins, stats
from gpubench.analysis.counters import CounterTable
from gpubench.base.errors import GateTimedOut
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Run, Settings

pytestmark = pytest.mark.gpu

EMPTY = 'extern "C" __global__ void kernel() {}'
LOADS_WITH_HIGH_PRIORITY = r"""
extern "C" __global__ void kernel(const uint4* vectors, unsigned int* never) {
    unsigned long long policy;
    uint4 v;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(vectors + blockIdx.x * 256ull + threadIdx.x), "l"(policy));
    if (v.x == 1) *never = v.y + v.z + v.w;
}
"""


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


@pytest.fixture(scope="module")
def gpu(facts):
    device = facts.devices[0]
    return plugins.load("backends", device.backend).open(device)


def seconds(gpu, call, calls=100, mode="hot", gated=True):
    gpu.time(call, calls, mode, gated)
    return stats.median([value for _ in range(20) for value in gpu.time(call, calls, mode, gated).device])


def test_the_gate_hides_launch_gaps_and_a_graph_removes_more_of_them(gpu):
    kernel = gpu.kernel(EMPTY, "kernel", {})

    def call():
        kernel((1,), (1,), ())

    graph, hot, gaps = seconds(gpu, call, mode="graph"), seconds(gpu, call), seconds(gpu, call, gated=False)
    assert graph < hot < gaps


def test_a_suites_own_call_of_cupy_cannot_move_launches_off_the_timed_stream(gpu):
    """A strided copy to the host, and any stream's context, leave the null stream current."""
    stream = gpu.xp.cuda.get_current_stream()
    gpu.to_host(gpu.xp.zeros((64, 64))[:, ::7])
    assert gpu.xp.cuda.get_current_stream() == stream
    large = gpu.xp.zeros(2**28, gpu.xp.uint8)
    large.fill(1)  # this compiles and loads the kernel, which waits for the device
    before = seconds(gpu, lambda: large.fill(1), calls=10)
    gpu.xp.cuda.Stream.null.use()
    assert seconds(gpu, lambda: large.fill(1), calls=10) == pytest.approx(before, rel=0.2)


def test_a_batch_that_waits_for_the_device_ends_with_the_time_out_of_the_gate(gpu):
    kernel = gpu.kernel(EMPTY, "kernel", {})

    def call():
        kernel((1,), (1,), ())
        gpu.synchronize()

    with pytest.raises(GateTimedOut):
        gpu.time(call, 1)
    assert gpu.time(call, 1, gated=False).device[0] > 0


def test_cold_reads_come_from_memory_and_hot_ones_from_the_cache(gpu):
    source = gpu.xp.ones(2**22, gpu.xp.float32)
    target = gpu.xp.empty_like(source)
    hot = seconds(gpu, lambda: gpu.copy(target, source), 20)
    assert seconds(gpu, lambda: gpu.copy(target, source), 8, mode="cold") > 1.2 * hot


def test_a_flush_displaces_lines_that_were_loaded_with_high_priority(gpu):
    """Without the flush's own loads of that priority, a copy was 4.7 % faster on an H200, as often as it was called."""
    if gpu.traits.vendor != "nvidia":
        pytest.skip("the instructions are NVIDIA's")
    kernel = gpu.kernel(LOADS_WITH_HIGH_PRIORITY, "kernel", {})
    source = gpu.xp.zeros(2**26, gpu.xp.uint8)
    target, never = gpu.xp.empty_like(source), gpu.xp.zeros(1, gpu.xp.uint32)

    def copied(loads):
        """Return the seconds of a copy behind so many loads of its source with high priority, and a flush."""
        for _ in range(loads):
            kernel((source.nbytes // 16 // 256,), (256,), (source, never))
        gpu.flush()
        return stats.median([gpu.time(lambda: gpu.copy(target, source), 32).device[0] for _ in range(3)])

    copied(0)
    times = [(copied(0), copied(5)) for _ in range(8)]
    ratio = stats.median([behind / plain for plain, behind in times])
    assert 0.985 < ratio < 1.015, times


def test_simultaneous_calls_have_separate_streams_and_the_timed_stream_stays_current(gpu):
    timed_stream, seen = gpu.xp.cuda.get_current_stream(), []
    gpu.together(*[lambda: seen.append(gpu.xp.cuda.get_current_stream())] * 3)
    assert len({stream.ptr for stream in seen}) == 3
    assert timed_stream in seen
    assert gpu.xp.cuda.get_current_stream() == timed_stream


def test_host_device_copies_carry_every_byte(gpu):
    data = gpu.pinned(2**20 + 3)
    data[:] = np.random.default_rng(1).integers(0, 256, data.size, np.uint8)
    there = gpu.xp.empty(data.size, gpu.xp.uint8)
    gpu.copy(there, data)
    back = gpu.pinned(data.size)
    gpu.copy(back, there)
    gpu.synchronize()
    assert (back == data).all()


def test_a_device_has_the_names_that_join_it_to_its_counters(facts):
    device = facts.devices[0]
    assert device.uuid.startswith("GPU-")
    assert device.pci.count(":") == 2
    assert float(dict(device.details)["power.limit_w"]) > 0
    assert dict(facts.versions)["nvidia.driver"]


def test_samples_of_the_gpu_are_joined_to_its_cases(facts):
    plan = planning.make(
        facts, Settings(("gemm",), (facts.devices[0].id,), "quick", filters=("square[dtype=float16,n=2048",))
    )
    shelf = ListSink()
    sampler = SamplingProcess(plan.facts.devices, 0.0)
    counters = sampler.counters
    with Runner(plan, sampler, shelf) as runner:
        runner.run(plan.jobs, 0.0, lambda event: None)
    recorded = Run(manifest(facts=facts, counters=counters), tuple(shelf.results), tuple(shelf.chunks))
    figures = {figure.counter.name: figure for figure in CounterTable.of_run(recorded).during(shelf.results[0])}
    assert figures["nvml.power"].mean > 0
    assert figures["nvml.clock.sm"].high > 5e8
    assert figures["nvml.power"].device == facts.devices[0].id


def test_devices_are_joined_by_uuid_when_their_order_is_masked(facts):
    gpus = [device for device in facts.devices if device.backend == "cupy"]
    if len(gpus) < 2:
        pytest.skip("needs two GPUs")
    program = "from gpubench.measuring import inventory; print(inventory.to_json(inventory.read_machine()))"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    masked = inventory.from_json(done.stdout.strip().splitlines()[-1])
    assert [device.uuid for device in masked.devices[:2]] == [gpus[1].uuid, gpus[0].uuid]
    assert dict(masked.devices[0].details)["power.limit_w"] == dict(gpus[1].details)["power.limit_w"]
    opened = plugins.load("backends", "cupy").open(gpus[1])
    assert opened.xp.cuda.runtime.getDevice() == 1
