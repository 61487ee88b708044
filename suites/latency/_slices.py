"""Measure last-level cache latency by the SM or CU that loads and by the slice of the cache that answers.

It is not documented how far compute units and slices are from each other, and a hash of an address decides which
slice holds its line."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from ._ring import GPU_LINE_BYTES, MOST_CYCLES, cycles_of

_DATA_BYTES = 2**24  # the lines are drawn from this memory, which fits into every last-level cache that has slices
_REPEATS = 4
_LINGER_S = 10e-6  # a block without work stays this long, so that each compute unit gets a block
_WARP = 32
_ALIKE_LINES, _ALIKE_UNITS = 1.3, 2.5  # cycles, root mean square: profiles that differ by less belong to the same place
_ABOVE_NOISE = 2.0  # a singular value above this multiple of the median is signal (noise reaches 1.8 times the median)

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]

topic = gb.Topic(
    views=[
        gb.View(
            "matrix",
            "Last-level cache latency by compute unit and slice",
            ("slices",),
            x="place",
            y="unit",
            series="unit *",
        )
    ]
)


class SliceLatencies:
    """Accesses to the same `lines` random lines of the last-level cache from every SM or CU, one unit at a time.

    `access` is `load` or `atomic`."""

    def __init__(self, bench: gb.Bench, access: str, lines: int) -> None:
        bench.need(_DATA_BYTES)
        xp, self._bench, self._units = bench.xp, bench, census(bench)
        self._words = bench.words(_DATA_BYTES // 8, int(bench.rng.integers(2**64, dtype=np.uint64)))
        self._lines = np.sort(bench.rng.choice(_DATA_BYTES // GPU_LINE_BYTES, lines, replace=False))
        data, where = self._words.array, xp.asarray(self._lines.astype(np.uint32))
        self._took = xp.zeros((len(self._units), lines), xp.uint32)
        self._state = xp.zeros((len(self._units), 4), xp.uint64)
        kernel, blocks = bench.kernel("units.cu", f"slices_{access}"), bench.target.device.units
        linger, alone = cycles_of(bench, _LINGER_S), alone_bytes(bench)
        counts = (np.uint32(lines), np.uint32(_REPEATS))

        def run() -> None:
            for row, unit in enumerate(self._units):
                args = (data, where, *counts, np.uint32(unit), linger, self._took[row], self._state[row])
                kernel((blocks,), (_WARP,), args, alone)

        self._run, self.outputs, self.redraw = run, (self._took, self._state), partial(self._words.redraw, data)

    def median(self) -> float:
        """Access all lines from every compute unit and return the seconds of the median access.

        The cost of reading the clock is subtracted."""
        self._run()
        _, cycles, nanoseconds, _ = self._bench.device.to_host(self._state).sum(axis=0, dtype=float)
        return float(np.median(self._matrix()) * nanoseconds * 1e-9 / cycles)

    def _matrix(self) -> Matrix:
        """Return the cycles of each line (column) from each compute unit (row), without the clock's own cost."""
        state, took = self._bench.device.to_host(self._state), self._bench.device.to_host(self._took)
        cycles: Matrix = took.astype(float) - state[:, 3:].astype(float)
        return cycles

    def check(self) -> gb.Observation:
        """Return the observations of `places` for the last accesses.

        Raises WrongAnswer if a compute unit read wrong contents, or an access took no longer than reading the clock."""
        contents = [gb.random_words(self._words.seed, GPU_LINE_BYTES // 8 * int(line), 1)[0] for line in self._lines]
        expected = sum(map(int, contents)) % 2**64
        sums = self._bench.device.to_host(self._state)[:, 0]
        wrong = [unit for unit, total in zip(self._units, sums, strict=True) if int(total) != expected]
        gb.expect(not wrong, f"compute units {wrong} read wrong contents")
        gb.expect(bool((self._bench.device.to_host(self._took) < MOST_CYCLES).all()), "an access was not timed")
        matrix = self._matrix()
        gb.expect(bool((matrix > 0).all()), "an access took less time than reading the clock")
        return places(matrix, self._units)


def census(bench: gb.Bench) -> list[int]:
    """Return the hardware numbers of all SMs or CUs, ascending, as one block on each of them reports them.

    Raises Skip if fewer compute units report than the device has."""
    blocks = bench.target.device.units
    numbers = bench.xp.zeros(blocks, bench.xp.uint32)
    run = bench.kernel("units.cu", "census")
    run((blocks,), (_WARP,), (numbers, cycles_of(bench, _LINGER_S)), alone_bytes(bench))
    units = sorted({int(unit) for unit in bench.device.to_host(numbers)})
    if len(units) < blocks:
        raise gb.Skip(f"{blocks} blocks ran on {len(units)} SMs or CUs: the device is shared, or two report one number")
    return units


def alone_bytes(bench: gb.Bench) -> int:
    """Return the bytes of dynamic shared memory with which a block leaves no room for a second one on its SM or CU."""
    return bench.traits.max_shared_bytes - 1024


@dataclass(frozen=True, slots=True)
class CachePartitions:
    """The two partitions of a cache, and how clearly the latencies show them.

    `of_units` (shape (units,)) and `of_lines` (shape (lines,)) are True for members of one partition and False for
    members of the other. `near` is the median in cycles of all pairs of a unit and a line of the same partition, `far`
    the median of all other pairs. `separation` is Ashman's D, the distance of the two means over their root mean square
    deviation; above 2 the latencies have two modes (Ashman, Bird & Zepf, The Astronomical Journal 108, 1994)."""

    of_units: npt.NDArray[np.bool_]
    of_lines: npt.NDArray[np.bool_]
    near: float
    far: float
    separation: float


def centred(matrix: Matrix) -> Matrix:
    """Return `matrix`, latencies in cycles of shape (units, lines), with each row's mean subtracted and noise removed.

    Noise is removed by keeping only the singular values above twice their median, but at least the largest."""
    u, sizes, v = np.linalg.svd(matrix - matrix.mean(axis=1, keepdims=True), full_matrices=False)
    rank = max(1, int((sizes > _ABOVE_NOISE * np.median(sizes)).sum()))
    signal: Matrix = (u[:, :rank] * sizes[:rank]) @ v[:rank]
    return signal


def partitions(matrix: Matrix) -> CachePartitions:
    """Return the two partitions of compute units (rows) and lines (columns) that `matrix`, latencies in cycles, shows.

    A unit or a line belongs to a partition by the sign of its entry in the first pair of singular vectors of the
    matrix, after the means of rows and columns are subtracted."""
    rest = matrix - matrix.mean(axis=1, keepdims=True)
    u, _, v = np.linalg.svd(rest - rest.mean(axis=0), full_matrices=False)
    of_units, of_lines = u[:, 0] > 0, v[0] > 0
    same = of_units[:, None] == of_lines[None, :]
    if matrix[same].mean() > matrix[~same].mean():
        of_lines, same = ~of_lines, ~same
    near, far = matrix[same], matrix[~same]
    spread = np.hypot(near.std(), far.std()) or np.inf
    separation = float(np.sqrt(2) * (far.mean() - near.mean()) / spread)
    return CachePartitions(of_units, of_lines, float(np.median(near)), float(np.median(far)), separation)


def group_profiles(profiles: Matrix, cycles: float) -> Labels:
    """Return the number of the group of each row of `profiles`, counted from 0: shape (rows,).

    A profile is a row of latencies in cycles."""
    means, sizes, labels = np.zeros_like(profiles), np.zeros(len(profiles)), np.zeros(len(profiles), np.intp)
    groups = 0
    for index, row in enumerate(profiles):
        distances = np.sqrt(((means[:groups] - row) ** 2).mean(axis=1))
        nearest = int(distances.argmin()) if groups else 0
        if not groups or distances[nearest] > cycles:
            nearest, groups = groups, groups + 1
        sizes[nearest] += 1
        means[nearest] += (row - means[nearest]) / sizes[nearest]
        labels[index] = nearest
    return labels


def places(matrix: Matrix, units: list[int]) -> gb.Observation:
    """Return the observations of `matrix`, latencies in cycles of shape (units, lines).

    Row i is of the compute unit `units[i]`. CachePartitions explains `near`, `far` and `separation`."""
    halves, clean = partitions(matrix), centred(matrix)
    by_line, by_unit = group_profiles(clean.T, _ALIKE_LINES), group_profiles(clean, _ALIKE_UNITS)
    latency = matrix.mean(axis=0)

    def order(group: int) -> tuple[bool, float]:
        members = by_line == group
        return bool(halves.of_lines[members].mean() > 0.5), float(latency[members].mean())

    groups = sorted(set(by_line.tolist()), key=order)
    rows = sorted(range(len(units)), key=lambda row: (bool(halves.of_units[row]), int(by_unit[row]), units[row]))
    means = np.stack([matrix[:, by_line == group].mean(axis=1) for group in groups], axis=1)
    return {
        "near": gb.Observed(halves.near, "cycles"),
        "far": gb.Observed(halves.far, "cycles"),
        "separation": gb.Observed(halves.separation),
        "line_groups": gb.Observed(float(len(groups))),
        "unit_groups": gb.Observed(float(len(set(by_unit.tolist())))),
        **{f"unit {units[row]}": gb.Profile(tuple(means[row].tolist()), "cycles") for row in rows},
    }


@topic.case(when=gb.on_gpu, access=("load", "atomic"), lines=gb.points((256,), (64,), (1024,)))
def slices(bench: gb.Bench, access: str, lines: int) -> gb.Task:
    """Latency of the same lines of the last-level cache from each SM or CU alone, by compute unit and cache slice.

    The figure is the median in seconds. `load` bypasses the first cache; a partitioned cache may keep copies in each
    partition for its own compute units. `atomic` is an addition of zero, which goes to the one place that holds the
    line."""
    latencies = SliceLatencies(bench, access, lines)
    work, outputs, inputs = gb.Work(items=1), latencies.outputs, latencies.redraw
    stage = gb.Stage(latencies.median, work, "item", clock="self", effort=gb.POINT, outputs=outputs, inputs=inputs)
    note = "one series for each SM or CU, ordered by partition and place; a value is the mean over the lines of a place"
    return gb.Task.of(stage, check=latencies.check, notes={"matrix": note})
