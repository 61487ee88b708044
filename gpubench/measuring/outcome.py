"""The result of a case from the parts of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.measuring import boundary
from gpubench.measuring.plan import Job
from gpubench.measuring.worker import Part
from gpubench.model import Result, Series, Status

# The worst status decides; a part with the cause "peer" only repeats another rank's end, so it decides last.
_SEVERITY: dict[Status, int] = {"failed": 3, "invalid": 2, "skipped": 1, "ok": 0}


def merged(job: Job, parts: Sequence[Part], started_at: float, elapsed_s: float) -> Result:
    """Return the result of a job: the worst outcome of any rank, the series of all, and the notes of a rank that timed.

    `started_at` is the run's start in monotonic seconds, to which the result's window is relative.
    """
    counted = _counted(parts)
    causes = [part for part in counted if part.status != "ok" and part.cause != "peer"]
    worst = max(causes or counted, key=lambda part: _SEVERITY[part.status])
    active = next((part for part in parts if part.series), worst)
    discarded: dict[str, int] = {}
    series: list[Series] = []
    for part in parts:
        series += part.series
        for reason, count in part.discarded:
            discarded[reason] = discarded.get(reason, 0) + count
    return Result(
        case=job.case,
        devices=job.key[1],
        status=worst.status,
        replicate=job.replicate,
        cause=worst.cause,
        reason=boundary.text(worst.reason),
        series=tuple(series),
        discarded=tuple(sorted(discarded.items())),
        labels=tuple(sorted({label for part in parts for label in part.labels})),
        notes=active.notes,
        window=(active.window[0] - started_at, active.window[1] - started_at) if active.window[1] else (0.0, 0.0),
        elapsed_s=elapsed_s,
    )


def _counted(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that count.

    If every surviving rank handled the death of another one, the dead rank counts as part of the test, and not as a
    failure.
    """
    crashed = {rank for rank, part in enumerate(parts) if part.cause == "crash"}
    survivors = [part for rank, part in enumerate(parts) if rank not in crashed]
    handled = bool(survivors) and all(part.status == "ok" and crashed <= set(part.informed) for part in survivors)
    return survivors if handled else list(parts)
