"""Build the matrix by which a group of comparable components is judged, with a row for each case and each family."""

import math
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpubench.analysis.digest import CaseKey, Component
from gpubench.judging import outliers
from gpubench.judging.fleet import Place, TwoPopulations
from gpubench.judging.outliers import LEAST_COMPONENTS, LEAST_SPREAD, Matrix

_LEAST_CASES = 2  # a family with one case needs no row, because the mean of one case is that case


class Member(NamedTuple):
    """A component with its place."""

    place: Place
    component: Component


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One row of a group's matrix: a case, or a family if `key` is None."""

    key: CaseKey | None
    family: str


@dataclass(frozen=True, slots=True)
class ComparableGroup:
    """Comparable members with their rates and the standard errors of these, both as natural logarithms.

    The matrices have one row for each case (`keys`) and one column for each member, NaN where a member has no rate."""

    members: tuple[Member, ...]
    keys: tuple[CaseKey, ...]
    rates: Matrix
    errors: Matrix

    @property
    def is_comparable(self) -> bool:
        """Whether the group has enough members to compare them with each other."""
        return len(self.members) >= LEAST_COMPONENTS


def fleet_rows(group: ComparableGroup) -> tuple[list[FleetRow], Matrix, Matrix, tuple[TwoPopulations, ...]]:
    """Return the rows to judge, their rates and standard errors as matrices, and the cases that have two populations.

    The rows are the cases, then the slower population of each case with two populations, then the families."""
    rows = [FleetRow(key, key.family) for key in group.keys]
    rates, errors = group.rates.copy(), group.errors
    split = outliers.populations(rates)
    extra: list[Matrix] = []
    for row in np.nonzero(split)[0]:
        slower = np.argsort(group.rates[row])[: split[row]]
        part = np.full_like(rates[row], math.nan)
        part[slower], rates[row, slower] = rates[row, slower], math.nan
        extra.append(part)
        rows.append(FleetRow(group.keys[row], group.keys[row].family))
        errors = np.vstack([errors, group.errors[row]])
    rates = np.vstack([rates, *extra])
    families, of_families, their_errors = _family_rows(group, rates[: len(group.keys)])
    populations = _populations(group, split)
    return [*rows, *families], np.vstack([rates, of_families]), np.vstack([errors, their_errors]), populations


def _family_rows(group: ComparableGroup, rates: Matrix) -> tuple[list[FleetRow], Matrix, Matrix]:
    """Return a row for each family of two cases or more, the weighted means of its rates, and their standard errors."""
    rows, means, errors = [], [], []
    for family in dict.fromkeys(key.family for key in group.keys):
        chosen = [
            row for row, key in enumerate(group.keys) if key.family == family and np.isfinite(rates[row]).sum() > 1
        ]
        if len(chosen) < _LEAST_CASES:
            continue
        part = rates[chosen]
        centred = part - np.nanmedian(part, axis=1, keepdims=True)
        spread = np.maximum(np.nanstd(part, axis=1, keepdims=True, ddof=1), LEAST_SPREAD)
        weight = np.where(np.isfinite(centred), spread**-2.0, 0.0)
        total = weight.sum(axis=0)
        whole = np.isfinite(centred).sum(axis=0) == len(chosen)  # means over different sets of cases are not comparable
        with np.errstate(invalid="ignore"):
            mean = np.nansum(weight * np.nan_to_num(centred), axis=0) / total
            error = np.sqrt(np.nansum((weight * np.nan_to_num(group.errors[chosen])) ** 2, axis=0)) / total
        rows.append(FleetRow(None, family))
        means.append(np.where(whole, mean, math.nan))
        errors.append(error)
    width = rates.shape[1]
    return rows, np.array(means).reshape(len(rows), width), np.array(errors).reshape(len(rows), width)


def _populations(group: ComparableGroup, split: np.ndarray) -> tuple[TwoPopulations, ...]:
    """Return the cases with two populations; cases that have the same components in the slower one stand together."""
    parts: dict[tuple[int, ...], list[int]] = {}
    for row in np.nonzero(split)[0]:
        parts.setdefault(tuple(sorted(np.argsort(group.rates[row])[: split[row]].tolist())), []).append(int(row))
    return tuple(_two_populations(group, slower, rows) for slower, rows in parts.items())


def _two_populations(group: ComparableGroup, slower: tuple[int, ...], rows: Sequence[int]) -> TwoPopulations:
    """Return the description of two populations that several cases share."""
    is_slower = np.isin(np.arange(len(group.members)), slower)
    gaps = [np.nanmedian(group.rates[row][~is_slower]) - np.nanmedian(group.rates[row][is_slower]) for row in rows]
    slow = [group.members[column].component for column in np.flatnonzero(is_slower)]
    fast = [group.members[column].component for column in np.flatnonzero(~is_slower)]
    return TwoPopulations(
        tuple(group.keys[row].case for row in rows),
        tuple(group.members[column].place for column in slower),
        len(fast),
        -math.expm1(-float(np.median(gaps))),
        tuple(_differences(slow, fast)),
    )


def _differences(slow: Sequence[Component], fast: Sequence[Component]) -> Iterator[str]:
    """Yield a clause for each detail for which the components in `slow` and those in `fast` have no value in common."""
    for name in dict.fromkeys(name for component in (*slow, *fast) for name, _ in component.details):
        here, there = (
            Tally(dict(component.details).get(name, "unknown") for component in part) for part in (slow, fast)
        )
        if not here.keys() & there.keys():
            slower, faster = ", ".join(sorted(here)), ", ".join(sorted(there))
            yield f"{name.replace('.', ' ')} {slower} in the slower part, {faster} in the other"
