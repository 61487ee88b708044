"""The driver's calls of the suite `virtual` by cuda-bindings, with our own library in place of the driver's.

It shows that each call has the arguments that the driver takes, and nothing of what a GPU does.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from _modules import suite_module

HERE = Path(__file__).parent
CC = shutil.which("cc")
HAS_BINDINGS = find_spec("cuda") is not None and find_spec("cuda.bindings") is not None
STREAM, KERNEL, EVENT = 0x77, 0x55, 0x99


@pytest.mark.slow
@pytest.mark.skipif(CC is None, reason="needs a C compiler to build the stand-in")
@pytest.mark.skipif(not HAS_BINDINGS, reason="needs cuda-bindings, of the extra cuda13")
def test_every_call_of_the_driver_has_the_arguments_that_it_takes(tmp_path):
    library = tmp_path / "libcuda.so.1"
    source = HERE / "_stand_in_driver.c"
    subprocess.run(
        [CC, "-shared", "-fPIC", "-w", "-o", library, source, "-ldl", "-Wl,-soname,libcuda.so.1"], check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, str(HERE / "test_virtual_stand_in.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


class RecordedEvent:
    """An event that has been recorded."""

    ptr = EVENT

    def __init__(self, **kinds):
        pass

    def record(self, stream):
        pass


class OneWordArray:
    """One word of memory, as an array of the device."""

    def __init__(self):
        self.contents = np.zeros(1, np.uint64)
        self.data = types.SimpleNamespace(ptr=self.contents.ctypes.data)


def paper_cupy():
    """Return NumPy with the parts of CuPy that lead to the driver."""
    cupy = types.ModuleType("paper_cupy")
    cupy.__dict__.update(np.__dict__)
    graph = types.SimpleNamespace(launch=lambda stream: None)
    stream = types.SimpleNamespace(ptr=STREAM, begin_capture=lambda: None, end_capture=lambda: graph)
    cupy.cuda = types.SimpleNamespace(
        Device=lambda: types.SimpleNamespace(id=0),
        Event=RecordedEvent,
        get_current_stream=lambda: stream,
        runtime=types.SimpleNamespace(memGetInfo=lambda: (2**20, 2**21)),
    )
    function = types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=KERNEL))
    cupy.RawModule = lambda code: types.SimpleNamespace(get_function=lambda name: function)
    return cupy


def main():
    """Make every call once, and compare what it does."""
    from _grid_device import PaperGpu, bench

    from gpubench.devices import interposed
    from gpubench.measuring.plan import load_suite

    suite = load_suite("virtual")
    names = ("_space", "_steps", "_grow", "_churn", "_calls")
    modules = {name: suite_module("virtual", name) for name in names}
    for module in modules.values():  # arrays in the memory of the stand-in are those of NumPy
        if hasattr(module, "array_at"):
            module.array_at = lambda _, address, size: np.ctypeslib.as_array(
                (ctypes.c_uint8 * size).from_address(address)
            )
    cupy = paper_cupy()
    PaperGpu.xp, PaperGpu.stream = property(lambda _: cupy), STREAM
    device = bench(suite, "nvidia")
    virtual_memory(modules, device)
    calls(modules, device)
    (library,) = interposed.libraries("580.159.04", True)
    assert library.is_interposed
    sys.stdout.write("done\n")


def virtual_memory(modules, device):
    """Run the parts of the suite that map memory, each with its check."""
    space, page = modules["_space"], modules["_space"].PAGE_BYTES
    for piece in ("whole", "2MiB"):
        modules["_steps"].StepCosts(device, 8 * page, piece).check()
    for is_compressible in (False, True):
        asked = space.GpuSpace(device, is_compressible)
        mapped = space.MappedRange.filled(asked, 2 * page, page)
        assert asked.is_compressed(mapped.physical[0]) == is_compressible
        mapped.close()
    for way in ("vmm", "vmm-2MiB"):
        growth = modules["_grow"].Growth(device, way, 4 * page, 2 * page)
        growth.seconds()
        growth.check()
        growth.close()
    trace = modules["_churn"].training_trace(1, 100, 8 * page)
    modules["_churn"].Churn(device, "vmm", trace, 8 * page).check()


def calls(modules, device):
    """Run every forwarded and native call of the suite, each with its check."""
    driver = suite_module("virtual", "_wire").LocalDriver(device)
    driver.enter()
    thread_ends = socket.socketpair()
    server = modules["_calls"].ForwardServer(device, driver, thread_ends[1])
    client = modules["_calls"].ForwardClient(thread_ends[0])
    for name in ("launch", "memory_info", "synchronize"):
        forwarded = modules["_calls"].ForwardedCalls(client, name, False)
        forwarded.seconds()
        forwarded.check()
    client.close()
    server.close()
    native = modules["_calls"].NativeCalls(device)
    word = native._array = OneWordArray()
    for name in ("attribute", "memory_info", "event_query", "pointer_query", "synchronize", "launch"):
        native.poison()
        native.seconds(name)
        if name == "launch":
            assert int(word.contents[0]) == native._launched > 0
        else:
            native.check(name)
    native.poison()
    native.pair_seconds()
    native.check("allocate")


if __name__ == "__main__":
    main()
