"""The resources that a program really gets: how all memory is allocated, and the limits of a virtualiser."""

from dataclasses import fields

import pytest
from _grid_device import PaperBench
from _grid_device import bench as paper_bench
from _modules import suite_module
from _poison import overwrite
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
    overwrite(task)
    with pytest.raises(WrongAnswer, match="no block of the kernel has run"):
        task.check()
    task.stages[""].call()
    assert task.check()["units reached"].value == 2
    assert task.check()["share of units"].value == 1.0  # the paper GPU has two
