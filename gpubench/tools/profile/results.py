"""Make the results of a profiled program: one for the program, and one for each phase."""

import itertools
from collections.abc import Sequence

from gpubench.analysis import phases
from gpubench.marks import Span
from gpubench.model import Case, Result, Series, SuiteInfo, View
from gpubench.tools.profile.program import ProgramEnd

INFO = SuiteInfo(
    phases.SUITE,
    "the phases of a profiled program",
    (View("bars", "Duration of each phase", (phases.MARKED, phases.FOUND, phases.PART), series=phases.TIME),),
)
MOST_NAMES = 200  # names of marked phases in the file; phases that took less time are left out
MOST_TIMES = 20_000  # spans of one phase in the file, the first ones: a record has a limited size


def program_result(ended: ProgramEnd, devices: Sequence[str], zero: float) -> Result:
    """Return the result of the whole program: duration, processor time and memory, including its children."""
    failure = ended.failure
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


def marked_results(spans: Sequence[Span], devices: Sequence[str], zero: float) -> list[Result]:
    """Return a result for each name of marked phases, in the order of first use; the longest names are kept."""
    spans_by_name: dict[str, list[Span]] = {}
    for span in spans:
        spans_by_name.setdefault(span.name, []).append(span)
    longest = sorted(spans_by_name, key=lambda name: -sum(span.end - span.begin for span in spans_by_name[name]))[
        :MOST_NAMES
    ]
    return [_marked_phase(name, spans_by_name[name], devices, zero) for name in spans_by_name if name in set(longest)]


def _marked_phase(name: str, spans: Sequence[Span], devices: Sequence[str], zero: float) -> Result:
    """Return the result of the marked phases called `name`; of more than MOST_TIMES spans, the first are kept."""
    recorded = spans[:MOST_TIMES]
    notes = [("times", f"the first {len(recorded)} of {len(spans)}")] if len(recorded) < len(spans) else []
    labels = () if all(span.ended for span in recorded) else ("unfinished",)
    case = Case(phases.SUITE, phases.MARKED, (("name", name),))
    return _phase_result(case, [(span.begin, span.end) for span in recorded], devices, zero, labels, notes)


def consecutive_results(name: str, edges: Sequence[float], devices: Sequence[str], zero: float) -> list[Result]:
    """Return a result for each span between two neighbouring `edges` (s, ascending), numbered from 1."""
    return [
        _phase_result(Case(phases.SUITE, name, (("number", number),)), [(begin, end)], devices, zero)
        for number, (begin, end) in enumerate(itertools.pairwise(edges), 1)
    ]


def _phase_result(
    case: Case,
    spans: Sequence[tuple[float, float]],
    devices: Sequence[str],
    zero: float,
    labels: tuple[str, ...] = (),
    notes: Sequence[tuple[str, str]] = (),
) -> Result:
    """Return the result of a phase from its spans (begin and end in s of CLOCK_MONOTONIC), which ascend by begin."""
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
