"""Builds in fresh interpreters on a real GPU: cold, warm and in a process that is up."""

import functools
import os

import pytest
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import inventory
from gpubench.model import Case

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "compilers")
(BUILD,) = suite_modules("compilers", "_build")
facts = functools.cache(inventory.facts)  # each search for devices opens the GPU in a process of its own


def build_report(by, caches, is_up=False):
    """Return the report of a fresh process that builds the softmax."""
    case = Case("compilers", "build", (("op", "softmax"), ("by", by)))
    where = Target(facts(), facts().devices[0])
    usual = os.environ.get("CUPY_CACHE_DIR")
    order = BUILD.Order(case, where, SUITE.package, 1, "softmax", 4096, 4096, "float16", by, is_up, usual)
    return BUILD.report_of(Bench(None, case, where, SUITE.package, 1), order, caches, 90)


@pytest.mark.parametrize("by", ["cupy", "cupy-fused", "nvrtc", "triton", "cutile"])
def test_a_build_misses_an_empty_cache_and_hits_a_full_one(by):
    if by in BUILD.LIBRARIES:
        pytest.importorskip(BUILD.LIBRARIES[by][0])
    with BUILD.Caches() as caches:
        cold, warm = build_report(by, caches), build_report(by, caches)
    with BUILD.Caches() as caches:
        up = build_report(by, caches, is_up=True)
    for state, report in (("cold", cold), ("warm", warm), ("process", up)):
        BUILD.expect_state(state, by, report)
    assert warm.seconds["compile"] < cold.seconds["compile"]
    assert up.seconds["first"] < cold.seconds["first"]
    assert set(cold.seconds) == {"first", "import", "context", "compile", "again"}
