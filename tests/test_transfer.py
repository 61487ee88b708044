"""The transfer model t(n) = α + n/β, in pieces, and where two paths cross."""

import math

import numpy as np
import pytest

from gpubench.analysis.views import transfers as transfer
from gpubench.stats import Interval

SIZES = [2.0**power for power in range(3, 31)]


def times(alpha_s, beta, sizes=SIZES):
    return [alpha_s + size / beta for size in sizes]


def narrow_intervals(values, reach=0.001):
    """Return intervals around the values with the relative half-width `reach`."""
    return [Interval(value * (1 - reach), value, value * (1 + reach)) for value in values]


def test_the_parts_of_a_transfer_are_found_exactly_and_under_noise():
    model = transfer.fit(SIZES, times(5e-6, 4e11))
    (piece,) = model.pieces
    assert (piece.alpha_s, piece.beta) == (pytest.approx(5e-6), pytest.approx(4e11))
    assert piece.half == pytest.approx(2e6)
    assert model.residual < 1e-12
    assert (model.half.low, model.half.high) == (2.0**20, 2.0**21)
    assert model.half.centre == pytest.approx(2e6, rel=0.02), "read off the curve, not computed from the model"
    noise = np.exp(0.01 * np.random.default_rng(3).standard_normal(len(SIZES)))
    (piece,) = transfer.fit(SIZES, (np.array(times(5e-6, 4e11)) * noise).tolist()).pieces
    assert piece.alpha_s == pytest.approx(5e-6, rel=0.02), "plain least squares would be off by milliseconds"
    assert piece.beta == pytest.approx(4e11, rel=0.02)
    errors = np.exp(0.03 * np.random.default_rng(5).standard_normal(len(SIZES)))
    assert len(transfer.fit(SIZES, (np.array(times(5e-6, 4e11)) * errors).tolist()).pieces) == 1


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.03])
def test_a_switch_of_protocol_is_a_piece_of_its_own(noise):
    eager, bulk = times(2e-6, 1e10), times(9e-6, 4e11)
    mixed = [small if size < 2**16 else large for size, small, large in zip(SIZES, eager, bulk, strict=True)]
    errors = np.exp(noise * np.random.default_rng(1).standard_normal(len(SIZES)))
    model = transfer.fit(SIZES, (np.array(mixed) * errors).tolist())
    first, second = model.pieces
    assert (SIZES[first.last], SIZES[second.first]) == (2**15, 2**16)
    assert first.alpha_s == pytest.approx(2e-6, rel=0.03)
    assert second.beta == pytest.approx(4e11, rel=0.03)
    assert model.piece_at(2.0**14, SIZES) is first
    assert model.piece_at(2.0**16, SIZES) is second
    assert model.piece_at(1.0, SIZES) is first


def test_a_constant_time_has_no_rate_and_two_sizes_have_no_model():
    model = transfer.fit(SIZES, [3e-6] * len(SIZES))
    (flat,) = model.pieces
    assert (flat.alpha_s, flat.beta, flat.half) == (pytest.approx(3e-6), math.inf, math.inf)
    assert model.half is None, "the curve never has half of a rate"
    steep = transfer.fit(SIZES, [size**1.1 / 1e10 for size in SIZES])
    assert all(piece.alpha_s == 0 for piece in steep.pieces)
    assert transfer.fit(SIZES, times(0.0, 1e9)).half is None, "the smallest size already has the whole rate"
    assert transfer.fit(SIZES[:2], [1e-6, 2e-6]) is None
    assert len(transfer.fit(SIZES[:5], times(1e-6, 1e9, SIZES[:5])).pieces) == 1


def test_two_paths_cross_between_measured_neighbours():
    kernel, engine = narrow_intervals(times(2e-6, 3e10)), narrow_intervals(times(6e-6, 5.5e10))
    truth = 4e-6 / (1 / 3e10 - 1 / 5.5e10)
    ((is_kernel_above, size),) = transfer.crossovers(SIZES, kernel, engine)
    assert not is_kernel_above
    assert (size.low, size.high) == (2.0**17, 2.0**19), "at 2^18 neither is surely faster"
    assert size.centre == pytest.approx(truth, rel=0.05)
    kernel_piece, engine_piece = (
        transfer.fit(SIZES, [interval.centre for interval in path]).pieces[0] for path in (kernel, engine)
    )
    assert transfer.meeting(kernel_piece, engine_piece) == pytest.approx(truth)


def test_equal_paths_do_not_cross_others_may_twice_and_wide_intervals_widen_a_crossover():
    first = narrow_intervals(times(5e-6, 4e11), 1e-5)
    second = narrow_intervals(
        [value * (1.01 if index % 2 else 0.99) for index, value in enumerate(times(5e-6, 4e11))], 1e-5
    )
    assert transfer.crossovers(SIZES, first, second) == []
    first, second = narrow_intervals([1.0, 1.0, 1.0, 1.0], 0.01), narrow_intervals([2.0, 1.3, 0.8, 0.5], 0.01)
    second[1] = Interval(0.9, 1.3, 1.7)
    ((_, size),) = transfer.crossovers([1.0, 2.0, 4.0, 8.0], first, second)
    assert (size.low, size.high) == (1.0, 4.0)
    first, second = narrow_intervals([1.0] * 5), narrow_intervals([2.0, 1.5, 0.5, 0.5, 1.5])
    assert [above for above, _ in transfer.crossovers(SIZES[:5], first, second)] == [False, True]


@pytest.mark.parametrize(
    ("first", "second"), [((1e-6, 1e9), (2e-6, 1e9)), ((1e-6, 2e9), (2e-6, 1e9)), ((0.0, 1e9), (0.0, 1e9))]
)
def test_models_that_never_take_the_same_time_have_no_crossover(first, second):
    assert transfer.meeting(transfer.Piece(0, 2, *first), transfer.Piece(0, 2, *second)) is None
