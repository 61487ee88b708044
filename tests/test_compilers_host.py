"""TVM and IREE on the host: each operator, what they compile it to, and what is said where they are missing."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from _modules import suite_module, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS = suite_modules("compilers", "_operators", "_providers")
(HOST,) = plugins.load("backends", "host").devices()
BENCH = Bench.untimed(Case("compilers", "case"), Target(Facts((HOST,)), HOST), SUITE.package, 1)
MODULES = {"tvm": "tvm", "iree": "iree.compiler"}


def is_here(by):
    return importlib.util.find_spec(by) is not None


def problem(name, dtype="float32"):
    return OPERATORS.Problem(BENCH, name, 100, 320, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("by", MODULES)
@pytest.mark.parametrize("name", list(OPERATORS.OPERATORS))
def test_a_compiler_of_the_host_gives_the_operator_of_the_inputs_as_they_are_now(name, by):
    if not is_here(by):
        pytest.skip(f"needs pip install 'gpubench-suite[{by}]'")
    made = problem(name)
    built = PROVIDERS.build(BENCH, made, by)
    for _ in range(2):
        built.poison()
        built.call()
        assert 0 < made.compare(built.rows())["error"].value < 2e-6
        made.change()


@pytest.mark.parametrize("by", MODULES)
def test_a_compiler_of_the_host_that_is_missing_is_named_with_its_extra(by, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[by], None)
    with pytest.raises(Unavailable, match=rf"not installed; pip install 'gpubench-suite\[{by}\]'"):
        PROVIDERS.build(BENCH, problem("softmax"), by)


@pytest.mark.parametrize("by", MODULES)
def test_a_compiler_of_the_host_has_no_operator_of_another_kind(by):
    made = problem("softmax")
    made.operator = OPERATORS.Operator("product", ("x",), lambda xp, x: x)
    with pytest.raises(Skip, match=f"{by} has no product here"):
        PROVIDERS.build(BENCH, made, by)


def test_the_program_for_iree_repeats_vectors_and_reduces_rows():
    iree = suite_module("compilers", "_by_iree")
    text = iree.linalg(OPERATORS.OPERATORS["rmsnorm"], 100, 320, "float32")
    assert text.startswith(
        "func.func @main(%x: tensor<100x320xf32>, %weight: tensor<320xf32>) -> (tensor<100x320xf32>)"
    )
    assert text.count("linalg.reduce { arith.addf }") == 1
    repeated = [line.split("dimensions = ")[1] for line in text.splitlines() if "linalg.broadcast" in line]
    assert sorted(repeated) == ["[0]", "[1]"], "the weights along the rows, the root mean square along the columns"
    assert f"dense<{1e-5:.17e}>" in text
    assert np.isclose(float(f"{1e-5:.17e}"), OPERATORS.EPSILON, rtol=0)
