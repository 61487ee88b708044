"""On real GPUs (`pytest -m gpu`): every case between processes and GPUs, and the refusals that only a driver gives."""

import os
import subprocess
import sys

import pytest
from _sinks import ResultSink

from gpubench import plugins
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Settings

pytestmark = pytest.mark.gpu

OPEN = """
import sys
import cupy
import numpy as np
runtime = cupy.cuda.runtime
found = np.zeros(16, np.uint8)
try:
    address = runtime.ipcOpenMemHandle(bytes.fromhex(sys.argv[1]))
    runtime.memcpy(found.ctypes.data, address, found.nbytes, runtime.memcpyDeviceToHost)
except runtime.CUDARuntimeError as error:
    print(str(error).partition(":")[0])
else:
    print(bytes(found).hex())
"""
WRITTEN = bytes(range(16))


@pytest.fixture(scope="module")
def facts():
    return inventory.facts()


def gpus(facts):
    return [device for device in facts.devices if device.backend == "cupy"]


@pytest.mark.parametrize("suite", ["ipc", "p2p", "collectives"])
def test_every_case_passes_its_check(facts, suite):
    plan = planning.make(facts, Settings((suite,), (facts.devices[0].id,), "smoke"))
    able = [job for job in plan.jobs if not planning.missing_devices(job)]
    results = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), results, 60.0) as runner:
        runner.run(able, 0.0, lambda event: None)
    wrong = [(result.case.id, result.status, result.reason) for result in results if result.status != "ok"]
    assert wrong == []


def opened(device, environment):
    """Open a handle of this device's memory in a fresh process; return what it reads, or the name of the error."""
    owner = plugins.load("backends", "cupy").open(device)
    shared = owner.share(2**21)
    shared.array[:16] = owner.xp.asarray(list(WRITTEN), owner.xp.uint8)
    owner.synchronize()
    command = [sys.executable, "-P", "-c", OPEN, shared.handle.hex()]
    child = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=True
    )
    return child.stdout.strip().splitlines()[-1]


def test_a_fresh_process_opens_a_handle(facts):
    assert opened(facts.devices[0], {}) == WRITTEN.hex()


def test_a_handle_under_a_mask_that_hides_its_gpu_is_refused_by_name_or_shows_the_right_bytes(facts):
    """Driver 580 opens it: the mask hides the GPU from the runtime's list, but not its memory from a handle."""
    if len(gpus(facts)) < 2:
        pytest.skip("needs two GPUs: a process must see one, and not the handle's")
    said = opened(facts.devices[0], {"CUDA_VISIBLE_DEVICES": "1"})
    assert said.startswith("cudaError") or said == WRITTEN.hex(), said


@pytest.mark.parametrize("kind", ["raw", "block", "pool", "virtual"])
def test_each_kind_of_memory_is_freed_when_it_is_closed(facts, kind):
    device = plugins.load("backends", "cupy").open(facts.devices[0])
    memory = device.shared_memory(kind)
    memory.allocate(2**21).close()
    device.synchronize()
    before = device.free_bytes()
    buffer = memory.allocate(2**28)
    buffer.array.fill(1)
    memory.export(buffer).close()
    device.synchronize()
    assert device.free_bytes() <= before - 2**28
    buffer.close()
    device.synchronize()
    assert device.free_bytes() >= before - 2**22


def test_copies_that_start_together_are_faster_than_one_after_another(facts):
    if len(gpus(facts)) < 2:
        pytest.skip("needs two GPUs")
    here, there = gpus(facts)[:2]
    device = plugins.load("backends", "cupy").open(here)
    near, back = (device.xp.zeros(2**28, device.xp.uint8) for _ in range(2))
    far, second = (device.peer_memory(there, 2**28) for _ in range(2))

    def seconds(call):
        call()
        return min(device.time(call, 4).device[0] for _ in range(5))

    def one_after_another():
        device.copy(near, far)
        device.copy(second, back)

    def together():
        device.together(lambda: device.copy(near, far), lambda: device.copy(second, back), peer=there)

    assert seconds(together) < 0.7 * seconds(one_after_another)
