"""Read from a result what disturbed it: other work on the machine, or slowdowns of the device itself."""

from gpubench.model import Result

_OTHER_WORK_LABELS = frozenset({"shared-device", "loaded", "migrated"})
_OTHER_WORK_DISCARDS = frozenset({"steal", "foreign-process"})
_SLOWDOWNS = frozenset({"thermal", "hw-slowdown", "power-brake", "low-clock"})
_DISCARDED = 0.1  # share of discarded samples from which the remaining ones count as disturbed too


def other_work(result: Result) -> tuple[str, ...]:
    """Return the signs of other work on the machine, sorted: labels (`loaded`), and frequent discard reasons (`steal`).

    A discard reason is frequent if at least a tenth of the samples were discarded for it."""
    labels = _OTHER_WORK_LABELS.intersection(result.labels)
    return tuple(sorted(labels | (_frequent_discards(result) & _OTHER_WORK_DISCARDS)))


def slowdowns(result: Result) -> tuple[str, ...]:
    """Return the slowdowns of the device (`thermal`) for which a tenth or more of the samples was discarded, sorted."""
    return tuple(sorted(_frequent_discards(result) & _SLOWDOWNS))


def _frequent_discards(result: Result) -> set[str]:
    if not result.discarded:
        return set()
    kept_count = sum(len(series.values) for series in result.series if series.role == "primary")
    return {reason for reason, count in result.discarded if count >= _DISCARDED * (kept_count + count)}
