"""Operators by every provider on a real GPU: right, fused, on our stream, at the speed of the same kernel by hand."""

import functools
from dataclasses import replace
from functools import partial

import pytest
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Unavailable
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

# torch 2.11 uses parts of itself that it has deprecated
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .generic. unit for NumPy timedelta:DeprecationWarning"),  # of numba
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),  # of Inductor
]
SUITE = plugins.load("suites", "compilers")
OPERATORS, PROVIDERS, CASES, BUILD = suite_modules("compilers", "_operators", "_providers", "_cases", "_build")
facts = functools.cache(inventory.facts)  # each search for devices opens the GPU in a process of its own
FUSED = ("nvrtc", "triton", "cutile", "inductor", "numba-cuda", "tvm")  # one kernel for each operator


@pytest.fixture(scope="module")
def gpu():
    device = facts().devices[0]
    return plugins.load("backends", device.backend).open(device)


def bench(gpu, name="small"):
    gpu.xp.get_default_memory_pool().free_all_blocks()
    return Bench(gpu, Case("compilers", name, ()), Target(facts(), gpu.device), SUITE.package, 1)


def full(gpu):
    """A bench of the full tier, in which providers tell of their compiled code."""
    return replace(bench(gpu), target=Target(facts(), gpu.device, "full"))


def available(make):
    """Return what is made, or skip the test where its library is missing."""
    try:
        return make()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("by", PROVIDERS.GPU)
def test_a_provider_gives_the_operators_of_double_precision(gpu, by):
    """Rows of 1032 elements fill no block, and are a multiple of 8."""
    for name in OPERATORS.OPERATORS:
        made = OPERATORS.Problem(bench(gpu), name, 3000, 1032, "float16")
        task = available(partial(CASES.task_of, bench(gpu), made, by))
        measured = Engine(gpu, POLICIES["smoke"]).measure(task).series
        series = {one.label: one for one in measured}
        assert 0 < series["error"].values[0] < 2**-9, name
        if by in FUSED:
            assert series["launches"].values == (1.0,), name
        assert any(one.mode == ("self" if by == "jax" else "host") for one in measured), name


@pytest.mark.parametrize(("cols", "dtype"), [(1024, "float16"), (32768, "float16"), (32768, "float32")])
@pytest.mark.parametrize("name", ["softmax", "layernorm", "residual_norm"])
@pytest.mark.parametrize("by", ["nvrtc", "cutile"])
def test_our_kernels_take_rows_of_any_length_of_the_cases(gpu, by, name, cols, dtype):
    made = OPERATORS.Problem(bench(gpu), name, 512, cols, dtype)
    built = available(partial(PROVIDERS.build, bench(gpu), made, by))
    built.poison()
    built.call()
    assert made.compare(built.rows())["error"].value < {"float16": 5e-4, "float32": 3e-6}[dtype]


def test_a_kernel_of_cutile_tells_its_registers_and_spills_nothing(gpu):
    for cols in (1024, 32768):
        made = OPERATORS.Problem(bench(gpu), "layernorm", 512, cols, "float16")
        built = available(partial(PROVIDERS.build, full(gpu), made, "cutile"))
        observed = built.static()
        assert 16 < observed["registers"].value <= 255
        assert observed["spilled"].value == 0


@pytest.mark.parametrize("by", ["triton", "inductor"])
def test_new_lengths_cost_more_than_known_ones_where_they_are_compiled(gpu, by):
    task = available(partial(BUILD.shapes, bench(gpu, "shapes"), "softmax", by))
    first, again = (task.stages[name].call() for name in ("first", "again"))
    observed = task.check()
    assert observed["error"] < 2**-9
    assert 0 < observed["recompiles"].value < 16
    assert first[0] > 20 * max(again)
