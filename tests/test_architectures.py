"""Architectures have an order, and GPUs newer than Hopper get the cases and launches that fit them."""

import dataclasses
from types import SimpleNamespace

import _parade
import numpy as np
import pytest
from _grid_device import PAPER, PaperGpu
from _modules import room_module, suite_module

from gpubench import plugins
from gpubench.api.suite import Architecture, Bench, Case, Facts, Skip, Target, Traits
from gpubench.base.errors import WrongAnswer
from gpubench.devices.backends import _gpu_facts

KIB = 1024
# Shared memory that a block may have: CUDA C++ Programming Guide, "Compute Capabilities"; on AMD its LDS.
SHARED = {arch: row["shared_kib"] for arch, row in _parade.ARCHS.items()}


def stand_in(arch, suite="tensor"):
    """Return a bench on a GPU of that architecture, by its traits alone; its kernels are compiled nowhere."""
    is_amd, features = arch.startswith("gfx"), Architecture.parse(arch).features
    traits = Traits(
        "amd" if is_amd else "nvidia", arch, "hip" if is_amd else "cuda", ("hot",), "none", 64 if is_amd else 32,
        is_gpu=True, max_shared_bytes=SHARED[arch] * KIB, features=features,
    )  # fmt: skip
    device = dataclasses.replace(PAPER, arch=arch)
    target = Target(Facts((device,)), device, "full")
    package = plugins.load("suites", suite).package
    return Compiling(PaperGpu(traits), Case(suite, "case", ()), target, package, 1, devices=(device,))


class Compiling(Bench):
    """A bench whose kernels keep their launches."""

    def kernel(self, file, name, **defines):
        self.__dict__.setdefault("launches", [])
        return lambda *launch: self.launches.append(launch)


def test_architectures_of_one_vendor_have_an_order_and_others_none():
    names = ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120"]
    assert sorted(names[3:] + names[:3], key=Architecture.parse) == names
    assert sorted(["gfx1100", "gfx942", "gfx950", "gfx90a"], key=Architecture.parse) == [
        "gfx90a", "gfx942", "gfx950", "gfx1100",
    ]  # fmt: skip
    assert Architecture.parse("sm_90a") == Architecture.parse("sm_90")
    assert Architecture.parse("gfx90a").number == (9, 0, 10)
    assert Architecture.parse("sm_120").capability == 120
    for left, right in [("sm_90", "gfx942"), ("sm_90", "x86_64"), ("x86_64", "x86_64"), ("", "sm_90")]:
        with pytest.raises(TypeError, match="not two architectures of one vendor"):
            assert Architecture.parse(left) < Architecture.parse(right)
    assert Architecture.parse("x86_64").vendor == ""
    assert (
        stand_in("sm_100").traits.architecture
        == Architecture.parse("sm_100")
        == stand_in("sm_100").target.device.architecture
    )


# By nvcc 13.0 and nvdisasm: an instruction of the shape for the forms that are built, others in its place for the rest.
FP8, WIDE = "m16n8k32 float8_e4m3", ["m16n8k4 float64", "m16n8k8 float64", "m16n8k16 float64"]


NARROW = ["m32n32k8 int8", "m16n16k16 int8"]
CDNA3 = [f"{shape} {dtype}" for dtype in ("int8", "float8_e4m3") for shape in ("m32n32k16", "m16n16k32")]
CDNA4 = [f"{shape} {dtype}" for dtype in ("float16", "bfloat16") for shape in ("m32n32k16", "m16n16k32")]
CDNA4 += ["m32n32k32 int8", "m16n16k64 int8"]
NARROW_FLOATS = ("float8_e4m3", "float6_e2m3", "float4_e2m1")
CDNA4 += [f"{shape} {dtype}" for dtype in NARROW_FLOATS for shape in ("m32n32k64", "m16n16k128")]


@pytest.mark.parametrize(
    ("arch", "skipped"),
    [
        ("sm_75", []), ("sm_80", [FP8, *WIDE]), ("sm_89", WIDE), ("sm_90", [FP8]), ("sm_100", [FP8, *WIDE]),
        ("sm_103", [FP8, *WIDE]), ("sm_110", [FP8, *WIDE]), ("sm_120", WIDE), ("sm_121", WIDE),
        ("gfx90a", [*CDNA3, *CDNA4]), ("gfx942", [*NARROW, *CDNA4]), ("gfx950", NARROW),
    ],
)  # fmt: skip
def test_a_gpu_measures_every_matrix_instruction_that_it_has(arch, skipped, monkeypatch):
    mma = suite_module("tensor", "_mma")
    bench = stand_in(arch)
    monkeypatch.setattr(type(bench), "kernel", lambda *_, **__: pytest.fail("reached", pytrace=False))
    found, built = [], []
    for shape, dtype, sums in mma._instructions(bench.target):
        with pytest.raises((Skip, pytest.fail.Exception)) as ended:
            mma.mma(bench, shape, dtype, sums, 1)
        (found if ended.type is Skip else built).append(f"{shape} {dtype}")
    assert (built == 2 * ["m16n8k8 float16"]) if arch == "sm_75" else (found == skipped), "Turing has two forms"


@pytest.mark.parametrize(("arch", "chunks"), [("sm_90", 16), ("sm_100", 16), ("sm_120", 12)])
def test_the_ring_of_bulk_copies_fits_the_shared_memory_of_a_block(arch, chunks):
    bench = stand_in(arch, "bandwidth")
    words = np.zeros(2**20, np.uint8)
    copies = room_module("suites", "_copies")
    for units in (4, 0):
        copies.bulk_copier(bench, words, words, units)()
    (alone, shared) = bench.launches
    assert (int(alone[2][3]), int(alone[2][4])) == (8 * KIB, chunks)
    assert alone[3] + copies._BARRIER_BYTES <= SHARED[arch] * KIB < 2 * alone[3]
    assert 3 * shared[3] <= 96 * KIB
    if arch != "sm_120":
        assert alone[3] == 128 * KIB, "as on an H200, whose figures this is"


@pytest.mark.parametrize(
    ("arch", "target", "threads", "engine", "some", "missing"),
    [
        ("sm_70", "sm_70", 2048, "load-store", "", "async_copy matrix"),
        ("sm_75", "sm_75", 1024, "load-store", "", "matrix"),
        ("sm_86", "sm_86", 1536, "async-copy", "async_copy matrix", "float8_mma bulk_copy"),
        ("sm_89", "sm_89", 1536, "async-copy", "float8_mma", "bulk_copy"),
        ("sm_90", "sm_90a", 2048, "bulk-copy", "wgmma clusters float64_wide", "tcgen05 float8_mma block_scales"),
        ("sm_100", "sm_100a", 2048, "bulk-copy", "tcgen05 block_scales", "wgmma float8_mma"),
        ("sm_103", "sm_103a", 2048, "bulk-copy", "tcgen05", "wgmma"),
        ("sm_110", "sm_110a", 1536, "bulk-copy", "tcgen05", "wgmma"),
        ("sm_121", "sm_121a", 1536, "bulk-copy", "block_scales float8_mma bulk_copy", "tcgen05 wgmma"),
        ("gfx90a", "gfx90a", 2048, "load-store", "matrix", "async_copy"),
        ("gfx1100", "gfx1100", 2048, "load-store", "", "matrix"),
        ("x86_64", "x86_64", 2048, "load-store", "", "matrix"),
    ],
)
def test_an_architecture_has_features_and_what_follows_of_them(arch, target, threads, engine, some, missing):
    architecture = Architecture.parse(arch)
    assert (architecture.target, architecture.resident_threads) == (target, threads)
    assert set(some.split()) <= architecture.features
    assert not set(missing.split()) & architecture.features
    on_it = SimpleNamespace(device=dataclasses.replace(PAPER, arch=arch))
    assert suite_module("bandwidth", "_engines").newest_engine(on_it) == engine


def test_kernels_are_planned_for_the_threads_that_a_compute_unit_holds():
    stream, cache = suite_module("bandwidth", "_stream"), suite_module("bandwidth", "_cache")
    rows = {}
    for arch in ("sm_75", "sm_89", "sm_90"):
        device = dataclasses.replace(PAPER, arch=arch, units=10)
        target = Target(Facts((device,)), device, "full")
        rows[arch] = (max(stream._threads(target).full), cache.layout(target, 2**30, False)[-1] // 10)
    assert rows == {"sm_75": (1024, 4), "sm_89": (1536, 6), "sm_90": (1536, 8)}


@pytest.mark.parametrize(
    ("arch", "supported", "options"),
    [
        ("sm_90", (90,), ("--gpu-architecture=sm_90a",)),
        ("sm_120", (90, 100), ()),
        ("sm_80", (80,), ()),
        ("gfx942", (), ()),
    ],
)
def test_cupy_is_asked_for_every_instruction_of_an_architecture_that_its_compiler_knows(arch, supported, options):
    nvrtc = SimpleNamespace(getSupportedArchs=lambda: list(supported))
    cupy = SimpleNamespace(cuda=SimpleNamespace(nvrtc=nvrtc))
    assert _gpu_facts.target_options(cupy, dataclasses.replace(PAPER, arch=arch)) == options


def test_a_virtual_gpu_that_reports_no_clock_has_no_clock_and_not_zero():
    details = dict(_parade.facts_of("vgpu").devices[0].details)
    assert details.keys() == {"shared.unit_bytes"}
    assert dict(_parade.facts_of("a10").devices[0].details)["clock.sm_hz"] == "1695000000"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32", "float8_e4m3"])
def test_sums_of_blackwells_products_are_exact_for_both_signs_and_a_step_that_is_left_out_is_found(dtype, monkeypatch):
    case, bench = suite_module("tensor", "_tcgen05"), stand_in("sm_100")
    form, missing, launched = case.FORMATS[dtype], [0], []

    def kernel(grid, block, args, shared_bytes):
        words, rounds, sums, cycles = args
        sign = -1 if words[0] == form.minus else 1
        sums[...] = sign * (int(rounds) * 16 - missing[0]) * form.inner
        cycles[:] = np.stack((np.full(len(cycles) // 2, int(rounds)), np.arange(len(cycles) // 2)), 1).ravel()
        launched.append(shared_bytes)

    kernel.resources = lambda threads, shared_bytes: None
    monkeypatch.setattr(type(bench), "kernel", lambda *_, **__: kernel)
    monkeypatch.setattr(case, "loadable", lambda bench, build: build())  # NumPy has no errors of CUDA
    task = case.tcgen05(bench, dtype, 64)
    stage = task.stages[""]
    for _ in range(2):
        stage.call()
        task.check()
        stage.inputs()
    assert max(launched) <= SHARED["sm_100"] * KIB
    assert "compile-checked" in task.notes["tested"]
    missing[0] = 1
    stage.call()
    with pytest.raises(WrongAnswer):
        task.check()


@pytest.mark.parametrize("error", ["CompileException", "CUDADriverError"])
def test_a_compiler_or_driver_without_tcgen05_skips_the_case_with_its_error(error):
    class OldError(Exception):
        pass

    others = type("OtherError", (Exception,), {})
    cuda = SimpleNamespace(
        compiler=SimpleNamespace(CompileException=OldError if error == "CompileException" else others),
        driver=SimpleNamespace(CUDADriverError=OldError if error == "CUDADriverError" else others),
    )
    bench = SimpleNamespace(xp=SimpleNamespace(cuda=cuda), traits=SimpleNamespace(arch="sm_100"))

    def build():
        raise OldError("no kernel image")

    with pytest.raises(Skip, match="has no tcgen05 for sm_100: no kernel image"):
        suite_module("tensor", "_kernels").loadable(bench, build)
