"""The simulation of continuous batching: exact times of small cases, queueing theory, the highest rate, percentiles."""

import json
import re
from dataclasses import replace
from pathlib import Path

import _make as make
import numpy as np
import pytest
from _make import manifest
from scipy.stats import binom

from gpubench import plugins
from gpubench.analysis import serving
from gpubench.analysis.serving import Objectives, ServingTimes, StepLine, Workload
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.served import Servings
from gpubench.analysis.views.tables import view_tables
from gpubench.model import Case, Result, Run, Series, SuiteInfo, View, Work, store
from gpubench.stats import queries

RECORDINGS = Path(__file__).parent / "recordings"
# A step of b sequences takes 10 ms and 1 ms for each 100 tokens of context; a prefill takes 1 ms per token up to 100.
TIMES = ServingTimes(
    {10: 0.01, 100: 0.1}, {1: StepLine(0.010, 1e-5), 2: StepLine(0.012, 1e-5), 4: StepLine(0.016, 1e-5)}
)
# The bound of Llama-3-8B in float16 on a memory of 4.2 TB/s.
LLAMA = ServingTimes(
    {128: 0.004, 512: 0.012, 2048: 0.045},
    {batch: StepLine(0.0036 + batch * 1e-5, 131072 / 4.2e12) for batch in (1, 2, 4, 8, 16, 32, 64)},
)


def served_of(summary, suite, view):
    """Return the models of a view."""
    (served,) = Servings.of(summary, suite, view)
    return list(served.models)


def served(arrivals, prompt=10, output=3, times=TIMES):
    return serving.simulate(times, np.array(arrivals, dtype=float), prompt, output)


def test_queries_take_the_times_of_their_prefills_and_steps_and_wait_for_a_slot():
    queries = served([5.0])
    steps = 2 * 0.010 + 1e-5 * (11 + 12)
    np.testing.assert_allclose([queries.first[0], queries.last[0]], [5.01, 5.01 + steps])
    np.testing.assert_allclose([queries.first_token_s[0], queries.token_s[0]], [0.01, steps / 2])
    queries = served([0.0, 0.5], output=1)
    assert queries.last.tolist() == queries.first.tolist()
    assert queries.token_s.tolist() == [0, 0]
    # The first one's second token is computed when the second query arrives; its third has both in the batch.
    queries = served([0.0, 0.012])
    after_step = 0.01 + 0.010 + 1e-5 * 11
    first = after_step + 0.01
    together = first + 0.012 + 1e-5 * (12 + 11)
    np.testing.assert_allclose(queries.first, [0.01, first])
    np.testing.assert_allclose(queries.last, [together, together + 0.010 + 1e-5 * 12])
    queries = served([0.0] * 5)
    assert queries.first[4] == pytest.approx(queries.last[0] + 0.01)
    assert queries.last[:4].max() < queries.first[4]
    assert queries.waiting.tolist() == [0, 1, 2, 3, 4]


def test_chunks_of_a_prompt_let_running_queries_go_on_between_them():
    # the second query's prompt of 20 is two chunks of 10; a step of the first query comes before each but the first
    queries = serving.simulate(TIMES, np.array([0.0, 0.015]), 20, 4, chunk=10)
    first = 0.02
    step = first + 0.010 + 1e-5 * 21
    between = step + 0.01 + 0.010 + 1e-5 * 22
    np.testing.assert_allclose(queries.first, [first, between + 0.01])
    np.testing.assert_allclose(queries.last[0], between + 0.01 + 0.012 + 1e-5 * (23 + 21))
    assert TIMES.chunks_s(25, 10) == pytest.approx([0.01, 0.01, 0.01])  # the last one is no shorter than a step
    assert LLAMA.chunks_s(512, 256) == pytest.approx([LLAMA.prefill_s(256)] * 2)
    fused = replace(TIMES, fused={2: 0.001, 4: 0.5})
    assert [fused.chunks_s(20, 10, batch)[1] for batch in (0, 1, 3)] == pytest.approx([0.01, 0.001, 0.01])


def by_steps(times, arrivals, prompt, output):
    """Simulate the same scheduler one step at a time."""
    lines, now, upcoming, running = times.lines(), 0.0, 0, []
    first, last = np.zeros(len(arrivals)), np.zeros(len(arrivals))
    while upcoming < len(arrivals) or running:
        if upcoming < len(arrivals) and len(running) < times.slots and arrivals[upcoming] <= now:
            now += times.prefill_s(prompt)
            first[upcoming] = last[upcoming] = now
            running += [[upcoming, 1]] if output > 1 else []
            upcoming += 1
        elif not running:
            now = arrivals[upcoming]
        else:
            now += lines[len(running)].seconds(len(running), sum(prompt + made - 1 for _, made in running), 1)
            for query in running:
                query[1] += 1
                last[query[0]] = now
            running = [query for query in running if query[1] < output]
    return first, last


@pytest.mark.parametrize("rate", [1, 25, pytest.param(60, marks=pytest.mark.slow)])
def test_steps_simulated_together_end_at_the_same_times_as_single_steps(rate):
    arrivals = serving.poisson(rate, 300, seed=4)
    queries = served(arrivals, prompt=20, output=12)
    first, last = by_steps(TIMES, arrivals, 20, 12)
    np.testing.assert_allclose(queries.first, first, rtol=0, atol=1e-9)
    np.testing.assert_allclose(queries.last, last, rtol=0, atol=1e-9)


@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.slow), 0.8])
def test_queries_of_one_token_wait_as_in_a_queue_with_one_server(load):
    """M/D/1: the mean wait is ρ·s/(2·(1 − ρ)) (Pollaczek and Khinchine)."""
    arrivals = serving.poisson(load / 0.01, 200_000, seed=1)
    waits = served(arrivals, output=1).first_token_s - 0.01
    assert waits.mean() == pytest.approx(load * 0.01 / (2 * (1 - load)), rel=0.03)


def test_a_rate_above_the_capacity_is_not_sustained_and_one_below_it_is():
    load = Workload(512, 128, 5000)
    most = serving.capacity(LLAMA, load)
    assert not serving.at_rate(LLAMA, load, 1.1 * most).is_sustained
    assert serving.at_rate(LLAMA, load, 0.9 * most).is_sustained


@pytest.mark.parametrize("objectives", serving.OBJECTIVES, ids=lambda view: view.name)
def test_the_knee_is_the_highest_rate_that_meets_both_objectives(objectives):
    load = Workload(512, 128, 5000)
    highest = serving.knee(LLAMA, load, objectives)
    assert highest is not None
    assert highest.meets(objectives)
    most = serving.capacity(LLAMA, load)
    assert highest.rate <= most
    assert 0 < highest.spread < 0.05
    rates = [serving.knee(LLAMA, replace(load, seed=seed), objectives, 1).rate for seed in range(3)]
    assert highest.rate == pytest.approx(sorted(rates)[1], rel=0.01)
    assert max(rates) == most or not serving.at_rate(LLAMA, load, 1.05 * max(rates)).meets(objectives)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        *[(lambda rate=rate: serving.poisson(rate, 10, seed=0), "above 0") for rate in (0.0, -1.0, float("nan"))],
        (lambda: served([0.0, 2.0, 1.0]), "order"),
    ],
)
def test_a_rate_of_zero_and_arrivals_out_of_order_are_refused(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def test_there_is_no_knee_where_a_query_alone_is_too_slow_or_queries_are_too_few_for_a_percentile():
    assert serving.knee(LLAMA, Workload(512, 128, 1000), Objectives("instant", 0.001, 0.001)) is None
    point = serving.at_rate(LLAMA, Workload(512, 128, 661), 1.0)  # from 662 on their 99th percentile is known
    assert point.first_token_s[1] is None
    assert not point.meets(serving.OBJECTIVES[0])


def test_a_line_through_measured_steps_is_exact_where_they_lie_on_one():
    line = StepLine.fitted([100, 200, 400], [0.011, 0.012, 0.014])
    assert (line.base_s, line.token_s) == (pytest.approx(0.010), pytest.approx(1e-5))
    assert line.residual == pytest.approx(0, abs=1e-9)
    assert StepLine.fitted([100], [0.011]) == StepLine(0.011, 0.0, 0.0)
    falling, steep = StepLine.fitted([100, 200], [0.0105, 0.01]), StepLine.fitted([100, 200], [0.001, 0.003])
    assert (falling.token_s, falling.base_s) == (0, pytest.approx(0.01024, rel=1e-3))
    assert (steep.base_s, steep.residual < 0.5) == (0, True)


@pytest.mark.usefixtures("few")
def test_a_batch_with_one_context_has_the_slope_of_the_largest_batch_with_two():
    steps = [step(1, 1000, [0.011]), step(2, 1000, [0.012]), step(2, 2000, [0.013]), step(4, 500, [0.014])]
    (rates,) = served_of(Summary(run_of(*steps, prefill(512, [0.01]))), "inference", VIEW)
    assert [line.token_s for line in rates.times.steps.values()] == pytest.approx([5e-7] * 3)
    assert rates.times.steps[1].base_s == pytest.approx(0.0105)
    assert StepLine.through(1000, 0.001, 2e-6) == StepLine(0.0, 1e-6)


def test_prefills_between_measured_lengths_lie_on_the_line():
    assert [TIMES.prefill_s(tokens) for tokens in (55, 1, 200)] == pytest.approx([0.055, 0.01, 0.2])
    fast = replace(TIMES, steps={1: StepLine(0.002, 1e-5)})
    assert [fast.prefill_s(tokens) for tokens in (5, 1)] == pytest.approx([0.005, 0.002])


def test_percentiles_need_the_queries_that_loadgen_needs():
    assert queries.tail_estimate(range(63), 0.9) is None
    assert queries.tail_estimate(range(64), 0.9) == 63
    assert queries.tail_estimate(range(661), 0.99) is None
    assert queries.tail_estimate(range(662), 0.99) == 661
    assert queries.tail_estimate([], 0.9) is None


@pytest.mark.parametrize("count", [64, 662, 5000, 100_000])
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_a_tail_estimate_discards_as_many_queries_as_the_binomial_distribution_allows(count, fraction):
    values = np.random.default_rng(3).permutation(count)
    estimate = queries.tail_estimate(values, fraction)
    if estimate is None:
        assert binom.cdf(1, count, 1 - fraction) > 0.01
    else:
        above = count - int(estimate)  # number of values above the estimate
        assert binom.cdf(above, count, 1 - fraction) <= 0.01 < binom.cdf(above + 1, count, 1 - fraction)


def step(batch, context, seconds, weights="float16"):
    work = Work(items=batch)
    return timed_case("step", (("weights", weights), ("batch", batch), ("context", context)), seconds, work)


def timed_case(name, params, seconds, work=None, observed=()):
    """Return a result of an inference case with its times in seconds and observed values."""
    quantity = "items" if work else "value"
    timed = Series("", "s", tuple(seconds), mode="self", work=work or Work(), quantity=quantity, item="token")
    return Result(Case("inference", name, params), ("cuda:0",), "ok", series=(timed, *observed))


def prefill(tokens, seconds, weights="float16"):
    return timed_case("prefill", (("weights", weights), ("tokens", tokens)), seconds, Work(items=tokens))


def session(scenario, batch, p50s, p99s, arrivals):
    """Return LoadGen's sessions with steps of LLAMA over 2048 tokens of context."""
    values = {"p99": p99s, "arrivals": arrivals}
    observed = [Series(name, "s", tuple(map(float, series)), role="observed") for name, series in values.items()]
    params = (("scenario", scenario), ("weights", "float16"), ("batch", batch), ("context", 2048))
    return timed_case("loadgen", params, p50s, observed=observed)


VIEW = View("serving", "Time to the first token over rate", ("step", "prefill", "loadgen"), by=("weights",))


def run_of(*results):
    suite = SuiteInfo("inference", "models", (VIEW,))
    return Run(manifest(suites=(suite,)), results=results)


def measured():
    """Steps and prefills of LLAMA, as a run would have them."""
    steps = [
        step(batch, context, [line.base_s + line.token_s * batch * context])
        for batch, line in LLAMA.steps.items()
        for context in (512, 2048)
    ]
    return [*steps, *(prefill(tokens, [seconds]) for tokens, seconds in LLAMA.prefills.items())]


@pytest.fixture
def few(monkeypatch):
    """Simulate fewer queries than a report does."""
    monkeypatch.setattr("gpubench.analysis.views.served._LOAD", Workload(512, 128, 1000))


def test_a_view_finds_the_times_of_steps_and_prefills_and_the_rates_that_they_allow():
    (serving_rates,) = served_of(Summary(run_of(*measured())), "inference", VIEW)
    assert serving_rates.times.prefills == LLAMA.prefills
    for batch, line in LLAMA.steps.items():
        assert serving_rates.times.steps[batch].base_s == pytest.approx(line.base_s)
        assert serving_rates.times.steps[batch].token_s == pytest.approx(line.token_s)
    assert (serving_rates.label, serving_rates.load.prompt, serving_rates.load.output) == ("float16", 512, 128)
    sustained = [serving_rates.points[place].is_sustained for place in (-4, -1)]
    assert sustained == [True, False]  # 90 and 110 % of the capacity
    rates = [knee.rate for _, knee in serving_rates.knees if knee]
    assert rates[0] > rates[1] > 30  # a stricter objective allows a lower rate


@pytest.mark.usefixtures("few")
def test_the_page_has_a_line_for_each_format_of_weights_and_names_its_knee():
    faster = [step(1, 512, [0.001], "int4"), step(8, 512, [0.002], "int4"), prefill(512, [0.012], "int4")]
    hostile = "<script>alert(1)</script>"
    marked = step(1, 512, [0.01], hostile), step(1, 2048, [0.011], hostile), prefill(512, [0.01], hostile)
    page = plugins.load("reports", "html").render(run_of(*measured(), *faster, *marked))
    assert "p99 of the first token" in page
    assert hostile not in page
    for weights in ("float16", "int4"):
        assert re.search(rf"{weights}: server up to [\d.]+ query/s, interactive up to [\d.]+ query/s", page)
    assert "not an MLPerf result" in page
    assert served_of(Summary(run_of(step(1, 512, [0.004]))), "inference", VIEW) == [], "steps alone give no rate"


def test_samples_in_a_queue_of_fixed_batches_wait_for_the_call_that_takes_them():
    """Calls of 2 s: the third sample waits for the second call, and the last one finds an empty queue."""
    latencies = serving.fixed_batches(np.array([1.0, 1.5, 2.0, 2.5, 10.0]), 2, 2.0)
    assert latencies.tolist() == [2.0, 3.5, 3.0, 4.5, 2.0]
    assert serving.fixed_batches(np.zeros(5), 2, 1.0).tolist() == [1, 1, 2, 2, 3]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("scenario", "batch", "arrivals", "steps"),
    [("single_stream", 1, [0], (1, 1)), ("multi_stream", 4, [0] * 8, (2, 2)), ("offline", 16, [0] * 64, (3, 4))],
)
def test_latencies_by_loadgen_stand_beside_their_prediction(scenario, batch, arrivals, steps):
    """LoadGen's latencies are a quarter longer than the steps, so that the prediction falls short by a fifth."""
    line = LLAMA.steps[batch]
    p50, p99 = (1.25 * count * (line.base_s + line.token_s * batch * 2048) for count in steps)
    run = run_of(*measured(), session(scenario, batch, [p50] * 3, [p99 / 2, p99, 2 * p99], arrivals))
    (rates,) = served_of(Summary(run), "inference", VIEW)
    (check,) = rates.sessions
    assert (check.p50.error, check.p99.error) == (pytest.approx(-0.2), pytest.approx(-0.2))
    assert rates.times.steps.keys() == LLAMA.steps.keys()
    table = next(entry for entry in Servings("", (rates,)).tables if entry.title.startswith("Latency by LoadGen"))
    assert (table.rows[0][3], table.rows[0][6]) == ("-20.0 %", "-20.0 %")
    assert "-20.0 %" in plugins.load("reports", "html").render(run)
    (record,) = json.loads(plugins.load("reports", "json").render(run))["serving"]
    for rates in (record["highest_rates"], record["chunked_rates"]):
        assert rates["server"] > rates["interactive"]
    assert record["sessions"][0]["p99"]["error"] == pytest.approx(-0.2)


@pytest.mark.usefixtures("few")
def test_a_server_is_predicted_from_the_arrivals_of_its_samples():
    arrivals = serving.poisson(1000, 662, seed=2)
    line = LLAMA.steps[16]
    latencies = np.sort(serving.fixed_batches(arrivals, 16, line.base_s + line.token_s * 16 * 2048))
    result = session("server", 16, [latencies[331]], [latencies[655]], arrivals)
    (rates,) = served_of(Summary(run_of(*measured(), result)), "inference", VIEW)
    assert [(check.p50.error, check.p99.error) for check in rates.sessions] == [pytest.approx((0, 0))]


@pytest.mark.usefixtures("few")
def test_steps_that_run_long_enough_have_joules_per_token():
    long = replace(step(4, 1000, [0.01] * 900), devices=("cuda:0",), window=(0.5, 9.5))
    joules = make.samples(range(11), energy=[700.0 * second for second in range(11)])
    for others in ((), (prefill(512, [0.01]),)):  # steps alone give no serving rate, but they have an energy
        run = replace(run_of(long, *others), samples=(joules,))
        table = view_tables(Summary(run), "inference", VIEW)[-1]
        assert table.title == "Energy per token"
        assert table.rows == ((long.case.id, "1.750 J/token", "700.0 W"),)
    assert "1.750 J/token" in plugins.load("reports", "html").render(run)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "result",
    [
        step(10**9, 512, [0.01]),
        step(1, 512, [0.0]),
        step(1, 512, [1e300]),
        step(1, -5, [0.01]),
        step(1.5, 512, [0.01]),
        step("one", 512, [0.01]),
        prefill("many", [0.01]),
        prefill(0, [0.01]),
        prefill(10**12, [0.01]),
    ],
)
def test_results_with_impossible_axes_or_times_are_left_out_of_serving(result):
    (rates,) = served_of(Summary(run_of(step(1, 512, [0.01]), prefill(512, [0.01]), result)), "inference", VIEW)
    assert (list(rates.times.steps), rates.times.prefills) == ([1], {512: 0.01})


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "bad",
    [
        session("server", 16, [0.01], [0.02], [0.0, 2.0, 1.0]),
        session("server", 16, [0.01], [0.02], [0.0, float("nan")]),
        session("server", 16, [0.01], [], [0.0]),
        session("server", 16, [0.01], [0.02], []),
        session("server", 128, [0.01], [0.02], [0.0]),
        session("server", 10**9, [0.01], [0.02], [0.0]),
    ],
)
def test_a_session_without_arrivals_or_figures_or_with_impossible_ones_is_left_out(bad):
    (rates,) = served_of(Summary(run_of(*measured(), bad)), "inference", VIEW)
    assert rates.sessions == ()


def test_a_run_of_an_h200_shows_the_attention_the_steps_and_the_rates_that_were_measured():
    run = store.read_run(RECORDINGS / "h200-inference.jsonl.gz")
    summary = Summary(run)
    rows = {row.result.case.id.removeprefix("inference/"): row.figure for row in summary.rows()}
    heads = "heads=32,kv_heads=8,dim=128"
    # share of the read rate
    assert rows[f"decode_attention[batch=32,context=4096,{heads}]"].interval.centre > 0.80 * 4608e9
    assert rows[f"decode_attention[batch=8,context=4096,{heads}]"].interval.centre > 0.65 * 4608e9
    (view,) = (view for info in run.manifest.suites for view in info.views if view.kind == "serving")
    half, fourth = served_of(summary, "inference", view)
    assert (half.label, fourth.label) == ("llama-3-8b, float16", "llama-3-8b, int4")
    assert half.times.slots == 64
    assert [round(point.rate, 1) for _, point in half.knees if point] == [25.0, 22.6]
    assert half.bound_rates["server"] > 1.1 * half.highest_rates["server"], "our kernels leave a part to others"
