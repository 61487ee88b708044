"""Live progress on standard error, on a terminal only: case, suite and time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpubench.cli._print import err, plain

if TYPE_CHECKING:
    from gpubench.measuring.runner import Observer
    from gpubench.measuring.runner import Progress as Event


@contextmanager
def shown() -> Iterator[Observer]:
    """An observer that draws; one that does nothing where standard error is no terminal."""
    console = err()
    if not console.is_terminal:
        yield _ignore
        return
    columns = (
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def watch(event: Event) -> None:
            done = event.index + (event.result is not None)
            progress.update(task, total=event.total, completed=done, description=plain(event.job.case.id).plain)
            if event.result is not None and event.result.status in ("failed", "invalid"):
                words = f"{event.result.status}: {event.result.case.id}: {event.result.reason}"
                progress.console.print(plain(words, "red"))

        yield watch


def _ignore(event: Event) -> None:
    del event
