"""Providers of the suite `compilers` with libraries of their own, and checks that find calls that compute nothing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import _grid
import numpy as np
import pytest
from _earlier import check_in_turn
from _grid_device import bench
from _modules import room_module, suite_module, suite_modules
from _numpy_triton import ElementPointer, PaperTriton

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS, CASES, BUILD = suite_modules("compilers", "_operators", "_providers", "_cases", "_build")
NAMES = list(OPERATORS.OPERATORS)
needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")


def provider(by):
    return suite_module("compilers", f"_by_{by.replace('-', '_')}")


def problem(name, rows=12, cols=96, dtype="float16", paper=None):
    return OPERATORS.Problem(paper or bench(SUITE), name, rows, cols, dtype)


def host_bench():
    host = plugins.load("backends", "host")
    device = host.devices()[0]
    return Bench(host.open(device), Case("compilers", "case", ()), Target(Facts((device,)), device), SUITE.package, 1)


@pytest.fixture
def triton(monkeypatch):
    """Triton by NumPy, in place of the module that launches on a stream."""
    paper, module = PaperTriton(), provider("triton")
    monkeypatch.setattr(module, "on_stream", lambda bench: paper)
    monkeypatch.setattr(module, "TritonArray", lambda array, dtype: ElementPointer(array.reshape(-1)))
    return paper


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_in_triton_is_its_operator_whatever_the_length_of_a_row(triton, name):
    for cols in (96, 100):  # both fill no program
        made = problem(name, 12, cols)
        built = PROVIDERS.build(bench(SUITE), made, "triton")
        built.poison()
        with pytest.raises(WrongAnswer, match="not written"):
            made.compare(built.rows())
        before = sum(triton.launched.values())
        built.call()
        assert 0 < made.compare(built.rows())["error"].value < 5e-4
        assert sum(triton.launched.values()) == before + 1, "one launch for each call"


def test_a_block_in_triton_holds_a_row_and_has_warps_for_it(triton):
    words = [
        PROVIDERS.build(bench(SUITE), problem("softmax", 2, cols), "triton").notes["configuration"]
        for cols in (64, 1000, 4096, 32768)
    ]
    assert words == [
        "64 elements and 1 warps in each of 2 programs",
        "1024 elements and 2 warps in each of 2 programs",
        "4096 elements and 4 warps in each of 2 programs",
        "32768 elements and 32 warps in each of 2 programs",
    ]


SIMULATED = """
import importlib
import numpy as np, numba.cuda as cuda
from gpubench import plugins
suite = plugins.load("suites", "compilers")
operators = importlib.import_module(suite.package + "._operators").OPERATORS
module = importlib.import_module(suite.package + "._by_numba_cuda")
module.load(cuda)
module.load_probe(cuda)
probed = np.full(1, 1.5, np.float16)
cuda.jit(module.probe)[1, 1](probed, 1)
assert probed == [3.0]
rng = np.random.default_rng(1)
for name, operator in operators.items():
    inputs = [rng.normal(size=40 if n in ("weight", "bias") else (2, 40)).astype(np.float16) for n in operator.inputs]
    outputs = [np.full(80, np.nan, np.float16) for _ in range(operator.outputs)]
    blocks = 1 if name in module.POINTWISE else 2
    kernel = cuda.jit(operator.kernels["numba-cuda"])[blocks, module.THREADS]
    kernel(*(array.ravel() for array in inputs), *outputs, 40)
    exact = operator.outputs_of(np, *(array.astype(float) for array in inputs))
    errors = [np.linalg.norm(o.reshape(2, 40) - e) / np.linalg.norm(e) for o, e in zip(outputs, exact)]
    assert max(errors) < 5e-4, (name, errors)
    print(name)
"""


@pytest.mark.slow
def test_a_kernel_for_numbas_gpu_target_is_its_operator_in_numbas_simulator():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    ended = subprocess.run([sys.executable, "-c", SIMULATED], env=environment, capture_output=True, text=True)
    assert (ended.stdout.split(), ended.stderr) == (NAMES, "")


@pytest.mark.filterwarnings("default")  # of the libraries
@pytest.mark.parametrize("by", ["torch", "inductor", "jax"])
def test_a_library_over_our_memory_gives_the_operators_on_the_host(by):
    if importlib.util.find_spec("jax" if by == "jax" else "torch") is None:
        pytest.skip(f"needs the library of {by}")
    paper = host_bench()
    for name in NAMES:
        made = problem(name, dtype="float32", paper=paper)
        task = CASES.task_of(paper, made, by)
        (stage,) = task.stages.values()
        for _ in range(2):  # the second time of other inputs
            task.poison()
            stage.call()
            assert task.check()["error"].value < 1e-6


@pytest.mark.parametrize(
    ("by", "modules", "command"),
    [
        ("triton", ["triton"], r"pip install 'gpubench-suite\[compilers\]'"),
        ("numba-cuda", ["numba.cuda"], r"pip install 'numba-cuda\[cu13\]'"),
        ("torch", ["torch"], r"pip install 'gpubench-suite\[torch\]'"),
        ("inductor", ["torch"], r"pip install 'gpubench-suite\[torch\]'"),
        ("jax", ["jax"], r"pip install 'gpubench-suite\[jax\]'"),
    ],
)
def test_a_library_that_is_missing_is_skipped_with_the_command_that_installs_it(monkeypatch, by, modules, command):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    made = problem("softmax")
    with pytest.raises(Unavailable, match=command):
        PROVIDERS.build(bench(SUITE, "nvidia"), made, by)
    assert "inputs" not in vars(made), "no input was drawn for it"


class NumbaCuda:
    """numba.cuda, whose compiler raises `error` for kernels with names in `broken`, or for every kernel."""

    def __init__(self, error, broken=()):
        self.error, self.broken, self.launched = error, broken, []

    def jit(self, kernel=None, device=False):
        return (lambda function: function) if device else Launched(self, kernel.__name__)

    is_available = staticmethod(lambda: True)
    external_stream = as_cuda_array = to_device = staticmethod(lambda array: array)


class Launched:
    def __init__(self, library, name):
        self.library, self.name = library, name

    def __getitem__(self, configuration):
        return self

    def __call__(self, *_):
        if self.name in self.library.broken or not self.library.broken:
            raise self.library.error
        self.library.launched.append(self.name)


MISFITS = [
    AttributeError("module 'numpy' has no attribute 'row_stack'"),
    TypeError("Signature mismatch: 3 argument types given, but function takes 4 arguments"),
    ImportError("cannot import name 'types'"),
    importlib.import_module("numba.core.errors").LoweringError("Failed in cuda mode pipeline\nmore"),
]


@pytest.mark.parametrize("error", MISFITS, ids=lambda error: type(error).__name__)
def test_numbas_gpu_target_that_compiles_no_kernel_is_skipped_with_the_command_that_mends_it(monkeypatch, error):
    monkeypatch.setitem(sys.modules, "numba.cuda", NumbaCuda(error))
    with pytest.raises(Unavailable, match=r"pip install 'numba==.*' 'numba-cuda\[cu13\]==.*' 'numpy<2\.5'") as found:
        PROVIDERS.build(bench(SUITE, "nvidia"), problem("softmax"), "numba-cuda")
    assert str(error).partition("\n")[0] in str(found.value)
    assert "\n" not in str(found.value)


def test_a_kernel_of_ours_that_numba_does_not_compile_is_a_failure_where_it_compiles_others(monkeypatch):
    numba_cuda = NumbaCuda(TypeError("a mistake of ours"), broken=("_softmax_cuda",))
    monkeypatch.setitem(sys.modules, "numba.cuda", numba_cuda)
    with pytest.raises(TypeError, match="a mistake of ours"):
        PROVIDERS.build(bench(SUITE, "nvidia"), problem("softmax"), "numba-cuda")
    assert numba_cuda.launched == ["probe"]
    PROVIDERS.build(bench(SUITE, "nvidia"), problem("rmsnorm"), "numba-cuda")
    assert numba_cuda.launched == ["probe", "_rmsnorm_cuda"], "no probe where the kernel is compiled"


def test_numbas_gpu_target_whose_import_breaks_off_is_skipped_with_the_command_that_mends_it(tmp_path, monkeypatch):
    (tmp_path / "broken_cuda.py").write_text("import numpy\nnumpy.dropped\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = provider("numba-cuda")
    imported = importlib.import_module
    paper = SimpleNamespace(import_module=lambda name: imported("broken_cuda" if name == "numba.cuda" else name))
    monkeypatch.setattr(module, "importlib", paper)
    with pytest.raises(Unavailable, match=r"'dropped'\); .*pip install 'numba=="):
        PROVIDERS.build(bench(SUITE, "nvidia"), problem("softmax"), "numba-cuda")


def test_triton_without_a_c_compiler_says_what_it_needs(monkeypatch):
    module = room_module("suites", "_triton")
    monkeypatch.setattr(module, "imported", PaperTriton)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unavailable, match="no C compiler"):
        PROVIDERS.build(bench(SUITE, "nvidia"), problem("softmax"), "triton")
    with pytest.raises(Skip, match="amd"):
        PROVIDERS.build(bench(SUITE, "amd"), problem("softmax"), "triton")


def test_a_library_of_its_own_does_not_share_a_worker():
    runtimes = {by: CASES.runtime_of({"by": by}) for by in (*PROVIDERS.GPU, *PROVIDERS.HOST)}
    assert {runtimes[by] for by in ("numpy", "numba", "cupy", "cupy-fused", "nvrtc")} == {""}
    own = [runtimes[by] for by in ("triton", "cutile", "numba-cuda", "torch", "inductor", "jax")]
    assert len({"", *own}) == 7


class CachedOutputs:
    """Outputs that are computed by the first call alone, and handed out again."""

    def __init__(self, made, folded=False):
        self.made, self.results, self.shown = made, None, None
        self.inputs = [array.copy() for array in made.inputs.values()] if folded else None

    def call(self):
        if self.results is None or self.inputs:
            self.results = self.made.operator.outputs_of(np, *(self.inputs or self.made.inputs.values()))
        self.shown = self.results

    def rows(self):
        return tuple(self.made.rows_of(array) for array in self.shown)

    def poison(self):
        self.shown = [np.full_like(array, np.nan) for array in self.results or self.made.inputs.values()]


def checked(task):
    task.poison()
    for stage in task.stages.values():
        stage.call()
    return task.check()


def task_by(monkeypatch, paper, made, **built):
    monkeypatch.setattr(PROVIDERS, "build", lambda *of: PROVIDERS.Built(**built))
    return CASES.task_of(paper, made, "fake")


def test_a_call_that_computes_nothing_is_wrong(monkeypatch):
    made = problem("softmax", dtype="float32")
    outputs = PROVIDERS.Outputs(bench(SUITE), made)
    task = task_by(
        monkeypatch, bench(SUITE), made, call=lambda: None, rows=outputs.rows, poison=outputs.poison, notes={}
    )
    with pytest.raises(WrongAnswer, match="not written"):
        checked(task)


@pytest.mark.parametrize("folded", [False, True], ids=["results-are-kept", "inputs-are-folded"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_does_not_compute_from_its_inputs_is_wrong(monkeypatch, name, folded):
    made = problem(name, dtype="float32")
    kept = CachedOutputs(made, folded)
    paper = bench(SUITE)
    task = task_by(monkeypatch, paper, made, call=kept.call, rows=kept.rows, poison=kept.poison)
    checked(task)
    with pytest.raises(WrongAnswer, match="relative error"):
        check_in_turn(task, paper.open_device)


@needs_compiler
@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_a_row_may_leave_whole_warps_of_its_block_without_elements(name):
    made = problem(name, 4, 64)
    built = PROVIDERS.build(bench(SUITE), made, "nvrtc")
    built.call()
    assert made.compare(built.rows())["error"].value < 5e-4


@needs_compiler
def test_our_kernel_follows_its_inputs():
    made, paper = problem("layernorm", 48, 320), bench(SUITE)
    task = CASES.task_of(paper, made, "nvrtc")
    assert 0 < checked(task)["error"].value < 5e-4
    check_in_turn(task, paper.open_device)


def test_a_call_that_works_beside_the_stream_that_is_timed_is_found_out(monkeypatch):
    made, paper = problem("softmax", dtype="float32"), bench(SUITE)
    kept = CachedOutputs(made)
    times = iter(range(1000))
    monkeypatch.setattr(type(paper.open_device), "now", lambda gpu: float(next(times)), raising=False)
    for beside_s, is_right in ((0.0, True), (0.6, False)):  # of a second that the calls take
        monkeypatch.setattr(type(paper.open_device), "elsewhere", lambda gpu, s=beside_s: s, raising=False)
        if is_right:
            PROVIDERS.expect_on_our_stream(paper, kept.call)
        else:
            with pytest.raises(WrongAnswer, match="do not work on the stream that is timed"):
                PROVIDERS.expect_on_our_stream(paper, kept.call)


def test_a_library_with_a_stream_of_its_own_is_timed_in_batches_that_it_has_worked_off(monkeypatch):
    made = problem("softmax", dtype="float32")
    kept, waits, calls = CachedOutputs(made), [], []

    def call():
        calls.append(len(waits))
        kept.call()

    task = task_by(
        monkeypatch, bench(SUITE), made, call=call, rows=kept.rows, poison=kept.poison, wait=partial(waits.append, 1)
    )
    assert [(name, stage.clock) for name, stage in task.stages.items()] == [("host", "self")], "no time of our stream"
    calls.clear()
    assert 0 < task.stages["host"].call() < 1
    assert (len(calls), len(waits)) == (100, 1)


class TestShapes:
    """Lengths that change."""

    def test_lengths_are_distinct_and_the_same_for_every_provider_of_a_run(self):
        found = BUILD.lengths_of(7, "softmax")
        assert len(set(found)) == 16
        assert 64 <= min(found) < 512 < max(found) < 8192
        assert found == BUILD.lengths_of(7, "softmax") != BUILD.lengths_of(8, "softmax")

    def test_each_length_is_called_first_and_again_and_every_output_is_checked(self, monkeypatch):
        paper = host_bench()
        seen = []

        def varied(bench, problems, by):
            built = [PROVIDERS.build(bench, made, "numpy") for made in problems]
            counted = [
                dataclasses.replace(one, call=partial(lambda i, one: (seen.append(i), one.call()), i, one))
                for i, one in enumerate(built)
            ]
            return PROVIDERS.Varied(counted, lambda: 5)

        monkeypatch.setattr(PROVIDERS, "varied", varied)
        monkeypatch.setattr(BUILD, "_SHAPES_ROWS", 4)
        before = dict(os.environ)
        task = BUILD.shapes(paper, "softmax", "numpy")
        assert dict(os.environ) == before, "the folders of the caches are as they were"
        assert seen == list(range(16))
        assert len(task.stages["first"].call()) == len(task.stages["again"].call()) == 16
        assert task.stages["all"].call() == [sum(task.stages["first"].call())]
        assert seen == 2 * list(range(16)), "what was measured first is not called once more"
        observed = task.check()
        assert observed["recompiles"].value == 4
        assert observed["lengths"].values == tuple(map(float, BUILD.lengths_of(1, "softmax")))
        task.poison()
        with pytest.raises((WrongAnswer, TypeError)):
            task.check()

    @pytest.mark.slow
    def test_numba_compiles_a_loop_once_for_all_lengths(self, monkeypatch):
        monkeypatch.setattr(BUILD, "_SHAPES_ROWS", 4)
        task = BUILD.shapes(host_bench(), "softmax", "numba")
        first, again = (task.stages[name].call() for name in ("first", "again"))
        assert task.check()["recompiles"].value == 0
        assert first[0] > 100 * max(again), "the first call compiles"
        assert max(first[1:]) < first[0] / 100

    def test_triton_counts_its_compilations_of_one_kernel(self, monkeypatch, triton):
        runtime = type("Runtime", (), {"jit_post_compile_hook": None})()
        triton.knobs = type("Knobs", (), {"runtime": runtime})()
        jitted = []
        monkeypatch.setattr(triton, "jit", lambda kernel, jit=triton.jit: jitted.append(jit(kernel)) or jitted[-1])
        problems = [problem("softmax", 4, cols) for cols in (64, 65, 100)]
        found = PROVIDERS.varied(bench(SUITE), problems, "triton")
        for kernel in (jitted[-1], jitted[-1], "another"):
            info = type("Info", (), {"jit_function": kernel, "name": "softmax"})()
            runtime.jit_post_compile_hook(key="", repr="", fn=info, already_compiled=False)
        assert found.compiled() == 2
        for made, built in zip(problems, found.built, strict=True):
            built.call()
            assert made.compare(built.rows())["error"].value < 5e-4


def test_a_block_has_threads_for_its_row_and_no_more_elements_than_registers():
    threads_of = provider("nvrtc").threads_of
    lengths = (1, 128, 512, 513, 1024, 4096, 8192)
    assert [threads_of("rmsnorm", vectors, 32) for vectors in lengths] == [64, 64, 256, 512, 512, 512, 1024]
    assert [threads_of("layernorm", vectors, 32) for vectors in lengths] == [64, 64, 128, 256, 256, 512, 1024]
    assert [threads_of("softmax", vectors, 32) for vectors in lengths] == [64, 64, 256, 512, 512, 1024, 1024]
    assert threads_of("softmax", 1, 128) == 128
    paper = bench(SUITE)
    for cols, dtype, why in (
        (32776, "float16", "does not fit"),
        (32772, "float32", "does not fit"),
        (100, "float16", "no mult"),
    ):
        with pytest.raises(Skip, match=why):
            PROVIDERS.build(paper, problem("softmax", 2, cols, dtype), "nvrtc")


@pytest.mark.parametrize("loaded", [{}, {"torch": object()}])
def test_tritons_first_launch_finds_torch_only_if_it_is_loaded_already(loaded, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, name, module)
    with provider("triton").without_torch():
        if loaded:
            importlib.import_module("torch")
        else:
            with pytest.raises(ImportError):
                importlib.import_module("torch")
    assert {name: module for name, module in sys.modules.items() if name == "torch"} == loaded
