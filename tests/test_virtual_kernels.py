"""The kernels of programs that share a device, built by g++: their results, and checks that find faults."""

from typing import Any

import _grid
import _grid_device
import numpy as np
import pytest
from _modules import room_module, suite_modules
from _poison import expect_unwritten

from gpubench import plugins
from gpubench.base.errors import WrongAnswer

pytestmark = pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
SUITE = plugins.load("suites", "virtual")
LOADS, SLICE = suite_modules("virtual", "_loads", "_slice")
CHECKS = room_module("suites", "_checks")
# Parts of the prelude for GPUs that the grid of the host does not have.
MACROS = {
    "gb_vreg(word)": "(word)",
    "gb_load(address)": "(*(const volatile unsigned long long*)(address))",
}


def kernel(name: str) -> Any:
    return _grid.kernel("virtual/sharing.cu", name, **MACROS)


@pytest.fixture
def bench() -> Any:
    """Return a bench on a GPU on paper whose kernels run on the host."""
    paper = _grid_device.bench(SUITE, "nvidia")
    paper.kernel = lambda file, name: kernel(name)
    return paper


def test_spinning_threads_end_with_the_predicted_value_of_their_chain(bench: Any) -> None:
    load = LOADS.spin(bench, 2, seconds=2e-8)
    load.call()
    load.check()
    expect_unwritten(load, "2048 of 2048 threads")
    shorter = LOADS.spin(bench, 2, seconds=1e-8)
    kernel("spin")((2,), (LOADS.SPIN_THREADS,), (np.uint32(1), ends := np.zeros(2048, np.uint32)))
    expected = (np.arange(2048, dtype=np.uint64) * LOADS._FACTOR + LOADS._TERM).astype(np.uint32)
    assert np.array_equal(ends, expected)
    with pytest.raises(WrongAnswer):
        shorter.check()


def test_each_kernel_adds_one_to_the_counter_after_its_work() -> None:
    counter = np.zeros(2, np.uint64)
    for _ in range(5):
        kernel("tick")((1,), (1,), (counter, np.uint32(100)))
    assert counter.tolist() == [
        5,
        CHECKS.affine_power(LOADS._FACTOR, LOADS._TERM, 100, 2**32)[1],
    ]


def test_blocks_mark_the_sms_that_they_run_on() -> None:
    marks, ends = np.zeros(8, np.uint32), np.zeros(6 * 2, np.uint32)
    kernel("mark_unit")((6,), (2,), (marks, np.uint32(3), ends))
    assert marks.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_the_device_publishes_the_number_of_finished_calls() -> None:
    word = np.zeros(1, np.uint32)
    kernel("done")((1,), (1,), (np.uint64(word.ctypes.data), np.uint32(7)))
    assert word[0] == 7


def test_a_walk_round_the_ring_ends_where_the_formula_says_and_a_broken_ring_is_found(bench: Any) -> None:
    walk = LOADS.RingWalk(bench, 2**20)
    for _ in range(3):
        walk.call()
        walk.check()
    words = walk._ring.view(np.uint64).reshape(-1, LOADS._RING_LINE // 8)
    assert len(set(words[:, 0].tolist())) == len(words), "two lines lead to one"
    words[:, 0] = walk._ring.ctypes.data
    walk.call()
    with pytest.raises(WrongAnswer, match="after 4096 loads the walk is at 0"):
        walk.check()


def test_a_kernel_stamps_each_span_in_which_it_ran_and_a_missing_stamp_is_found(bench: Any) -> None:
    # A step of the chain takes 100 ns and a piece has ten steps. Every 50 µs another process has the device for 300 µs.
    steps = {"gb_vreg(word)": "(ticks += ticks % 100000 == 98000 ? 600200 : 200, word)"}
    bench.kernel = lambda file, name: _grid.kernel("virtual/sharing.cu", name, **{**MACROS, **steps})
    kernels = SLICE.StampedKernels(bench)
    most, _, _, away_ns, end = kernels._arguments
    kernels._arguments = (most, np.uint32(120), np.uint32(10), away_ns, end)
    kernels._kernel((1,), (1,), (np.zeros(8, np.uint64), *kernels._arguments))  # the grid's clock begins at 0
    kernels.call()
    spans = kernels.stamps().astype(np.int64)
    breaks = spans[1:, 0] - spans[:-1, 1]
    assert set(breaks) == {0, 301_000}, "between kernels, and where a kernel was interrupted"
    interruptions = int((breaks > 0).sum())
    assert interruptions >= 8
    assert (spans[:, 1] - spans[:, 0]).sum() == (4 * 120 - interruptions) * 1_000, "nothing else is lost"
    assert end[0] == CHECKS.affine_power(LOADS._FACTOR, LOADS._TERM, 120 * 10, 2**32)[1]
    kernels.check()
    kernels._stamps[3] = 0
    with pytest.raises(WrongAnswer, match="a kernel left no stamps, or ended before it began"):
        kernels.check()


def test_unwritten_results_of_decode_and_gemm_loads_are_found(bench: Any) -> None:
    for load in (LOADS.decode(bench, 3, 128), LOADS.gemm(bench, 64)):
        load.call()
        load.check()
        expect_unwritten(load, "relative error")
