"""The engine on the clockwork device, whose time is arithmetic: every expectation is exact."""

import dataclasses
import itertools
import json
import math
import time

import pytest
from _modules import opened
from coverage_of_intervals import covered

from gpubench import stats
from gpubench.authoring.effort import POINT, TIER, Effort
from gpubench.authoring.task import Observed, Profile, Stage, Task, expect
from gpubench.base.errors import GateTimedOut, SuiteError, Untrustworthy, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES, StoppingPolicy
from gpubench.model import Work
from gpubench.plugins.collector import Condition

RULE = StoppingPolicy(least_s=0.05, budget_s=1.0, warmup_least_s=0.0, warmup_most_s=0.5)


def clockwork():
    return opened("clockwork")


def stage(device, modes=("hot",), clock="device", **program):
    kernel = device.kernel(json.dumps(program), "launch", {})
    return Stage(lambda: kernel((1,), (1,), ()), Work(items=1), "item", modes=modes, clock=clock)


def measured(device, task, rule=RULE):
    return {series.label: series for series in Engine(device, rule).measure(task).series}


def passing():
    return {}


@pytest.mark.parametrize(
    ("program", "calls", "stop"),
    [
        ({"seconds": 0.01}, 1, "interval"),
        ({"seconds": 1e-5}, 100, "interval"),  # a sample lasts a millisecond
        ({"seconds": 1e-7}, RULE.most_calls, "interval"),  # no more calls than the launch queue holds
        ({"seconds": 0.01, "outlier_every": 7}, 1, "interval"),
    ],
)
def test_a_kernel_gives_its_duration_in_batches_and_stops_by_its_interval(program, calls, stop):
    hot = measured(device := clockwork(), Task.of(stage(device, **program), check=passing))["hot"]
    assert stats.median(hot.values) == pytest.approx(program["seconds"])
    assert (hot.calls, hot.stop, len(hot.values) >= RULE.least) == (calls, stop, True)


def test_noise_that_does_not_narrow_and_a_drift_that_never_ends_use_up_the_time_budgets_and_are_named():
    device = clockwork()
    series = measured(device, Task.of(stage(device, seconds=0.01, noise=0.2), check=passing))
    assert series["hot"].stop == "budget"
    assert sum(series["hot"].values) == pytest.approx(RULE.budget_s, rel=0.05)
    device = clockwork()
    series = measured(device, Task.of(stage(device, seconds=0.01, drift=0.05), check=passing))
    assert RULE.warmup_most_s <= series["hot"].warmup_s < RULE.warmup_most_s + 0.1
    assert series["hot"].stop == "drift"


def test_hot_cold_graph_and_single_calls_are_series_of_their_own():
    device = clockwork()
    task = Task.of(stage(device, modes=("hot", "cold", "graph"), seconds=0.01, cold=3.0), check=passing)
    series = measured(device, task)
    assert series["hot"].values[0] == pytest.approx(0.01)
    assert series["cold"].values[0] == pytest.approx(0.03)
    assert series["graph"].values[0] == pytest.approx(0.01)
    assert set(series) == {"hot", "host", "cold", "graph"}
    device = clockwork()
    series = measured(device, Task.of(stage(device, modes=("each",), seconds=1e-5, outlier_every=10), check=passing))
    slow = [value for value in series["each"].values if value > 2e-5]
    assert len(slow) == pytest.approx(len(series["each"].values) / 10, abs=2)


def test_calls_that_return_nan_as_their_time_do_not_count_towards_the_warm_up():
    device = clockwork()
    called = [0]

    def call():
        device.spend(0.01)
        called[0] += 1
        return math.nan if called[0] % 3 == 1 else 0.01  # NaN: the work that should run beside the call ended first

    series = measured(device, Task.of(Stage(call, Work(items=1), "item", clock="self"), check=passing))
    assert series["self"].values == pytest.approx([0.01] * RULE.least)


@pytest.mark.parametrize(
    ("slow", "counted"), [([0.05 - 0.003 * launch for launch in range(12)], False), ([0.03] * 15, True)]
)
def test_a_slow_start_is_warmed_up_and_in_no_sample(slow, counted):
    """A transient that shows only after the warm-up is discarded and counted."""
    device = clockwork()
    done = Engine(device, RULE).measure(Task.of(stage(device, seconds=0.01, warmup=slow), check=passing))
    assert done.series[0].values == pytest.approx([0.01] * len(done.series[0].values))
    assert counted == (dict(done.discarded).get("warm-up", 0) > 0)
    assert counted or done.series[0].warmup_s > 0.25


def test_every_series_begins_with_a_flush_of_the_cache():
    """Loads of low priority find room in an empty cache, and none behind other kernels."""
    device = clockwork()
    device.traits = dataclasses.replace(device.traits, is_gpu=True)
    flush, speed = device.flush, {"seconds": 0.01}

    def fill():
        speed["seconds"] = 0.02
        flush()

    device.flush = fill
    task = Task.of(Stage(lambda: device.spend(speed["seconds"]), Work(items=1), "item", modes=("hot",)), check=passing)
    assert measured(device, task)["hot"].values == pytest.approx([0.02] * RULE.least)


def test_sampling_waits_for_a_power_cap_that_acts_meanwhile():
    """Full speed for 0.4 s, then a tenth slower in two steps, as a capped matrix product does."""
    device = clockwork()
    fast = [0.010] * 40 + [0.0105] * 20
    task = Task.of(stage(device, seconds=0.011, warmup=fast), check=passing)

    class FallingClockWatch(LabelWatch):
        def look(self):
            return Condition(clock_hz=1.98e9 if device.now() < 0.55 else 1.8e9)

    done = Engine(device, dataclasses.replace(RULE, least_s=0.3), watches=[FallingClockWatch()]).measure(task)
    series = {series.label: series for series in done.series}
    assert series["hot"].values == pytest.approx([0.011] * len(series["hot"].values))
    assert stats.median(series["early"].values) == pytest.approx(0.010), "what the device did before it settled"
    assert dict(done.discarded)["warm-up"] >= 40
    assert (series["hot"].clock_hz, series["early"].clock_hz) == (1.8e9, None), "dropped with their samples"


def test_samples_of_a_clock_that_ran_backwards_are_discarded_and_counted():
    device = clockwork()
    task = Task.of(stage(device, seconds=0.01, backwards_every=4), check=passing)
    done = Engine(device, RULE).measure(task)
    assert min(done.series[0].values) > 0
    assert dict(done.discarded)["clock"] >= 2


LONG_WARM_UP = dataclasses.replace(RULE, warmup_least_s=0.5, warmup_most_s=0.5, budget_s=2.0, target=1e-9)


@pytest.mark.parametrize(
    ("program", "rule", "cause"),
    [
        ({"seconds": 0.01, "backwards_every": 1}, RULE, "by clock"),
        ({"seconds": 0.0}, RULE, "by clock"),
        ({"seconds": 0.01, "throttled": (0, 10**9)}, RULE, "by thermal"),
        ({"seconds": 0.01, "noise": 0.02, "throttled": (60, 200)}, LONG_WARM_UP, "by thermal"),
    ],
)
def test_a_case_whose_samples_are_mostly_discarded_is_untrustworthy(program, rule, cause):
    device = clockwork()
    with pytest.raises(Untrustworthy, match=cause):
        Engine(device, rule, watches=[device]).measure(Task.of(stage(device, **program), check=passing))


def test_the_answer_is_checked_before_and_after_the_timing_on_poisoned_outputs():
    device = clockwork()
    events = []
    kernel = device.kernel('{"seconds": 0.1}', "launch", {})

    def call():
        if events[-1] != "call":
            events.append("call")
        kernel((1,), (1,), ())

    def check():
        events.append("check")
        return {}

    Engine(device, RULE).measure(Task.of(Stage(call), check=check, poison=lambda: events.append("poison")))
    checked = ["poison", "call", "check"]
    assert events == [*checked, "poison", "call", *checked, "call", *checked, "call", *checked]


def test_a_wrong_answer_is_never_timed():
    device = clockwork()

    def check():
        raise WrongAnswer("no")

    with pytest.raises(WrongAnswer):
        Engine(device, RULE).measure(Task.of(stage(device, seconds=0.01), check=check))
    assert device.now() == pytest.approx(0.01)


def test_each_stage_is_a_series_of_its_name_and_the_first_is_the_headline():
    device = clockwork()
    stages = {"compress": stage(device, seconds=0.02), "decompress": stage(device, seconds=0.01)}
    done = Engine(device, RULE).measure(Task(stages, check=lambda: {"ratio": Observed(2.5, "", "more")}))
    assert [series.label for series in done.series] == [
        "compress.hot",
        "compress.host",
        "decompress.hot",
        "decompress.host",
        "ratio",
    ]
    assert (done.series[-1].values, done.series[-1].better) == ((2.5,), "more")


@pytest.mark.parametrize(("is_checked", "further"), [(False, 2), (True, 0)])
def test_a_call_that_compares_its_own_answer_is_not_called_again_for_a_check(is_checked, further):
    """It is called before the timing, in the warm-up and for samples; without `checked` also after each series."""
    device = clockwork()
    calls = []

    def message():
        calls.append(1)
        device.spend(1.0)
        return 1.0

    message_stage = Stage(message, Work(items=1), "item", clock="self", checked=is_checked)
    series = measured(device, Task({"message": message_stage, "pack": stage(device, seconds=0.01)}, check=passing))
    assert len(calls) == 2 + len(series["message.self"].values) + further


def test_only_a_call_that_times_itself_can_compare_its_own_answer():
    timed_by_device = stage(clockwork(), seconds=0.01)
    with pytest.raises(SuiteError, match=r"Stage\.checked is for calls that time themselves, and the clock is device"):
        dataclasses.replace(timed_by_device, checked=True)


def test_a_probe_or_a_check_gives_a_series_of_its_values():
    device = clockwork()
    kernel = device.kernel('{"seconds": 0.01}', "launch", {})
    probed = Stage(lambda: kernel((1,), (1,), ()), max_calls=1, probe=lambda: {"cycles": Observed(33.0, "cycles")})
    series = measured(device, Task.of(probed, check=passing))
    assert series["cycles"].values == (33.0,) * len(series["hot"].values)
    assert series["cycles"].unit == "cycles"
    device = clockwork()
    task = Task.of(stage(device, seconds=0.001), check=lambda: {"row": Profile((3.0, 1.0, 2.0), "cycles")})
    series = measured(device, task, POLICIES["smoke"])["row"]
    assert (series.values, series.unit) == ((3.0, 1.0, 2.0), "cycles")


def test_a_stage_whose_gate_times_out_is_timed_without_the_gate():
    device = clockwork()
    gates = []
    timed = device.time

    def time(call, calls, mode="hot", gated=True, lead=None):
        gates.append(gated)
        if gated:
            raise GateTimedOut
        return timed(call, calls, mode)

    device.time = time
    series = measured(device, Task.of(stage(device, seconds=0.01), check=passing))
    assert series["hot"].values[0] == pytest.approx(0.01)
    assert gates[0] is True
    assert not any(gates[1:])


@pytest.mark.parametrize(
    ("values", "elapsed", "verdict"),
    [
        ([1.0] * 9, 0.1, ""),
        ([1.0] * 10, 0.1, "interval"),
        ([1.0] * 10, 0.04, ""),
        ([1.0, 2.0] * 10, 0.1, ""),
        ([1.0, 2.0] * 10, 1.0, "budget"),
        ([1.0, 2.0], 9.0, ""),
        ([1.0, 2.0] * 1000, 0.1, "noise"),
        ([1.0, 2.0] * 1000, 0.01, "count"),
    ],
)
def test_the_stopping_rule_states_its_reason(values, elapsed, verdict):
    assert RULE.stop_reason(values, elapsed) == verdict


def lasting(seconds, effort):
    device = clockwork()
    timed = dataclasses.replace(stage(device, seconds=seconds), effort=effort)
    series = measured(device, Task.of(timed, check=passing), POLICIES["quick"])["hot"]
    return sum(series.values) * series.calls, series


def test_a_point_of_a_dense_curve_ends_with_its_interval_and_costs_a_quarter_if_it_is_noisy():
    spent, series = lasting(0.001, POINT)
    assert spent < lasting(0.001, TIER)[0] / 3
    assert (len(series.values), series.stop) == (POLICIES["quick"].least, "interval")
    device = clockwork()
    noisy = dataclasses.replace(stage(device, seconds=0.001, noise=0.2), effort=POINT)
    series = measured(device, Task.of(noisy, check=passing), POLICIES["quick"])["hot"]
    assert series.stop == "budget"
    assert sum(series.values) * series.calls < 0.3 * POLICIES["quick"].budget_s


def test_a_sustained_stage_is_sampled_for_its_own_duration_and_not_for_the_budget_except_in_the_smoke_tier():
    spent, series = lasting(0.0001, Effort.sustained(5))
    assert 5 <= spent < 6
    assert series.stop == "interval"
    assert lasting(0.3, Effort.sustained(5))[0] >= 5
    assert POLICIES["smoke"].for_effort(Effort.sustained(30)) == POLICIES["smoke"]


def test_a_burst_rests_before_each_sample_and_the_rest_is_not_timed():
    device = clockwork()
    bursts = dataclasses.replace(stage(device, seconds=0.01), max_calls=1, rest_s=0.1)
    series = measured(device, Task.of(bursts, check=passing), dataclasses.replace(RULE, budget_s=2.0))
    assert series["hot"].values == pytest.approx([0.01] * RULE.least)
    assert device.now() > RULE.least * 0.11


@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
def test_an_exact_number_of_samples_is_taken_without_a_warm_up(tier):
    device = clockwork()
    called = []

    def call():
        called.append(len(called))
        device.spend(5.0)
        return 5.0 + len(called)

    stage = Stage(call, clock="self", effort=Effort.exactly(3), checked=True)
    series = measured(device, Task.of(stage, check=passing), POLICIES[tier])["self"]
    assert series.values == (7.0, 8.0, 9.0), "the first call is the one that is checked before the timing"
    assert (series.stop, series.warmup_s) == ("count", 0.0)


def test_the_first_of_an_exact_number_of_samples_is_kept_even_if_it_differs():
    times = [1.0, *[1e-3 + 1e-6 * (i % 3) for i in range(40)]]
    assert POLICIES["full"].transient(times) == 1
    stage = Stage(lambda: times, clock="self", effort=Effort.exactly(len(times)), checked=True)
    assert measured(clockwork(), Task.of(stage, check=passing), POLICIES["full"])["self"].values == tuple(times)


def test_a_tail_is_sampled_until_it_has_its_samples_except_in_the_smoke_tier():
    device = clockwork()
    tail = dataclasses.replace(stage(device, seconds=1e-5), effort=POINT.with_tail(300))
    assert len(measured(device, Task.of(tail, check=passing), POLICIES["quick"])["hot"].values) == 300
    assert len(measured(device, Task.of(tail, check=passing), POLICIES["smoke"])["hot"].values) < 300


@pytest.mark.parametrize("returned", [0.5, [1e-6, 2e-6, 3e-6]])
def test_a_call_that_times_itself_gives_one_or_many_samples(returned):
    device = clockwork()

    def volley():
        device.spend(0.1)
        return returned

    series = measured(device, Task.of(Stage(volley, Work(items=1), "item", clock="self"), check=passing))
    each = returned if isinstance(returned, list) else [returned]
    assert set(series["self"].values) == set(each)
    assert len(series["self"].values) % len(each) == 0


def test_the_lead_is_called_once_per_batch_and_is_not_timed():
    device = clockwork()
    leads = []

    def lead():
        leads.append(device.now())
        device.spend(0.5)

    task = Task.of(dataclasses.replace(stage(device, seconds=1e-4), lead=lead), check=passing)
    series = measured(device, task, POLICIES["smoke"])
    assert series["hot"].values[0] == pytest.approx(1e-4)
    assert 2 < len(leads) < 50, "one a batch of 10 calls"


def test_one_stage_can_count_its_work_in_several_ways():
    device = clockwork()
    counted = {"work": Work(payload=2e6), "quantity": "payload", "also": {"sum": Work(payload=4e6)}}
    task = Task({"copy": dataclasses.replace(stage(device, seconds=0.01), **counted)}, check=passing)
    series = measured(device, task)
    assert list(series)[:2] == ["copy.hot", "copy.sum"]
    assert series["copy.sum"].values == series["copy.hot"].values
    assert series["copy.sum"].work == Work(payload=4e6)


def test_every_rank_tries_the_batch_that_the_deciding_rank_chose():
    device = clockwork()
    tried, timed = [], device.time

    def time(call, calls, *rest):
        tried.append(calls)
        return timed(call, calls, *rest)

    def decided(value):
        return (7, True) if isinstance(value, tuple) else value

    device.time = time
    Engine(device, RULE, decided).measure(Task.of(stage(device, seconds=1e-5), check=passing))
    assert tried[0] == 1
    assert set(tried[1:10]) == {7}, "calls that wait for another rank's would else wait for ever"
    assert max(tried) == 7


def test_throttled_samples_are_discarded_and_labels_of_the_state_are_kept():
    device = clockwork()
    task = Task.of(stage(device, seconds=0.01, throttled=(16, 20)), check=passing)
    done = Engine(device, RULE, watches=[device]).measure(task)
    assert dict(done.discarded) == {"thermal": 4}
    assert done.series[0].values == pytest.approx([0.01] * len(done.series[0].values))
    device = clockwork()
    task = Task.of(stage(device, seconds=0.01), check=passing)
    done = Engine(device, RULE, watches=[LabelWatch("power-capped")]).measure(task)
    assert (done.labels, done.discarded, done.series[0].clock_hz) == (("power-capped",), (), None)


def test_every_way_of_timing_is_checked_on_outputs_of_its_own():
    device = clockwork()
    kernel = device.kernel('{"seconds": 0.01}', "launch", {})
    written = {"by": "nobody"}

    def real():
        kernel((1,), (1,), ())
        written["by"] = "call"

    def check():
        expect(written["by"] == "call", "nothing was written")
        return {}

    lazy = Stage(real, modes=("hot",), rotation=(lambda: kernel((1,), (1,), ()),))
    with pytest.raises(WrongAnswer, match="nothing was written"):
        Engine(device, RULE).measure(Task.of(lazy, check=check, poison=lambda: written.update(by="nobody")))


def test_a_call_that_takes_longer_on_an_idle_device_is_not_taken_for_skipped_work():
    """A copy from pageable memory: the host's part of the first call shows where nothing else is queued."""
    device = clockwork()
    done = Engine(device, RULE).measure(Task.of(stage(device, seconds=0.01, begin=0.03), check=passing))
    assert min(done.series[0].values) == pytest.approx(0.01)


def test_a_call_that_skips_work_on_correct_outputs_is_found():
    device = clockwork()
    overwritten = []

    def call():
        device.spend(0.01 if overwritten else 0.005)
        overwritten.clear()

    task = Task.of(Stage(call, modes=("hot",)), check=passing, poison=lambda: overwritten.append(True))
    with pytest.raises(Untrustworthy, match=r"2\.0 times as long as otherwise: the timed calls skip work"):
        Engine(device, RULE).measure(task)


def test_a_series_is_checked_at_random_places_within_a_tenth_of_its_time_and_says_how_often():
    device = clockwork()
    places = []
    task = Task.of(stage(device, seconds=1e-5), check=lambda: places.append(device.now()))
    hot = measured(device, task, dataclasses.replace(RULE, least_s=2.0, budget_s=2.0))["hot"]
    assert 15 < hot.checks <= 31, "at most 30 while it is sampled, and one after the last sample"
    within = places[2:]
    assert len(within) == hot.checks, "two are made before the timing"
    assert within[0] < 0.5 < 1.5 < within[-2], "they are spread over the two seconds"
    gaps = [after - before for before, after in itertools.pairwise(within)]
    assert len({round(gap, 4) for gap in gaps}) > 15, "no call can know when"
    assert device.now() < 2.0 * 1.1 + 0.5


def test_long_checks_are_made_after_the_samples_and_exact_samples_are_each_checked():
    device = clockwork()
    hot = measured(device, Task.of(stage(device, seconds=0.01), check=lambda: device.spend(0.3)))["hot"]
    assert hot.checks == 3
    hot = measured(device, Task.of(stage(device, seconds=0.01), check=lambda: device.spend(1.0)))["hot"]
    assert hot.checks == 1, "unless they would take longer than the budget of the series"
    device, calls, checks = clockwork(), [], []
    timed = Stage(lambda: calls.append(1) or 5.0, clock="self", effort=Effort.exactly(4))
    series = measured(device, Task.of(timed, check=lambda: checks.append(1)))["self"]
    assert (series.checks, len(calls), len(checks)) == (4, 6, 7), "two calls are checked before the timing"


def test_a_paranoid_engine_checks_each_batch_and_labels_the_case():
    device, faulty = clockwork(), [False]

    def check():
        expect(not faulty[0], "a fault in a single batch")

    def call():
        device.spend(0.01)
        faulty[0] = device.now() > 0.2

    with pytest.raises(WrongAnswer, match="single batch"):
        Engine(device, RULE, is_paranoid=True).measure(Task.of(Stage(call), check=check))
    assert device.now() < 0.22
    done = Engine(device := clockwork(), RULE, is_paranoid=True).measure(
        Task.of(stage(device, seconds=0.01), check=passing)
    )
    assert (done.labels, done.series[0].checks) == (("paranoid",), len(done.series[0].values))


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("modes", [("hot",), ("graph",), ("cold",)])
def test_work_on_another_stream_that_is_not_waited_for_makes_the_case_invalid(modes, is_gpu):
    device = clockwork()
    device.traits = dataclasses.replace(device.traits, is_gpu=is_gpu)
    task = Task.of(stage(device, modes, seconds=1e-4, beside=5e-3), check=passing)
    with pytest.raises(Untrustworthy, match=r"works .* ms longer than the timed batch of ") as raised:
        Engine(device, RULE).measure(task)
    assert raised.value.cause == "not-waited-for"


@pytest.mark.parametrize(
    ("seconds", "beside"), [(0.01, 0.0125), (1e-4, 1.9e-4)], ids=["less than a third more", "less than 1 ms"]
)
def test_a_little_work_on_another_stream_is_not_suspicious(seconds, beside):
    device, rule = clockwork(), dataclasses.replace(RULE, most_calls=10)
    task = Task.of(stage(device, seconds=seconds, beside=beside), check=passing)
    Engine(device, rule).measure(task)


def test_two_inputs_alternate_before_each_check_so_that_an_earlier_answer_is_wrong():
    device, present, answers, seen = clockwork(), [0], {}, []

    def memoised():
        device.spend(0.01)
        answers.setdefault("first", present[0])

    def other():
        present[0] = 1 - present[0]
        seen.append((present[0], device.now()))

    def check():
        expect(answers["first"] == present[0], "an earlier answer")

    task = Task.of(Stage(memoised, inputs=other), check=check)
    with pytest.raises(WrongAnswer, match="an earlier answer"):
        Engine(device, RULE).measure(task)
    seen.clear()
    honest = Stage(lambda: (device.spend(0.01), answers.update(first=present[0])), inputs=other)
    both = {"one": honest, "another": dataclasses.replace(honest, quantity="item", work=Work(items=1))}
    series = measured(device, Task(both, check=check))
    assert [turn for turn, _ in seen] == [turn % 2 for turn in range(len(seen))], "once a check, though stages share it"
    checks = series["one.hot"].checks + series["another.hot"].checks
    assert len(seen) == checks + 2, "the first check has the first input, and the check must refuse its answer once"


@pytest.mark.parametrize(
    ("twice", "noise", "is_found"),
    [
        *((0.02, 0.0, False), (0.0181, 0.0, False), (0.0295, 0.0, False), (0.0175, 0.05, False)),
        *((0.0175, 0.0, True), (0.01, 0.0, True), (0.031, 0.0, True)),
    ],
)
def test_twice_the_passes_take_1_8_to_3_times_as_long_or_what_the_spread_allows(twice, noise, is_found):
    device = clockwork()
    kernel = device.kernel(json.dumps({"seconds": twice}), "launch", {})
    once = stage(device, seconds=0.01, noise=noise)
    task = Task.of(dataclasses.replace(once, doubled=lambda: kernel((1,), (1,), ())), check=passing)
    if not is_found:
        assert measured(device, task)["hot"].values
        return
    with pytest.raises(Untrustworthy, match=r"takes [13]\.\d\d times as long, from 1\.80 to 3") as raised:
        Engine(device, RULE).measure(task)
    assert raised.value.cause == "dropped-passes"


@pytest.mark.parametrize("work", [Work(moved=2e10), Work(payload=2e10), Work(flops=3e11)])
def test_a_rate_that_one_compute_unit_cannot_reach_is_invalid_though_no_peak_is_declared(work):
    """One core at 6.5 GHz moves at most 256 B and makes at most 4096 operations in a cycle."""
    device, (quantity,) = clockwork(), [name for name in ("moved", "payload", "flops") if getattr(work, name)]
    fast = dataclasses.replace(stage(device, seconds=0.01), work=work, quantity=quantity)
    with pytest.raises(Untrustworthy, match=r"is more than 1 compute units can do at best") as raised:
        Engine(device, RULE).measure(Task.of(fast, check=passing))
    assert raised.value.cause == "impossible-rate"
    fine = dataclasses.replace(stage(device, seconds=0.02), work=work, quantity=quantity)
    assert measured(device, Task.of(fine, check=passing))


def test_a_case_that_replaces_clock_functions_does_not_spoil_the_engine(monkeypatch):
    host = opened()
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    assert host.time(lambda: sum(range(1000)), 3).device[0] > 0
    assert host.now() > 0


class LabelWatch:
    def __init__(self, *labels):
        self.labels = labels

    def begin(self):
        pass

    def look(self):
        return Condition(labels=self.labels)


class ClockWatch:
    def __init__(self, *clocks_hz, disturbed_hz=None):
        self.clocks_hz = itertools.cycle(clocks_hz)
        self.disturbed_hz = disturbed_hz

    def begin(self):
        pass

    def look(self):
        clock_hz = next(self.clocks_hz)
        return Condition(("thermal",) if clock_hz == self.disturbed_hz else (), clock_hz=clock_hz)


def test_each_stage_keeps_the_median_clock_of_its_good_samples():
    device = clockwork()
    stages = {"compress": stage(device, seconds=0.01), "decompress": stage(device, seconds=0.02)}
    watch = ClockWatch(1.7e9, None, 1.8e9, 1.9e9, 1.0e9, disturbed_hz=1.0e9)
    done = Engine(device, RULE, watches=[LabelWatch(), watch]).measure(Task(stages, check=passing))
    clocks = {series.label: series.clock_hz for series in done.series if series.role == "primary"}
    assert clocks == {"compress.hot": 1.8e9, "decompress.hot": 1.8e9}


def test_rotated_buffers_are_called_in_turn_as_a_series_and_a_checked_batch_goes_round_all():
    device = clockwork()
    kernel = device.kernel('{"seconds": 0.01}', "launch", {})
    turns, written = [], [0, 0, 0]

    def on(buffer):
        def call():
            turns.append(buffer)
            written[buffer] = 7
            kernel((1,), (1,), ())

        return call

    def check():
        expect(7 in written, "no buffer was written")

    def poison():
        written[:] = [0, 0, 0]

    rotated = Stage(on(0), Work(items=1), "item", modes=(), rotation=(on(0), on(1), on(2)))
    assert set(measured(device, Task.of(rotated, check=check, poison=poison))) == {"rotated"}
    assert turns[:3] in ([0, 1, 2], [0, 2, 1]), "each call is checked alone"
    assert turns[3:9] == [0, 1, 2, 0, 1, 2]
    assert written == [7, 7, 7], "a batch that is checked goes round all buffers"


def test_the_interval_covers_the_true_median_with_the_stopping_rule_in_the_loop():
    """With 100 cases here; `bash ci/study.sh coverage_of_intervals` does thousands, of several correlations."""
    assert covered(0.3, 0.01, cases=100) >= 0.93 - 2 * (0.93 * 0.07 / 100) ** 0.5
