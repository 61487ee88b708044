"""A device that starts fast or slow: the figure is the settled one, or the case says that it had not settled."""

import json

import numpy as np
import pytest
from _modules import opened
from scipy import stats as scipy_stats
from settling_simulation import SimulatedCall, outcome, steady

from gpubench.authoring.effort import POINT
from gpubench.authoring.task import Stage, Task
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES, SampleTrace
from gpubench.model import Work
from gpubench.stats import trends

# gemm/layer[tokens=2048] of a recorded H200 run, µs per call: full speed, then the power cap, then the settled time.
LAYER_MICROSECONDS = np.array([608.3] * 19 + [645.2] * 4 + [691.5] * 30 + [686.5] * 43)


@pytest.mark.parametrize(("tier", "tau_s"), [("quick", 0.2), ("full", 1.0)])
def test_a_transient_of_five_percent_is_waited_for(tier, tau_s):
    settled = outcome(SimulatedCall(1e-3, -0.05, tau_s, noise=0.003), tier)
    assert abs(settled.bias) <= 0.005
    assert not settled.is_labelled


@pytest.mark.parametrize("amplitude", [-0.1, 0.02])
@pytest.mark.parametrize("tau_s", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("seconds", [1e-3, 1e-1])
def test_a_figure_is_within_half_a_percent_of_the_settled_one_or_labelled(amplitude, tau_s, seconds):
    """`bash ci/study.sh settling_simulation` does the whole grid, with noise."""
    assert outcome(SimulatedCall(seconds, amplitude, tau_s), "quick").is_handled


def test_a_device_that_does_not_settle_within_the_budget_is_labelled():
    never = outcome(SimulatedCall(1e-3, -0.1, 3.0, noise=0.003), "quick")
    assert never.is_labelled
    assert never.seconds < 1.1 * (POLICIES["quick"].settle_s + POLICIES["quick"].warmup_most_s)


@pytest.mark.parametrize(("noise", "rho"), [(0.003, 0.0), (0.01, 0.5), (0.03, 0.9)])
def test_steady_noise_is_not_called_unsettled(noise, rho):
    assert not any(case.is_labelled for case in steady("quick", noise, rho, cases=8))


def test_the_test_for_a_trend_lengthens_a_steady_case_by_at_most_a_tenth():
    policy = POLICIES["quick"]
    seconds = [case.seconds for case in steady("quick", 0.01, 0.0, cases=30)]
    checks_s = 0.1 * policy.least_s  # a tenth of the sampling time
    assert np.mean(seconds) < 1.1 * (policy.least_s + checks_s + policy.warmup_least_s + 0.005)


def test_a_power_cap_that_overshoots_is_waited_for_and_the_fast_start_is_kept_as_early():
    device = opened("clockwork")
    start = [608.3e-6] * 120 + [645.2e-6] * 8 + [691.5e-6] * 60
    kernel = device.kernel(json.dumps({"seconds": 686.5e-6, "warmup": start}), "launch", {})
    stage = Stage(lambda: kernel((1,), (1,), ()), Work(items=1), "item")
    done = Engine(device, POLICIES["quick"]).measure(Task.of(stage, check=dict))
    series = {series.label: series.values for series in done.series}
    assert series["hot"] == pytest.approx([686.5e-6] * len(series["hot"]))
    assert series["early"][0] == pytest.approx(608.3e-6)


def test_samples_of_a_recorded_power_cap_are_not_settled_even_if_their_halves_agree():
    noise = 1 + 0.001 * np.random.default_rng(1).normal(size=len(LAYER_MICROSECONDS))
    seconds = (LAYER_MICROSECONDS * noise * 1e-6).tolist()
    times = np.cumsum(seconds).tolist()
    policy = POLICIES["quick"].for_effort(POINT)
    assert policy.settling(SampleTrace(seconds, times), times[-1]).state == "waiting"


@pytest.mark.parametrize("count", [6, 10])
def test_the_trend_test_is_kendalls_and_the_slope_that_of_sen(count):
    values = np.random.default_rng(count).normal(size=count).cumsum()
    times = np.arange(count) * 0.5
    by_blocks = trends.trend(values.tolist(), times.tolist())
    assert by_blocks.slope == pytest.approx(scipy_stats.theilslopes(values, times).slope)
    assert by_blocks.p == pytest.approx(scipy_stats.kendalltau(times, values, method="exact").pvalue, abs=0.06)
    assert trends.trend([1.0] * 20, list(range(20))).p == 1, "a constant has no trend"
    assert trends.trend([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]).p == 1, "nor have too few values"
    times = np.linspace(0, 1, 400)
    values = 2 * (1 + 0.1 * np.exp(-times / 0.2))
    (left,) = trends.transient_left(values.tolist(), times.tolist(), [0.5], 3.0)
    assert left == pytest.approx(values[times >= 0.5].mean() / 2 - 1, rel=0.25), "of an exponential"
