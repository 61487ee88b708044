"""Make the table at the end of a measuring session: figures first and names last, so that any terminal aligns them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.analysis.figure import Figure
from gpubench.base import units
from gpubench.judging.decidable import processes_needed
from gpubench.judging.finding_text import HEADS, MISSING, UNDECIDED, finding_cells, first
from gpubench.judging.judge import Finding
from gpubench.model import Result

_PLAIN = ("median", "95 % interval", "case")
_JUDGED = (*HEADS[2:6], HEADS[0], HEADS[1])  # baseline, candidate, change, interval, verdict, case


@dataclass(slots=True)
class TimedRow:
    """One timed case: its result, its figure over all processes, and its finding if the baseline has the case.

    `figure` is None if the result is not ok. `verdict` and `reason` are texts, empty without a baseline."""

    result: Result
    figure: Figure | None
    verdict: str = ""
    reason: str = ""
    finding: Finding | None = None

    @property
    def median(self) -> str:
        """The median over all processes, or the status of the case if it has none."""
        return self.figure.text if self.figure else self.result.status

    def cells(self, is_judged: bool) -> tuple[str, ...]:
        """Return the cells of the case: median, interval, case, or with `is_judged` the comparison with the baseline.

        The comparison has the heads `_JUDGED`: baseline, candidate, change, interval, verdict, case."""
        labels = f" ({', '.join(self.result.labels)})" if self.result.labels else ""
        case = f"{self.result.case.id}{labels}"
        if not is_judged:
            return (self.median, _interval(self.figure) if self.figure else MISSING, case)
        if self.finding is None:
            return (MISSING, self.median, MISSING, MISSING, self.verdict or MISSING, case)
        cells = finding_cells(self.finding)
        return (cells.before, cells.after, cells.change, cells.interval, cells.verdict, case)


def _interval(figure: Figure) -> str:
    return units.interval(figure.interval.low, figure.interval.high, figure.unit, figure.interval.centre)


def table(rows: Sequence[TimedRow], is_judged: bool) -> list[str]:
    """Return the lines of the table, then the reasons of inconclusive verdicts, then the next step.

    With `is_judged` the table has the columns of a session with a baseline. A case without a figure has a line with its
    reason."""
    heads = _JUDGED if is_judged else _PLAIN
    cells = [heads, *(row.cells(is_judged) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in cells]
    lines += [f"{row.result.case.id}: {row.result.status}: {row.result.reason}" for row in rows if not row.figure]
    return [*lines, *_reason_lines(rows), *_next_step(rows)]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the cells padded to their columns' widths: figures right-aligned, the texts at the end left-aligned."""
    figures = len(cells) - (2 if len(cells) == len(_JUDGED) else 1)
    return [
        text.rjust(width) if place < figures else text.ljust(width)
        for place, (text, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _reason_lines(rows: Sequence[TimedRow]) -> list[str]:
    """Return a line for each reason of an undecided verdict, with the cases to which it applies."""
    cases_by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.finding and row.finding.verdict in UNDECIDED and row.reason:
            cases_by_reason.setdefault(row.reason, []).append(row.result.case.id)
    return [f"inconclusive: {first(ids)}: {reason}" for reason, ids in cases_by_reason.items()]


def _next_step(rows: Sequence[TimedRow]) -> list[str]:
    """Return one line with the number of processes that decides the undecided cases; empty if no number is known."""
    undecided = [row.finding for row in rows if row.finding and row.finding.verdict in UNDECIDED]
    needed = [count for finding in undecided if (count := processes_needed(finding))]
    if not needed:
        return []
    cases = f"{len(needed)} of {len(undecided)} inconclusive" if len(undecided) > 1 else "the inconclusive case"
    step = f"measure the baseline and the candidate with --gpubench-replicates {max(needed)}"
    return [f"next: {step}, which decides {cases} with a probability of 80 %"]
