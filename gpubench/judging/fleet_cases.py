"""List all cases of the suspects of a fleet, each with the median of the comparable components.

They show in which other cases a suspect is slow."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpubench.judging.fleet import Place, Suspect, SuspectCase
from gpubench.judging.fleet_rows import ComparableGroup
from gpubench.judging.outliers import Matrix


def with_cases(suspects: Sequence[Suspect], groups: Sequence[ComparableGroup]) -> list[Suspect]:
    """Return the suspects, in order, with all cases of their components, also those in which they are not slow.

    The case with the lowest share of the group's median comes first."""
    wanted = {place for suspect in suspects for place in suspect.parts}
    cases: dict[Place, list[SuspectCase]] = {}
    for group in groups:
        columns = [column for column, member in enumerate(group.members) if member.place in wanted]
        if columns:
            medians = np.nanmedian(group.rates, axis=1) if group.keys else np.array([])
            cases |= {group.members[column].place: list(_cases(group, column, medians)) for column in columns}
    return [
        replace(suspect, cases=_lowest_first([case for place in suspect.parts for case in cases.get(place, ())]))
        for suspect in suspects
    ]


def _cases(group: ComparableGroup, column: int, medians: Matrix) -> Iterator[SuspectCase]:
    """Yield the cases of the member with the index `column` in a group."""
    place, component = group.members[column]
    for row, key in enumerate(group.keys):
        if key in component.rates:
            median = float(medians[row])
            share = math.exp(float(group.rates[row, column]) - median)
            middle = math.exp(median if key.better == "more" else -median)
            yield SuspectCase(place, key.case, key.family, key.unit, component.rates[key].value, middle, share)


def _lowest_first(cases: Sequence[SuspectCase]) -> tuple[SuspectCase, ...]:
    """Return the cases with the lowest share of the median first."""
    return tuple(sorted(cases, key=lambda case: case.share))
