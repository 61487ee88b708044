"""Report how far a run is: events for an observer, and an estimate of the remaining time."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubench.measuring.plan import Job, Plan, missing_devices
from gpubench.model import Result

_PLANNED_WEIGHT = 3  # the planned time of a suite's job weighs like this number of measured ones


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """An event: a job starts (`result` is None), or has ended with a result.

    `jobs` are all jobs of this run in order, `index` is the place of this job among them, and `left_s` is an
    estimate of the seconds that the remaining jobs take, including this one while it runs."""

    job: Job
    index: int
    jobs: Sequence[Job]
    left_s: float
    result: Result | None = None


Observer = Callable[[ProgressEvent], None]


class Forecast:
    """Estimates how long the remaining jobs take: first as planned, then as the jobs of the same suite took.

    A suite that has not started is planned to be as much slower than its plan as the measured suites were, by the
    geometric mean of their ratios, because a busy machine and slow starts of workers delay every suite."""

    def __init__(self, plan: Plan, jobs: Sequence[Job]) -> None:
        self._left = Counter(map(_group, jobs))
        self._planned_s = {_group(job): plan.seconds_of(job) for job in jobs}
        self._durations: dict[object, list[float]] = defaultdict(list)

    def add(self, job: Job, seconds: float) -> None:
        """Record how long a job took."""
        group = _group(job)
        self._left[group] -= 1
        self._durations[group].append(seconds)

    def left_s(self) -> float:
        """Return the estimated seconds that all jobs without a recorded time take, with the job that is under way."""
        delay = self._delay()
        return sum(count * self._mean_s(group, delay) for group, count in self._left.items())

    def _delay(self) -> float:
        """Return how many times as long as planned jobs took; the plan counts like one measured suite."""
        logs = [
            math.log(statistics.fmean(durations) / self._planned_s[group])
            for group, durations in self._durations.items()
            if self._planned_s[group] and any(durations)
        ]
        return math.exp(sum(logs) / (len(logs) + 1))

    def _mean_s(self, group: object, delay: float) -> float:
        durations = self._durations.get(group, [])
        planned = self._planned_s[group] * delay * _PLANNED_WEIGHT
        return (planned + sum(durations)) / (_PLANNED_WEIGHT + len(durations))


def _group(job: Job) -> object:
    return job.case.suite, job.key[1], bool(missing_devices(job))
