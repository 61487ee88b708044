"""Further operators of the suite `compilers`: products with an epilogue, layouts, folded constants, whole layers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from _grid_device import bench
from scipy import stats

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer

SUITE = plugins.load("suites", "compilers")
PRODUCTS, PROVIDERS = (sys.modules[f"{SUITE.package}.{name}"] for name in ("_products", "_providers"))


def product(dtype="float32", m=48, n=64, k=96):
    return PRODUCTS.ProductProblem(bench(SUITE), m, n, k, dtype)


@pytest.mark.parametrize("by", ["numpy", "numba"])
def test_a_product_with_bias_and_gelu_is_that_of_double_precision(by):
    made = product()
    built = PROVIDERS.build(bench(SUITE), made, by)
    built.call()
    assert 0 < made.compare(built.rows())["error"].value < 1e-6
    a, weights, bias = (array.astype(float) for array in made.inputs.values())
    (exact,) = made.expected()
    y = a @ weights + bias
    assert np.linalg.norm(exact - y * stats.norm.cdf(y)) < 2e-3 * np.linalg.norm(exact)


def test_a_product_without_its_bias_or_without_gelu_is_wrong():
    made = product()
    a, weights, bias = made.inputs.values()
    gelu = made.operator.expression
    for wrong in (gelu(np, a, weights, 0 * bias), a @ weights + bias, np.maximum(a @ weights + bias, 0)):
        with pytest.raises(WrongAnswer, match="relative error"):
            made.compare((made.rows_of(wrong),))


def test_the_work_of_a_product_is_its_operations_and_each_matrix_once():
    work = product("float16").work
    assert (work.flops, work.moved) == (2 * 48 * 64 * 96, 2 * (48 * 96 + 96 * 64 + 64 + 48 * 64))
    assert (product("float16").limit, product().limit) == ("tensor.float16", "float32")


def test_the_vendor_has_a_product_alone():
    operators = sys.modules[f"{SUITE.package}._operators"]
    with pytest.raises(Skip, match="vendor has no softmax"):
        PROVIDERS.build(bench(SUITE), operators.Problem(bench(SUITE), "softmax", 8, 64, "float16"), "vendor")
    with pytest.raises(Skip, match="does not support this kind of float16 product"):
        PROVIDERS.build(bench(SUITE), product("float16"), "vendor")  # of AMD, where CuPy has no epilogue
