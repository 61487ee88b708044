"""The instructions of our own kernels: counted in a listing of nvdisasm, and told beside the time in the full tier."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Unavailable
from gpubench.model import Case, Device, Facts
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "compilers")
STATIC, NVRTC = suite_modules("compilers", "_static", "_by_nvrtc")
GPU = Device("cuda:0", "cupy", "GPU", "sm_90", units=2, details=(("clock.sm_most_hz", "1e9"),))
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


def test_the_instructions_of_one_kernel_are_counted_up_to_its_last_end(nvdisasm):
    mix = {"instructions": 6, "memory": 2, "special": 1}
    issue = {"issue": pytest.approx(6 * 400 / (4 * 2 * 1e9))}
    for warps, expected in ((400, mix | issue), (None, mix)):
        observed = STATIC.of_code(b"code", "rows", warps, GPU)
        assert {name: one.value for name, one in observed.items()} == expected


def test_a_kernel_with_a_loop_has_no_instructions_because_they_are_executed_more_than_once(nvdisasm):
    assert STATIC.of_code(b"code", "looped", 400, GPU) == {}


def test_an_nvdisasm_that_does_not_know_the_code_tells_nothing(nvdisasm):
    assert STATIC.of_code(b"", "rows", 400, GPU) == {}


def test_without_nvdisasm_there_are_no_instructions(monkeypatch):
    monkeypatch.setattr(STATIC.shutil, "which", lambda name: None)
    monkeypatch.setattr(STATIC.sys, "path", [])
    assert STATIC.of_code(b"code", "rows", 400, GPU) == {}


class RecordingCompiler:
    """A compiler that keeps what it is asked for."""

    def __init__(self):
        self.asked = []

    def compile(self, source, arch, defines):
        self.asked.append((arch, dict(defines)))
        return b"code"


class KernelOfKnownResources:
    """A kernel whose resources are known."""

    def __call__(self, grid, block, args):
        raise AssertionError("launched")

    def resources(self, threads):
        return KernelResources(32, 0, 0, 3)


def told(tier, vendor="nvidia"):
    """Return the values of a kernel of 4 blocks of 128 threads on a GPU of the architecture sm_90."""
    (host,) = plugins.load("backends", "host").devices()
    bench = Bench.untimed(Case("compilers", "softmax"), Target(Facts((host,)), host), SUITE.package, 1)
    traits = dataclasses.replace(bench.traits, vendor=vendor, arch="sm_90", warp=32)
    opened = type("Opened", (), {"traits": traits})()
    bench = dataclasses.replace(bench, open_device=opened, target=Target(Facts((GPU,)), GPU, tier))
    return NVRTC.static_of(bench, "rows", {"COLS": 4096}, partial(KernelOfKnownResources(), (4,), (128,), ()))


def test_full_tells_the_instructions_of_our_kernel_as_the_gpu_runs_it(nvdisasm, monkeypatch):
    compiler = RecordingCompiler()
    monkeypatch.setattr(NVRTC, "nvrtc", lambda: compiler)
    found = told("full")
    assert compiler.asked == [("sm_90a", {"COLS": 4096})]
    assert (found["registers"].value, found["instructions"].value) == (32, 6)
    assert found["issue"].value == pytest.approx(6 * 16 / (4 * 2 * 1e9)), "4 blocks of 4 warps"
    resources = {"registers", "shared", "spilled", "resident"}
    assert set(told("quick")) == set(told("full", "amd")) == resources


def test_without_nvrtc_the_resources_alone_are_told(nvdisasm, monkeypatch):
    def missing():
        raise Unavailable("NVRTC is not installed", "pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(NVRTC, "nvrtc", missing)
    assert set(told("full")) == {"registers", "shared", "spilled", "resident"}
