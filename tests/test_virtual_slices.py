"""Time slices from the stamps of two processes: slices, switches and gaps, and overlapping processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _modules import suite_module

from gpubench.base.errors import WrongAnswer

SLICE = suite_module("virtual", "_slice")


def stamps(*begins_ns: int, length_ns: int = 10_000) -> Any:
    begins = np.array(begins_ns, np.uint64)
    return np.stack([begins, begins + np.uint64(length_ns)], axis=1)


def row(begin_ns: int, count: int, gap_ns: int = 2_000) -> list[int]:
    return [begin_ns + index * (10_000 + gap_ns) for index in range(count)]


def test_slices_are_runs_of_one_process_and_switches_are_between_them() -> None:
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


def test_gaps_are_counted_in_powers_of_two_and_switches_have_their_own_class() -> None:
    slices = SLICE.time_slices(stamps(*row(0, 10)), stamps(*row(1_000_000, 10)))
    histogram = SLICE.gap_histogram(slices)
    assert sum(histogram) == 19
    assert {2.0 ** (8 + place): count for place, count in enumerate(histogram) if count} == {2048: 18, 2**20: 1}


def test_overlapping_processes_are_a_wrong_answer_and_a_single_one_has_no_slices() -> None:
    beside = SLICE.time_slices(stamps(*row(0, 100)), stamps(*row(5_000, 100)))
    with pytest.raises(
        WrongAnswer, match=r"100% of 199 switches overlap, by 5e-06 s: the processes did not take turns"
    ):
        SLICE.expect_turns(beside)
    alone = SLICE.time_slices(stamps(*row(0, 100)), stamps())
    assert (alone.slices, alone.switches, alone.overlap) == ((), (), 0)


def test_an_interrupted_kernel_does_not_count_as_overlap() -> None:
    """Each process has the device for 2 ms; the kernel that loses it continues 2.1 ms later, in a span of its own."""
    first, second = (
        [(turn * 4_200_000 + start, turn * 4_200_000 + start + 2_000_000) for turn in range(9)]
        for start in (0, 2_100_000)
    )
    slices = SLICE.time_slices(*(np.array(spans, np.uint64) for spans in (first, second)))
    SLICE.expect_turns(slices)
    assert slices.slices == pytest.approx([2e-3] * 16)
    assert slices.switches == pytest.approx([100e-6] * 17)
