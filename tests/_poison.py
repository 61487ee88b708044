"""Overwrite outputs as the engine does before a check."""

from types import SimpleNamespace
from typing import Any

from gpubench.authoring.bench import poison
from gpubench.authoring.task import Task
from gpubench.measuring import answers

_HOST: Any = SimpleNamespace(traits=SimpleNamespace(is_gpu=False))


def overwrite(made):
    if isinstance(made, Task):
        answers.overwrite(made, _HOST)
    else:
        poison(_HOST, made.outputs)
