"""The provider cuTile: its kernels by NumPy, its launches, and its code for GPUs that need not be here."""

import dataclasses
import importlib
from pathlib import Path

import pytest
from _grid_device import bench
from _modules import suite_modules
from _numpy_cutile import PaperCutile

from gpubench import plugins
from gpubench.base.errors import Skip, Unavailable, WrongAnswer

SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS, BY = suite_modules("compilers", "_operators", "_providers", "_by_cutile")
STREAM = 12345


def gpu(**traits):
    made = bench(SUITE, "nvidia")
    made.device.stream = STREAM
    made.device.traits = dataclasses.replace(made.device.traits, **traits)
    return made


@pytest.fixture
def cutile(monkeypatch):
    """cuTile by NumPy, in place of the module that launches on a GPU."""
    paper = PaperCutile()
    monkeypatch.setattr(BY, "loaded", lambda: OPERATORS.load_kernels(ct=paper, Constant=object) or paper)
    monkeypatch.setattr(BY, "settings", lambda: paper)
    return paper


@pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
def test_a_kernel_in_cutile_is_its_operator_whatever_the_length_and_number_of_rows(cutile, name, monkeypatch):
    for rows, cols, dtype in ((12, 128, "float16"), (13, 100, "float32"), (2, 2100, "float16")):
        made = OPERATORS.Problem(gpu(), name, rows, cols, dtype)
        built = PROVIDERS.build(gpu(), made, "cutile")
        built.poison()
        with pytest.raises(WrongAnswer, match="not written"):
            made.compare(built.rows())
        before = len(cutile.launched)
        built.call()
        assert 0 < made.compare(built.rows())["error"].value < {"float16": 5e-4, "float32": 1e-6}[dtype]
        ((stream, *_),) = cutile.launched[before:]
        assert stream == STREAM, "one launch for each call, on the stream that is timed"
    if name == "rmsnorm":
        monkeypatch.setattr(cutile, "rsqrt", lambda tile, flush_to_zero: 1 / tile)
        made = OPERATORS.Problem(gpu(), name, 12, 128, "float16")
        with pytest.raises(WrongAnswer, match="relative error"):
            made.compare(PROVIDERS.build(gpu(), made, "cutile").rows())


@pytest.mark.parametrize(
    ("name", "cols", "words", "blocks"),
    [
        ("softmax", 1000, "2 × 1024 elements and 1 blocks in each of 2 programs", None),
        ("softmax", 4096, "1 × 4096 elements and 1 blocks in each of 3 programs", None),
        ("layernorm", 32768, "1 × 32768 elements and 8 blocks in each of 3 programs", 8),
        ("softmax", 131072, "1 × 131072 elements and 8 blocks in each of 3 programs", 8),
        ("swiglu", 32768, "1 × 2048 elements and 1 blocks in each of 48 programs", None),
        ("bias-gelu", 64, "32 × 64 elements and 1 blocks in each of 1 programs", None),
    ],
)
def test_a_long_row_is_shared_by_a_cluster_and_short_rows_share_a_program(cutile, name, cols, words, blocks):
    launch = BY.configured(cutile, name, 3, cols)
    assert launch.words == words
    assert launch.kernel[1] == blocks


def test_cutile_is_skipped_where_it_has_no_operator_or_does_not_compile(cutile):
    made = OPERATORS.Problem(gpu(), "softmax", 12, 128, "float16")
    with pytest.raises(Skip, match="does not compile for sm_75"):
        PROVIDERS.build(gpu(arch="sm_75"), made, "cutile")
    with pytest.raises(Skip, match="does not compile for gfx942"):
        PROVIDERS.build(gpu(vendor="amd", arch="gfx942"), made, "cutile")
    made.operator = dataclasses.replace(made.operator, name="transpose", kernels={})
    with pytest.raises(Skip, match="cutile has no transpose"):
        PROVIDERS.build(gpu(), made, "cutile")


def test_cutile_without_its_assembler_names_the_command_that_installs_it(cutile, monkeypatch):
    def no_assembler(*_):
        raise FileNotFoundError("'tileiras' compiler not found")

    monkeypatch.setattr(cutile, "launch", no_assembler)
    with pytest.raises(Unavailable, match=r"no assembler, tileiras; .*pip install 'gpubench-suite\[cutile\]'"):
        PROVIDERS.build(gpu(), OPERATORS.Problem(gpu(), "softmax", 12, 128, "float16"), "cutile")


def test_what_the_assembler_leaves_behind_is_removed(cutile, monkeypatch):
    left = []

    def assembling(*_):
        left.append(Path(cutile.temp_dir) / "softmax.bytecode")
        left[-1].touch(mode=0o600)
        raise RuntimeError("failed to compile Tile IR program")

    monkeypatch.setattr(cutile, "launch", assembling)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Tile IR"):
            PROVIDERS.build(gpu(), OPERATORS.Problem(gpu(), "softmax", 12, 128, "float16"), "cutile")
    assert left[0] == left[1], "cuTile keeps what it knows of the assembler by the name of the folder"
    assert left[0].parent != Path(PaperCutile.temp_dir)
    assert not left[0].parent.exists()
    assert cutile.temp_dir == PaperCutile.temp_dir


def constraint(compilation, dtype, index_dtype, dimensions):
    """cuTile's description of a vector or a matrix without gaps, with rows of a multiple of 16 elements."""
    return compilation.ArrayConstraint(
        dtype,
        dimensions,
        index_dtype=index_dtype,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None, 1)[-dimensions:],
        stride_divisible_by=(8 * 16 // dtype.bitwidth, 1)[-dimensions:],
        shape_divisible_by=(1, 16)[-dimensions:],
        base_addr_divisible_by=16,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
def test_every_kernel_is_compiled_for_three_generations_of_gpus_with_no_gpu(name):
    """The shapes of the cases; a signature has matrices for inputs of several rows, and for the outputs."""
    pytest.importorskip("cuda.tile")
    tile = BY.loaded()
    compilation = importlib.import_module("cuda.tile.compilation")
    operator = OPERATORS.OPERATORS[name]
    for dtype, cols, arch in (("float16", 1024, "sm_80"), ("float32", 4096, "sm_100"), ("float16", 32768, "sm_90")):
        vector, matrix = (constraint(compilation, getattr(tile, dtype), tile.int32, n) for n in (1, 2))
        launch = BY.configured(tile, name, 64, cols)
        arrays = [vector if one in OPERATORS.VECTORS else matrix for one in operator.inputs]
        parameters = [*arrays, *[matrix] * operator.outputs, *launch.constants]
        convention = compilation.CallingConvention.cutile_python_v1()
        code = BY.compiled_code(launch.kernel, compilation.KernelSignature(parameters, convention), arch)
        assert code.startswith(b"\x7fELF")
        assert len(code) > 1000
