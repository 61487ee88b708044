"""The resources that a program really gets: how all memory is allocated, and the limits of a virtualiser."""

from dataclasses import fields

import numpy as np
import pytest
from _grid_device import PaperBench
from _grid_device import bench as paper_bench
from _modules import suite_module
from _poison import called
from test_virtual_memory import SUITE

from gpubench.base.errors import WrongAnswer

LIMITS = suite_module("virtual", "_limits")
MIB = 2**20


@pytest.mark.parametrize("room", [0, MIB, 2 * MIB, 1029 * MIB, 2047 * MIB])
def test_all_memory_up_to_less_than_two_mebibytes_is_allocated(room):
    used = 0

    def take(nbytes):
        nonlocal used
        if used + nbytes > room:
            raise MemoryError
        used += nbytes
        return used

    blocks = LIMITS.take_all(take)
    assert sum(size for _, size in blocks) == used
    assert room - used < 2 * MIB
    assert all(size % (2 * MIB) == 0 for _, size in blocks)


@pytest.mark.parametrize(
    ("text", "amount"), [("3000m", 3000 * MIB), ("2G", 2**31), ("50", 50), ("", None), ("x", None)]
)
def test_the_limit_of_a_virtualiser_is_read_from_its_variables(monkeypatch, text, amount):
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_LIMIT", text)
    monkeypatch.delenv("CUDA_DEVICE_MEMORY_LIMIT_0", raising=False)
    assert LIMITS.asked_amount(LIMITS._MEMORY_ASKED) == amount


class MarkingBench(PaperBench):
    """A paper GPU whose kernel marks the units 0 and 5, as blocks on an SM set of two would."""

    def kernel(self, file, name, **defines):
        def mark(grid, block, args):
            args[0][[0, 5]] = 1

        return mark


def test_the_sms_that_blocks_ran_on_are_counted_and_zero_is_a_wrong_answer():
    made = paper_bench(SUITE, "nvidia")
    task = LIMITS._units(MarkingBench(**{field.name: getattr(made, field.name) for field in fields(made)}))
    assert called(task, "no block of the kernel has run")["units reached"].value == 2
    assert task.check()["share of units"].value == 1.0  # the paper GPU has two


# ---- Time slices from the stamps of two processes: slices, switches and gaps, and overlapping processes.


SLICE = suite_module("virtual", "_slice")


def stamps(*begins_ns, length_ns=10_000):
    begins = np.array(begins_ns, np.uint64)
    return np.stack([begins, begins + np.uint64(length_ns)], axis=1)


def row(begin_ns, count, gap_ns=2_000):
    return [begin_ns + index * (10_000 + gap_ns) for index in range(count)]


def test_slices_are_runs_of_one_process_and_switches_are_between_them():
    first = stamps(*row(0, 5), *row(1_000_000, 100), *row(4_000_000, 3))
    second = stamps(*row(100_000, 50), *row(2_500_000, 100))
    slices = SLICE.time_slices(first, second)
    last = 99 * 12_000 + 10_000
    assert slices.slices == pytest.approx([(49 * 12_000 + 10_000) * 1e-9, last * 1e-9, last * 1e-9])
    assert slices.switches == pytest.approx(
        [
            (100_000 - 58_000) * 1e-9,
            (1_000_000 - 698_000) * 1e-9,
            (2_500_000 - 1_000_000 - last) * 1e-9,
            (4_000_000 - 2_500_000 - last) * 1e-9,
        ]
    )
    assert set(np.round(np.array(slices.gaps) * 1e9)) == {2_000}
    assert slices.overlap == 0


def test_overlapping_processes_are_a_wrong_answer_and_a_single_one_has_no_slices():
    beside = SLICE.time_slices(stamps(*row(0, 100)), stamps(*row(5_000, 100)))
    with pytest.raises(
        WrongAnswer, match=r"100% of 199 switches overlap, by 5e-06 s: the processes did not take turns"
    ):
        SLICE.expect_turns(beside)
    alone = SLICE.time_slices(stamps(*row(0, 100)), stamps())
    assert (alone.slices, alone.switches, alone.overlap) == ((), (), 0)
    histogram = SLICE.gap_histogram(SLICE.time_slices(stamps(*row(0, 10)), stamps(*row(1_000_000, 10))))
    assert sum(histogram) == 19
    assert {2.0 ** (8 + place): count for place, count in enumerate(histogram) if count} == {2048: 18, 2**20: 1}


def test_an_interrupted_kernel_does_not_count_as_overlap():
    """Each process has the device for 2 ms; the kernel that loses it continues 2.1 ms later, in a span of its own."""
    first, second = (
        [(turn * 4_200_000 + start, turn * 4_200_000 + start + 2_000_000) for turn in range(9)]
        for start in (0, 2_100_000)
    )
    slices = SLICE.time_slices(*(np.array(spans, np.uint64) for spans in (first, second)))
    SLICE.expect_turns(slices)
    assert slices.slices == pytest.approx([2e-3] * 16)
    assert slices.switches == pytest.approx([100e-6] * 17)
