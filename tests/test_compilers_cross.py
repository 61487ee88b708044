"""Code for GPUs that need not be here: the source that a GPU would get, and what is taken for machine code."""

from __future__ import annotations

import dataclasses

import pytest
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Unavailable, WrongAnswer
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "compilers")
CROSS, OFFLINE = suite_modules("compilers", "_cross", "_offline")
(HOST,) = plugins.load("backends", "host").devices()
BENCH = Bench.untimed(Case("compilers", "cross"), Target(Facts((HOST,)), HOST, "full"), SUITE.package, 1)


def elf(machine):
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(40)


class RecordingCrossCompiler:
    """A compiler that keeps what it is asked for."""

    def __init__(self):
        self.asked = []

    def compile(self, source, arch, defines):
        self.asked.append((source, arch, dict(defines)))
        return elf(190)


def test_code_is_for_the_kind_of_gpu_that_was_asked_for():
    CROSS.expect_code(elf(190), "sm_90")
    CROSS.expect_code(elf(224), "gfx942")
    for code, arch in (
        (elf(224), "sm_90"),
        (elf(190), "gfx942"),
        (elf(62), "sm_90"),
        (b"", "sm_90"),
        (b".ptx", "gfx942"),
    ):
        with pytest.raises(WrongAnswer, match=f"no code for {arch}"):
            CROSS.expect_code(code, arch)


@pytest.mark.parametrize(("arch", "warp"), [("sm_90", 32), ("gfx942", 64)])
def test_our_kernel_is_compiled_from_the_source_and_the_macros_that_a_gpu_gets(arch, warp):
    recorder = RecordingCrossCompiler()
    device = OFFLINE.OfflineDevice(BENCH, arch, recorder)
    offline = dataclasses.replace(BENCH, open_device=device)
    assert (offline.traits.warp, offline.traits.is_gpu) == (warp, True)
    operators, providers = suite_modules("compilers", "_operators", "_providers")
    providers.build(offline, operators.Problem(offline, "softmax", 64, 4096, "float16"), "nvrtc")
    ((source, asked, defines),) = recorder.asked
    assert asked == arch
    assert "gb_thread()" in source
    assert defines["COLS"] == 4096
    assert device.code == elf(190)
    assert device.seconds > 0


def test_cases_are_of_compilers_and_the_architectures_that_they_know():
    points = [dict(case.params) for case in SUITE.cases(BENCH.target) if case.name == "cross"]
    assert {(point["by"], point["arch"][:2]) for point in points} == {
        ("nvrtc", "sm"),
        ("hiprtc", "gf"),
        ("triton", "sm"),
        ("triton", "gf"),
        ("cutile", "sm"),
    }
    assert len(points) == 13


def test_a_compiler_that_is_missing_is_named_with_the_way_to_get_it(monkeypatch):
    def missing(name, *_):
        raise OSError(name)

    monkeypatch.setattr(OFFLINE.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(OFFLINE.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(OFFLINE.ctypes, "CDLL", missing)
    with pytest.raises(Unavailable, match="pip install nvidia-cuda-nvrtc"):
        OFFLINE.nvrtc()
    with pytest.raises(Unavailable, match="hip-runtime-amd"):
        OFFLINE.hiprtc()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["nvrtc", "hiprtc", "triton", "cutile"])
def test_an_operator_is_compiled_for_every_architecture_and_one_with_errors_is_refused(by):
    known = CROSS.ARCHS[by]
    codes = {}
    for arch in known:
        try:
            task = CROSS.cross(BENCH, "softmax", by, arch)
        except Unavailable as missing:
            pytest.skip(str(missing))
        assert 0 < task.stages[""].call() < 60
        codes[arch] = task.check()["code"].value
        task.poison()
        with pytest.raises(ValueError, match="not enough values"):
            task.check()
    assert min(codes.values()) > 1000
    if by in ("nvrtc", "hiprtc"):
        with pytest.raises(RuntimeError, match="not compiled for"):
            getattr(OFFLINE, by)().compile("no source", known[0], {})
