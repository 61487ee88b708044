"""On a real GPU (`pytest -m gpu`): the monitor names the processes on it with their memory."""

import os
import time

import pytest

from gpubench import plugins
from gpubench.measuring import inventory
from gpubench.tools.monitor.processes import ProcessList

pytestmark = pytest.mark.gpu
GIB = 2**30


def test_a_program_that_holds_memory_is_listed_with_it():
    """In a container NVML may give the process ids of the host; then only the memory can be recognised."""
    device = next(candidate for candidate in inventory.facts().devices if candidate.backend != "host")
    opened = plugins.load("backends", device.backend).open(device)
    held = opened.xp.empty(GIB, dtype="uint8")
    held.fill(1)
    listed = ProcessList([device])
    deadline = time.monotonic() + 20
    while not listed.newest and time.monotonic() < deadline:
        time.sleep(0.2)
        listed.update()
    listed.close()
    processes = [process for process in listed.newest if process.pid == os.getpid()] or listed.newest
    assert max(process.memory_bytes or 0 for process in processes) >= GIB
    assert {process.device for process in listed.newest} == {device.id}
