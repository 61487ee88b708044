"""How long each phase of a case may take before its worker counts as hung, and where the limit comes from.

A worker tells the runner which phase it begins. A limit follows from what the phase is expected to take: from the
counted work at rates that no sound device falls below, from the tier's times, and from the same phase of earlier cases
of the same definition. The limits are generous, because a slow host must never lose a case that would have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpubench.authoring.task import Stage
from gpubench.base import units
from gpubench.measuring.stopping import StoppingPolicy
from gpubench.model import Work

LEAST_S = 10.0
MOST_S = 4 * 3600.0  # of any phase, whatever a worker says
_MOST_LEARNED_S = 600.0
FACTOR = 10  # times as long as the longest phase of that name in earlier cases of the definition
_OPENING_S = 120.0  # libraries from a cold disk, a driver that starts each GPU
_COMPILING_S = 120.0  # the first kernels of a definition: NVRTC took a minute on a cold machine
_BUILDING_S = 60.0
_FIRST_CALLS_S = 60.0  # host kernels are compiled by their first call, libraries are loaded
_CHECKING_S = 60.0  # on the host, in Python
_LATER_S = 20.0
_CLOSING_S = 30.0
_SAMPLING_FACTOR = 3  # times the tier's own bounds on warm-up and sampling
_BATCHES = 30  # of a series that ends by its budget, with those that are discarded or checked
# Rates that no sound device falls below: of bytes (the slowest codecs), operations, items
_SLOWEST_GPU = Work(moved=1e8, payload=1e8, flops=1e11, items=1e5)
_SLOWEST_HOST = Work(moved=3e6, payload=3e6, flops=1e9, items=1e5)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a worker begins now, how long it may take in seconds, and what the limit follows from."""

    name: str
    limit_s: float
    basis: str


STARTING = Phase("starting the worker", _OPENING_S, "Python and its libraries load")


def tell_nobody(phase: Phase) -> None:
    """Ignore a phase: nobody supervises this process."""
    del phase


class TimeLimits:
    """Tells of each phase as it begins, and remembers how long the phases of each definition took."""

    def __init__(self, tell: Callable[[Phase], None] = tell_nobody) -> None:
        self._tell = tell
        self._is_gpu = False
        self._definition = ""
        self._longest: dict[tuple[str, str], float] = {}
        self._phase, self._begun = "", 0.0

    def opening(self) -> None:
        """The device is opened."""
        self._begin("opening the device", _OPENING_S, "drivers and libraries load")

    def building(self, definition: str, is_gpu: bool) -> None:
        """A case of this definition (suite and name) is built on the open device."""
        self._definition, self._is_gpu = definition, is_gpu
        self._learned("building the case", _COMPILING_S, _BUILDING_S, "kernels are compiled")

    def calling(self, stages: Collection[Stage]) -> None:
        """Each stage is called once, or a few times, by the host."""
        self._learned("making the first calls", _FIRST_CALLS_S, _LATER_S, "first calls compile and load", stages)

    def waiting(self, stages: Collection[Stage]) -> None:
        """The device works on what was queued by `calling`."""
        expected_s, work = self._of_work(stages)
        self._begin("waiting for the device after the first calls", LEAST_S + expected_s, _sum(LEAST_S, work))

    def checking(self, stages: Collection[Stage]) -> None:
        """The author's check looks at the outputs."""
        self._learned("checking the answer", _CHECKING_S, _LATER_S, "a check may be slow", stages)

    def warming_up(self, label: str, stage: Stage, policy: StoppingPolicy) -> None:
        """A series chooses its batch and warms up."""
        once_s, work = self._of_work([stage])
        seconds = LEAST_S + _SAMPLING_FACTOR * policy.warmup_most_s + 4 * (once_s + stage.rest_s)
        basis = f"{_SAMPLING_FACTOR} times the tier's warm-up and {LEAST_S:g} s"
        self._begin(f"warming up {label}", seconds, _sum(basis, f"4 times {work}" if work else ""))

    def sampling(self, label: str, policy: StoppingPolicy, batch_s: float) -> None:
        """A series is sampled, in batches that last `batch_s` seconds with their rest."""
        tier_s = max(policy.budget_s, policy.settle_s, policy.least_s)
        seconds = LEAST_S + _SAMPLING_FACTOR * tier_s + _BATCHES * batch_s
        basis = f"{LEAST_S:g} s, {_SAMPLING_FACTOR} times the {tier_s:g} s of sampling, {_BATCHES} batches"
        self._begin(f"sampling {label}", seconds, f"{basis} of {units.quantity(batch_s, 's', 3)}")

    def closing(self) -> None:
        """The task lets go of what it holds."""
        self._begin("closing the case", _CLOSING_S, "memory is freed, files are removed")

    def _learned(self, name: str, first_s: float, later_s: float, words: str, stages: Collection[Stage] = ()) -> None:
        """Begin a phase whose limit follows from the longest one of its name in earlier cases of the definition."""
        self._end()
        expected_s, work = self._of_work(stages)
        longest_s = self._longest.get((self._definition, name))
        if longest_s is None:
            seconds, basis = first_s, f"{first_s:g} s for the first case of its kind, where {words}"
        elif FACTOR * longest_s > later_s:
            seconds, basis = FACTOR * longest_s, f"{FACTOR} times the {longest_s:.3g} s of earlier cases of its kind"
        else:
            seconds, basis = later_s, f"{later_s:g} s after earlier cases of its kind"
        if seconds + expected_s > _MOST_LEARNED_S:
            self._begin(name, _MOST_LEARNED_S, "the most for this phase")
        else:
            self._begin(name, seconds + expected_s, _sum(basis, work))

    def _begin(self, name: str, seconds: float, basis: str) -> None:
        self._end()
        self._phase, self._begun = name, time.monotonic()
        self._tell(Phase(name, max(seconds, LEAST_S), basis))

    def _end(self) -> None:
        """Remember how long the phase took that ends now."""
        if self._phase:
            key = (self._definition, self._phase)
            self._longest[key] = max(self._longest.get(key, 0.0), time.monotonic() - self._begun)
            self._phase = ""

    def _of_work(self, stages: Collection[Stage]) -> tuple[float, str]:
        """Return the seconds that one call of each stage takes at the slowest rates, and the reason in words."""
        slowest = _SLOWEST_GPU if self._is_gpu else _SLOWEST_HOST
        seconds = 0.0
        for stage in stages:
            work = stage.work
            bytes_s = max(work.moved, work.payload) / slowest.moved
            seconds += max(bytes_s, work.flops / slowest.flops, work.items / slowest.items)
        return seconds, f"{seconds:.3g} s for the counted work on the slowest device" if seconds >= 1 else ""


def _sum(first: float | str, second: str) -> str:
    words = f"{first:g} s" if isinstance(first, float) else first
    return f"{words}, and {second}" if second else words
