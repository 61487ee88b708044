"""Measure an operator at changing lengths: how often a compiler compiles it again, and the time of each first call."""

import time
import zlib
from collections.abc import Sequence
from functools import partial

import numpy as np

from gpubench.api import suite as gb

from .._checks import in_turn
from ._build import Caches, measured_before, with_environment
from ._cases import dtype_of, in_full, runtime_of
from ._operators import Problem
from ._providers import Varied, varied

_LENGTHS = 16
_RANGE = 64, 8192  # elements of a row
_ROWS = 1024

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Time of the calls at 16 new lengths by provider", ("shapes",), by=("op", "by"), series="all.self"
        )
    ]
)


def lengths_of(seed: int, op: str) -> list[int]:
    """Return 16 distinct lengths of the rows of the operator `op`, from 64 to 8191, the same for all providers.

    Their logarithms are drawn evenly from a generator that `seed` and `op` determine."""
    rng = np.random.default_rng([seed, zlib.crc32(op.encode())])
    lengths: dict[int, None] = {}
    while len(lengths) < _LENGTHS:
        lengths[int(np.exp(rng.uniform(*np.log(_RANGE))))] = None
    return list(lengths)


@topic.case(
    op=("softmax",),
    by=lambda target: ("numba",) if target.is_host else ("triton", "inductor"),
    when=in_full,
    runtime=runtime_of,
)
def shapes(bench: gb.Bench, op: str, by: str) -> gb.Task:
    """Seconds of calls at 16 lengths of a row, each twice: `first` at a new length, `again` at a length met before.

    `all` is the sum of the first calls. The caches on disk are empty before. `recompiles` counts the compilations after
    the one for the first length. `by` names the compiler."""
    lengths = lengths_of(bench.seed, op)
    dtype = dtype_of(not bench.traits.is_gpu)
    problems = [Problem(bench, op, _ROWS, length, dtype) for length in lengths]
    operators = varied(bench, problems, by)
    with Caches() as caches, with_environment(caches.environment):
        first = _seconds(bench, operators)
    compiled = operators.compiled()
    stages = {
        "all": measured_before(
            [sum(first)]
        ),  # most first calls compile nothing, so that the median of `first` says little
        "first": measured_before(first),
        "again": gb.Stage(partial(_seconds, bench, operators), clock="self", effort=gb.POINT),
    }

    def check() -> gb.Observation:
        """Compare the results at every length; return the largest error, the recompilations and the lengths by name."""
        errors = [
            problem.compare(built.rows())["error"] for problem, built in zip(problems, operators.built, strict=True)
        ]
        return {
            "error": max(error.value for error in errors if isinstance(error, gb.Observed)),
            "recompiles": gb.Observed(compiled - 1),
            "lengths": gb.Profile(tuple(map(float, lengths)), "elements"),
        }

    notes = {**operators.built[0].notes, "rows": str(_ROWS), "order": "first and lengths are in the order of the calls"}
    return gb.Task(stages, check, in_turn(*(built.poison for built in operators.built)), notes=notes)


def _seconds(bench: gb.Bench, operators: Varied) -> Sequence[float]:
    """Return the seconds of one call at each length, in the order of `operators.built`, on a device that is idle."""
    seconds = []
    for built in operators.built:
        bench.device.synchronize()
        start = time.perf_counter()
        built.call()
        bench.device.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds
