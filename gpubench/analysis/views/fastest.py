"""Which path of a transfer view is fastest at each size, and where the choice changes: thresholds for a program.

The choice is the first axis of the view's `by`: of copies of blocks, the way that submits them. Paths that differ in
nothing else are compared with each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.analysis.views.curves import axis_words
from gpubench.analysis.views.derived import Path, Transfers
from gpubench.analysis.views.transfer import crossovers, is_apart
from gpubench.base import units

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest value of an axis from a size on.

    The size is measured at the first of the view's sizes, interpolated between two sizes afterwards.
    """

    value: Value
    above: float


@dataclass(frozen=True, slots=True)
class FastestChoices:
    """The fastest values of the axis `axis` over the sizes, among paths that share `params` and the devices."""

    axis: str
    params: Mapping[str, Value]
    devices: tuple[str, ...]
    choices: tuple[Choice, ...]


def path_params(path: Path, by: Sequence[str]) -> dict[str, Value]:
    """Return the parameters of a path on the axes that distinguish the paths of its view."""
    params = dict(path.line.points[0][1].case.params)
    return {axis: params[axis] for axis in by if axis in params}


def fastest(found: Transfers) -> list[FastestChoices]:
    """Return the fastest choices of each group of two or more paths that differ in the first axis of `by` alone."""
    if not found.by:
        return []
    axis, *others = found.by
    groups: dict[tuple[object, ...], list[Path]] = {}
    for path in found.paths:
        point = path.line.points[0][1]
        params = path_params(path, found.by)
        if axis in params:
            key = (point.case.name, point.devices, *(params.get(other) for other in others))
            groups.setdefault(key, []).append(path)
    return [
        FastestChoices(axis, path_params(group[0], others), group[0].line.points[0][1].devices, tuple(choices))
        for group in groups.values()
        if len(group) > 1 and (choices := list(_choices(axis, group)))
    ]


def fastest_rows(found: Transfers) -> tuple[tuple[str, str], ...]:
    """Return the groups whose choice changes as texts: what the paths share, and each choice with its first size."""
    is_size = found.axis.endswith("_bytes")
    rows = []
    for each in fastest(found):
        if len(each.choices) > 1:
            shared = [axis_words(axis, value) for axis, value in each.params.items()]
            place = units.brief_size if is_size else "{:.4g}".format
            steps = [f"{choice.value} from {place(choice.above)}" for choice in each.choices]
            rows.append((" · ".join((*shared, *each.devices)), ", ".join(steps)))
    return tuple(rows)


def _choices(axis: str, paths: Sequence[Path]) -> Iterator[Choice]:
    """Yield the fastest path from the smallest shared size on, and each one that is surely faster than the last."""
    timed = [dict(zip(path.sizes, path.seconds, strict=True)) for path in paths]
    values = [path_params(path, (axis,))[axis] for path in paths]
    shared = sorted(set.intersection(*(set(times) for times in timed)))
    chosen: list[int] = []
    for size in shared:
        at_size = [times[size] for times in timed]
        best = min(range(len(paths)), key=lambda index: at_size[index].centre)
        if chosen and not is_apart(at_size[chosen[-1]], at_size[best]):
            best = chosen[-1]
        chosen.append(best)
    if chosen:
        yield Choice(values[chosen[0]], shared[0])
    for index, (before, after) in enumerate(itertools.pairwise(chosen)):
        if before != after:
            one, other = ([timed[which][size] for size in shared] for which in (before, after))
            low, high = shared[index : index + 2]
            measured = (size for _, size in crossovers(shared, one, other) if size.low <= low and high <= size.high)
            crossover = next(measured, None)
            yield Choice(values[after], crossover.centre if crossover else math.sqrt(low * high))
