"""Report how far a run is: events for an observer, and an estimate of the remaining time."""

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
    """Estimates how long the remaining jobs take: first as planned, then as the jobs of the same suite took."""

    def __init__(self, plan: Plan, jobs: Sequence[Job]) -> None:
        self._plan = plan
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
        return sum(count * self._mean_s(group) for group, count in self._left.items())

    def _mean_s(self, group: object) -> float:
        durations = self._durations[group]
        planned = self._planned_s[group] * _PLANNED_WEIGHT
        return (planned + sum(durations)) / (_PLANNED_WEIGHT + len(durations))


def _group(job: Job) -> object:
    return job.case.suite, job.key[1], bool(missing_devices(job))
