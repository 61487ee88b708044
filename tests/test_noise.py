"""The noise floors of an A/A, exact on runs made by hand."""

import math

import _make as make
import pytest
import scipy.stats

from gpubench.judging import noise


def run_of(*medians, case=None, **fields):
    of = case or make.case("chase", "latency", size_bytes=2**25)
    results = [
        make.result(make.timing(seconds), of=of, replicate=index)
        if seconds
        else make.result(of=of, replicate=index, status="failed", cause="crash", reason="the worker ended")
        for index, seconds in enumerate(medians)
    ]
    return make.run(*results, **fields)


def least(deviation, count):
    """Return Student's t at the tail of three standard deviations, times the standard error of `count` vs `count`."""
    return scipy.stats.t.isf(0.0027 / 2, 2 * count - 2) * deviation * math.sqrt(2 / count)


def test_the_threshold_is_that_of_a_gate_with_equally_many_processes_on_both_sides():
    # s = 1 %, 8 vs 8: SE = 0.01 · √(2/8) = 0.005; Student's t with 14 degrees of freedom gives the factor 3.64.
    assert noise.threshold(0.01, 8) == pytest.approx(math.expm1(3.636 * 0.005), rel=1e-3)
    assert noise.threshold(0.01, 8) == pytest.approx(math.expm1(least(0.01, 8)))
    assert noise.threshold(0.0, 8) == 0.0
    assert noise.threshold(0.01, 1000) == pytest.approx(3 * 0.01 * math.sqrt(2 / 1000), rel=2e-3)
    assert noise.threshold(0.01, 12) < noise.threshold(0.01, 3) / 2


def test_the_noise_floor_is_that_of_the_processes_medians():
    (floor,) = noise.floors(run_of(0.9, 1.0, 1.1))
    assert (floor.case, floor.devices, floor.replicates) == ("latency/chase[size=32MiB]", ("cuda:0",), 3)
    assert floor.between == pytest.approx(0.1)
    logs = [math.log(value) for value in (0.9, 1.0, 1.1)]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / 2)
    assert floor.log_deviation == pytest.approx(deviation)
    assert floor.threshold == pytest.approx(math.expm1(least(deviation, 3)))


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        (0.0, "0.00 %"),
        (0.003, "0.8 %"),
        (0.12, "38 % (too noisy for a gate)"),
        (0.247, "none below 50 %: this machine is too noisy to judge"),
    ],
)
def test_a_floor_names_the_smallest_detectable_change(spread, text):
    (floor,) = noise.floors(run_of(*(math.exp(spread * step) for step in (-1, -1, 0, 1, 1))))
    assert floor.detectable == text
    assert (floor.between == floor.threshold == 0.0) == (spread == 0)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0004, "0.04 %"), (0.001, "0.1 %"), (0.0149, "1.5 %"), (0.1, "10 %"), (0.304, "30 %"), (0.604, "over 50 %")],
)
def test_a_percentage_has_as_many_digits_as_its_size_needs(fraction, text):
    assert noise.percent(fraction) == text


def test_a_case_of_fewer_than_three_ok_replicates_has_no_floor_and_says_why():
    run = run_of(1.0, None, 1.1)
    assert noise.floors(run) == []
    assert noise.undecided(run) == ["latency/chase[size=32MiB]: no floor, 2 of 3 replicates are ok: the worker ended"]


@pytest.mark.parametrize("odd", [-1.0, math.inf])
def test_medians_that_have_no_logarithm_have_no_floor(odd):
    run = run_of(1.0, 2.0, odd)
    assert noise.floors(run) == []
    assert len(noise.undecided(run)) == 1


def test_each_device_has_a_floor_and_a_noise_of_half_has_no_percentage():
    both = make.facts(make.device("cuda:0"), make.device("cuda:1"))
    results = [
        make.result(make.timing(1.0 + factor * index), devices=(device,), replicate=index)
        for device, factor in (("cuda:0", 0.0), ("cuda:1", 0.1))
        for index in range(3)
    ]
    floors = noise.floors(make.run(*results, facts=both))
    assert [(floor.devices, floor.between > 0) for floor in floors] == [(("cuda:0",), False), (("cuda:1",), True)]
    floor = noise.NoiseFloor("ipc/pull", ("cuda:0",), 3, 1.4, 1.5, noise.threshold(1.5, 3))
    assert floor.threshold > 30
    assert floor.detectable == "none below 50 %: this machine is too noisy to judge"
