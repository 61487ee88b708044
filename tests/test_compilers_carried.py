"""TVM's kernels for NVIDIA GPUs: compiled here or elsewhere, launched by the device, refused where they do not fit.

`tvm_kernels/` has kernels of TVM 0.27 for 6 rows of 320 halves, which no block fits. A GPU on paper runs their CUDA C++
on the host's processor; what it shows is that the kernels, their launches and the arguments agree.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import _grid
import pytest
from _grid_device import PaperGpu, bench

from gpubench import plugins
from gpubench.base.errors import FileError, Skip, Unavailable, WrongAnswer

SUITE = plugins.load("suites", "compilers")
CARRY, CARRIED, TVM = (
    importlib.import_module(f"{SUITE.package}.{name}") for name in ("_carry", "_carried", "_tvm_cuda")
)
OPERATORS, PROVIDERS, CASES = (
    sys.modules[f"{SUITE.package}.{name}"] for name in ("_operators", "_providers", "_cases")
)
FOLDER = Path(__file__).parent / "tvm_kernels"
SHAPE = {"rows": 6, "cols": 320, "dtype": "float16"}
RECORDED = ("bias-gelu", "softmax", "rmsnorm", "residual_norm")
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
needs_tvm = pytest.mark.skipif(
    importlib.util.find_spec("tvm") is None, reason="needs pip install 'gpubench-suite[tvm]'"
)
# CUDA that the grid of the host lacks; a shuffle beyond the warp gives the lane's own value
LANGUAGE = """
typedef _Float16 half;
#define alignas(bytes)
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline u32 __activemask() { return ~0u; }
static inline float __shfl_down_sync(u32, float value, u32 lanes, int) {
    const u32 lane = grid::running % WARP, from = lane + lanes;
    return gb_shuffle(value, from < WARP ? from : lane);
}
"""


@dataclasses.dataclass
class SourcePaperGpu(PaperGpu):
    """A GPU on paper that compiles a kernel from its text; TVM's own preamble for CUDA is left out."""

    folder: Path = Path()

    def kernel(self, source, name, defines):
        assert not defines
        body = re.sub(r"^extern.*;$", "", source[source.index('extern "C"') :], count=1, flags=re.MULTILINE)
        file = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()}.cu"
        file.write_text(LANGUAGE + body)
        return _grid.kernel(str(file), name)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A bench of a GPU on paper, for which the kernels were carried here."""
    monkeypatch.setenv(CARRIED.VARIABLE, str(FOLDER))
    made = bench(SUITE, "nvidia")
    return dataclasses.replace(made, open_device=SourcePaperGpu(made.traits, folder=tmp_path))


def problem(gpu, name, **changes):
    return OPERATORS.Problem(gpu, name, **(SHAPE | changes))


@needs_compiler
@pytest.mark.parametrize("name", RECORDED)
def test_a_carried_kernel_gives_the_operator_of_the_inputs_as_they_are_now(gpu, name):
    made = problem(gpu, name)
    task = CASES.task_of(gpu, made, "tvm")
    assert re.fullmatch(r"compiled elsewhere by TVM 0\.27\.0\.post1, SHA-256 [0-9a-f]{16}", task.notes["library"])
    task.poison()
    with pytest.raises(WrongAnswer, match="not written"):
        task.check()
    for _ in range(2):  # the second time of other inputs
        task.poison()
        task.stages[""].call()
        assert 0 < task.check()["error"].value < 5e-4


@needs_compiler
def test_a_kernel_that_computes_something_else_is_a_wrong_answer_however_it_was_carried(gpu, tmp_path, monkeypatch):
    shape = CARRIED.KernelShape("rmsnorm", 6, 320, "float16", "sm_90")
    kernel = CARRIED.carried("tvm", shape)
    stale = dataclasses.replace(kernel, source=kernel.source.replace("/*1.000000e-05*/", " + 0.1f"))
    assert stale.source != kernel.source
    stale.written(tmp_path, "tvm")
    monkeypatch.setenv(CARRIED.VARIABLE, str(tmp_path))
    made = problem(gpu, "rmsnorm")
    built = PROVIDERS.build(gpu, made, "tvm")
    built.call()
    with pytest.raises(WrongAnswer, match="the relative error"):
        made.compare(built.rows())


@pytest.mark.parametrize(
    ("changes", "file"),
    [
        ({"cols": 640}, "tvm-softmax-6x640-float16-sm_90.cu"),
        ({"rows": 12}, "tvm-softmax-12x320-float16-sm_90.cu"),
        ({"dtype": "float32"}, "tvm-softmax-6x320-float32-sm_90.cu"),
        ({"arch": "sm_100"}, "tvm-softmax-6x320-float16-sm_100.cu"),
    ],
)
def test_a_shape_a_type_or_an_architecture_that_was_not_carried_is_skipped_with_the_file_that_it_needs(
    gpu, changes, file
):
    gpu.open_device.traits = dataclasses.replace(gpu.traits, arch=changes.pop("arch", gpu.traits.arch))
    made = problem(gpu, "softmax", **changes)
    with pytest.raises(Skip, match=f"no kernel was carried for this shape: .*{re.escape(file)} is missing"):
        PROVIDERS.build(gpu, made, "tvm")
    assert "inputs" not in vars(made), "no input was drawn for it"


def test_a_file_that_is_not_as_it_was_written_or_has_the_name_of_another_is_refused(gpu, tmp_path, monkeypatch):
    right = FOLDER / "tvm-softmax-6x320-float16-sm_90.cu"
    monkeypatch.setenv(CARRIED.VARIABLE, str(tmp_path))
    broken = tmp_path / right.name
    for damage in (
        lambda text: text[:-3],
        lambda text: text.replace('"threads": 256', '"threads": 128'),
        lambda text: "",
    ):
        broken.write_text(damage(right.read_text()))
        with pytest.raises(FileError, match=f"{right.name} is not as it was written"):
            PROVIDERS.build(gpu, problem(gpu, "softmax"), "tvm")
    shutil.copy(right, tmp_path / "tvm-softmax-6x320-float16-sm_80.cu")
    with pytest.raises(FileError, match=r"sm_80\.cu has the kernel of softmax-6x320-float16-sm_90"):
        CARRIED.carried("tvm", CARRIED.KernelShape("softmax", 6, 320, "float16", "sm_80"))
    broken.unlink()
    broken.mkdir()
    with pytest.raises(FileError, match="cannot be read"):
        PROVIDERS.build(gpu, problem(gpu, "softmax"), "tvm")


def test_without_kernels_tvm_compiles_here_and_is_missing_with_its_extra(gpu, monkeypatch):
    monkeypatch.delenv(CARRIED.VARIABLE)
    monkeypatch.setitem(sys.modules, "tvm", None)
    made = problem(gpu, "softmax")
    with pytest.raises(Unavailable, match=r"pip install 'gpubench-suite\[tvm\]'"):
        PROVIDERS.build(gpu, made, "tvm")
    assert "inputs" not in vars(made), "no input was drawn for it"
    with pytest.raises(Skip, match="amd"):
        PROVIDERS.build(bench(SUITE, "amd"), made, "tvm")


def test_the_kernels_to_carry_are_those_of_the_full_tier():
    shapes = {str(shape) for shape in CARRY.shapes("sm_90")}
    assert len(shapes) == 25
    assert {
        "twelve-32768x4096-float32-sm_90",
        "softmax-32768x1024-float16-sm_90",
        "layernorm-32768x32768-float16-sm_90",
        "residual_norm-32768x4096-float32-sm_90",
        "rmsnorm-8x1024-float16-sm_90",
    } < shapes


@needs_tvm
@pytest.mark.slow
class TestTvm:
    """TVM itself, where it is installed."""

    @needs_compiler
    @pytest.mark.parametrize(("cols", "dtype"), [(320, "float16"), (1024, "float16"), (96, "float32")])
    @pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
    def test_a_kernel_that_tvm_compiles_here_is_its_operator(self, gpu, monkeypatch, name, cols, dtype):
        monkeypatch.delenv(CARRIED.VARIABLE)
        made = problem(gpu, name, cols=cols, dtype=dtype)
        built = PROVIDERS.build(gpu, made, "tvm")
        assert built.notes["library"].startswith("TVM 0.")
        built.call()
        assert made.compare(built.rows())["error"].value < {"float16": 5e-4, "float32": 3e-6}[dtype]

    def test_the_command_writes_what_a_gpu_reads(self, tmp_path, monkeypatch, capsys):
        shape = CARRIED.KernelShape("softmax", 6, 320, "float16", "sm_90")
        monkeypatch.setattr(CARRY, "shapes", lambda arch: [shape])
        CARRY.main("sm_90", str(tmp_path / "new"))
        path = Path(capsys.readouterr().out.strip())
        launch = json.loads(path.read_text().splitlines()[1].removeprefix("// "))
        assert launch["shape"] == list(shape)
        monkeypatch.setenv(CARRIED.VARIABLE, str(path.parent))
        assert CARRIED.carried("tvm", shape).source == TVM.compiled(shape).source
