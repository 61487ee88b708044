"""Limit how long each phase of a case may take before its worker counts as hung, and say what each limit follows from.

A worker reports to the runner which phase it begins, and reports once a second that a series continues. A limit follows
from the expected duration of the phase: from the counted work at rates that no working device falls below, from the
tier, and from the same phase of earlier cases of the same definition. The limits are generous, because a slow host must
never lose a case that would have ended."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpubench.authoring.task import Stage
from gpubench.base import units
from gpubench.model import Strict, Tier, Work

LEAST_S = 10.0  # the shortest limit of a phase
MOST_S = 4 * 3600.0  # the longest limit of a phase, even if a worker asks for more
CASE_S = 24 * 3600.0  # the limit of all phases of a case together
FACTOR = 10  # a phase may take this many times as long as in earlier cases
_BATCHES = 30  # a phase may take this many batches of the duration in the warm-up
_BEAT_S = 1.0
_OPENING_S = 120.0  # libraries load from a cold disk, and the driver starts each GPU
_COMPILING_S = 120.0  # the first kernels of a definition: NVRTC took a minute on a cold machine
_BUILDING_S = 60.0
_FIRST_CALLS_S = 60.0  # host kernels are compiled by their first call, libraries are loaded
_CHECKING_S = 60.0  # checks run on the host, in Python
_LATER_S = 20.0
_ATTENDING_S = 60.0
_CLOSING_S = 30.0
_TIER_FACTORS: dict[Tier, int] = {"smoke": 1, "quick": 1, "full": 5}  # the full tier has much larger data
# Rates per second that no working device falls below: bytes that a kernel moves, bytes of the slowest codecs and links,
# operations, items. Python's own codecs are the slowest on the host.
_SLOWEST_GPU = Work(moved=1e9, payload=1e8, flops=1e11, items=1e5)
_SLOWEST_HOST = Work(moved=3e7, payload=3e6, flops=1e9, items=1e5)
_CALLING, _WAITING = "making the first calls", "waiting for the device after the first calls"


@dataclass(frozen=True, slots=True)
class Phase(Strict):
    """A phase that a worker begins, how long it may take in seconds, and the reason for this limit (`basis`).

    The time in which a rank waits for other ranks does not count."""

    name: str
    limit_s: float
    basis: str
    restarts: bool = False


STARTING = Phase("starting the worker", _OPENING_S, "Python and its libraries load")
OPENED = Phase("waiting for a case", MOST_S, "the device is open")


def ignore_phase(phase: Phase) -> None:
    """Do nothing with a phase: no runner supervises this process."""
    del phase


class TimeLimits:
    """Reports each phase as it begins, and remembers how long the phases of each definition took."""

    def __init__(self, report: Callable[[Phase], None] = ignore_phase) -> None:
        """Set up the limits of one worker; `report` gets each phase when it begins and while it makes progress."""
        self._report = report
        self._is_gpu = False
        self._definition = ""
        self._tier_factor = 1
        self._longest: dict[tuple[str, str], float] = {}  # definition and phase → longest duration in seconds
        self._slowness: dict[
            tuple[str, str], float
        ] = {}  # definition and phase → share of the time at the slowest rates
        self._last_s: dict[str, float] = {}  # phase → its seconds in this case
        self._once_s = 0.0  # seconds of the first calls of this case, with a rest
        self._phase: Phase | None = None
        self._slowest_s = 0.0  # seconds for the work of this phase at the slowest rates
        self._begun = self._reported_at = 0.0  # monotonic seconds

    def opening(self) -> None:
        """Begin the phase in which the device is opened."""
        self._begin("opening the device", _OPENING_S, "drivers and libraries load")

    def building(self, definition: str, tier: Tier, is_gpu: bool) -> None:
        """Begin the phase in which a case is built on the open device.

        `definition` is the suite and name of the case, by which the durations of earlier cases are remembered."""
        self._end()
        self._definition, self._is_gpu, self._tier_factor = definition, is_gpu, _TIER_FACTORS[tier]
        self._last_s = {}
        self._begin_learned("building the case", _COMPILING_S, _BUILDING_S, "kernels are compiled")

    def attending(self) -> None:
        """Begin the phase in which an idle rank answers the ranks that time something."""
        self._begin("waiting for the other ranks", _ATTENDING_S, "an idle rank answers at once", restarts=True)

    def calling(self, stages: Collection[Stage], batch_s: float = 0.0) -> None:
        """Begin the phase in which each stage is called once, or in a batch of `batch_s` seconds."""
        self._begin_learned(_CALLING, _FIRST_CALLS_S, _LATER_S, "first calls compile and load", stages, batch_s)

    def waiting(self, stages: Collection[Stage]) -> None:
        """Begin the phase in which a GPU executes the calls that `calling` queued; a host has done so already."""
        if not self._is_gpu:
            return
        expected_s, work_reason = self._work_time(_WAITING, stages)
        self._begin(_WAITING, LEAST_S + expected_s, f"{LEAST_S:g} s{work_reason}", stages)

    def checking(self, stages: Collection[Stage]) -> None:
        """Begin the phase in which the author's check reads the outputs."""
        self._begin_learned("checking the answer", _CHECKING_S, _LATER_S, "a check may be slow", stages)

    def warming_up(self, label: str, rest_s: float) -> None:
        """Begin the phase in which a series chooses its batch and warms up, idling `rest_s` before each batch."""
        self._end()
        self._once_s = self._last_s.get(_CALLING, 0.0) + self._last_s.get(_WAITING, 0.0) + rest_s
        self._begin_as_first_calls(f"warming up {label}")

    def sampling(self, label: str, batch_s: float) -> None:
        """Begin the phase in which a series is sampled, in batches that take `batch_s` seconds with their rest.

        A series without a warm-up has no such duration (0): its limit follows from the first calls."""
        if not batch_s:
            self._begin_as_first_calls(f"sampling {label}")
            return
        basis = f"{LEAST_S:g} s and {_BATCHES} batches of {units.quantity(batch_s, 's', 3)}"
        self._begin(f"sampling {label}", LEAST_S + _BATCHES * batch_s, basis)

    def _begin_as_first_calls(self, name: str) -> None:
        """Begin the phase `name`, which may take ten times as long as the first calls of this case."""
        basis = f"{LEAST_S:g} s and {FACTOR} calls of {units.quantity(self._once_s, 's', 3)}"
        self._begin(name, LEAST_S + FACTOR * self._once_s, basis)

    def report_progress(self) -> None:
        """Report, at most once a second, that a batch has ended: the limit of the phase starts anew."""
        now = time.monotonic()
        if self._phase and now - self._reported_at >= _BEAT_S:
            self._reported_at = now
            self._report(self._phase)

    def closing(self) -> None:
        """Begin the phase in which the task releases its resources."""
        self._begin("closing the case", _CLOSING_S * self._tier_factor, "memory is freed, files are removed")

    def _begin_learned(
        self,
        name: str,
        first_s: float,
        later_s: float,
        reason: str,
        stages: Collection[Stage] = (),
        batch_s: float = 0.0,
    ) -> None:
        self._end()
        expected_s, work_reason = self._work_time(name, stages)
        if batch_s:
            expected_s += _BATCHES * batch_s
            work_reason += f", and {_BATCHES} batches of {units.quantity(batch_s, 's', 3)}"
        longest_s = self._longest.get((self._definition, name))
        seconds = self._tier_factor * (first_s if longest_s is None else later_s)
        basis = f"{seconds:g} s for the first case of its kind, where {reason}"
        if longest_s is not None:
            basis = f"{seconds:g} s after earlier cases of its kind"
            if FACTOR * longest_s > seconds:
                seconds = FACTOR * longest_s
                basis = f"{FACTOR} times the {longest_s:.3g} s of earlier cases of its kind"
        self._begin(name, seconds + expected_s, basis + work_reason, stages)

    def _begin(
        self, name: str, seconds: float, basis: str, stages: Collection[Stage] = (), restarts: bool = False
    ) -> None:
        """Begin the phase `name` and report it; it may take `seconds`, for the reason `basis`."""
        self._end()
        self._phase = Phase(name, seconds, basis, restarts)
        self._slowest_s = self._slowest_time(stages)
        self._begun = self._reported_at = time.monotonic()
        self._report(self._phase)

    def _end(self) -> None:
        if self._phase:
            seconds, key = time.monotonic() - self._begun, (self._definition, self._phase.name)
            self._last_s[self._phase.name] = seconds
            self._longest[key] = max(self._longest.get(key, 0.0), seconds)
            if self._slowest_s:
                self._slowness[key] = max(self._slowness.get(key, 0.0), seconds / self._slowest_s)
            self._phase = None

    def _work_time(self, name: str, stages: Collection[Stage]) -> tuple[float, str]:
        """Return the seconds that a call of each stage may take in the phase `name`, and the reason as a clause."""
        slowness = min(1.0, FACTOR * self._slowness.get((self._definition, name), 1.0))
        seconds = slowness * self._slowest_time(stages)
        if seconds < 1:
            return seconds, ""
        device = "the slowest device" if slowness == 1 else f"a device {FACTOR} times as slow as in earlier cases"
        return seconds, f", and {seconds:.3g} s for the counted work on {device}"

    def _slowest_time(self, stages: Collection[Stage]) -> float:
        """Return the seconds that one call of every stage takes in all on the slowest working device."""
        slowest = _SLOWEST_GPU if self._is_gpu else _SLOWEST_HOST
        seconds = 0.0
        for stage in stages:
            work = stage.work
            bytes_s = work.moved / slowest.moved if work.moved else work.payload / slowest.payload
            seconds += max(bytes_s, work.flops / slowest.flops, work.items / slowest.items)
        return seconds
