"""Show the progress of a run on standard error: one updated line on a terminal, else one line per suite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from gpubench.base import units
from gpubench.cli._print import err, plain, say

if TYPE_CHECKING:
    from gpubench.measuring.plan import Job
    from gpubench.measuring.progress import Observer, ProgressEvent
    from gpubench.model import Result

_BAR = 16  # the width of a bar in characters
_BAR_FITS = 60  # columns of a terminal that has room for a bar


@contextmanager
def run_display() -> Iterator[Observer]:
    """Yield an observer of a run's progress, which prints to standard error.

    It draws one changing line on a terminal; elsewhere it prints a line for each suite, or for each replicate if there
    are several. Failed and invalid cases are printed at once."""
    console = err()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _ProgressLines().watch
        return
    with _progress_bar(console) as progress:
        task = progress.add_task("", total=None, left="")

        def watch(event: ProgressEvent) -> None:
            """Draw the state after `event`, and print a line if the result is failed or invalid."""
            done = event.index + (event.result is not None)
            case = plain(event.job.case.id).plain
            progress.update(
                task, total=len(event.jobs), completed=done, description=case, left=_left_text(event.left_s)
            )
            if problem := _problem_text(event.result):
                progress.console.print(plain(problem, "red"))

        yield watch


def _progress_bar(console: Console) -> Progress:
    """Return a progress display of one line; the name of the case is cut at the edge of the terminal."""
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False, table_column=rest),
    )
    bar = (BarColumn(_BAR),) if console.width >= _BAR_FITS else ()
    return Progress(*bar, *columns, console=console, transient=True, expand=True)


class _ProgressLines:
    """Prints a line when all cases of a suite or replicate were measured, and each problem at once."""

    def __init__(self) -> None:
        self._groups: dict[Job, str] = {}
        self._left: Counter[str] = Counter()
        self._ended: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: dict[str, float] = defaultdict(float)

    def watch(self, event: ProgressEvent) -> None:
        """Print the problem of the event's result, if it has one, and the line of the group whose last case it is.

        The first event of a run, which has index 0 and no result, only starts the count."""
        if event.result is None:
            if event.index == 0:
                self._begin(event.jobs)
            return
        if problem := _problem_text(event.result):
            say(problem)
        group = self._groups[event.job]
        self._left[group] -= 1
        self._ended[group][event.result.status] += 1
        self._seconds[group] += event.result.elapsed_s
        if not self._left[group]:
            ended = ", ".join(f"{count} {status}" for status, count in self._ended[group].items())
            left = f"; {_left_text(event.left_s)}" if self._left.total() else ""
            say(f"{group}: {ended} in {units.duration(self._seconds[group])}{left}")

    def _begin(self, jobs: Sequence[Job]) -> None:
        self._groups = dict(zip(jobs, _group_names(jobs), strict=True))
        self._left = Counter(self._groups.values())
        self._ended.clear()
        self._seconds.clear()


def _group_names(jobs: Sequence[Job]) -> Iterator[str]:
    replicates = {job.replicate for job in jobs}
    devices = {job.devices[0].id for job in jobs}
    for job in jobs:
        if len(replicates) > 1:
            yield f"replicate {job.replicate + 1}"
        else:
            yield f"{job.case.suite} on {job.devices[0].id}" if len(devices) > 1 else job.case.suite


def _left_text(seconds: float) -> str:
    """Return the estimated remaining time as `about 40 s left`."""
    return f"about {f'{max(1, round(seconds))} s' if seconds < 60 else units.duration(seconds)} left"


def _problem_text(result: Result | None) -> str:
    if result is None or result.status not in ("failed", "invalid"):
        return ""
    return f"{result.status}: {result.case.id}: {result.reason}"
