"""Measure an operator at changing lengths: how often a compiler compiles it again, and the time of each first call."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._cases import runtime_of
from ._fresh import Caches
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


def _by(target: gb.Target) -> Any:
    return ("numba",) if target.is_host else ("triton", "inductor")


def _in_full(target: gb.Target) -> bool:
    return target.tier == "full"


@topic.case(op=("softmax",), by=_by, when=_in_full, runtime=runtime_of)
def shapes(bench: gb.Bench, op: str, by: str) -> gb.Task:
    """Seconds of calls at 16 lengths of a row, each twice: `first` at a new length, `again` at a length met before.

    `all` is the sum of the first calls. The caches on disk are empty before. `recompiles` counts the compilations after
    the one for the first length. `by` names the compiler."""
    lengths = lengths_of(bench.seed, op)
    dtype = "float16" if bench.traits.is_gpu else "float32"
    problems = [Problem(bench, op, _ROWS, length, dtype) for length in lengths]
    operators = varied(bench, problems, by)
    with _empty_caches():
        first = _seconds(bench, operators)
    compiled = operators.compiled()
    stages = {
        "all": _measured([sum(first)]),  # most first calls compile nothing, so that the median of `first` says little
        "first": _measured(first),
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

    def poison() -> None:
        for built in operators.built:
            built.poison()

    notes = {**operators.built[0].notes, "rows": str(_ROWS), "order": "first and lengths are in the order of the calls"}
    return gb.Task(stages, check, poison, notes=notes)


def _measured(seconds: Sequence[float]) -> gb.Stage:
    """Return a stage whose call returns all `seconds` at once, because they were measured before."""
    return gb.Stage(lambda: seconds, clock="self", effort=gb.Effort.exactly(len(seconds)), checked=True)


@contextlib.contextmanager
def _empty_caches() -> Iterator[None]:
    """Point the compilers of this process to empty folders inside the `with` block, by environment variables."""
    with Caches() as caches:
        before = {name: os.environ.get(name) for name in caches.environment}
        os.environ.update(caches.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _seconds(bench: gb.Bench, operators: Varied) -> Sequence[float]:
    """Return the seconds of one call at each length, in the order of `operators.built`, as `_seconds_of` does."""
    return [_seconds_of(bench, built.call) for built in operators.built]


def _seconds_of(bench: gb.Bench, call: Callable[[], object]) -> float:
    """Return the seconds of `call` and of the wait for the device, which is idle before."""
    bench.device.synchronize()
    start = time.perf_counter()
    call()
    bench.device.synchronize()
    return time.perf_counter() - start
