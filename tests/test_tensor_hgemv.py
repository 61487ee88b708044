"""The kernels of the HGEMV ladder, run on the host by a grid whose threads take turns."""

import sys

import _grid
import _grid_device
import numpy as np
import pytest

from gpubench import plugins
from gpubench.api.suite import WrongAnswer

needs_compiler = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
SUITE = plugins.load("suites", "tensor")
LADDER = sys.modules[f"{SUITE.package}._hgemv"]
THREADS = 256
ROWS, COLS = 75, 1152  # a last block that is not full, and columns that three parts do not share evenly


def product(rung, warp, parts=3, plan=None):
    """y = W·x by a kernel, its y in double precision, and the counters that blocks leave."""
    rng = np.random.default_rng(7)
    w, x = (rng.standard_normal(shape).astype(np.float16) for shape in ((ROWS, COLS), COLS))
    y = np.full(ROWS, np.nan, np.float16)
    plan = plan or LADDER.RUNGS[rung]
    across = -(-ROWS // (THREADS // warp // plan.sharing * (plan.together or warp)))
    arrived = np.zeros(across, np.uint32)
    args = (w, x, y, np.uint32(ROWS), np.uint32(COLS))
    grid = (across,)
    if rung == "split":
        grid, args = (across, parts), (*args, np.full(parts * ROWS, np.nan, np.float32), arrived)
    _grid.kernel("tensor/hgemv.cu", rung, WARP=warp, **plan.defines)(grid, (THREADS,), args)
    return y.astype(float), w.astype(float) @ x.astype(float), arrived


@needs_compiler
@pytest.mark.parametrize(("rung", "warp"), [*((rung, 32) for rung in LADDER.RUNGS), ("split", 64)])
def test_every_rung_computes_the_product(rung, warp):
    y, exact, arrived = product(rung, warp)
    assert np.linalg.norm(y - exact) <= 1e-3 * np.linalg.norm(exact)
    assert not arrived.any()  # the next launch counts from zero


@needs_compiler
@pytest.mark.parametrize(("parts", "plan"), [(1, (4, 1, 8)), (5, (1, 4, 2))])
def test_how_rows_are_shared_changes_the_rounding_and_nothing_else(parts, plan):
    y, exact, _ = product("split", 32, parts, LADDER.GemvRung(*plan))
    assert np.linalg.norm(y - exact) <= 1e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("across", "cols", "parts"),
    [(128, 4096, 8), (512, 4096, 2), (256, 28672, 4), (5000, 4096, 1), (1, 128, 1)],
)
def test_rows_are_split_until_the_blocks_fill_the_device_or_a_part_gets_short(across, cols, parts):
    assert LADDER.parts_of(across, cols, 8 * 132) == parts


@needs_compiler
@pytest.mark.parametrize("rung", ["warp", "split", "vendor"])
def test_a_case_builds_runs_and_checks_itself_on_a_gpu_on_paper(rung):
    bench = _grid_device.bench(SUITE)
    task = LADDER.hgemv(bench, rung, "75x1152")
    stage = task.stages[""]
    assert stage.work.moved == 2 * (75 * 1152 + 75 + 1152)
    task.poison()
    with pytest.raises(WrongAnswer):
        task.check()
    for call in stage.rotation:
        call()
    assert task.check()["error"].value < 1e-3
