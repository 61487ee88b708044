"""Merge the results of the ranks of a case into the result of the case."""

from collections.abc import Sequence

from gpubench.measuring import boundary
from gpubench.measuring.plan import Job
from gpubench.measuring.worker import RankResult
from gpubench.model import Result, Series, Status

# The worst status decides; a part with the cause "peer" only repeats another rank's end, so it decides last.
_SEVERITY: dict[Status, int] = {"failed": 3, "invalid": 2, "skipped": 1, "ok": 0}


def merged(job: Job, results: Sequence[RankResult], started_at: float, elapsed_s: float) -> Result:
    """Return the result of a job: the worst outcome of any rank, the series of all, the notes of the first with series.

    A rank that only failed because another rank ended does not decide the outcome."""
    deciding = _deciding_results(results)
    causes = [rank_result for rank_result in deciding if rank_result.status != "ok" and rank_result.cause != "peer"]
    worst = max(causes or deciding, key=lambda rank_result: _SEVERITY[rank_result.status])
    active = next((rank_result for rank_result in results if rank_result.series), worst)
    discarded: dict[str, int] = {}
    series: list[Series] = []
    for rank_result in results:
        series += rank_result.series
        for reason, count in rank_result.discarded:
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
        labels=tuple(sorted({label for rank_result in results for label in rank_result.labels})),
        notes=active.notes,
        window=(active.window[0] - started_at, active.window[1] - started_at) if active.window[1] else (0.0, 0.0),
        elapsed_s=elapsed_s,
    )


def _deciding_results(results: Sequence[RankResult]) -> list[RankResult]:
    """Return the rank results that decide the outcome: all, or only the survivors' if they handled a death."""
    crashed = {rank for rank, rank_result in enumerate(results) if rank_result.cause == "crash"}
    survivors = [rank_result for rank, rank_result in enumerate(results) if rank not in crashed]
    handled = bool(survivors) and all(
        rank_result.status == "ok" and crashed <= set(rank_result.informed) for rank_result in survivors
    )
    return survivors if handled else list(results)
