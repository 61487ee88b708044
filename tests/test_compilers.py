"""The suite `compilers`: what its operators compute, our kernels for them, and checks that catch a wrong provider."""

import numpy as np
import pytest
from _grid import needs_compiler
from _grid_device import bench
from _modules import suite_modules
from scipy import special, stats

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer

SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS = suite_modules("compilers", "_operators", "_providers")
RNG = np.random.default_rng(3)
X, Y, WEIGHT, BIAS = RNG.normal(size=(5, 64)), RNG.normal(size=(5, 64)), RNG.normal(size=64), RNG.normal(size=64)
KEPT = (RNG.random((5, 64)) < 0.8).astype(float)
EXPECTED = {  # computed by other formulas and libraries than the expressions
    # the approximation of GELU differs by this much
    "bias-gelu": ((X, BIAS), ((X + BIAS) * stats.norm.cdf(X + BIAS),), 2e-3),
    "swiglu": ((X, Y), (X * special.expit(X) * Y,), 1e-12),
    "residual-dropout": ((X, Y, KEPT), (np.where(KEPT == 1, X / 0.8, 0) + Y,), 1e-12),
    "twelve": ((X, Y), ((X + Y) * (X - Y) / 16 + X * 1.25 - Y * 0.875 + 1 / 64,), 1e-12),
    "softmax": ((X,), (special.softmax(X, axis=1),), 1e-12),
    "rmsnorm": ((X, WEIGHT), (8 * X / np.sqrt((X**2).sum(axis=1, keepdims=True) + 64e-5) * WEIGHT,), 1e-12),
    "layernorm": ((X, WEIGHT, BIAS), (stats.zscore(X, axis=1) * WEIGHT + BIAS,), 1e-4),
    "residual_norm": (
        (X, Y, WEIGHT),
        (X + Y, 8 * (X + Y) / np.linalg.norm(X + Y, axis=1, keepdims=True) * WEIGHT),
        1e-4,
    ),
}


def problem(name, rows=48, cols=256, dtype="float16"):
    return OPERATORS.Problem(bench(SUITE), name, rows, cols, dtype)


@pytest.mark.parametrize("name", list(EXPECTED))
def test_an_expression_is_the_operator_of_its_name(name):
    inputs, expected, bound = EXPECTED[name]
    outputs = OPERATORS.OPERATORS[name].outputs_of(np, *inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        assert np.linalg.norm(output - wanted) < bound * np.linalg.norm(wanted)


def test_every_operator_has_an_expected_result():
    assert set(EXPECTED) == set(OPERATORS.OPERATORS)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_our_kernel_gives_the_operator_and_writes_all_of_it(name, dtype):
    paper = bench(SUITE)
    made = OPERATORS.Problem(paper, name, 48, 320, dtype)  # the rows do not fill their block
    built = PROVIDERS.build(paper, made, "nvrtc")
    built.poison()
    with pytest.raises(WrongAnswer, match="not written"):
        made.compare(built.rows())
    built.call()
    error = made.compare(built.rows())["error"].value
    assert 0 < error < {"float16": 5e-4, "float32": 1e-6}[dtype]


@pytest.mark.parametrize("by", ["numpy", "numba"])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_provider_of_the_host_gives_the_operator(name, by):
    made = problem(name, dtype="float32")
    built = PROVIDERS.build(bench(SUITE), made, by)
    built.poison()
    built.call()
    assert made.compare(built.rows())["error"].value < 1e-6


def test_a_provider_that_computes_something_else_is_wrong():
    made = problem("rmsnorm", dtype="float32")
    built = PROVIDERS.build(bench(SUITE), made, "numpy")
    built.call()
    (rows,) = built.rows()
    for wrong in (rows * 1.001, rows[:, ::-1], np.zeros_like(rows)):
        with pytest.raises(WrongAnswer, match="relative error"):
            made.compare((wrong,))
    with pytest.raises(WrongAnswer, match="shape"):
        made.compare((rows[:-1],))
    with pytest.raises(WrongAnswer, match="2 outputs, not 1"):
        made.compare((rows, rows))


def test_the_bytes_that_cannot_be_avoided_are_each_input_and_each_output_once():
    matrix, vector = 2 * 48 * 256, 2 * 256
    moved = {name: problem(name).moved for name in ("swiglu", "softmax", "layernorm", "residual_norm")}
    assert moved == {
        "swiglu": 3 * matrix,
        "softmax": 2 * matrix,
        "layernorm": 2 * matrix + 2 * vector,
        "residual_norm": 4 * matrix + vector,
    }


def test_a_row_that_fits_no_block_is_skipped():
    with pytest.raises(Skip, match="does not fit into the registers"):
        PROVIDERS.build(bench(SUITE), problem("softmax", 2, 2**17), "nvrtc")
