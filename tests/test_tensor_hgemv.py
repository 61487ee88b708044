"""The kernels of the HGEMV ladder, run on the host by a grid whose threads take turns."""

import _grid
import _grid_device
import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _modules import suite_module
from _poison import expect_unwritten

from gpubench import plugins

SUITE = plugins.load("suites", "tensor")
LADDER = suite_module("tensor", "_hgemv")
THREADS = 256
ROWS, COLS = 75, 1152  # the last block is incomplete, and the warps have different numbers of columns


@needs_compiler
@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize("rung", LADDER.RUNGS)
def test_every_rung_computes_the_product(rung, warp):
    rng = np.random.default_rng(7)
    w, x = (rng.standard_normal(shape).astype(np.float16) for shape in ((ROWS, COLS), COLS))
    y, exact = np.full(ROWS, np.nan, np.float16), w.astype(float) @ x.astype(float)
    blocks = -(-ROWS // LADDER.rows_of_block(rung, warp))
    args = (w, x, y, np.uint32(ROWS), np.uint32(COLS))
    _grid.kernel("tensor/hgemv.cu", rung, WARP=warp)((blocks,), (THREADS,), args)
    assert np.linalg.norm(y - exact) <= 1e-3 * np.linalg.norm(exact)


@needs_compiler
@pytest.mark.parametrize("rung", ["warp", "split", "vendor"])
def test_a_case_builds_runs_and_checks_itself_on_a_gpu_on_paper(rung):
    bench = _grid_device.bench(SUITE)
    task = LADDER.hgemv(bench, rung, "75x1152")
    stage = task.stages[""]
    assert stage.work.moved == 2 * (75 * 1152 + 75 + 1152)
    expect_unwritten(task)
    for call in stage.rotation:
        call()
    assert task.check()["error"].value < 1e-3
    expect_found(task, bench.open_device)
