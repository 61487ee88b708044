"""TVM and IREE: what they write for a GPU is launched on our stream, refused where it does not fit, and compared.

`compiler_output/` has kernels that TVM 0.27 and IREE 3.13 wrote, some for rows that fill no block. A GPU on paper runs
CUDA C++ and PTX on the host's processor; what it shows is that the kernels, their launches and the arguments agree.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import _grid
import numpy as np
import pytest
from _grid import needs_compiler
from _grid_device import PaperGpu, bench
from _modules import suite_modules
from _poison import expect_unwritten, overwrite
from _ptx import PtxThreads
from test_compilers_providers import host_bench

from gpubench import plugins
from gpubench.base.errors import Skip, Unavailable, WrongAnswer

SUITE = plugins.load("suites", "compilers")
GENERATED, TVM, IREE = suite_modules("compilers", "_generated", "_by_tvm", "_by_iree")
OPERATORS, PROVIDERS, CASES = suite_modules("compilers", "_operators", "_providers", "_cases")
NAMES = list(OPERATORS.OPERATORS)
FOLDER = Path(__file__).parent / "compiler_output"
PROGRAM = (FOLDER / "iree-program.mlir").read_text()
MODULES = {"tvm": "tvm", "iree": "iree.compiler"}
BOUNDS = {"float16": 5e-4, "float32": 3e-6}


def launch(file, *launches, order=(0, 1)):
    source, (by, language) = (FOLDER / file).read_text(), (file.partition("-")[0], file.rpartition(".")[2])
    made = tuple(GENERATED.GeneratedLaunch(*one) for one in launches)
    return GENERATED.GeneratedKernels(by.upper(), language, source, made, order=order)


SOFTMAX = launch("tvm-softmax-6x320.cu", ("main_kernel", 6, 256, ("output0", "x")))
SUM_AND_NORM = launch(
    "tvm-residual_norm-6x320.cu", ("main_kernel", 6, 256, ("output0", "output1", "residual", "weight", "x"))
)
SWIGLU = launch(
    "iree-swiglu-6x320.ptx", ("main_dispatch_0_elementwise_1920_f16", 60, 32, ("gate", "up", "outputs")), order=(0,)
)
TWO_KERNELS = launch(
    "iree-residual_norm-32768x1024.ptx",
    ("main_dispatch_0_reduction_32768x1024_f32", 32768, 32, ("x", "residual", "weight", "outputs")),
    ("main_dispatch_1_elementwise_33554432_f32xf16", 262144, 32, ("x", "residual", "outputs")),
    order=(1, 0),
)
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
def gpu(tmp_path):
    made = bench(SUITE, "nvidia")
    return dataclasses.replace(made, open_device=SourcePaperGpu(made.traits, folder=tmp_path))


def problem(name, rows=6, cols=320, dtype="float16", paper=None):
    return OPERATORS.Problem(paper or bench(SUITE, "nvidia"), name, rows, cols, dtype)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param("softmax", SOFTMAX, marks=needs_compiler),
        pytest.param("residual_norm", SUM_AND_NORM, marks=needs_compiler),
        ("swiglu", SWIGLU),
    ],
)
def test_a_generated_kernel_gives_the_operator_of_the_inputs_as_they_are_now(gpu, monkeypatch, name, kernels):
    made = problem(name)
    monkeypatch.setattr(PROVIDERS, "build", lambda bench, problem, by: kernels.built(bench, problem))
    task = CASES.task_of(gpu, made, kernels.library.lower())
    expect_unwritten(task, "not written")
    for _ in range(2):  # the second time of other inputs
        overwrite(task)
        task.stages[""].call()
        assert 0 < task.check()["error"].value < 5e-4


@needs_compiler
def test_a_generated_kernel_that_computes_something_else_is_a_wrong_answer(gpu):
    wrong = SOFTMAX._replace(source=SOFTMAX.source.replace("expf(", "1.01f + expf("))
    assert wrong.source != SOFTMAX.source
    made = problem("softmax")
    built = wrong.built(gpu, made)
    built.call()
    with pytest.raises(WrongAnswer, match="the relative error"):
        made.compare(built.rows())


def first_rows(kernels, made, rows=2):
    """The first rows of each output as kernels for many rows compute them, and in double precision."""
    operator, rng = made.operator, np.random.default_rng(1)
    inputs = [
        rng.standard_normal((made.cols,) if name in OPERATORS.VECTORS else (rows, made.cols)).astype(made.dtype)
        for name in operator.inputs
    ]
    results = [np.full((rows, made.cols), np.nan, made.dtype) for _ in range(operator.outputs)]
    addresses = {name: 2**40 * (place + 1) for place, name in enumerate((*operator.inputs, "outputs"))}
    memory = dict(zip(addresses.values(), inputs, strict=False))
    output_bytes = made.rows * made.cols * OPERATORS.ITEM_BYTES[made.dtype]
    for place, output in enumerate(kernels.order):
        memory[addresses["outputs"] + place * output_bytes] = results[output]
    for one in kernels.launches:
        threads = PtxThreads(one.blocks * rows // made.rows, one.threads, memory)
        threads.run(kernels.source, one.function, [addresses[name] for name in one.arguments])
    return results, operator.outputs_of(np, *(values.astype(float) for values in inputs))


def expect_first_rows(kernels, made):
    for result, expected in zip(*first_rows(kernels, made), strict=True):
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        assert 0 < error < BOUNDS[made.dtype]


def shaped(name, rows, cols, dtype):
    """A problem whose inputs are never drawn."""
    made = problem(name)
    made.rows, made.cols, made.dtype = rows, cols, dtype
    return made


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
        ("", ".extern .shared .align 16 .b8 memory[];", "shared memory"),
        ("", ".version 7.8", "several files of kernels"),
    ],
)
def test_a_program_or_kernels_of_another_form_are_refused(before, after, why):
    assert before in PROGRAM
    program, ptx = (PROGRAM.replace(before, after), PTX) if before else (PROGRAM, PTX + after)
    with pytest.raises((KeyError, ValueError), match=why):
        IREE.kernels_of("IREE", program, ptx, shaped("residual_norm", 32768, 1024, "float16"))


@pytest.mark.parametrize(
    ("program", "outcome"), [(PROGRAM, "launched"), (PROGRAM.replace("finalize<", "fill_buffer<"), "fill_buffer")]
)
def test_iree_is_called_for_the_architecture_of_the_gpu_and_what_it_writes_is_read(monkeypatch, program, outcome):
    def compile_str(module, extra_args):
        assert 'arch = "sm_90"' in module
        (folder,) = (flag.partition("-to=")[2] for flag in extra_args if "dump" in flag)
        (Path(folder) / "kernels.ptx").write_text(PTX)
        return program.encode()

    compiler = type("Compiler", (), {"compile_str": staticmethod(compile_str)})
    made = shaped("residual_norm", 32768, 1024, "float16")
    if outcome == "launched":
        kernels = IREE._in_ptx(compiler, "IREE", "", made, "sm_90")
        assert kernels.launches == (
            ("norm", 32768, 32, ("x", "residual", "weight", "outputs")),
            ("sum", 262144, 64, ("x", "residual", "scratch0")),
        )
        assert (kernels.scratch, kernels.order) == ((4096,), (1, 0)), "the second output comes first"
        expect_first_rows(TWO_KERNELS, made)
    else:
        with pytest.raises(Skip, match=f"IREE has written residual_norm in a form that is not known here: .*{outcome}"):
            IREE._in_ptx(compiler, "IREE", "", made, "sm_90")


@pytest.mark.parametrize("where", ["host", "nvidia"])
@pytest.mark.parametrize(("by", "module"), MODULES.items())
def test_a_compiler_that_is_missing_is_named_with_its_extra(monkeypatch, by, module, where):
    monkeypatch.setitem(sys.modules, module, None)
    paper = host_bench() if where == "host" else bench(SUITE, "nvidia")
    made = problem("softmax", dtype="float32", paper=paper)
    with pytest.raises(Unavailable, match=rf"not installed; .*'gpubench-suite\[{by}\]'"):
        PROVIDERS.build(paper, made, by)
    assert "inputs" not in vars(made), "no input was drawn for it"


@pytest.mark.parametrize("by", MODULES)
def test_a_compiler_is_skipped_on_other_vendors_gpus_and_for_operators_of_another_kind(by):
    made = problem("softmax")
    with pytest.raises(Skip, match=f"not tried {by} on amd"):
        PROVIDERS.build(bench(SUITE, "amd"), made, by)
    made.operator = OPERATORS.Operator("product", ("x",), lambda xp, x: x)
    with pytest.raises(Skip, match=f"{by} has no product here"):
        PROVIDERS.build(host_bench(), made, by)


def test_the_program_for_iree_repeats_vectors_and_reduces_rows():
    linalg = IREE.linalg
    text = linalg(OPERATORS.OPERATORS["rmsnorm"], 100, 320, "float32")
    assert text.startswith(
        "func.func @main(%x: tensor<100x320xf32>, %weight: tensor<320xf32>) -> (tensor<100x320xf32>)"
    )
    assert text.count("linalg.reduce { arith.addf }") == 1
    repeated = [line.split("dimensions = ")[1] for line in text.splitlines() if "linalg.broadcast" in line]
    assert sorted(repeated) == ["[0]", "[1]"], "the weights along the rows, the root mean square along the columns"
    assert f"dense<{1e-5:.17e}>" in text
    assert np.isclose(float(f"{1e-5:.17e}"), OPERATORS.EPSILON, rtol=0)


def needs(by):
    """Skip a test where the library of a provider is missing."""
    missing = importlib.util.find_spec(by) is None
    return pytest.param(by, marks=pytest.mark.skipif(missing, reason=f"needs pip install 'gpubench-suite[{by}]'"))


@pytest.mark.slow
@pytest.mark.parametrize("by", [needs("tvm"), needs("iree")])
@pytest.mark.parametrize("name", NAMES)
class TestCompilers:
    def test_on_the_host_they_give_the_operator_of_the_inputs_as_they_are_now(self, name, by):
        paper = host_bench()
        made = problem(name, 100, dtype="float32", paper=paper)
        built = PROVIDERS.build(paper, made, by)
        for _ in range(2):
            built.poison()
            built.call()
            assert 0 < made.compare(built.rows())["error"].value < 2e-6
            made.change()

    @needs_compiler
    def test_for_a_gpu_they_write_kernels_that_are_the_operator(self, gpu, name, by):
        for cols, dtype in ((320, "float16"), (1024, "float16"), (96, "float32")) if by == "tvm" else ():
            made = problem(name, cols=cols, dtype=dtype)
            built = PROVIDERS.build(gpu, made, "tvm")
            assert built.notes["library"].startswith("TVM 0.")
            built.call()
            assert made.compare(built.rows())["error"].value < BOUNDS[dtype]
        for cols, dtype in ((1024, "float16"), (4096, "float32"), (32768, "float16")) if by == "iree" else ():
            made = shaped(name, 32768, cols, dtype)
            function = IREE.linalg(made.operator, made.rows, made.cols, made.dtype)
            compiler = importlib.import_module("iree.compiler")
            expect_first_rows(IREE._in_ptx(compiler, "IREE", function, made, "sm_90"), made)
