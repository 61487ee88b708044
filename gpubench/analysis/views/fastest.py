"""Find the fastest path of a transfer view at each size, and the sizes at which it changes: thresholds for a program.

The choice is the first axis of the view's `by`: for copies of blocks, the way to submit them. Paths that differ in no
other axis are compared with each other."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.analysis.views.curves import axis_value_text
from gpubench.analysis.views.derived import TransferFit, Transfers
from gpubench.analysis.views.transfer import crossovers, is_apart
from gpubench.base import units

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Choice:
    """The value `value` of an axis that is the fastest one from the size `above` in bytes (or another count) on.

    The first choice starts at the smallest measured size; the start of a later one is interpolated between two
    sizes."""

    value: Value
    above: float


@dataclass(frozen=True, slots=True)
class FastestChoices:
    """The fastest values of the axis `axis` by size, ascending, among paths with the same other parameters and devices.

    `params` are these parameters by axis."""

    axis: str
    params: Mapping[str, Value]
    devices: tuple[str, ...]
    choices: tuple[Choice, ...]


def path_params(path: TransferFit, by: Sequence[str]) -> dict[str, Value]:
    """Return the parameters of a path on the axes that distinguish the paths of its view."""
    params = dict(path.line.points[0][1].case.params)
    return {axis: params[axis] for axis in by if axis in params}


def fastest(transfers: Transfers) -> list[FastestChoices]:
    """Return the fastest choices of each group of two or more paths that differ only in the first axis of `by`.

    A group whose paths have no measured size in common is left out."""
    if not transfers.by:
        return []
    axis, *other_axes = transfers.by
    groups: dict[tuple[object, ...], list[TransferFit]] = {}
    for path in transfers.paths:
        point = path.line.points[0][1]
        params = path_params(path, transfers.by)
        if axis in params:
            key = (point.case.name, point.devices, *(params.get(other_axis) for other_axis in other_axes))
            groups.setdefault(key, []).append(path)
    return [
        FastestChoices(axis, path_params(group[0], other_axes), group[0].line.points[0][1].devices, tuple(choices))
        for group in groups.values()
        if len(group) > 1 and (choices := list(_choices(axis, group)))
    ]


def fastest_rows(transfers: Transfers) -> tuple[tuple[str, str], ...]:
    """Return a row of two texts for each group whose fastest choice changes with size.

    The first text has the parameters and devices of the group, the second the choices with the sizes from which they
    are fastest: `bulk from 4KiB, loop from 1MiB`."""
    is_size = transfers.axis.endswith("_bytes")
    rows = []
    for group in fastest(transfers):
        if len(group.choices) > 1:
            shared = [axis_value_text(axis, value) for axis, value in group.params.items()]
            place = units.brief_size if is_size else "{:.4g}".format
            steps = [f"{choice.value} from {place(choice.above)}" for choice in group.choices]
            rows.append((" · ".join((*shared, *group.devices)), ", ".join(steps)))
    return tuple(rows)


def _choices(axis: str, paths: Sequence[TransferFit]) -> Iterator[Choice]:
    """Yield the fastest choice at the smallest size that all paths share, then each change to a faster one."""
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
            before_times, after_times = ([timed[path][size] for size in shared] for path in (before, after))
            low, high = shared[index : index + 2]
            sizes = (size for _, size in crossovers(shared, before_times, after_times))
            crossover = next((size for size in sizes if size.low <= low and high <= size.high), None)
            yield Choice(values[after], crossover.centre if crossover else math.sqrt(low * high))
