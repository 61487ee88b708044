"""Registers and instructions of kernels: counted in a listing of nvdisasm, and told beside the time in full."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace

import pytest
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.model import Case, Device, Facts
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "compilers")
STATIC, NVRTC = suite_modules("compilers", "_static", "_by_nvrtc")
GPU = Device("cuda:0", "cupy", "GPU", "sm_90", units=2, details=(("clock.sm_most_hz", "1e9"),))
MIX = {"instructions": 6, "memory": 2, "special": 1}
ISSUE = {"issue": pytest.approx(6 * 400 / (4 * 2 * 1e9))}  # of 400 warps
LISTING = """	.section	.text.rows,"ax",@progbits
.text.rows:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.NA.128.CONSTANT R8, desc[UR4][R24.64] ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   MUFU.EX2 R3, R4 ;
.L_x_1:
        /*0040*/              @!P1 STG.E.EF.128 desc[UR4][R24.64], R8 ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
        /*0070*/                   NOP;
	.section	.text.looped,"ax",@progbits
.L_x_3:
        /*0000*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0010*/               @P0 BRA `(.L_x_3) ;
        /*0020*/                   EXIT ;
"""


@pytest.fixture
def nvdisasm(tmp_path, monkeypatch):
    """A program that writes the listing, and fails without a file of machine code."""
    program = tmp_path / "nvdisasm"
    program.write_text(f"#!/bin/sh\n[ -s \"$2\" ] || exit 1\ncat <<'END'\n{LISTING}END\n")
    program.chmod(0o755)
    monkeypatch.setattr(STATIC.shutil, "which", lambda name: str(program))


@pytest.fixture
def no_nvdisasm(monkeypatch):
    monkeypatch.setattr(STATIC.shutil, "which", lambda name: None)
    monkeypatch.setattr(STATIC.sys, "path", [])


def values(observed):
    return {name: one.value for name, one in observed.items()}


@pytest.mark.usefixtures("nvdisasm")
@pytest.mark.parametrize(
    ("code", "kernel", "warps", "expected"),
    [
        (b"code", "rows", 400, MIX | ISSUE),
        (b"code", "rows", None, MIX),
        (b"code", "looped", 400, {}),  # its instructions are executed more than once
        (b"", "rows", 400, {}),  # nvdisasm does not know the code
    ],
)
def test_the_instructions_of_one_kernel_are_counted_up_to_its_last_end(code, kernel, warps, expected):
    assert values(STATIC.of_code(code, kernel, warps, GPU)) == expected


@pytest.mark.usefixtures("no_nvdisasm")
def test_without_nvdisasm_there_are_no_instructions():
    assert STATIC.of_code(b"code", "rows", 400, GPU) == {}


@pytest.mark.parametrize(("disassembler", "mix"), [("nvdisasm", MIX | ISSUE), ("no_nvdisasm", {})])
def test_a_kernel_of_triton_tells_its_resources_and_its_instructions_where_they_can_be_read(request, disassembler, mix):
    request.getfixturevalue(disassembler)
    metadata = SimpleNamespace(shared=1024, num_warps=4, name="rows")
    compiled = SimpleNamespace(n_regs=40, n_spills=3, metadata=metadata, asm={"cubin": b"code"})
    resources = {"registers": 40, "shared": 1024, "spilled": 12}
    assert values(STATIC.of_triton(compiled, 100, GPU)) == resources | mix


class KernelOfKnownResources:
    """A kernel whose resources are known for a block of `threads` and some dynamic shared memory."""

    def __init__(self, threads, shared_bytes=0):
        self.block = threads, shared_bytes

    def __call__(self, grid, block, args, shared_bytes=0):
        raise AssertionError("launched")

    def resources(self, threads, shared_bytes=0):
        assert (threads, shared_bytes) == self.block
        return KernelResources(32, 128, 8, 3)


def test_the_resources_of_a_launch_are_those_of_its_block():
    observed = STATIC.of_launch(partial(KernelOfKnownResources(256, 4096), (7,), (256,), (), 4096))
    assert values(observed) == {"registers": 32, "shared": 4224, "spilled": 8, "resident": 768}


class RecordingNvrtc:
    """CuPy's binding of NVRTC, which keeps what it is asked for."""

    def __init__(self):
        self.sources, self.options, self.destroyed = [], (), []

    def createProgram(self, source, name, headers, names):  # noqa: N802 - CuPy's name
        self.sources.append(source)
        return len(self.sources)

    def compileProgram(self, program, options):  # noqa: N802
        self.options = options

    def getCUBIN(self, program):  # noqa: N802
        return b"code"

    def destroyProgram(self, program):  # noqa: N802
        self.destroyed.append(program)


def told(nvrtc, tier, vendor="nvidia"):
    """Return the values of a kernel of 4 blocks of 128 threads on a GPU of the architecture sm_90."""
    (host,) = plugins.load("backends", "host").devices()
    bench = Bench.untimed(Case("compilers", "softmax"), Target(Facts((host,)), host), SUITE.package, 1)
    traits = dataclasses.replace(bench.traits, vendor=vendor, arch="sm_90", warp=32)
    opened = SimpleNamespace(traits=traits, xp=SimpleNamespace(cuda=SimpleNamespace(nvrtc=nvrtc)))
    bench = dataclasses.replace(bench, open_device=opened, target=Target(Facts((GPU,)), GPU, tier))
    return NVRTC.static_of(bench, "rows", {"COLS": 4096}, partial(KernelOfKnownResources(128), (4,), (128,), ()))


@pytest.mark.usefixtures("nvdisasm")
def test_full_tells_the_instructions_of_our_kernel_as_the_gpu_runs_it():
    nvrtc = RecordingNvrtc()
    found = values(told(nvrtc, "full"))
    assert nvrtc.options == ("--gpu-architecture=sm_90a", "--std=c++17", "-DCOLS=4096")
    assert "gb_thread()" in nvrtc.sources[0], "the text that the kernel was compiled from"
    assert nvrtc.destroyed == [1]
    assert (found["registers"], found["instructions"]) == (32, 6)
    assert found["issue"] == pytest.approx(6 * 16 / (4 * 2 * 1e9)), "4 blocks of 4 warps"
    resources = {"registers", "shared", "spilled", "resident"}
    assert set(told(nvrtc, "quick")) == set(told(nvrtc, "full", "amd")) == resources
