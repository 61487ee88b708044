"""Overwrite outputs as the engine does before a check."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpubench.authoring.bench import poison
from gpubench.authoring.task import Task
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import answers

_HOST: Any = SimpleNamespace(traits=SimpleNamespace(is_gpu=False))


def overwrite(made):
    if isinstance(made, Task):
        answers.overwrite(made, _HOST)
    else:
        poison(_HOST, made.outputs)


def expect_unwritten(made, match=None):
    """Overwrite the outputs, and expect that the check finds it."""
    overwrite(made)
    with pytest.raises(WrongAnswer, match=match):
        made.check()


def called(task, match=None):
    """Return what the check observes after a call of each stage; before, it must find that nothing was written."""
    expect_unwritten(task, match)
    for stage in task.stages.values():
        stage.call()
    return task.check()
