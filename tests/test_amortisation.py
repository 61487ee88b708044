"""After how many calls a compiler pays: exact numbers of small runs, the interval, what is left out, every report."""

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import _make as make
import numpy as np
import pytest

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.amortised import Amortisation, calls_to_pay
from gpubench.analysis.views.tables import tables
from gpubench.model import Series, SuiteInfo, View, store

RECORDINGS = Path(__file__).parent / "recordings"
TITLE = "Calls after which compiling pays"
VIEW = View("amortisation", TITLE, ("softmax", "pointwise", "build"), x="chain", by=("by",))


def operator(by, seconds, eager="", name="softmax", series="hot", **params):
    notes = (("eager", eager),) if eager else ()
    case = make.case(name, "compilers", **{**params, "rows": 32, "by": by})
    return make.result(make.timing(*seconds, name=series, moved=1e6), of=case, notes=notes)


def build(by, cache, op="softmax", **seconds):
    """Return a build with the caches in that state, with samples of its times by name."""
    series = [Series(name, "s", tuple(values), role="observed") for name, values in seconds.items()]
    return make.result(*series, of=make.case("build", "compilers", op=op, by=by, cache=cache))


def run_of(*results):
    return make.run(*results, suites=(SuiteInfo("compilers", "several", (VIEW,)),))


def amortisations_of(*results):
    (view,) = Amortisation.of(Summary(run_of(*results)), "compilers", VIEW)
    return list(view.operators)


MEASURED = (
    operator("cupy", [0.003]),
    operator("triton", [0.001], "cupy"),
    build("cupy", "process", compile=[0.5], first=[9.0]),
    build("triton", "process", compile=[1.5], first=[9.0]),
    build("cupy", "warm", compile=[9.0], first=[1.0]),
    build("triton", "warm", compile=[9.0], first=[1.25]),
    build("cupy", "cold", compile=[9.0], first=[2.0]),
    build("triton", "cold", compile=[9.0], first=[5.0]),
)


def test_the_calls_are_the_difference_of_the_costs_over_that_of_the_times_and_the_table_says_so():
    # A running process pays for the compilation, a fresh one for everything until its first result.
    (amortisation,) = amortisations_of(*MEASURED)
    assert (amortisation.by, amortisation.eager, amortisation.operator, amortisation.series) == (
        "triton",
        "cupy",
        "softmax[rows=32]",
        "hot",
    )
    assert amortisation.speedup == pytest.approx(3)
    calls = {paid.cache: paid.calls.centre for paid in amortisation.paid}
    assert calls == pytest.approx({"process": 500, "warm": 125, "cold": 1500})
    assert [paid.calls.centre * amortisation.eager_seconds for paid in amortisation.paid] == pytest.approx(
        [1.5, 0.375, 4.5]
    )
    assert not any(paid.is_bound for paid in amortisation.paid)
    (table,) = tables(Summary(run_of(*MEASURED)), "compilers")
    assert table.title == TITLE
    assert table.rows == (
        (
            *("softmax[rows=32]", "triton", "cuda:0", "cupy", "1.000 ms", "3.000 ms", "3.0×"),
            *(
                "after 500 calls (1.5 s of work)",
                "after 125 calls (375 ms of work)",
                "after 1500 calls (4.5 s of work)",
            ),
        ),
    )


@pytest.mark.parametrize(
    ("costs", "cells"),
    [
        ([1.4998, 1.4999, 1.5], ("after 500 calls (1.5 s of work)", "–", "–")),  # bounds that round to the same text
        ([0.25], ("at once", "–", "–")),
        ([0.25, 0.25, 1.5], ("at once (0 – 500 calls)", "–", "–")),
    ],
)
def test_an_interval_is_given_where_its_bounds_differ_and_a_provider_that_costs_no_more_pays_at_once(costs, cells):
    operators = amortisations_of(*MEASURED[:3], build("triton", "process", compile=costs))
    (table,) = Amortisation(TITLE, tuple(operators)).tables
    assert table.rows[0][-3:] == cells


def test_a_provider_that_is_not_faster_never_pays():
    for seconds in (0.003, 0.004):
        (amortisation,) = amortisations_of(*MEASURED[:1], operator("triton", [seconds], "cupy"), *MEASURED[2:])
        assert {paid.calls.centre for paid in amortisation.paid} == {math.inf}
        (table,) = Amortisation(TITLE, (amortisation,)).tables
        assert table.rows[0][-3:] == ("never", "never", "never")


def test_a_library_or_a_provider_with_a_stream_of_its_own_is_compared_by_the_time_of_the_host():
    # JAX has no stream of ours, so that its calls have no device time.
    host = make.timing(0.004, name="host.host", moved=1e6)
    cupy = make.result(make.timing(0.003), host, of=make.case("softmax", "compilers", rows=32, by="cupy"))
    jax = operator("jax", [0.002], "cupy", series="host.self")
    builds = [build("cupy", "cold", first=[1.0]), build("jax", "cold", first=[2.0])]
    (amortisation,) = amortisations_of(cupy, jax, *builds)
    assert (amortisation.eager_seconds, amortisation.series) == (0.004, "host.self")
    assert amortisation.paid[0].calls.centre == pytest.approx(500)
    slower = make.result(
        make.timing(0.003, name="hot", moved=1e6),
        make.timing(0.005, name="host", moved=1e6),
        of=make.case("softmax", "compilers", rows=32, by="cupy"),
    )
    jax = operator("jax", [0.001], "cupy", series="host")
    (amortisation,) = amortisations_of(slower, jax, build("jax", "cold", first=[4.0]))
    assert (amortisation.series, amortisation.paid[0].calls.centre) == ("host", pytest.approx(1000))


def test_an_eager_library_without_a_measured_cost_gives_an_upper_bound():
    (amortisation,) = amortisations_of(*MEASURED[:2], *MEASURED[3:4])
    (table,) = Amortisation(TITLE, (amortisation,)).tables
    assert table.rows[0][-3] == "after at most 750 calls (2.2 s of work)"


def test_a_provider_is_compared_with_every_eager_one_that_its_note_names_and_that_was_measured():
    torch = operator("torch", [0.002])
    inductor = operator("inductor", [0.001], "torch, cupy, jax")
    builds = [build(by, "cold", first=[cost]) for by, cost in (("cupy", 1), ("torch", 3), ("inductor", 9))]
    amortisations = amortisations_of(*MEASURED[:1], torch, inductor, *builds)
    calls = {amortisation.eager: amortisation.paid[0].calls.centre for amortisation in amortisations}
    assert calls == pytest.approx({"torch": 6000, "cupy": 4000})


def test_an_operator_pays_off_its_own_tuning_against_the_same_tuner_without_effort():
    def tuned(by, seconds, cost):
        result = operator(by, [seconds], "inductor")
        tuning = Series("", "s", (cost,), stage="tuning", mode="self", role="primary")
        return dataclasses.replace(result, series=(*result.series, tuning))

    of = amortisations_of(tuned("inductor", 0.002, 1.0), tuned("max", 0.001, 5.0), tuned("descent", 0.003, 9.0))
    assert {amortised.by: amortised.paid[0].calls.centre for amortised in of} == {"max": 4000, "descent": math.inf}
    assert {amortised.paid[0].cache for amortised in of} == {"cold"}


def test_an_operator_that_is_the_value_of_an_axis_has_the_costs_of_that_value():
    chain = {"name": "pointwise", "chain": "swiglu"}
    times = operator("numpy", [0.02], **chain), operator("numba", [0.01], "numpy", **chain)
    builds = [build("numba", "process", op=op, compile=[cost]) for op, cost in (("swiglu", 1), ("softmax", 7))]
    (amortisation,) = amortisations_of(*times, *builds)
    assert amortisation.paid[0].calls.centre == pytest.approx(100)


def test_operators_of_other_shapes_and_cases_that_failed_are_not_compared():
    other_shape = make.result(make.timing(0.003), of=make.case("softmax", "compilers", rows=64, by="cupy"))
    failed = make.result(of=make.case("softmax", "compilers", rows=32, by="cupy"), status="failed", reason="wrong")
    assert amortisations_of(other_shape, failed, *MEASURED[1:]) == []


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e300])
def test_impossible_times_of_calls_and_builds_are_left_out(wrong):
    (amortisation,) = amortisations_of(*MEASURED[:7], build("triton", "cold", first=[wrong, 5.0]))
    assert [paid.cache for paid in amortisation.paid] == ["process", "warm"]
    assert amortisations_of(operator("cupy", [wrong]), *MEASURED[1:]) == []


def test_replicates_count_by_their_medians():
    results = []
    for replicate, seconds in enumerate((0.001, 0.002, 0.0015)):
        for of in (operator("cupy", [0.0035]), operator("triton", [seconds, seconds, 7.0], "cupy"), *MEASURED[2:4]):
            results += [make.result(*of.series, of=of.case, notes=of.notes, replicate=replicate)]
    (amortisation,) = amortisations_of(*results)
    assert amortisation.seconds == pytest.approx(0.0015)
    assert [amortisation.paid[0].calls.low, amortisation.paid[0].calls.high] == pytest.approx([400, 1 / 0.0015])


def test_the_interval_is_that_of_resampled_medians():
    """The comparison draws every value of a resample."""
    rng = np.random.default_rng(5)
    cost, eager_cost = rng.normal(5, 0.2, 7), rng.normal(2, 0.1, 6)
    seconds, eager_seconds = rng.normal(1, 0.1, 40) * 1e-3, rng.normal(3, 0.2, 31) * 1e-3
    calls = calls_to_pay(cost.tolist(), eager_cost.tolist(), seconds.tolist(), eager_seconds.tolist())
    samples = cost, eager_cost, seconds, eager_seconds
    medians = [np.median(rng.choice(sample, (20_000, len(sample))), axis=1) for sample in samples]
    drawn = (medians[0] - medians[1]) / (medians[3] - medians[2])
    assert [calls.low, calls.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.01)
    assert calls.low < calls.centre < calls.high
    calls = calls_to_pay([5.0], [2.0], [0.9, 1.0, 3.1], [2.0])
    assert (calls.centre, calls.high) == (pytest.approx(3.0), math.inf), "where times overlap it reaches never"
    row = MEASURED[0], operator("triton", [0.0005, 0.001, 0.004], "cupy"), MEASURED[2], MEASURED[3]
    (table,) = Amortisation(TITLE, tuple(amortisations_of(*row))).tables
    assert table.rows[0][-3] == "after 500 calls (1.5 s of work; 400 – never)"


def test_the_page_the_markdown_and_the_json_say_when_it_pays():
    run = run_of(*MEASURED)
    text = "after 500 calls (1.5 s of work)"
    page = plugins.load("reports", "html").render(run)
    assert f"triton (cupy) softmax[rows=32]: in a process that is up {text}" in page
    assert text in plugins.load("reports", "md").render(run)
    (record,) = json.loads(plugins.load("reports", "json").render(run))["amortisation"]
    assert record["pays_after"]["cold"] == {"low": 1500.0, "calls": 1500.0, "high": 1500.0, "is_bound": False}
    hostile = "<script>alert(1)</script>"
    never = operator("triton", [0.5], "cupy"), operator(hostile, [0.5], "cupy"), build(hostile, "cold", first=[9.0])
    page = plugins.load("reports", "html").render(run_of(*MEASURED[:1], *never, *MEASURED[2:]))
    assert "none pays" in page, "the table alone"
    assert hostile not in page


def test_a_spreadsheet_has_a_line_for_each_number_of_calls():
    slow = operator("jax", [0.5], "cupy"), build("jax", "cold", first=[9.0])
    lines = list(csv.DictReader(io.StringIO(plugins.load("reports", "csv").render(run_of(*MEASURED, *slow)))))
    calls = {(line["case"], line["series"]): line["median"] for line in lines if line["unit"] == "call"}
    assert calls == {
        ("compilers/softmax[rows=32,by=triton]", "pays after, in a process that is up, compared with cupy"): "500.0",
        ("compilers/softmax[rows=32,by=triton]", "pays after, from a warm cache, compared with cupy"): "125.0",
        ("compilers/softmax[rows=32,by=triton]", "pays after, from a cold cache, compared with cupy"): "1500.0",
        ("compilers/softmax[rows=32,by=jax]", "pays after, from a cold cache, compared with cupy"): "",
    }


def test_numba_pays_on_a_host_after_the_calls_that_its_samples_give():
    run = store.read_run(RECORDINGS / "host/compilers.jsonl.gz")
    view = next(view for view in run.manifest.suites[0].views if view.kind == "amortisation")
    ((amortisation,),) = (of_view.operators for of_view in Amortisation.of(Summary(run), "compilers", view))

    def median(part, label):
        (result,) = [result for result in run.results if part in result.case.id]
        return np.median(next(series.values for series in result.series if series.label == label))

    gained = median("softmax[rows=2048,cols=4096,dtype=float32,by=numpy]", "hot") - amortisation.seconds
    for paid, label in zip(amortisation.paid, ("compile.self", "first.self", "first.self"), strict=True):
        cost, eager = (median(f"by={by},cache={paid.cache}]", label) for by in ("numba", "numpy"))
        assert paid.calls.centre == pytest.approx((cost - eager) / gained)
        assert paid.calls.low <= paid.calls.centre <= paid.calls.high
    assert [math.ceil(paid.calls.centre) for paid in amortisation.paid] == [3, 2, 7]
