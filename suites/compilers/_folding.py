"""Measure constant folding: a batch norm with constant statistics, as a model states it and folded by hand."""

from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _providers as providers
from ._cases import in_full, runtime_of, task_of
from ._layout import normalised
from ._operators import Operator, Problem

FORMS = ("written", "folded")
_GPU_SHAPE, _HOST_SHAPE = (32768, 4096), (2048, 4096)  # rows, columns

topic = gb.Topic(
    views=[gb.View("bars", "Constant folding: throughput by form and provider", ("folding",), by=("form", "by"))]
)


def _folded(_xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    return x * scale + shift


class FoldingProblem(Problem):
    """A batch norm of a matrix whose columns are channels.

    The operator `written` has the statistics as inputs, and `folded` a factor and a shift, computed beforehand."""

    operators = {  # noqa: RUF012
        "written": Operator("written", ("x", "mean", "variance", "weight", "bias"), normalised),
        "folded": Operator("folded", ("x", "scale", "shift"), _folded),
    }

    def _scaled(self, name: str, drawn: Any) -> Any:
        return drawn * drawn + np.float32(0.5) if name == "variance" else drawn


def _by(target: gb.Target) -> Any:
    if target.is_host:
        return providers.HOST_QUICK
    return ("cupy", "cupy-fused", "nvrtc", "torch", "inductor", "jax")


@topic.case(form=FORMS, by=_by, runtime=runtime_of, when=in_full)
def folding(bench: gb.Bench, form: str, by: str) -> gb.Task:
    """Bandwidth in bytes per second of a batch norm in inference: one matrix is read and one is written.

    `written` computes (x − mean) / √(variance + ε) · weight + bias, as a model states it, from vectors with a number
    for each column. `folded` computes x · scale + shift. A compiler that folds the constants needs the same time for
    both. `by` names the compiler or library."""
    rows, cols = _GPU_SHAPE if bench.traits.is_gpu else _HOST_SHAPE
    dtype = "float16" if bench.traits.is_gpu else "float32"
    return task_of(bench, FoldingProblem(bench, form, rows, cols, dtype), by)
