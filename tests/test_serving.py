"""The simulation of continuous batching: exact times of small cases, queueing theory, the highest rate, percentiles."""

import json
import re
import time
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


def test_a_query_alone_takes_its_prefill_and_a_step_for_each_further_token():
    queries = served([5.0])
    steps = 2 * 0.010 + 1e-5 * (11 + 12)
    np.testing.assert_allclose([queries.first[0], queries.last[0]], [5.01, 5.01 + steps])
    np.testing.assert_allclose([queries.first_token_s[0], queries.token_s[0]], [0.01, steps / 2])


def test_a_query_of_one_token_ends_with_its_prefill():
    queries = served([0.0, 0.5], output=1)
    assert queries.last.tolist() == queries.first.tolist()
    assert queries.token_s.tolist() == [0, 0]


def test_a_query_that_arrives_during_a_step_is_prefilled_after_it_and_slows_the_others_down():
    """The first one's second token is computed when the second query arrives; its third has both in the batch."""
    queries = served([0.0, 0.012])
    after_step = 0.01 + 0.010 + 1e-5 * 11
    first = after_step + 0.01
    together = first + 0.012 + 1e-5 * (12 + 11)
    np.testing.assert_allclose(queries.first, [0.01, first])
    np.testing.assert_allclose(queries.last, [together, together + 0.010 + 1e-5 * 12])


def test_queries_beyond_the_number_of_slots_wait_for_a_free_one():
    queries = served([0.0] * 5)
    assert queries.first[4] == pytest.approx(queries.last[0] + 0.01)
    assert queries.last[:4].max() < queries.first[4]
    assert queries.waiting.tolist() == [0, 1, 2, 3, 4]


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


def test_a_hundred_thousand_queries_take_a_second():
    start = time.process_time()
    point = serving.at_rate(LLAMA, Workload(512, 128, 100_000), 20.0)
    assert time.process_time() - start < 3  # takes 0.3 s on an idle machine
    assert point.is_sustained
    assert point.goodput == (20.0, 20.0)


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
    assert not serving.at_rate(LLAMA, load, 1.03 * highest.rate).meets(objectives)


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


def test_prefills_between_measured_lengths_lie_on_the_line_and_a_bound_is_the_longer_of_bytes_and_operations():
    assert [TIMES.prefill_s(tokens) for tokens in (55, 1, 200)] == pytest.approx([0.055, 0.01, 0.2])
    work = Work(moved=4e12, flops=1e12)
    rates = ((4e12, 1e12), (8e12, 1e12), (4e12, 0.5e12))
    assert [serving.bound_s(work, *rate) for rate in rates] == [1, 1, 2]


def test_percentiles_need_the_queries_that_loadgen_needs():
    assert (queries.queries_needed(0.9), queries.queries_needed(0.99)) == (64, 662)
    assert queries.tail_estimate(range(63), 0.9) is None
    assert queries.tail_estimate(range(64), 0.9) == 63
    assert queries.tail_estimate([], 0.9) is None
    assert queries.percentile_interval(range(300), 0.99) is None
    assert queries.percentile_interval([], 0.5) is None


@pytest.mark.parametrize(("count", "fraction"), [(6, 0.5), (100, 0.9), (368, 0.99), (662, 0.99), (60_000, 0.99)])
def test_the_interval_of_a_percentile_leaves_at_most_a_fortieth_on_each_side(count, fraction):
    """With one value fewer between the bounds, more than a fortieth would lie outside."""
    low, high = queries.percentile_interval(np.arange(1, count + 1), fraction)
    assert binom.cdf(low - 1, count, fraction) <= 0.025 < binom.cdf(low, count, fraction)
    assert binom.sf(high - 1, count, fraction) <= 0.025 < binom.sf(high - 2, count, fraction)


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


def session(arrivals, times, slower=1.0, sizes=(1, 2, 4, 8, 16, 32, 64)):
    """Return a session that takes `slower` times as long as simulated, on a machine with these batch sizes."""
    queries = serving.simulate(times, np.array(arrivals), 512, 128)
    first, last = (
        queries.scheduled + slower * (moments - queries.scheduled) for moments in (queries.first, queries.last)
    )
    moments = {"scheduled": queries.scheduled, "first token": first, "last token": last, "batch sizes": np.array(sizes)}
    observed = [Series(name, "s", tuple(map(float, values)), role="observed") for name, values in moments.items()]
    params = (("weights", "float16"), ("prompt", 512), ("output", 128))
    return timed_case("server", params, (last - queries.scheduled).tolist(), observed=observed)


VIEW = View("serving", "Time to the first token over rate", ("step", "prefill", "server"), by=("weights",))


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
    monkeypatch.setattr("gpubench.analysis.views.served._QUERIES", 1000)


def test_a_view_finds_the_times_of_steps_and_prefills_and_the_rates_that_they_allow():
    (serving_rates,) = served_of(Summary(run_of(*measured())), "inference", VIEW)
    assert serving_rates.times.prefills == LLAMA.prefills
    for batch, line in LLAMA.steps.items():
        assert serving_rates.times.steps[batch].base_s == pytest.approx(line.base_s)
        assert serving_rates.times.steps[batch].token_s == pytest.approx(line.token_s)
    assert (serving_rates.label, serving_rates.load.prompt, serving_rates.load.output) == ("float16", 512, 128)
    assert [serving_rates.points[place].is_sustained for place in (-4, -1)] == [
        True,
        False,
    ]  # 90 and 110 % of the capacity
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


@pytest.mark.usefixtures("few")
def test_a_session_is_shown_beside_its_simulation_and_percentiles_need_enough_queries():
    arrivals = serving.poisson(10, 100, seed=2).tolist()
    views = served_of(Summary(run_of(*measured(), session(arrivals, LLAMA))), "inference", VIEW)
    checks, (latencies,) = views[0].sessions, views[0].latencies
    assert [check.time for check in checks] == ["first token", "per token", "last token"]
    for check in checks:
        assert check.queries == 100
        assert check.p50.error == pytest.approx(0, abs=1e-6)
        assert check.p99 is None
    assert latencies.p90 is not None
    assert latencies.p99 is None
    assert Servings("", tuple(views)).tables[0].title == "Highest rate within the objectives"


@pytest.mark.usefixtures("few")
def test_the_error_of_a_simulation_is_a_figure_with_its_sign_in_the_table_the_page_and_the_json():
    """Each query takes a quarter longer than its simulation says, so that the simulation falls short by a fifth."""
    arrivals = serving.poisson(10, 700, seed=2).tolist()
    run = run_of(*measured(), session(arrivals, LLAMA, slower=1.25))
    (rates,) = served_of(Summary(run), "inference", VIEW)
    *_, last = rates.sessions
    assert (last.p50.error, last.p99.error) == (pytest.approx(-0.2), pytest.approx(-0.2))
    worst, best = last.p99.errors
    assert worst < -0.2 < best < 0
    table = next(candidate for candidate in Servings("", (rates,)).tables if candidate.title.startswith("Simulation"))
    assert [row[2] for row in table.rows] == ["first token", "per token", "last token"]
    assert (table.rows[-1][5], table.rows[-1][8]) == ("-20.0 %", "-20.0 %")
    assert "-20.0 %" in plugins.load("reports", "html").render(run)
    (record,) = json.loads(plugins.load("reports", "json").render(run))["serving"]
    assert record["highest_rates"]["server"] > record["highest_rates"]["interactive"]
    assert record["sessions"][-1]["p99"]["error"] == pytest.approx(-0.2)
    assert record["sessions"][-1]["p99"]["errors"] == pytest.approx([worst, best])


@pytest.mark.usefixtures("few")
def test_a_session_is_compared_with_a_machine_of_its_own_batch_sizes():
    """Four slots: a burst of 16 queries waits longer than on the 64 slots that were measured."""
    small = ServingTimes(LLAMA.prefills, {size: LLAMA.steps[size] for size in (1, 4)})
    (rates,) = served_of(Summary(run_of(*measured(), session([0.1] * 16, small, sizes=(1, 4)))), "inference", VIEW)
    assert [check.p50.error for check in rates.sessions] == pytest.approx([0, 0, 0], abs=1e-6)
    for sizes in ((1, 128), (0, 4)):
        result = session([0.1] * 16, small, sizes=sizes)
        (rates,) = served_of(Summary(run_of(*measured(), result)), "inference", VIEW)
        assert rates.sessions == ()


def call_times(times, prefill_s, step_s):
    """Return a session of all queries at once in batches of 1 and 16, with these extra seconds per call."""
    contexts = {0: 0.0, 1: 550.0, 4: 0.0, 16: 9000.0}
    seconds = [times.prefill_s(512) + prefill_s]
    for size, further_s in step_s.items():
        line = times.steps[size]
        seconds.append(line.base_s + line.token_s * contexts[size] + further_s if further_s is not None else 0.0)
    values = {"batch sizes": tuple(step_s), "call times": seconds, "call contexts": contexts.values()}
    observed = [Series(name, "s", tuple(map(float, values)), role="observed") for name, values in values.items()]
    params = (("weights", "float16"), ("prompt", 512), ("output", 128))
    return timed_case("server", params, [1.0], Work(items=24 * 128), observed)


@pytest.mark.usefixtures("few")
def test_the_extra_time_of_calls_in_other_sessions_is_part_of_the_simulation():
    """Steps of 4 take longer by a value between those of 1 and 16; steps of 64 by that of 16."""
    sessions = [call_times(LLAMA, prefill_s, {1: 1e-4, 4: None, 16: 4e-4}) for prefill_s in (1e-3, 2e-3, 9e-3)]
    longer = LLAMA.longer(2e-3, {1: 1e-4, 4: 1.6e-4, 16: 4e-4, 64: 4e-4})
    arrivals = serving.poisson(10, 100, seed=2).tolist()
    (rates,) = served_of(Summary(run_of(*measured(), *sessions, session(arrivals, longer))), "inference", VIEW)
    assert rates.times.prefills == pytest.approx(longer.prefills)
    assert [rates.times.steps[size].base_s for size in longer.steps] == pytest.approx(
        [line.base_s for line in longer.steps.values()]
    )
    assert [check.p50.error for check in rates.sessions] == pytest.approx([0, 0, 0], abs=1e-6)


@pytest.mark.usefixtures("few")
def test_the_simulation_of_a_session_does_not_use_the_sessions_own_times():
    arrivals = serving.poisson(10, 100, seed=2).tolist()
    compared, with_times = (
        session(arrivals, LLAMA, sizes=(1, 4, 16)),
        call_times(LLAMA, 1e-3, {1: 1e-3, 4: None, 16: 1e-3}),
    )
    series = (*compared.series, *(entry for entry in with_times.series if entry.name.startswith("call")))
    (rates,) = served_of(Summary(run_of(*measured(), replace(compared, series=series))), "inference", VIEW)
    assert rates.times.prefills == LLAMA.prefills
    assert rates.times.steps[16].base_s == pytest.approx(LLAMA.steps[16].base_s)


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
def test_a_session_whose_times_decrease_is_left_out():
    good = session([0.0, 1.0, 2.0], LLAMA)
    series = {entry.name: entry for entry in good.series}
    back = replace(series["scheduled"], values=(0.0, 2.0, 1.0))
    short = replace(series["last token"], values=series["last token"].values[:2])
    for bad in (back, short):
        others = [kept for name, kept in series.items() if name != bad.name]
        (rates,) = served_of(Summary(run_of(*measured(), replace(good, series=(*others, bad)))), "inference", VIEW)
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
    assert [round(point.rate, 1) for _, point in half.knees if point] == [25.7, 23.0]
