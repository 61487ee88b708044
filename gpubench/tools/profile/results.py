"""The results of a profiled program: one for the program, one for each phase."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gpubench.analysis import phases
from gpubench.marks import Span
from gpubench.model import Case, Result, Series, SuiteInfo, View
from gpubench.tools.profile.program import Ended

INFO = SuiteInfo(
    phases.SUITE,
    "the phases of a profiled program",
    (View("bars", "Duration of each phase", (phases.MARKED, phases.FOUND, phases.PART), series=phases.TIME),),
)
MOST_NAMES = 200  # names of marked phases in the file: those that took the most time
MOST_TIMES = 20_000  # spans of one phase in the file, the first ones: a record has a limited size


def program(ended: Ended, devices: Sequence[str], zero: float) -> Result:
    """Return the result of the whole program: duration, processor time and memory, including its children.

    `zero` is the start of the run in s of CLOCK_MONOTONIC; all times in the result count from it.
    """
    failure = ended.words
    seconds = ended.end - ended.begin
    return Result(
        Case(phases.SUITE, phases.PROGRAM),
        tuple(devices),
        "failed" if failure else "ok",
        cause="program" if failure else "",
        reason=f"the program ended: {failure}" if failure else "",
        series=(
            Series(phases.TIME, "s", (seconds,), at=(ended.begin - zero,)),
            Series("cpu", "s", (ended.cpu_s,)),
            Series("memory", "B", (float(ended.memory_bytes),)),
        ),
        window=(ended.begin - zero, ended.end - zero),
        elapsed_s=seconds,
    )


def marked(spans: Sequence[Span], devices: Sequence[str], zero: float) -> list[Result]:
    """Return one result per name with all its spans; above MOST_NAMES, only the names that took the most time."""
    named: dict[str, list[Span]] = {}
    for span in spans:
        named.setdefault(span.name, []).append(span)
    longest = sorted(named, key=lambda name: -sum(span.end - span.begin for span in named[name]))[:MOST_NAMES]
    return [_phase(name, named[name], devices, zero) for name in named if name in set(longest)]


def _phase(name: str, spans: Sequence[Span], devices: Sequence[str], zero: float) -> Result:
    recorded = spans[:MOST_TIMES]
    notes = [("times", f"the first {len(recorded)} of {len(spans)}")] if len(recorded) < len(spans) else []
    labels = () if all(span.ended for span in recorded) else ("unfinished",)
    case = Case(phases.SUITE, phases.MARKED, (("name", name),))
    return _result(case, [(span.begin, span.end) for span in recorded], devices, zero, labels, notes)


def consecutive(name: str, edges: Sequence[float], devices: Sequence[str], zero: float) -> list[Result]:
    """Return a numbered result for each span between two neighbouring edges, which are s of CLOCK_MONOTONIC."""
    return [
        _result(Case(phases.SUITE, name, (("number", number),)), [(begin, end)], devices, zero)
        for number, (begin, end) in enumerate(itertools.pairwise(edges), 1)
    ]


def _result(
    case: Case,
    spans: Sequence[tuple[float, float]],
    devices: Sequence[str],
    zero: float,
    labels: tuple[str, ...] = (),
    notes: Sequence[tuple[str, str]] = (),
) -> Result:
    window = (spans[0][0] - zero, max(end for _, end in spans) - zero)
    times = Series(
        phases.TIME, "s", tuple(end - begin for begin, end in spans), at=tuple(begin - zero for begin, _ in spans)
    )
    return Result(
        case,
        tuple(devices),
        "ok",
        series=(times,),
        labels=labels,
        notes=tuple(notes),
        window=window,
        elapsed_s=window[1] - window[0],
    )
