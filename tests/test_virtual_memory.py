"""Virtual memory: its steps on memory of the host, growth in place, and checks that find faults."""

import types

import numpy as np
import pytest
from _grid_device import bench as paper_bench
from _host_space import AddressedHost, HostSpace
from _modules import suite_module

from gpubench import plugins
from gpubench.api.libraries import Driver
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring.plan import load_suite
from gpubench.model import Case, Device, Facts

SUITE = load_suite("virtual")
SPACE = suite_module("virtual", "_space")
STEPS = suite_module("virtual", "_steps")
GROW = suite_module("virtual", "_grow")
BACKEND = plugins.load("backends", "host")
PAGE = SPACE.PAGE_BYTES


@pytest.fixture(autouse=True)
def _memory_of_the_host(monkeypatch):
    """Let the suite map memory of the host."""
    for module in (STEPS, GROW):
        monkeypatch.setattr(module, "GpuSpace", HostSpace)


def host_bench(name="case", **params):
    device = BACKEND.devices()[0]
    target = Target(Facts((device,)), device, "smoke")
    case = Case("virtual", name, tuple(params.items()))
    return Bench(AddressedHost(BACKEND.open(device)), case, target, SUITE.package, 5, devices=(device,))


def task_of(name, **params):
    bench = host_bench(name, **params)
    return SUITE.definitions[name].build(bench, *params.values())


def mapped_range(pages=4):
    return SPACE.MappedRange(HostSpace(), pages * PAGE)


def memory(mapped):
    return SPACE.array_at(host_bench(), mapped.address, mapped.nbytes)


def test_pieces_mapped_in_sequence_are_one_memory_and_are_all_given_back():
    mapped = mapped_range()
    mapped.grow(2 * PAGE, PAGE)
    memory(mapped)[:] = 3
    mapped.grow(PAGE, PAGE)
    assert mapped.nbytes == 3 * PAGE
    assert (memory(mapped)[: 2 * PAGE] == 3).all()
    assert not memory(mapped)[2 * PAGE :].any()
    mapped.unmap(PAGE)
    mapped.release()
    assert mapped.nbytes == PAGE
    assert (memory(mapped) == 3).all()
    mapped.grow(PAGE, PAGE)
    assert not memory(mapped)[PAGE:].any()
    mapped.close()
    assert mapped.nbytes == 0


def test_a_range_that_fails_half_way_gives_everything_back():
    class FullSpace(HostSpace):
        created, released = 0, 0

        def create(self, nbytes):
            if FullSpace.created == 2:
                raise OSError("no space left")
            FullSpace.created += 1
            return super().create(nbytes)

        def release(self, physical):
            FullSpace.released += 1
            super().release(physical)

    mapped = SPACE.MappedRange(FullSpace(), 4 * PAGE)
    with pytest.raises(OSError, match="no space left"):
        mapped.grow(4 * PAGE, PAGE)
    mapped.close()
    assert (FullSpace.created, FullSpace.released) == (2, 2)


@pytest.mark.parametrize("step", ["reserve", "create", "map", "access", "unmap"])
def test_each_step_is_timed_by_itself_and_its_memory_is_written_and_compared(step):
    params = {"size_bytes": 4 * PAGE}
    params |= {"piece": "2MiB"} if step in ("map", "unmap") else {"peers": 0} if step == "access" else {}
    task = task_of(step, **params)
    assert 0 < task.stages[""].call() < 1
    task.check()


def test_a_space_that_maps_one_memory_at_two_places_is_found(monkeypatch):
    class SameMemorySpace(HostSpace):
        def create(self, nbytes):
            self.first = getattr(self, "first", None) or super().create(nbytes)
            return self.first

        def release(self, physical):
            pass

    monkeypatch.setattr(STEPS, "GpuSpace", SameMemorySpace)
    task = task_of("map", size_bytes=2 * PAGE, piece="2MiB")
    with pytest.raises(WrongAnswer, match="words differ from what was written"):
        task.check()


@pytest.mark.parametrize("way", ["vmm", "vmm-2MiB"])
def test_an_array_grows_and_keeps_its_contents(way):
    task = task_of("grow", way=way, from_bytes=2 * PAGE, by_bytes=2 * PAGE)
    for _ in range(2):
        assert 0 < task.stages[""].call() < 5
        task.check()
    task.close()


def test_an_array_that_loses_contents_when_it_grows_is_found(monkeypatch):
    class ForgetfulGrowth(GROW.MappedGrowth):
        def grow(self, at_peak):
            super().grow(at_peak)
            self.array(PAGE, PAGE + 8)[:] = 0

    monkeypatch.setattr(GROW, "MappedGrowth", ForgetfulGrowth)
    task = task_of("grow", way="vmm", from_bytes=2 * PAGE, by_bytes=PAGE)
    with pytest.raises(WrongAnswer, match="1 of 524288 old words are wrong"):
        task.check()


def test_memory_that_is_replaced_is_new_memory_under_the_same_address():
    replacement = GROW.Replacement(host_bench(), PAGE)
    array = replacement._array()
    array[:] = 1
    address = replacement._mapped.address
    assert replacement.seconds() > 0
    assert replacement._mapped.address == address
    assert not np.any(replacement._array())  # new pages of the kernel are zero
    replacement.check()
    replacement._replay = lambda: None
    with pytest.raises(WrongAnswer, match="262144 of 262144 words are wrong after the captured graph"):
        replacement.check()
    replacement.close()


def test_the_plan_has_the_sizes_and_pieces_that_make_sense_and_the_host_and_amd_have_no_mappings():
    gpu = Device(id="cuda:0", backend="cupy", name="NVIDIA H200", arch="sm_90", memory_bytes=150 * 10**9, units=132)
    cases = [dict(case.params) for case in SUITE.cases(Target(Facts((gpu,)), gpu, "full")) if case.name == "grow"]
    sizes = {
        way: [parameters["from_bytes"] for parameters in cases if parameters["way"] == way]
        for way in ("vmm", "pool", "managed")
    }
    assert sizes == {"vmm": [2**30, 2**32, 2**34], "pool": [2**30, 2**32, 2**34], "managed": [2**28, 2**29]}

    def has(piece, size_bytes):
        return STEPS._has_pieces(None, {"piece": piece, "size_bytes": size_bytes})

    assert all(has("whole", size) for size in (PAGE, 2**34))
    assert [has("2MiB", size) for size in (PAGE, 2 * PAGE, 2**32, 2**34)] == [False, True, True, False]
    device = BACKEND.devices()[0]
    for tier in ("smoke", "quick", "full"):
        assert {case.name for case in SUITE.cases(Target(Facts((device,)), device, tier))} == {"neighbour"}
    with pytest.raises(Skip, match="CuPy on ROCm does not bind HIP's calls for virtual memory"):
        SPACE.GpuSpace(paper_bench(SUITE, "amd"))


def test_a_call_that_bindings_or_the_driver_do_not_have_is_named():
    def missing(*args):
        raise RuntimeError('Function "cuOld" not found')

    def broken(*args):
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    driver = Driver.__new__(Driver)
    driver.bindings = types.SimpleNamespace(cuOld=missing, cuBroken=broken)
    with pytest.raises(Skip, match="the installed cuda-bindings do not have cuNew"):
        driver("cuNew")
    with pytest.raises(Skip, match="the driver does not have cuOld; a newer driver may have it"):
        driver("cuOld")
    with pytest.raises(RuntimeError, match="Failed to dlopen"):
        driver("cuBroken")


def test_memory_that_is_not_given_back_to_the_device_is_found(monkeypatch):
    bench = host_bench()

    class LeakingSpace(HostSpace):
        def release(self, physical):
            super().release(physical)
            bench.device.free -= 2**25

    monkeypatch.setattr(STEPS, "GpuSpace", LeakingSpace)
    with pytest.raises(WrongAnswer, match="33554432 bytes are missing after the memory was given back"):
        STEPS.StepCosts(bench, 2**25).check()
