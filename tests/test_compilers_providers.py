"""Providers of the suite `compilers` with libraries of their own, and checks that find calls that compute nothing."""

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from _earlier import check_in_turn
from _grid import needs_compiler
from _grid_device import bench
from _modules import bench_on, opened, room_module, suite_module, suite_modules
from _numpy_triton import ElementPointer, PaperTriton

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.model import Case, Device, Facts
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS, CASES, BUILD = suite_modules("compilers", "_operators", "_providers", "_cases", "_build")
NAMES = list(OPERATORS.OPERATORS)


def provider(by):
    return suite_module("compilers", f"_by_{by.replace('-', '_')}")


def problem(name, rows=12, cols=96, dtype="float16", paper=None):
    return OPERATORS.Problem(paper or bench(SUITE), name, rows, cols, dtype)


def host_bench():
    return bench_on(opened(), SUITE, "case", 1)


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
        ("cutile", ["cuda.tile"], r"pip install 'gpubench-suite\[cutile\]'"),
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
    outputs = PROVIDERS.Outputs(paper, made)
    own = {"rows": outputs.rows, "poison": outputs.poison, "notes": {}}
    with pytest.raises(WrongAnswer, match="not written"):
        checked(task_by(monkeypatch, paper, made, call=lambda: None, **own))


@needs_compiler
def test_our_kernel_follows_its_inputs():
    made, paper = problem("layernorm", 48, 320), bench(SUITE)
    task = CASES.task_of(paper, made, "nvrtc")
    assert 0 < checked(task)["error"].value < 5e-4
    check_in_turn(task, paper.open_device)
    for name in ("softmax", "layernorm"):
        made = problem(name, 4, 64)  # whole warps of a block have no elements
        built = PROVIDERS.build(bench(SUITE), made, "nvrtc")
        built.call()
        assert made.compare(built.rows())["error"].value < 5e-4


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
        assert first[0] > 20 * sorted(again)[len(again) // 2], "the first call compiles"
        assert max(first[1:]) < first[0] / 20

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


# ---- Registers and instructions of kernels: counted in a listing of nvdisasm, and told beside the time in full.


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
