"""Between the host's own cores: a word that one core writes and another answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpubench.api.suite import POINT, Observation, Skip, Stage, Target, Task, Work, expect, points

from ._ring import host_kernel

_ROUNDS = 2**12  # a millisecond or so
_SPINS = (
    2**29
)  # looks at a word before a core gives up, about four seconds: one that others keep busy is late, not wrong
_WORDS, _APART = 64, 32  # question and answer on lines of their own, neighbours' prefetched ones between


def others(target: Target) -> Any:
    """Cores beside the first: the next, the middle and the last one; in full all up to 64."""
    cores = max(target.device.units, 2)
    return points(quick=sorted({1, cores // 2, cores - 1}), full=tuple(range(1, min(cores, 64))))


@contextmanager
def _on(core: int) -> Iterator[None]:
    """Keep the calling thread on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class CoreToCore:
    """A thread on the first core that asks, one on another core that answers."""

    def __init__(self, other: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if other >= len(cores):
            raise Skip(f"needs {other + 1} cores; this process has {len(cores)}")
        self._cores = cores[0], cores[other]
        self._ask, self._answer = host_kernel("ask"), host_kernel("answer")
        self._words = np.zeros(_WORDS, np.uint64)
        self._ask(self._words, 0, _APART, 1, 0, 1)  # compiles them
        self._answer(self._words, 0, _APART, 1, 0, 1)
        self.names = f"{self._cores[0]} and {self._cores[1]}"

    def round_trips(self) -> float:
        """Seconds of so many questions and answers, from the second on."""
        self._words[:] = 0
        partner = threading.Thread(target=self._partner)
        partner.start()
        with _on(self._cores[0]):
            self._ask(self._words, 0, _APART, 1, 1, _SPINS)
            start = time.perf_counter_ns()
            self._ask(self._words, 0, _APART, 2, _ROUNDS, _SPINS)
            seconds = (time.perf_counter_ns() - start) * 1e-9
        partner.join()
        return seconds

    def _partner(self) -> None:
        with _on(self._cores[1]):
            self._answer(self._words, 0, _APART, 1, _ROUNDS, _SPINS)

    def check(self) -> Observation:
        """The last question was asked and answered."""
        asked, answered = int(self._words[0]), int(self._words[_APART])
        expect(asked == answered == _ROUNDS, f"{asked} of {_ROUNDS} questions were asked, {answered} answered")
        return {}


def core_to_core(other: int) -> Task:
    """Half a round trip of a word between the first core and another."""
    case = CoreToCore(other)
    stage = Stage(case.round_trips, Work(items=2 * (_ROUNDS - 1)), "item", clock="self", effort=POINT)
    return Task.of(stage, check=case.check, notes={"cores": case.names})
