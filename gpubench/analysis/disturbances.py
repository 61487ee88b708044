"""What disturbed a result: other work on the machine, and slowdowns of the device itself."""

from __future__ import annotations

from gpubench.model import Result

_OTHER_WORK_LABELS = frozenset({"shared-device", "loaded", "migrated"})
_OTHER_WORK_DISCARDS = frozenset({"steal", "foreign-process"})
_SLOWDOWNS = frozenset({"thermal", "hw-slowdown", "power-brake", "low-clock"})
_DISCARDED = 0.1  # of the samples: from this share on the remaining samples are disturbed too


def other_work(result: Result) -> tuple[str, ...]:
    """Return what shows that other work disturbed a result: labels, and reasons that cost a tenth of its samples."""
    labels = _OTHER_WORK_LABELS.intersection(result.labels)
    return tuple(sorted(labels | (_frequent_discards(result) & _OTHER_WORK_DISCARDS)))


def slowdowns(result: Result) -> tuple[str, ...]:
    """Return which slowdowns of the device, `thermal` for one, cost a tenth of the samples of a result."""
    return tuple(sorted(_frequent_discards(result) & _SLOWDOWNS))


def _frequent_discards(result: Result) -> set[str]:
    if not result.discarded:
        return set()
    kept = sum(len(series.values) for series in result.series if series.role == "primary")
    return {reason for reason, count in result.discarded if count >= _DISCARDED * (kept + count)}
