"""Let a task's calls return copies of an earlier answer, as a cache would; its two inputs must show that."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gpubench.base.errors import WrongAnswer
from gpubench.measuring.answers import AnswerChecks, agree_alone


def check_in_turn(task, device):
    """Check every stage three times, as the engine does in a series: each time with the other input."""
    answers = AnswerChecks(task, device, agree_alone, np.random.default_rng(1), math.inf)
    for stage in task.stages.values():
        for _ in range(3):
            answers.around(stage, lambda stage=stage: [call() for call in stage.rotation or (stage.call,)])


def with_earlier_answers(task, *written):
    """Return `task` with calls that work, but leave the first call's answer in the outputs and in `written`."""
    arrays = [*written, *(array for stage in task.stages.values() for array in stage.outputs)]

    def cached(call):
        kept: list[Any] = []

        def again():
            returned = call()
            kept[:] = kept or [array.copy() for array in arrays]
            for array, earlier in zip(arrays, kept, strict=True):
                array[...] = earlier
            return returned

        return again

    stages = {
        name: dataclasses.replace(stage, call=cached(stage.call), rotation=tuple(map(cached, stage.rotation)))
        for name, stage in task.stages.items()
    }
    return dataclasses.replace(task, stages=stages)


def expect_found(task, device, *written):
    """Expect that the honest task passes its checks with both inputs, and that copies of earlier answers do not.

    `written` are arrays that the calls write and no stage declares."""
    check_in_turn(task, device)
    with pytest.raises(WrongAnswer):
        check_in_turn(with_earlier_answers(task, *written), device)
