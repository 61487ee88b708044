"""The backend's ROCm side on a stand-in for CuPy's runtime: how it describes a GPU, and the calls that it avoids.

No AMD GPU is here. The properties are those that HIP's headers name, with the values of the data sheets.
"""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import _grid
import numpy as np
import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base.errors import Skip
from gpubench.knowledge import hardware
from gpubench.model import Facts
from gpubench.plugins.backend import Traits

BACKEND = room_module("backends", "cupy")
FACTS = room_module("backends", "_gpu_facts")
MI300X = {
    "name": b"AMD Instinct MI300X",
    "gcnArchName": b"gfx942:sramecc+:xnack-",
    "major": 9,
    "minor": 4,
    "totalGlobalMem": 206141652992,
    "l2CacheSize": 4 * 2**20,
    "multiProcessorCount": 304,
    "warpSize": 64,
    "sharedMemPerBlock": 65536,
    "sharedMemPerBlockOptin": 163840,
    "clockRate": 2100000,
    "memoryClockRate": 1300000,
    "memoryBusWidth": 8192,
}
MI250X = {**MI300X, "name": b"AMD Instinct MI250X", "gcnArchName": b"gfx90a:sramecc+:xnack-", "l2CacheSize": 8 * 2**20}

MI355X = {**MI300X, "name": b"AMD Instinct MI355X", "gcnArchName": b"gfx950", "multiProcessorCount": 256}
MI300A = {**MI300X, "name": b"AMD Instinct MI300A", "multiProcessorCount": 228, "totalGlobalMem": 137438953472}
# One of the eight devices of a split card; all have the PCI address of the card.
PART = {**MI300X, "multiProcessorCount": 38, "totalGlobalMem": MI300X["totalGlobalMem"] // 8}


class Runtime:
    """The part of CuPy's runtime on ROCm that the backend calls; any other call is an AttributeError."""

    is_hip = True

    def __init__(self, props):
        self.props = props

    def getDevice(self):  # noqa: N802 - CuPy's names
        return 0

    def getDeviceProperties(self, index):  # noqa: N802
        return self.props

    def deviceGetPCIBusId(self, index):  # noqa: N802
        return "0000:0C:00.0"

    def deviceCanAccessPeer(self, here, there):  # noqa: N802
        return 1

    def runtimeGetVersion(self):  # noqa: N802
        return 70051831


def device_of(props):
    """Return the description of the first of two GPUs with these properties."""
    return FACTS.device_facts(Runtime(props), 0, 2)


def test_a_gpu_is_described_by_its_compilers_name_and_its_infinity_cache():
    device = device_of(MI300X)
    assert (device.id, device.arch, device.peers) == ("rocm:0", "gfx942", ("rocm:1",))
    assert device.cache_bytes == 256 * 2**20  # a ring of four times the L2 of one die would fit into this cache
    assert device_of(MI250X).cache_bytes == 8 * 2**20
    assert dict(device.details) == {
        "clock.sm_hz": "2100000000",
        "clock.memory_hz": "1300000000",
        "memory.bus_bits": "8192",
    }


def test_only_the_gpu_on_paper_is_a_dry_run_and_an_unknown_architecture_has_no_matrix_instructions():
    stand_in = {**MI250X, "name": b"GPU on paper"}
    runtime = Runtime(stand_in)
    assert FACTS.traits_of(runtime, FACTS.device_facts(runtime, 0, 1)).is_dry_run
    runtime = Runtime(MI300X)
    assert not FACTS.traits_of(runtime, FACTS.device_facts(runtime, 0, 1)).is_dry_run
    radeon = {**MI300X, "gcnArchName": b"gfx1100"}
    assert FACTS.traits_of(Runtime(radeon), device_of(radeon)).features == frozenset()


def test_a_part_of_a_card_and_an_apu_have_the_figures_that_are_theirs():
    device = device_of(PART)
    assert (device.units, device.memory_bytes) == (38, 25767706624)
    assert device.cache_bytes == 256 * 2**20  # a ring that is larger than needed flushes the cache, too
    assert hardware.peak(replace(device, details=(("partition.compute", "CPX"),)), "float32").value == 163.4e12 / 8
    device = device_of(MI300A)
    assert hardware.peak(device, "link.h2d") is None  # its host and its GPU share one memory: no host link
    assert hardware.per_clock(device, "float32").value == 256.0


def test_an_architecture_gfx94_is_not_taken_for_hopper():
    traits = FACTS.traits_of(Runtime(MI300X), device_of(MI300X))
    assert (traits.vendor, traits.kernels, traits.warp, traits.clock) == ("amd", "hip", 64, "hip events")
    assert traits.features == {"matrix", "float8"}
    assert traits.max_shared_bytes == 65536  # CuPy cannot request the 160 KiB that HIP would allow


def test_data_types_whose_products_would_end_the_process_are_not_offered():
    by_hipblaslt = {"bfloat16", "float8_e4m3", "float8_e5m2", "int8"}
    assert set(device_of(MI300X).dtypes) == {"float64", "float32", "float16"} | by_hipblaslt


def test_hips_version_is_shown_with_dots():
    assert FACTS.driver_versions(Runtime(MI300X)) == {"hip.runtime": "7.0.51831"}


def test_more_shared_memory_than_a_block_has_is_skipped_before_the_failing_call():
    class UnlaunchedFunction:
        def __call__(self, *args, **options):
            raise AssertionError("launched")

        @property
        def max_dynamic_shared_size_bytes(self):
            raise AssertionError("asked")

    module = SimpleNamespace(get_function=lambda name: UnlaunchedFunction())
    kernel = BACKEND.CupyKernel(SimpleNamespace(cuda=SimpleNamespace(runtime=Runtime(MI300X))), module, "name")
    with pytest.raises(Skip, match="limits a block to 65536 bytes of shared memory"):
        kernel((1,), (64,), (), shared_bytes=65537)


def test_page_locking_of_existing_memory_is_skipped_with_the_reason():
    device = object.__new__(BACKEND.CupyDevice)
    device.traits = Traits("amd", "gfx942", "hip", ("hot",), "hip events", 64, True)
    with pytest.raises(Skip, match="does not support registering host memory"):
        device.register(np.zeros(8))


@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
@pytest.mark.parametrize(
    "props", [MI300X, MI250X, MI355X, MI300A, PART], ids=["MI300X", "MI250X", "MI355X", "MI300A", "MI300X in CPX"]
)
def test_every_suite_has_cases_for_an_amd_gpu_and_its_peer(props, tier):
    runtime = Runtime(props)
    pair = tuple(FACTS.device_facts(runtime, index, 2) for index in range(2))
    for name in set(plugins.names("suites")) - ({"training"} if tier == "quick" else set()):
        suite = plugins.load("suites", name)
        cases = list(suite.cases(Target(Facts(pair), pair[0], tier)))
        assert cases, name
        assert len({case.id for case in cases}) == len(cases)


@pytest.mark.parametrize("kind", ["pool", "virtual"])
def test_memory_that_cupy_cannot_export_on_rocm_is_skipped_for_that_reason(kind):
    """Without this branch the reason would name a package of NVIDIA's, which no AMD machine needs."""
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(is_hip=True)))
    with pytest.raises(Skip, match=f"CuPy on ROCm does not support exported {kind} memory"):
        room_module("backends", "_memory").shared_memory(cupy, kind)


def test_the_resources_of_a_kernel_are_unknown_on_rocm_and_no_call_is_made_for_them():
    function = SimpleNamespace()  # it has nothing that could be asked
    runtime = SimpleNamespace(is_hip=True, getDevice=lambda: 0, getDeviceProperties=lambda index: MI300X)
    module = SimpleNamespace(get_function=lambda name: function)
    kernel = room_module("backends", "cupy").CupyKernel(
        SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), module, "some"
    )
    assert kernel.resources(256, 2**20) is None
    kernel.keep_cache(256)


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_the_simulated_grid_and_the_hip_on_paper_define_nothing_twice(tmp_path):
    both = tmp_path / "both.cpp"
    both.write_text('#include "_grid.h"\n#include "paper_launch.h"\n')
    folders = [f"-I{_grid.HERE}", f"-I{_grid.HERE / 'paper_hip/headers'}"]
    words = ["-std=c++17", "-w", "-D__HIPCC_RTC__=1", "-DPAPER_HIP=1", "-DWARP=64", *folders, "-fsyntax-only"]
    done = subprocess.run([_grid.COMPILER, *words, both], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
