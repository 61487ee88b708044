"""The smallest forwarder of a driver's calls: every call arrives once and in order, and faults are found."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from _host_driver import HostDriver
from _modules import suite_module, suite_modules
from test_virtual_memory import host_bench

from gpubench.base.errors import WrongAnswer

FORWARD, PROGRAMS, WIRE = suite_modules("virtual", "_calls", "_programs", "_wire")


class TwoRankExchange:
    """Two ranks in two threads of this process, which exchange values."""

    def __init__(self):
        self._barrier, self._values = threading.Barrier(2), [None, None]

    def of(self, rank):
        """Return the bench of one of the two ranks."""

        def exchange(value):
            self._values[rank] = value
            self._barrier.wait(10)
            values = list(self._values)
            self._barrier.wait(10)
            return values

        bench = host_bench()
        bench.rank, bench.world, bench.exchange = rank, 2, exchange
        return bench


def connected(transport, change=lambda table: None, delay_us=0):
    """Return a client, and a server whose table of calls is changed."""
    meeting, served = TwoRankExchange(), []

    def serve():
        bench = meeting.of(1)
        driver = HostDriver()
        change(driver.table)
        served.append(FORWARD.ForwardServer(bench, driver, FORWARD._connected(bench, transport)))

    thread = threading.Thread(target=serve)
    thread.start()
    client = FORWARD.ForwardClient(FORWARD._connected(meeting.of(0), transport), delay_us)
    thread.join(10)
    return client, served[0]


@pytest.fixture(params=FORWARD.TRANSPORTS)
def connected_client(request):
    """Yield a client that is connected to a server, and end both."""
    client, server = connected(request.param)
    yield client
    client.close()
    server.close()
    assert not server._thread.is_alive()


@pytest.mark.parametrize("is_posted", [False, True])
def test_every_launch_reaches_the_device_once(connected_client, is_posted):
    calls = FORWARD.ForwardedCalls(connected_client, "launch", is_posted)
    for _ in range(2):
        assert 0 < calls.seconds() < 10
        calls.check()
    assert calls._launched == 512


@pytest.mark.parametrize("size", [1, 2**22, 13 * 2**20 + 3])
def test_data_of_any_number_of_buffers_arrive_whole_in_both_directions(connected_client, size):
    sent = np.random.default_rng(1).integers(256, size=size, dtype=np.uint8)
    place = connected_client.request(WIRE.ALLOCATE, sent.size)
    connected_client.move(True, place, sent)
    back = np.zeros_like(sent)
    connected_client.move(False, place, back)
    assert np.array_equal(sent, back)
    connected_client.request(WIRE.FREE, place)


def test_the_error_of_a_call_is_returned_with_its_answer(connected_client):
    with pytest.raises(WrongAnswer, match="a forwarded call returned the error 2"):
        connected_client.request(WIRE.ALLOCATE, 2**62)
    assert connected_client.request(WIRE.MEMORY_INFO) > 0  # the next call is not to blame


def test_a_launch_or_a_copy_that_does_not_arrive_is_found():
    client, server = connected("unix", lambda table: table.__setitem__(WIRE.LAUNCH, table[WIRE.SYNCHRONIZE]))
    calls = FORWARD.ForwardedCalls(client, "launch", True)
    calls.seconds()
    with pytest.raises(WrongAnswer, match="0 of 256 launches reached the device"):
        calls.check()
    client.close()
    server.close()
    client, server = connected("unix", lambda table: table.__setitem__(WIRE.TO_DEVICE, table[WIRE.SYNCHRONIZE]))
    copies = FORWARD.ForwardedCopies(host_bench(), client, "h2d", 4096)
    copies.poison()
    copies.call()
    with pytest.raises(WrongAnswer, match="of 4096 forwarded bytes are wrong"):
        copies.check()
    client.close()
    server.close()


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_copies_overwrite_what_was_there_before(direction):
    client, server = connected("unix")
    copies = FORWARD.ForwardedCopies(host_bench(), client, direction, 4096)
    for _ in range(2):
        copies.poison()
        with pytest.raises(WrongAnswer):  # nothing is copied
            copies.check()
        copies.call()
        copies.check()
    client.close()
    server.close()


def test_an_answer_is_late_by_the_delay_and_a_posted_call_is_not():
    client, server = connected("unix", delay_us=2000)
    calls = [FORWARD.ForwardedCalls(client, "launch", is_posted) for is_posted in (False, True)]
    waiting, posted = (each.seconds() for each in calls)
    assert waiting > 256 * 2e-3 > posted > 2e-3
    for each in calls:
        each._launched = 256
        each.check()
    client.close()
    server.close()


def test_each_end_finds_that_the_other_has_gone():
    client, server = connected("unix")
    server._link.shutdown(socket.SHUT_RDWR)
    server._thread.join(10)
    assert not server._thread.is_alive()
    with pytest.raises(WrongAnswer, match="the forwarder's server is gone"):
        client.request(WIRE.MEMORY_INFO)
    client.close()
    server.close()


@pytest.mark.parametrize(("name", "is_posted"), [*((name, True) for name in PROGRAMS.PROGRAMS), ("small", False)])
def test_a_program_leaves_the_same_words_here_and_through_a_forwarder(monkeypatch, name, is_posted):
    calls = [PROGRAMS.ProgramCall(call.name, -(-call.elements // 1000)) for call in PROGRAMS.PROGRAMS[name]]
    monkeypatch.setattr(WIRE, "LocalDriver", lambda _: HostDriver())
    remote, server = connected("unix", lambda table: None)
    bench = host_bench()
    for client in (remote, FORWARD.LocalClient(bench)):
        runs = PROGRAMS.ProgramRuns(bench, client, calls, is_posted)
        runs.check()
        assert runs.median_s() > 0
        runs.check()
        runs._messages = runs._messages[:-1]  # without the last copy
        runs.seconds()
        with pytest.raises(WrongAnswer, match="of the program's host memory are wrong"):
            runs.check()
    costs = PROGRAMS.measured_costs(remote, FORWARD.LocalClient(bench), calls)
    assert costs.predicted_s(calls, is_posted, 1.0) > sum(not is_posted or call.name != "LAUNCH" for call in calls)
    remote.close()
    server.close()


@pytest.mark.parametrize(
    ("is_posted", "delay_s", "predicted_s"), [(False, 0, 36), (False, 10, 78), (True, 0, 34.5), (True, 10, 64.5)]
)
def test_a_prediction_follows_the_host_and_the_device(is_posted, delay_s, predicted_s):
    call_s = {"TO_DEVICE": 1, "LAUNCH": 2, "SYNCHRONIZE": 3, "TO_HOST": 5}
    costs = PROGRAMS.ForwardCosts(call_s, 0.5, {"TO_DEVICE": 1 / 8, "TO_HOST": 1 / 8}, {4: 10})
    calls = [PROGRAMS.ProgramCall(name, 4) for name in ("TO_DEVICE", "LAUNCH", "LAUNCH", "SYNCHRONIZE", "TO_HOST")]
    assert costs.predicted_s(calls, is_posted, delay_s) == predicted_s


# ---- The driver's calls of the suite `virtual` by cuda-bindings, with our own library in place of the driver's.
# It shows that each call has the arguments that the driver takes, and nothing of what a GPU does.


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
    command = [sys.executable, __file__]
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
    short = [PROGRAMS.ProgramCall(name, 1) for name in ("TO_DEVICE", "LAUNCH", "SYNCHRONIZE", "TO_HOST")]
    for end in (client, modules["_calls"].LocalClient(device)):
        runs = PROGRAMS.ProgramRuns(device, end, short, True)
        runs.seconds()
        runs.check()
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
