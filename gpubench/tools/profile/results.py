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
MOST_NAMES = 200  # marked phases that are kept: those that took the most time
MOST_TIMES = 20_000  # the first spans of one phase that are kept: a record has a limited size


def program(ended: Ended, devices: Sequence[str], zero: float) -> Result:
    """Return the result of the whole program: duration, processor time and memory, its children included."""
    words = ended.words
    seconds = ended.end - ended.begin
    return Result(
        Case(phases.SUITE, phases.PROGRAM),
        tuple(devices),
        "failed" if words else "ok",
        cause="program" if words else "",
        reason=f"the program ended: {words}" if words else "",
        series=(
            Series(phases.TIME, "s", (seconds,), at=(ended.begin - zero,)),
            Series("cpu", "s", (ended.cpu_s,)),
            Series("memory", "B", (float(ended.memory_bytes),)),
        ),
        window=(ended.begin - zero, ended.end - zero),
        elapsed_s=seconds,
    )


def marked(spans: Sequence[Span], devices: Sequence[str], zero: float) -> list[Result]:
    """Return a result for each name with all its spans; of too many names, those that took the most time."""
    named: dict[str, list[Span]] = {}
    for span in spans:
        named.setdefault(span.name, []).append(span)
    longest = sorted(named, key=lambda name: -sum(span.end - span.begin for span in named[name]))[:MOST_NAMES]
    return [_phase(name, named[name], devices, zero) for name in named if name in set(longest)]


def _phase(name: str, spans: Sequence[Span], devices: Sequence[str], zero: float) -> Result:
    kept = spans[:MOST_TIMES]
    notes = [("times", f"the first {len(kept)} of {len(spans)}")] if len(kept) < len(spans) else []
    labels = () if all(span.ended for span in kept) else ("unfinished",)
    case = Case(phases.SUITE, phases.MARKED, (("name", name),))
    return _result(case, [(span.begin, span.end) for span in kept], devices, zero, labels, notes)


def consecutive(name: str, edges: Sequence[float], devices: Sequence[str], zero: float) -> list[Result]:
    """Return a numbered result for each span between two neighbouring edges."""
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
