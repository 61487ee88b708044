"""On a real GPU (`pytest -m gpu`): the monitor names the processes on it with their memory."""

import os
import time

import pytest

from gpubench import plugins
from gpubench.measuring import inventory
from gpubench.tools.monitor.processes import listed

pytestmark = pytest.mark.gpu
GIB = 2**30


def test_a_program_that_holds_memory_is_listed_with_it():
    """In a container NVML may give the process ids of the host; then only the memory can be recognised."""
    device = next(candidate for candidate in inventory.facts().devices if candidate.backend != "host")
    opened = plugins.load("backends", device.backend).open(device)
    held = opened.xp.empty(GIB, dtype="uint8")
    held.fill(1)
    newest = listed([device])
    deadline = time.monotonic() + 20
    while not (rows := next(newest)) and time.monotonic() < deadline:
        time.sleep(0.2)
    newest.close()
    sizes = [row["memory"].split() for row in rows if row["process"] == str(os.getpid())]
    sizes = sizes or [row["memory"].split() for row in rows if row["memory"] != "unknown"]
    assert max(float(number) for number, unit in sizes if unit == "GiB") >= 1
    assert {row["device"] for row in rows} == {device.id}
