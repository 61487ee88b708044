"""Latency by the unit that asks and the slice of the last-level cache that answers, and what that says of both.

How units and slices lie to each other is not documented, and which slice holds a line is a hash of its address. But
a slice answers all units as it does: lines whose latencies are the same from every unit lie in one place, and units
for which all lines are alike sit in one place. Where a cache has two partitions, each unit is near to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench.api.suite import POINT, Bench, Observation, Observed, Profile, Skip, Stage, Task, Work, expect

from ._ring import GPU_LINE_BYTES, cycles_of, drawn_words, random_word

_DATA_BYTES = 2**24  # lines are drawn from so much: it fits every last-level cache that has slices
_REPEATS = 4
_LINGER_S = 10e-6  # a block that is not asked stays so long, that every unit gets its own
_WARP = 32
_ALIKE_LINES, _ALIKE_UNITS = 1.3, 2.5  # cycles, root mean square: profiles that differ by less are of one place
_ABOVE_NOISE = 2.0  # singular values above so many times their median are no noise (that of noise reach 1.8 times)

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]


class Slices:
    """Accesses to the same lines of the last-level cache from every unit, one unit at a time."""

    def __init__(self, bench: Bench, access: str, lines: int) -> None:
        bench.need(_DATA_BYTES)
        xp, self._bench, self._units = bench.xp, bench, census(bench)
        self._seed = int(bench.rng.integers(2**64, dtype=np.uint64))
        self._lines = np.sort(bench.rng.choice(_DATA_BYTES // GPU_LINE_BYTES, lines, replace=False))
        data, where = drawn_words(bench, _DATA_BYTES, self._seed), xp.asarray(self._lines.astype(np.uint32))
        self._took = xp.zeros((len(self._units), lines), xp.uint32)
        self._state = xp.zeros((len(self._units), 4), xp.uint64)
        kernel, blocks = bench.kernel("units.cu", f"slices_{access}"), bench.target.device.units
        linger, alone = cycles_of(bench, _LINGER_S), alone_bytes(bench)
        counts = (np.uint32(lines), np.uint32(_REPEATS))

        def run() -> None:
            for row, unit in enumerate(self._units):
                args = (data, where, *counts, np.uint32(unit), linger, self._took[row], self._state[row])
                kernel((blocks,), (_WARP,), args, alone)

        self._run = run

    def median(self) -> float:
        """Seconds of the median access over all units and lines."""
        self._run()
        _, cycles, nanoseconds, _ = self._bench.device.to_host(self._state).sum(axis=0, dtype=float)
        return float(np.median(self.matrix()) * nanoseconds * 1e-9 / cycles)

    def matrix(self) -> Matrix:
        """Cycles of each line (column) from each unit (row), the clock's own share taken out."""
        state, took = self._bench.device.to_host(self._state), self._bench.device.to_host(self._took)
        found: Matrix = took.astype(float) - state[:, 3:].astype(float)
        return found

    def poison(self) -> None:
        """Forget what was found."""
        self._took.fill(0)
        self._state.fill(0)

    def check(self) -> Observation:
        """Every unit found what the lines hold; then what the matrix says."""
        expected = sum(random_word(self._seed, GPU_LINE_BYTES // 8 * int(line)) for line in self._lines) % 2**64
        gathered = self._bench.device.to_host(self._state)[:, 0]
        wrong = [unit for unit, found in zip(self._units, gathered, strict=True) if int(found) != expected]
        expect(not wrong, f"units {wrong} did not find what the lines hold")
        matrix = self.matrix()
        expect(bool((matrix > 0).all()), "an access took less time than reading the clock")
        return places(matrix, self._units)


def census(bench: Bench) -> list[int]:
    """The numbers of the units, each seen by a block of its own."""
    blocks = bench.target.device.units
    found = bench.xp.zeros(blocks, bench.xp.uint32)
    run = bench.kernel("units.cu", "census")
    run((blocks,), (_WARP,), (found, cycles_of(bench, _LINGER_S)), alone_bytes(bench))
    units = sorted({int(unit) for unit in bench.device.to_host(found)})
    if len(units) < blocks:
        raise Skip(f"{blocks} blocks ran on {len(units)} units: the device is shared, or they cannot be told apart")
    return units


def alone_bytes(bench: Bench) -> int:
    """So much shared memory that no second block fits on a unit."""
    return bench.traits.max_shared_bytes - 1024


@dataclass(frozen=True, slots=True)
class Sides:
    """The two modes of a matrix: `near` and `far` are medians in cycles, `separation` is Ashman's D of the two.

    Units and lines are each on one of two sides; near are the cells whose unit and line are on the same. D is the
    distance of two means over their mean deviation; above 2 there are two modes (Ashman, Bird & Zepf, The
    Astronomical Journal 108, 1994).
    """

    of_units: npt.NDArray[np.bool_]
    of_lines: npt.NDArray[np.bool_]
    near: float
    far: float
    separation: float


def centred(matrix: Matrix) -> Matrix:
    """Each unit's latencies less their mean, without what is noise: what its singular values stand out of."""
    u, sizes, v = np.linalg.svd(matrix - matrix.mean(axis=1, keepdims=True), full_matrices=False)
    kept = max(1, int((sizes > _ABOVE_NOISE * np.median(sizes)).sum()))
    found: Matrix = (u[:, :kept] * sizes[:kept]) @ v[:kept]
    return found


def sides(matrix: Matrix) -> Sides:
    """The sides by the signs of the largest singular pair of the matrix, rows and columns centred."""
    rest = matrix - matrix.mean(axis=1, keepdims=True)
    u, _, v = np.linalg.svd(rest - rest.mean(axis=0), full_matrices=False)
    of_units, of_lines = u[:, 0] > 0, v[0] > 0
    same = of_units[:, None] == of_lines[None, :]
    if matrix[same].mean() > matrix[~same].mean():
        of_lines, same = ~of_lines, ~same
    near, far = matrix[same], matrix[~same]
    spread = np.hypot(near.std(), far.std()) or np.inf
    separation = float(np.sqrt(2) * (far.mean() - near.mean()) / spread)
    return Sides(of_units, of_lines, float(np.median(near)), float(np.median(far)), separation)


def alike(profiles: Matrix, cycles: float) -> Labels:
    """A group for each profile (row): the nearest whose mean lies within so many cycles, or a new one."""
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


def places(matrix: Matrix, units: list[int]) -> Observation:
    """A profile of each unit over the groups of lines, units and groups in the order of side and place."""
    found, clean = sides(matrix), centred(matrix)
    by_line, by_unit = alike(clean.T, _ALIKE_LINES), alike(clean, _ALIKE_UNITS)
    groups = sorted(
        set(by_line.tolist()), key=lambda group: _place(found.of_lines, matrix.mean(axis=0), by_line == group)
    )
    rows = sorted(range(len(units)), key=lambda row: (bool(found.of_units[row]), int(by_unit[row]), units[row]))
    means = np.stack([matrix[:, by_line == group].mean(axis=1) for group in groups], axis=1)
    return {
        "near": Observed(found.near, "cycles"),
        "far": Observed(found.far, "cycles"),
        "separation": Observed(found.separation),
        "line_groups": Observed(float(len(groups))),
        "unit_groups": Observed(float(len(set(by_unit.tolist())))),
        **{f"unit {units[row]}": Profile(tuple(means[row].tolist()), "cycles") for row in rows},
    }


def _place(of_lines: npt.NDArray[np.bool_], latency: Matrix, members: npt.NDArray[np.bool_]) -> tuple[bool, float]:
    return bool(of_lines[members].mean() > 0.5), float(latency[members].mean())


def slices(bench: Bench, access: str, lines: int) -> Task:
    """Every unit's accesses to so many lines of the last-level cache."""
    case = Slices(bench, access, lines)
    stage = Stage(case.median, Work(items=1), "item", clock="self", effort=POINT)
    note = "a series a unit, in the order of side and place; its values are means over the lines of a place"
    return Task.of(stage, check=case.check, poison=case.poison, notes={"matrix": note})
