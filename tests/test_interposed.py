"""Our own libraries replace the driver's or are preloaded before it: each way to interpose is found."""

import json
import os
import shutil
import subprocess
import sys

import _make as make
import pytest
from _grid_device import PAPER, PaperGpu

from gpubench.analysis.summary import Summary
from gpubench.analysis.trust import limitations
from gpubench.authoring.axes import Target
from gpubench.cli import _machine
from gpubench.devices import interposed
from gpubench.measuring import worker
from gpubench.model import Case, Facts
from gpubench.plugins.backend import Traits

CC = shutil.which("cc")
VERSION = "580.159.04"
FUNCTIONS = "int cuInit(int f) { return 0; } int cuMemAlloc_v2(void *p, unsigned long n) { return 0; }\n"
LAUNCH = "int cuLaunchKernel(void *f) { return 0; }\n"
LOOK_UP = """
int hidden_launch(void *f);
int cuGetProcAddress(const char *symbol, void **place, int version, unsigned long long flags) {
    *place = (void *)hidden_launch;
    return 0;
}
"""
PROGRAM = """
import ctypes, json, sys
for library in sys.argv[1].split(":"):
    ctypes.CDLL(library)
from gpubench.devices import interposed
found = interposed.libraries(sys.argv[2], sys.argv[3] == "served")
print(json.dumps([(each.name, each.origin, each.is_interposed) for each in found]))
"""
pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler to build libraries of our own")


def compile_library(folder, name, source, *options):
    code = folder / f"{name}.c"
    code.write_text(source)
    subprocess.run(
        [CC, "-shared", "-fPIC", "-o", folder / name, code, "-Wl,-soname,libcuda.so.1", *options], check=True
    )
    return folder / name


def judged(library, version=VERSION, preload="", served="served"):
    environment = {**os.environ, "LD_PRELOAD": str(preload)}
    command = [sys.executable, "-c", PROGRAM, str(library), version, served]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    (report,) = json.loads(answer.stdout)
    return tuple(report)


def test_the_drivers_own_library_is_no_interposer_and_one_of_another_maker_is(tmp_path):
    named = compile_library(tmp_path, f"libcuda.so.{VERSION}", FUNCTIONS)
    assert judged(named)[1:] == (f"the driver's own ({VERSION}): {named}", False)
    plain = compile_library(tmp_path, "libcuda.so.1", f'const char *version = "{VERSION}";{FUNCTIONS}')
    assert judged(plain)[1:] == (f"the driver's own ({VERSION}): {plain}", False)
    library = compile_library(tmp_path, "libcuda.so.575.51.03", FUNCTIONS)
    _, text, is_interposed = judged(library)
    assert text.startswith(f"version 575.51.03, but the kernel's driver is {VERSION} (forward compatibility?)")
    assert not is_interposed
    library = compile_library(tmp_path, "libcuda.so.1", FUNCTIONS)
    assert judged(library, version="")[1:] == (f"unverified: {library}", False)
    text = f"interposed: {library} is loaded, but the kernel has no driver"
    assert judged(library, version="", served="no")[1:] == (text, True), "it works and forwards its calls"
    library = compile_library(tmp_path, "libcuda.so.1", FUNCTIONS + LAUNCH)
    assert judged(library) == ("libcuda.so.1", f"interposed: {library} is not of driver {VERSION}", True)


def test_a_preloaded_library_is_an_interposer_if_it_defines_functions_of_the_driver(tmp_path):
    library = compile_library(tmp_path, f"libcuda.so.{VERSION}", FUNCTIONS + LAUNCH)
    vgpu = tmp_path / "libvgpu.so"
    (tmp_path / "vgpu.c").write_text(LAUNCH)
    subprocess.run([CC, "-shared", "-fPIC", "-o", vgpu, tmp_path / "vgpu.c"], check=True)
    assert judged(library, preload=vgpu)[1:] == (f"interposed: cuLaunchKernel in {vgpu}", True)
    library = compile_library(tmp_path, f"libcuda.so.{VERSION}", FUNCTIONS)
    allocator = compile_library(tmp_path, "liballoc.so", "int my_alloc(void) { return 0; }", "-Wl,-soname,liballoc.so")
    assert judged(library, preload=allocator)[1:] == (f"the driver's own ({VERSION}): {library}", False)


def test_a_symbol_that_resolves_to_another_library_is_found(tmp_path):
    (tmp_path / "hook.c").write_text("int hidden_launch(void *f) { return 0; }")
    hook = tmp_path / "libhook.so"
    subprocess.run([CC, "-shared", "-fPIC", "-o", hook, tmp_path / "hook.c"], check=True)
    library = compile_library(
        tmp_path, f"libcuda.so.{VERSION}", FUNCTIONS + LOOK_UP, str(hook), f"-Wl,-rpath,{tmp_path}"
    )
    _, text, is_interposed = judged(library)
    assert is_interposed
    assert text == f"interposed: cuMemAlloc by cuGetProcAddress, cuLaunchKernel by cuGetProcAddress in {hook}"


def test_without_the_drivers_libraries_only_preloaded_ones_are_listed(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/one.so:/opt/two.so")
    assert interposed.libraries(VERSION, True) == ()
    assert interposed.labels() == ()
    assert interposed.facts() == {"preloaded": "/opt/one.so, /opt/two.so"}


SUITE = '''
"""One call."""

from gpubench.api.suite import Stage, Suite, Task, Work

suite = Suite("one call that does nothing")


@suite.case()
def one(bench):
    """A call: seconds."""
    return Task.of(Stage(lambda: None, Work(items=1), "item"), check=lambda: None)
'''


class UnreadChannel:
    """The runner's end of a worker's pipe, without a reader."""

    def send(self, value):
        pass


@pytest.mark.parametrize(("is_gpu", "labelled"), [(True, True), (False, False)])
def test_results_of_a_gpu_through_an_interposer_have_the_label_and_a_report_says_so(
    tmp_path, monkeypatch, is_gpu, labelled
):
    (tmp_path / "nothing.py").write_text(SUITE)
    monkeypatch.setattr(worker.interposed, "labels", lambda: ("interposed",))
    traits = Traits("nvidia", "sm_90", "", ("hot",), "perf_counter", is_gpu=is_gpu)
    measuring = worker.Worker(UnreadChannel())
    measuring._open = PaperGpu(traits)
    case = Case("nothing", "one", ())
    order = worker.CaseOrder(
        case, Target(Facts((PAPER,)), PAPER, "smoke"), 0, 0, (PAPER,), suite=str(tmp_path / "nothing.py")
    )
    part = measuring.measure_case(order)
    assert part.status == "ok", part.reason
    assert ("interposed" in part.labels) == labelled
    run = make.run(make.result(labels=part.labels))
    said = "the driver's calls went through another library, which `gpubench doctor` names (interposed)"
    assert (said in limitations(Summary(run), ())) == labelled


def test_doctor_names_an_interposed_library_before_the_devices():
    host = (("libcuda", "interposed: cuLaunchKernel in /usr/local/vgpu/libvgpu.so"), ("libnvidia-ml", "unverified: /x"))
    parts = _machine.machine(Facts((PAPER,), host), (), (), ())
    lines = [part.plain for part in parts if hasattr(part, "plain")]
    assert "libcuda is interposed: cuLaunchKernel in /usr/local/vgpu/libvgpu.so" in lines[: lines.index("devices")]
    assert not any(line.startswith("libnvidia-ml") for line in lines)
