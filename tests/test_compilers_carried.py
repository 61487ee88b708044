"""Kernels of TVM and IREE for NVIDIA GPUs: compiled here or elsewhere, launched by us, refused where they do not fit.

`carried_kernels/` has kernels of TVM 0.27 and IREE 3.13, some for rows that fill no block. A GPU on paper runs CUDA C++
and PTX on the host's processor; what it shows is that the kernels, their launches and the arguments agree.
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
import numpy as np
import pytest
from _grid_device import PaperGpu, bench
from _modules import suite_modules
from _poison import overwrite
from _ptx import PtxThreads

from gpubench import plugins
from gpubench.base.errors import FileError, Skip, Unavailable, WrongAnswer

SUITE = plugins.load("suites", "compilers")
CARRY, CARRIED, TVM, IREE = suite_modules("compilers", "_carry", "_carried", "_tvm_cuda", "_iree_cuda")
OPERATORS, PROVIDERS, CASES = suite_modules("compilers", "_operators", "_providers", "_cases")
FOLDER = Path(__file__).parent / "carried_kernels"
SHAPE = {"rows": 6, "cols": 320, "dtype": "float16"}
RECORDED = ("bias-gelu", "softmax", "rmsnorm", "residual_norm")
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
PROGRAM = (FOLDER / "iree-program.mlir").read_text()
PTX = """
.version 7.8
.visible .entry norm(
	.param .u64 .ptr .global .align 16 norm_param_0
)
.maxntid 32, 1, 1
{
}
.visible .entry sum(
	.param .u64 .ptr .global .align 16 sum_param_0
)
.maxntid 64, 1, 1
{
}
"""
NORM = CARRIED.KernelShape("residual_norm", 32768, 1024, "float16", "sm_90")


def needs(by):
    """Skip a test where the library of a provider is missing."""
    missing = importlib.util.find_spec(by) is None
    return pytest.mark.skipif(missing, reason=f"needs pip install 'gpubench-suite[{by}]'")


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


class NumpyWithModules:
    """NumPy, and modules of PTX as CuPy has them, whose threads go through their instructions on the host."""

    def __getattr__(self, name):
        return getattr(np, name)

    def RawModule(self, path):  # noqa: N802 - CuPy's name
        return PtxModule(Path(path).read_text())


class PtxModule:
    """A module of PTX; its functions take arrays."""

    def __init__(self, text):
        self.text = text

    def get_function(self, name):
        def launch(grid, block, arrays):
            addresses = [array.ctypes.data for array in arrays]
            threads = PtxThreads(grid[0], block[0], dict(zip(addresses, arrays, strict=True)))
            threads.run(self.text, name, addresses)

        launch.compile = lambda: None
        return launch


@dataclasses.dataclass
class SourcePaperGpu(PaperGpu):
    """A GPU on paper that compiles a kernel from its text; TVM's own preamble for CUDA is left out."""

    xp = NumpyWithModules()
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


def problem(name, **changes):
    return OPERATORS.Problem(bench(SUITE, "nvidia"), name, **(SHAPE | changes))


@needs_compiler
@pytest.mark.parametrize("name", RECORDED)
def test_a_carried_kernel_gives_the_operator_of_the_inputs_as_they_are_now(gpu, name):
    made = problem(name)
    task = CASES.task_of(gpu, made, "tvm")
    assert re.fullmatch(r"compiled elsewhere by TVM 0\.27\.0\.post1, SHA-256 [0-9a-f]{16}", task.notes["library"])
    overwrite(task)
    with pytest.raises(WrongAnswer, match="not written"):
        task.check()
    for _ in range(2):  # the second time of other inputs
        overwrite(task)
        task.stages[""].call()
        assert 0 < task.check()["error"].value < 5e-4


@needs_compiler
def test_a_kernel_that_computes_something_else_is_a_wrong_answer_however_it_was_carried(gpu, tmp_path, monkeypatch):
    shape = CARRIED.KernelShape("rmsnorm", 6, 320, "float16", "sm_90")
    kernel = CARRIED.carried("tvm", "cu", shape)
    stale = dataclasses.replace(kernel, source=kernel.source.replace("/*1.000000e-05*/", " + 0.1f"))
    assert stale.source != kernel.source
    stale.written(tmp_path, "tvm")
    monkeypatch.setenv(CARRIED.VARIABLE, str(tmp_path))
    made = problem("rmsnorm")
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
    made = problem("softmax", **changes)
    with pytest.raises(Skip, match=f"no kernel was carried for this shape: .*{re.escape(file)} is missing"):
        PROVIDERS.build(gpu, made, "tvm")
    assert "inputs" not in vars(made), "no input was drawn for it"


def test_a_file_that_is_not_as_it_was_written_or_has_the_name_of_another_is_refused(gpu, tmp_path, monkeypatch):
    right = FOLDER / "tvm-softmax-6x320-float16-sm_90.cu"
    monkeypatch.setenv(CARRIED.VARIABLE, str(tmp_path))
    broken = tmp_path / right.name
    for damage in (
        lambda text: text[:-3],
        lambda text: text.replace(", 256, [", ", 128, ["),
        lambda text: "",
    ):
        broken.write_text(damage(right.read_text()))
        with pytest.raises(FileError, match=f"{right.name} is not as it was written"):
            PROVIDERS.build(gpu, problem("softmax"), "tvm")
    shutil.copy(right, tmp_path / "tvm-softmax-6x320-float16-sm_80.cu")
    with pytest.raises(FileError, match=r"sm_80\.cu has the kernels of softmax-6x320-float16-sm_90"):
        CARRIED.carried("tvm", "cu", CARRIED.KernelShape("softmax", 6, 320, "float16", "sm_80"))
    broken.unlink()
    broken.mkdir()
    with pytest.raises(FileError, match="cannot be read"):
        PROVIDERS.build(gpu, problem("softmax"), "tvm")


@pytest.mark.parametrize(("by", "module"), [("tvm", "tvm"), ("iree", "iree.compiler")])
def test_without_kernels_the_compiler_compiles_here_and_is_missing_with_its_extra(gpu, monkeypatch, by, module):
    monkeypatch.delenv(CARRIED.VARIABLE)
    monkeypatch.setitem(sys.modules, module, None)
    made = problem("softmax")
    with pytest.raises(Unavailable, match=rf"pip install 'gpubench-suite\[{by}\]'"):
        PROVIDERS.build(gpu, made, by)
    assert "inputs" not in vars(made), "no input was drawn for it"
    with pytest.raises(Skip, match="amd"):
        PROVIDERS.build(bench(SUITE, "amd"), made, by)


def test_the_kernels_to_carry_are_those_of_the_full_tier():
    shapes = {str(shape) for shape in CARRY.shapes("tvm", "sm_90")}
    assert len(shapes) == 25
    assert {
        "twelve-32768x4096-float32-sm_90",
        "softmax-32768x1024-float16-sm_90",
        "layernorm-32768x32768-float16-sm_90",
        "residual_norm-32768x4096-float32-sm_90",
        "rmsnorm-8x1024-float16-sm_90",
    } < shapes
    assert {str(shape) for shape in CARRY.shapes("iree", "sm_90")} == shapes


def test_a_shape_that_a_compiler_cannot_write_costs_its_own_file_alone(tmp_path, monkeypatch, capsys):
    kernels = CARRIED.carried("iree", "ptx", CARRIED.KernelShape("swiglu", 6, 320, "float16", "sm_90"))
    assert kernels is None, "no folder is named"
    monkeypatch.setenv(CARRIED.VARIABLE, str(FOLDER))
    shapes = [CARRIED.KernelShape(name, 6, 320, "float16", "sm_90") for name in ("softmax", "swiglu")]

    def compiled(shape):
        if shape.operator == "softmax":
            raise Skip("no such kernel")
        return CARRIED.carried("iree", "ptx", shape)

    monkeypatch.setattr(CARRY, "shapes", lambda by, arch: shapes)
    monkeypatch.setitem(CARRY._COMPILERS, "iree", compiled)
    CARRY.main("iree", "sm_90", str(tmp_path / "new"))
    written, left_out = capsys.readouterr()
    assert Path(written.strip()).name == "iree-swiglu-6x320-float16-sm_90.ptx"
    assert left_out == "softmax-6x320-float16-sm_90 is left out: no such kernel\n"


class TestIree:
    """IREE's kernels in PTX."""

    def test_carried_ptx_gives_the_operator_of_the_inputs_as_they_are_now(self, gpu):
        task = CASES.task_of(gpu, problem("swiglu"), "iree")
        assert task.notes["library"].startswith("compiled elsewhere by IREE 3.13.0, SHA-256 ")
        for _ in range(2):  # the second time of other inputs
            overwrite(task)
            task.stages[""].call()
            assert 0 < task.check()["error"].value < 5e-4

    @pytest.mark.parametrize(
        ("name", "cols", "dtype"),
        [
            ("softmax", 1024, "float16"),
            ("layernorm", 1024, "float16"),
            ("residual_norm", 1024, "float16"),  # two kernels, and the second output comes first
            ("residual_norm", 4096, "float32"),
        ],
    )
    def test_the_first_blocks_of_a_kernel_give_the_first_rows(self, monkeypatch, name, cols, dtype):
        monkeypatch.setenv(CARRIED.VARIABLE, str(FOLDER))
        kernels = CARRIED.carried("iree", "ptx", CARRIED.KernelShape(name, 32768, cols, dtype, "sm_90"))
        results, exact = first_rows(kernels)
        for result, expected in zip(results, exact, strict=True):
            error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
            assert 0 < error < {"float16": 5e-4, "float32": 1e-6}[dtype]

    def test_a_program_for_the_host_has_the_launches_and_their_arrays(self):
        kernels = IREE.kernels_of("IREE", PROGRAM, PTX, NORM)
        assert kernels.launches == (
            ("norm", 32768, 32, ("x", "residual", "weight", "outputs")),
            ("sum", 262144, 64, ("x", "residual", "scratch0")),
        )
        assert (kernels.scratch, kernels.order) == ((4096,), (1, 0))

    @pytest.mark.parametrize(
        ("before", "after", "why"),
        [
            ("(%c2 : index)[%c0, %c2048]", "(%c2 : index)[%c1, %c2048]", "a part of an array"),
            ("workgroups([%c32768, %c1,", "workgroups([%c32768, %c3,", "several dimensions"),
            ("[%c67108864, %c67108864] shape", "[%c1, %c67108864] shape", "the outputs"),
            ("util.return %view, %view_3 :", "util.return %view_3, %view :", "the order of the outputs"),
            ("finalize<", "fill_buffer<", "fill_buffer"),
            ("queue.dealloca<", "queue.copy<", "queue.copy"),
            ("[%function_id]", "[%function_7]", "function_7"),
        ],
    )
    def test_a_program_of_another_form_is_refused(self, before, after, why):
        assert before in PROGRAM
        with pytest.raises((KeyError, ValueError), match=why):
            IREE.kernels_of("IREE", PROGRAM.replace(before, after), PTX, NORM)

    def test_kernels_whose_launch_sets_their_shared_memory_are_refused(self):
        with pytest.raises(ValueError, match="shared memory"):
            IREE.kernels_of("IREE", PROGRAM, PTX + ".extern .shared .align 16 .b8 memory[];", NORM)

    @needs("iree")
    @pytest.mark.slow
    @pytest.mark.parametrize(("cols", "dtype"), [(1024, "float16"), (4096, "float32"), (32768, "float16")])
    @pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
    def test_kernels_that_iree_compiles_here_are_their_operator(self, name, cols, dtype):
        results, exact = first_rows(IREE.compiled(CARRIED.KernelShape(name, 32768, cols, dtype, "sm_90")))
        for result, expected in zip(results, exact, strict=True):
            error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
            assert 0 < error < {"float16": 5e-4, "float32": 1e-6}[dtype]


def first_rows(kernels, rows=2):
    """The first rows of each output as kernels for many rows compute them, and in double precision."""
    shape, operator = kernels.shape, OPERATORS.OPERATORS[kernels.shape.operator]
    rng = np.random.default_rng(1)
    inputs = [
        rng.standard_normal((shape.cols,) if name in OPERATORS.VECTORS else (rows, shape.cols)).astype(shape.dtype)
        for name in operator.inputs
    ]
    results = [np.full((rows, shape.cols), np.nan, shape.dtype) for _ in range(operator.outputs)]
    addresses = {name: 2**40 * (place + 1) for place, name in enumerate((*operator.inputs, "outputs"))}
    memory = dict(zip(addresses.values(), inputs, strict=False))
    for place, output in enumerate(kernels.order):
        memory[addresses["outputs"] + place * shape.output_bytes] = results[output]
    for launch in kernels.launches:
        threads = PtxThreads(launch.blocks * rows // shape.rows, launch.threads, memory)
        threads.run(kernels.source, launch.function, [addresses[name] for name in launch.arguments])
    return results, operator.outputs_of(np, *(values.astype(float) for values in inputs))


@needs("tvm")
@pytest.mark.slow
class TestTvm:
    """TVM itself, where it is installed."""

    @needs_compiler
    @pytest.mark.parametrize(("cols", "dtype"), [(320, "float16"), (1024, "float16"), (96, "float32")])
    @pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
    def test_a_kernel_that_tvm_compiles_here_is_its_operator(self, gpu, monkeypatch, name, cols, dtype):
        monkeypatch.delenv(CARRIED.VARIABLE)
        made = problem(name, cols=cols, dtype=dtype)
        built = PROVIDERS.build(gpu, made, "tvm")
        assert built.notes["library"].startswith("TVM 0.")
        built.call()
        assert made.compare(built.rows())["error"].value < {"float16": 5e-4, "float32": 3e-6}[dtype]

    def test_the_command_writes_what_a_gpu_reads(self, tmp_path, monkeypatch, capsys):
        shape = CARRIED.KernelShape("softmax", 6, 320, "float16", "sm_90")
        monkeypatch.setattr(CARRY, "shapes", lambda by, arch: [shape])
        CARRY.main("tvm", "sm_90", str(tmp_path / "new"))
        path = Path(capsys.readouterr().out.strip())
        launch = json.loads(path.read_text().splitlines()[1].removeprefix("// "))
        assert launch["shape"] == list(shape)
        monkeypatch.setenv(CARRIED.VARIABLE, str(path.parent))
        assert CARRIED.carried("tvm", "cu", shape).source == TVM.compiled(shape).source
