"""Computations of the latency suite outside of kernels: chains known in advance, banks, percentiles, slices."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from _modules import suite_module

from gpubench.authoring.task import Observed, Profile

module = partial(suite_module, "latency")


NEAR, SLICES = module("_near"), module("_slices")
WORDS = NEAR._CONFLICT_BYTES // 4


@pytest.mark.parametrize("modulus", [2**32, 2**62])
def test_the_result_of_a_chain_of_multiply_adds_is_computed_without_walking_it(modulus: int) -> None:
    x = 3
    for _ in range(1000):
        x = (5 * x + 7) % modulus
    assert NEAR.chained(3, 5, 7, 1000, modulus) == x


def test_real_chains_stay_exact_in_single_precision() -> None:
    assert NEAR.chained(15, 1, 15, NEAR._REGISTER_STEPS, 2**62) < 2**24


def test_the_sums_of_atomic_additions_to_alternating_cells_are_computed_in_advance() -> None:
    words = np.random.default_rng(2).integers(2**63, size=5, dtype=np.uint64)
    value, cells = words[0], words[1:].copy()
    for step in range(1000):
        before = cells[step % 4 : step % 4 + 1].copy()
        cells[step % 4 : step % 4 + 1] += value  # arrays wrap, as the device's words do
        value = before[0]
    predicted = [int(word) for word in words[1:]]
    assert NEAR.after_additions(int(words[0]), predicted, 1000, 2**64) == int(value)
    assert predicted == cells.tolist()


def test_each_launch_of_a_chain_of_atomics_begins_at_the_first_cell() -> None:
    for steps in (NEAR._STEPS // 16, NEAR._BUS_STEPS, NEAR._FAR_STEPS):
        assert steps % NEAR._CELLS == 0


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8, 16, 24, 32])
def test_the_degree_is_the_number_of_lanes_that_conflict_in_a_bank(degree: int, lanes: int) -> None:
    rings = NEAR.conflict_rings(np.random.default_rng(0), degree, lanes, WORDS)
    used = np.concatenate(rings)
    assert len(set(used.tolist())) == len(used), "two lanes share a word"
    assert used.max() < WORDS
    for lane, ring in enumerate(rings):
        assert len(ring) % 2, "a power of two of steps leads back"
        assert len(ring) > 1
        assert len(set((ring % 32).tolist())) == 1, lane
    for first in range(0, lanes, 32):
        banks = [int(ring[0]) % 32 for ring in rings[first : first + 32]]
        assert max(banks.count(bank) for bank in banks) == degree


def test_the_cost_of_reading_the_clock_is_subtracted_from_single_loads() -> None:
    took = np.array([40] * 989 + [300] * 10 + [2000], np.uint32)
    figures = module("_spaces").single_figures(took, np.full(64, 37, np.uint32), 32.0)
    assert figures == {"p50": 35.0, "p90": 35.0, "p99": 295.0, "p99.9": pytest.approx(296.7, abs=1), "max": 1995.0} | {
        "overhead": 5.0
    }


def partitioned(far: float, units: int = 24, lines: int = 96, noise: float = 0.5) -> Any:
    """Return latencies (units × lines) of a cache of two partitions, with six groups of units and twelve slices."""
    rng = np.random.default_rng(7)
    unit_place, line_slice = rng.permutation(units) % 6, rng.permutation(lines) % 12
    hops = 10 * np.arange(6)[:, None] + 4 * (np.arange(12)[None, :] * 7 % 12) + rng.integers(0, 9, (6, 12))
    crossing = far * (np.arange(6)[:, None] % 2 != np.arange(12)[None, :] % 2)
    matrix = 250.0 + (hops + crossing)[unit_place][:, line_slice] + rng.normal(0, noise, (units, lines))
    return matrix, unit_place, line_slice


def test_two_partitions_are_found_by_latency_alone() -> None:
    matrix, unit_place, line_slice = partitioned(200.0)
    partition = SLICES.partitions(matrix)
    same = unit_place[:, None] % 2 == line_slice[None, :] % 2
    assert ((partition.of_units[:, None] == partition.of_lines[None, :]) == same).all()
    assert partition.near == np.median(matrix[same])
    assert partition.far == np.median(matrix[~same])
    assert partition.separation > 4


def test_the_latencies_of_an_undivided_cache_have_one_mode() -> None:
    matrix, _, _ = partitioned(0.0)
    assert SLICES.partitions(matrix).separation < 2


def test_sms_and_lines_are_grouped_by_their_place() -> None:
    matrix, unit_place, _ = partitioned(200.0)
    observed = SLICES.places(matrix, list(range(100, 124)))
    assert (observed["unit_groups"].value, observed["line_groups"].value) == (6, 12)
    rows = [name for name in observed if name.startswith("unit ")]
    places = [int(unit_place[int(name.removeprefix("unit ")) - 100]) for name in rows]
    assert len(rows) == 24
    assert sum(first != second for first, second in itertools.pairwise(places)) == 5, "places stand together"
    assert [place % 2 for place in places] == sorted((place % 2 for place in places), reverse=places[0] % 2 == 1)


def test_a_row_of_the_matrix_has_the_mean_latency_to_each_place() -> None:
    matrix, _, line_slice = partitioned(200.0, noise=0.0)
    observed = SLICES.places(matrix, list(range(24)))
    row = observed["unit 3"]
    assert isinstance(row, Profile)
    assert row.unit == "cycles"
    assert sorted(row.values) == pytest.approx(
        sorted(matrix[3][line_slice == place].mean() for place in range(12)), abs=1e-9
    )
    assert isinstance(observed["near"], Observed)
