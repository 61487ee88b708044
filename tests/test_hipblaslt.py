"""The table of hipBLASLt: on until it is turned off, its numbers against AMD's headers, its calls against a stand-in.

None of its products was ever run. The headers and the library are those that `bash ci/rocm.sh` fetches.
"""

import ctypes
import dataclasses
import json
import re
import shutil
import subprocess
import types
from pathlib import Path

import _hiprtc
import numpy as np
import pytest
from _grid import needs_compiler
from _grid_device import bench
from _modules import shared_modules

from gpubench import plugins
from gpubench.base.errors import Skip
from gpubench.devices.backends import _rocm
from gpubench.devices.native import hipblaslt as lt

ROOT = Path(__file__).parent.parent
MI300X, MI350X = {"gcnArchName": b"gfx942:sramecc+"}, {"gcnArchName": b"gfx950"}


def test_hipblaslt_is_on_until_the_variable_turns_it_off_and_adds_bfloat16_int8_and_fp8(monkeypatch):
    monkeypatch.delenv(lt.SWITCH, raising=False)
    assert lt.is_on()
    monkeypatch.setenv(lt.SWITCH, "0")
    assert not lt.is_on()
    plain, added = ("float64", "float32", "float16"), ("bfloat16", "float8_e4m3", "float8_e5m2", "int8")
    assert _rocm.dtypes(MI300X, with_hipblaslt=False) == plain
    assert _rocm.dtypes(MI300X, with_hipblaslt=True) == _rocm.dtypes(MI350X, with_hipblaslt=True) == (*plain, *added)
    assert _rocm.dtypes({"gcnArchName": b"gfx90a"}, with_hipblaslt=True) == (*plain, "bfloat16", "int8")


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_precision_whose_small_product_is_wrong_is_skipped_and_says_so(monkeypatch, dtype, share):
    """The stand-in reads CDNA 3's FP8, whose values are half of those that the references have for the same bits."""
    vendor, formats = shared_modules("_matrix.vendor", "_matrix.formats")
    made = []

    class Product:
        workspace_bytes = 0

        def __init__(self, a, b, c, transposed, batch, factor):
            made.append((a.kind, b.kind, c.kind, factor))
            self.factor = factor

        def queue(self, workspace, stream):
            product, maker = launched[-1], launched[-1].maker
            m, n, k = product.shape.m, product.shape.n, product.shape.k
            half = 0.5 if dtype.startswith("float8") else 1.0
            a = half * maker.widened(product.a, formats.FORMATS[product.precision.a], m, k, (k, 1))
            rows, cols, steps = (n, k, (k, 1)) if product.shape.order == "nt" else (k, n, (n, 1))
            b = half * maker.widened(product.b, formats.FORMATS[product.precision.b], rows, cols, steps)
            b = b.T if product.shape.order == "nt" else b
            bits = (share * self.factor * (a @ b)).astype("float32").view("uint32")
            product.c[:] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16").ravel()

    launched, target = [], bench(plugins.load("suites", "gemm"))
    target.open_device.traits = dataclasses.replace(target.open_device.traits, arch="gfx942")
    by_table = vendor._hipblaslt

    def spied(bench, product):
        launched.append(types.SimpleNamespace(
            **{name: getattr(product, name) for name in ("a", "b", "c", "shape", "precision")},
            maker=shared_modules("_matrix.data")[0].Maker(bench),
        ))  # fmt: skip
        arrays = {name: types.SimpleNamespace(data=types.SimpleNamespace(ptr=0)) for name in "abc"}
        return by_table(with_streams(bench), dataclasses.replace(product, **arrays))

    def with_streams(bench):
        stream = types.SimpleNamespace(ptr=0)
        empty = lambda *_: types.SimpleNamespace(data=types.SimpleNamespace(ptr=0))  # noqa: E731
        xp = types.SimpleNamespace(empty=empty, cuda=types.SimpleNamespace(get_current_stream=lambda: stream))
        return types.SimpleNamespace(xp=xp, traits=bench.traits)

    monkeypatch.setattr(vendor, "_hipblaslt", spied)
    monkeypatch.setattr(vendor.lib.hipblaslt, "Product", Product)
    monkeypatch.setattr(vendor, "_mistakes", {})
    precision = formats.PRECISIONS[dtype]
    for _ in range(2):
        wrong = vendor._mistake(target, precision)
        assert bool(wrong) == (share != 1.0)
    assert len(made) == 1, "each precision is tried once"
    suffix, factor = ("fnuz", 4) if dtype.startswith("float8") else ("", 1)
    assert made == [(f"{precision.a}{suffix}", f"{precision.b}{suffix}", "bfloat16", factor)]
    if wrong:
        with pytest.raises(Skip, match=f"hipBLASLt is not used for {dtype}, because a small product is wrong"):
            vendor.vendor(target, types.SimpleNamespace(precision=precision, shape=None))


class Standin:
    """Computes a product on the host by hipBLASLt's documentation: matrices are column-major."""

    def __init__(self):
        self.held = []

    def _kept(self, value):
        self.held.append(value)
        return ctypes.c_void_p(len(self.held))

    def _of(self, pointer):
        return self.held[pointer.value - 1]

    def create(self, name, *arguments):
        return self._kept(name)

    def layout(self, *arguments):
        return self._kept(arguments)

    def description(self, *transposed):
        return self._kept(transposed)

    def __call__(self, name, *arguments):
        if name == "MatmulAlgoGetHeuristic":
            arguments[-1]._obj.value = 1
        if name == "Matmul":
            self._multiply(*arguments)

    def _multiply(
        self, context, desc, alpha_one, at_a, a, at_b, b, zero, at_c, c, at_d, d, algo, workspace, size, stream
    ):
        assert (at_c, c, size) == (at_d, d, lt.WORKSPACE_BYTES)
        assert list((ctypes.c_float * 2).from_address(alpha_one)) == [1.0, 0.0]
        first, second = (self._matrix(*operand) for operand in ((at_a, a), (at_b, b)))
        for batch in range(self._of(d)[4]):
            x, y = (
                m[batch].T if turned else m[batch]
                for m, turned in zip((first, second), self._of(desc)[:2], strict=True)
            )
            self._matrix(at_d, d)[batch][:] = x @ y

    def _matrix(self, address, pointer):
        """Return the matrices at an address as an array: batch, rows, columns, in column-major order."""
        kind, rows, cols, pitch, batch, apart = self._of(pointer)
        assert kind == "float32"
        steps = (4 * apart, 4, 4 * pitch)
        memory = np.frombuffer(
            (ctypes.c_byte * (4 * (batch - 1) * apart + 4 * pitch * cols)).from_address(address), "f4"
        )
        return np.lib.stride_tricks.as_strided(memory, (batch, rows, cols), steps)


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_arguments_for_the_library_give_the_product_a_times_b(monkeypatch, order, batch):
    monkeypatch.setattr(lt, "load", Standin)
    monkeypatch.setattr(lt, "_context", ctypes.c_void_p)
    rng = np.random.default_rng(3)
    m, n, k = 5, 7, 11
    a = rng.standard_normal((batch, k, m) if order[0] == "t" else (batch, m, k)).astype("f4")
    b = rng.standard_normal((batch, n, k) if order[1] == "t" else (batch, k, n)).astype("f4")
    c = np.zeros((batch, m, n), "f4")
    operands = [lt.Operand(matrix.ctypes.data, "float32", *matrix.shape[1:]) for matrix in (a, b, c)]
    lt.Product(*operands, (order[0] == "t", order[1] == "t"), batch).queue(0, 0)
    wide = (a.swapaxes(1, 2) if order[0] == "t" else a) @ (b.swapaxes(1, 2) if order[1] == "t" else b)
    np.testing.assert_allclose(c, wide, rtol=1e-5, atol=1e-5)


def test_rows_that_lie_further_apart_are_found(monkeypatch):
    monkeypatch.setattr(lt, "load", Standin)
    monkeypatch.setattr(lt, "_context", ctypes.c_void_p)
    wide = np.arange(5 * 20, dtype="f4").reshape(5, 20)
    b, c = np.eye(11, 7, dtype="f4"), np.zeros((5, 7), "f4")
    a = lt.Operand(wide.ctypes.data, "float32", 5, 11, 20)
    others = (lt.Operand(matrix.ctypes.data, "float32", *matrix.shape) for matrix in (b, c))
    lt.Product(a, *others, (False, False)).queue(0, 0)
    np.testing.assert_array_equal(c, wide[:, :7])


PROGRAM = """
#include <cstddef>
#include <cstdio>
#include <hipblaslt/hipblaslt.h>
#define NUMBER(name) printf("%s %d\\n", #name, (int)(name));
int main() {
    NUMBER(sizeof(hipblasLtMatmulAlgo_t))
    NUMBER(sizeof(hipblasLtMatmulHeuristicResult_t))
    NUMBER(offsetof(hipblasLtMatmulHeuristicResult_t, workspaceSize))
    NUMBER(offsetof(hipblasLtMatmulHeuristicResult_t, state))
    NUMBER(offsetof(hipblasLtMatmulHeuristicResult_t, wavesCount))
LINES
}
"""
NUMBERS = {
    "sizeof(hipblasLtMatmulAlgo_t)": ctypes.sizeof(lt.Algo),
    "sizeof(hipblasLtMatmulHeuristicResult_t)": ctypes.sizeof(lt.HeuristicResult),
    "offsetof(hipblasLtMatmulHeuristicResult_t, workspaceSize)": lt.HeuristicResult.workspace_bytes.offset,
    "offsetof(hipblasLtMatmulHeuristicResult_t, state)": lt.HeuristicResult.state.offset,
    "offsetof(hipblasLtMatmulHeuristicResult_t, wavesCount)": lt.HeuristicResult.waves.offset,
    "HIPBLAS_OP_N": lt.OP_N,
    "HIPBLAS_OP_T": lt.OP_T,
    "HIPBLAS_COMPUTE_32F": lt.COMPUTE_32F,
    "HIPBLAS_STATUS_NOT_SUPPORTED": lt.NOT_SUPPORTED,
    "HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT": lt.LAYOUT_BATCH_COUNT,
    "HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": lt.LAYOUT_STRIDED_BATCH_OFFSET,
    "HIPBLASLT_MATMUL_DESC_TRANSA": lt.DESC_TRANSA,
    "HIPBLASLT_MATMUL_DESC_TRANSB": lt.DESC_TRANSB,
    "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": lt.PREF_MAX_WORKSPACE_BYTES,
    "HIP_R_32F": lt.FORMATS["float32"],
    "HIP_R_16F": lt.FORMATS["float16"],
    "HIP_R_16BF": lt.FORMATS["bfloat16"],
    "HIP_R_8F_E4M3": lt.FORMATS["float8_e4m3"],
    "HIP_R_8F_E5M2": lt.FORMATS["float8_e5m2"],
    "HIP_R_8F_E4M3_FNUZ": lt.FORMATS["float8_e4m3fnuz"],
    "HIP_R_8F_E5M2_FNUZ": lt.FORMATS["float8_e5m2fnuz"],
    "HIP_R_8I": lt.FORMATS["int8"],
    "HIP_R_32I": lt.INTEGER_32,
    "HIPBLAS_COMPUTE_32I": lt.COMPUTE_32I,
}


def fetched():
    """Return the folder of AMD's libraries, or skip the test without hipBLASLt."""
    root = _hiprtc.root()
    if root is None or not (root / "usr/include/hipblaslt/hipblaslt.h").exists():
        pytest.skip("hipBLASLt is not here: bash ci/rocm.sh fetches it")
    return root


@pytest.mark.slow
def test_the_table_has_the_sizes_and_constants_of_amds_headers(tmp_path):
    include, compiler = fetched() / "usr/include", shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    lines = "".join(f"    NUMBER({name})\n" for name in NUMBERS if name.isidentifier())
    (tmp_path / "numbers.cpp").write_text(PROGRAM.replace("LINES", lines))
    options = ["-std=c++17", "-w", "-D__HIP_PLATFORM_AMD__", "-I", str(include)]
    subprocess.run([compiler, *options, str(tmp_path / "numbers.cpp"), "-o", str(tmp_path / "numbers")], check=True)
    said = subprocess.run([tmp_path / "numbers"], capture_output=True, text=True, check=True).stdout
    constants = {name: int(value) for name, value in re.findall(r"(.+) (-?\d+)\n", said)}
    assert constants == NUMBERS


REAL = """
import ctypes, json, sys
from gpubench.devices.native import hipblaslt as lt
library, found = lt.load(), {}
def read(kind, pointer, attribute, cell):
    written = ctypes.c_size_t()
    library(f"{kind}GetAttribute", pointer, attribute, ctypes.byref(cell), ctypes.sizeof(cell), ctypes.byref(written))
    return cell.value
layout = library.layout("bfloat16", 64, 32, 72, 3, 4096)
found["batch"] = read("MatrixLayout", layout, lt.LAYOUT_BATCH_COUNT, ctypes.c_int32())
found["apart"] = read("MatrixLayout", layout, lt.LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64())
desc = library.description(True, False)
found["first"], found["second"] = (read("MatmulDesc", desc, each, ctypes.c_int32()) for each in (0, 1))
sys.stdout.write(json.dumps(found))
"""


@pytest.mark.slow
def test_amds_library_returns_the_attributes_that_the_table_has_set():
    """Only functions of the real library that need no GPU are called; any other would end the process."""
    fetched()
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [*_hiprtc.command(), "-c", REAL]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {"batch": 3, "apart": 4096, "first": lt.OP_T, "second": lt.OP_N}
