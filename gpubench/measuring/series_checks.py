"""Check single calls of a series at random places while it is taken, and compare their times with unchecked calls."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gpubench import stats
from gpubench.authoring.bench import poison
from gpubench.authoring.task import Stage
from gpubench.base.errors import Untrustworthy
from gpubench.measuring.answers import Agree, AnswerChecks, agree_alone
from gpubench.measuring.stopping import StoppingPolicy
from gpubench.plugins.backend import OpenDevice

_MOST, _LEAST = 30, 3  # checks of a series
_LEAST_OF_GRAPH = 8  # a graph is checked as a whole: a check behind which half of its calls are idle finds nothing
_SHARE = 0.1  # share of the sampling time that checks may take
_MOST_PAUSE_S = 0.01  # a longer check would cool a GPU
_NEIGHBOURS = 9  # samples before a checked call, with which its time is compared
_LONGER, _MOST_LONGER = 1.2, 1.75  # the least and the largest ratio to the controls' time that shows skipped work
_CONTROLS = 3  # control calls, whose spread sets the limit between these two
_OUTLIER = 2.0
_ATTEMPTS = 5  # a single call may be late by chance, and other programs delay several
_IN_A_ROW = 64  # calls that must each write an output where some may be idle
_UNEVEN = 0.5  # the share of the median's time below which a call may have been idle


class CheckedSeries(Protocol):
    """The properties of a series that its checks need: `values` are the samples in seconds."""

    @property
    def label(self) -> str: ...
    @property
    def stage(self) -> Stage: ...
    @property
    def mode(self) -> str: ...
    @property
    def calls(self) -> int: ...
    @property
    def call(self) -> Callable[[], object]: ...
    @property
    def policy(self) -> StoppingPolicy: ...
    @property
    def values(self) -> list[float]: ...


class TimeCalls(Protocol):
    """Returns the median seconds of a number of calls, NaN if they were disturbed; `call` replaces the timed one."""

    def __call__(self, calls: int, call: Callable[[], object] | None = None) -> float: ...


class SeriesChecks:
    """The checks of one series: up to 30 while sampling, within 10 % of its time, and one to three after it.

    All methods are collective: every rank that times something must call them."""

    def __init__(
        self,
        answers: AnswerChecks,
        timed: CheckedSeries,
        device: OpenDevice,
        agree: Agree,
        rng: np.random.Generator,
        time_calls: TimeCalls,
        time_singly: Callable[[], Sequence[float]],
        is_brief: bool = False,
    ) -> None:
        """Set up the checks; `time_singly` gives the seconds of each call of a batch, or none if they are not known."""
        self.made = 0
        self._answers, self._timed, self._device = answers, timed, device
        self._agree, self._rng, self._time_calls, self._time_singly = agree, rng, time_calls, time_singly
        least = _LEAST_OF_GRAPH if timed.mode == "graph" else _LEAST
        self._least = 1 if is_brief else least  # the smoke tier needs a single check
        self._spent_s = self._last_s = 0.0
        self._next_s = self._draw_gap()
        outputs, is_gpu = timed.stage.outputs, device.traits.is_gpu
        can_queue = bool(outputs) and not (is_gpu and any(isinstance(output, np.ndarray) for output in outputs))
        # ranks write each other's outputs at times of their own
        self._checks_within = can_queue and agree is agree_alone and timed.stage.clock == "device" and timed.calls > 1

    def _draw_gap(self) -> float:
        """Return the random seconds of sampling until the next check; on average they suit the allowed share."""
        mean_s = max(self._timed.policy.budget_s / _MOST, self._last_s / _SHARE)
        return float(self._rng.uniform(0, 2)) * mean_s

    def is_due(self, elapsed_s: float) -> bool:
        """Return whether a check is to be made after `elapsed_s` seconds of sampling: its random place is reached."""
        if elapsed_s < self._next_s or self.made >= _MOST or not self._timed.values or self._timed.stage.checked:
            return False
        batches_s = 2 * self._timed.calls * stats.median(self._timed.values)
        cost_s = self._last_s or self._answers.seconds + batches_s
        pause_s = _MOST_PAUSE_S if self._device.traits.is_gpu else cost_s
        return self._spent_s + cost_s <= _SHARE * max(elapsed_s, self._timed.policy.least_s) and cost_s <= pause_s

    def make(self, elapsed_s: float) -> float:
        """Check a call, warm the caches with a random number of further ones, and return the seconds that it took.

        No call can know its number: a call that is idle in a regular rhythm is found too."""
        start = self._device.now()
        self._check()
        self._time_calls(self._whole(int(self._rng.integers(1, self._timed.calls + 1))))
        self._last_s = self._device.now() - start
        self._spent_s += self._last_s
        self._next_s = elapsed_s + self._draw_gap()
        return self._last_s

    def finish(self) -> None:
        """Check after the last sample: as often as checks are missing, but no longer than the budget of the series.

        If some calls are much shorter than others, they may be idle: then each of 64 in a row must write its outputs,
        and up to 30 checks are made."""
        start = self._device.now()
        if not self._timed.stage.checked and self._agree(self._is_uneven()):
            self._least = _MOST
            stage, is_rotated = self._timed.stage, self._timed.mode == "rotated"  # turns may write different outputs
            if self._agree is agree_alone and stage.clock == "device" and not is_rotated:
                self._answers.expect_writes(stage, self._timed.call, _IN_A_ROW, self._timed.policy.budget_s)
        while not self._timed.stage.checked:
            self._check()
            is_over = self._device.now() - start > self._timed.policy.budget_s
            if self._agree(self.made >= self._least or is_over):
                return
            self._time_calls(self._whole(int(self._rng.integers(1, self._timed.calls + 1))))

    def _is_uneven(self) -> bool:
        """Return whether a sample, or one of some calls in a row, is much shorter than the others."""
        taken = self._timed.values, self._time_singly() if self._timed.calls > 1 else ()
        return any(bool(seconds) and min(seconds) < _UNEVEN * stats.median(seconds) for seconds in taken)

    def _whole(self, calls: int) -> int:
        """Return the number of calls that are timed in place of `calls`: whole rotations, and whole graphs."""
        if self._timed.mode == "graph":
            return self._timed.calls
        return -(-calls // self._turns) * self._turns

    @property
    def _turns(self) -> int:
        return len(self._timed.stage.rotation) if self._timed.mode == "rotated" else 1

    def _check(self) -> None:
        self.made += 1
        is_within = self.made > 1 if self._timed.mode == "graph" else self.made % 2 == 0
        if self._checks_within and is_within:
            self._check_within()
        else:
            self._check_call()

    def _check_within(self) -> None:
        # A call that works only behind a pause, or only once in a batch, is found, and a graph that leaves out calls.
        left = calls = -(-int(self._rng.integers(2, self._timed.calls + 1)) // self._turns) * self._turns

        def call() -> None:
            nonlocal left
            if left == self._turns:
                poison(self._device, self._timed.stage.outputs)
            left -= 1
            self._timed.call()

        self._answers.around(self._timed.stage, lambda: self._time_calls(calls, call))

    def _check_call(self) -> None:
        """Check a call on overwritten outputs. Raises WrongAnswer, or Untrustworthy if it takes longer than others."""
        # It is no sample, because the caches now hold other lines. Work that is skipped on repeats shows as a wrong
        # answer, or as a call that takes longer than its neighbours. Other caches make it longer too, so the controls
        # are calls whose outputs were written with what they hold, and last a call behind a flush.
        calls, longer = self._whole(1), 0.0
        neighbours_s = _slowest(self._timed.values[-_NEIGHBOURS:])
        is_timed = self._timed.stage.clock == "device"  # a host call may have to allocate its output again
        for _ in range(_ATTEMPTS if self._answers.can_touch else 4 * _ATTEMPTS):
            checked_s = self._answers.around(self._timed.stage, lambda: self._time_calls(calls))
            if self._agree(not is_timed or not checked_s > _LONGER * neighbours_s):
                return
            limit, slowest_s = self._take_controls(calls)
            longer = checked_s / max(slowest_s, neighbours_s)
            if self._agree(not longer > limit):
                return
            self._device.flush()
            self._device.synchronize()  # a call that is not gated would begin while the flush runs, and seem shorter
            longer = min(longer, checked_s / self._time_calls(calls))
            if self._agree(not longer > limit):
                return
        raise Untrustworthy(
            "skipped-work",
            f"{self._timed.label}: on overwritten outputs a call takes {longer:.1f} times as long as otherwise: "
            "the timed calls skip work",
        )

    def _take_controls(self, calls: int) -> tuple[float, float]:
        """Return the limit that the spread of the control calls allows, and the seconds of the slowest of them."""
        if not self._answers.can_touch:  # nothing imitates the poisoning
            return _MOST_LONGER, max(self._timed.values[-_NEIGHBOURS:], default=np.inf)
        times = [self._answers.beside(self._timed.stage, lambda: self._time_calls(calls)) for _ in range(_CONTROLS)]
        slowest_s = _slowest(times)
        return float(np.fmin(_MOST_LONGER, _LONGER * slowest_s / min(times))), slowest_s


def _slowest(seconds: Sequence[float]) -> float:
    """Return the longest time, but at most twice the median, beyond which other programs are the cause."""
    return min(max(seconds), _OUTLIER * stats.median(seconds)) if seconds else np.inf
