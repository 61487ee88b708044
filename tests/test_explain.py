"""The ladder of a case: those of a recording, synthetic slow-downs on the right rung, and runs that know less."""

import dataclasses
import json
import math
import re
from functools import cache
from pathlib import Path

import _make as make
import cards_table
import pytest

from gpubench.analysis.summary import Summary
from gpubench.base import units
from gpubench.explaining.counterfactuals import MOST_CASES, checked, chosen
from gpubench.explaining.ladder import Ladder, NoLadder
from gpubench.explaining.rungs import Explainer, key_ladders
from gpubench.judging import comparison, evidence, finding_text
from gpubench.knowledge.cards import card_figures, standing
from gpubench.measuring import plan
from gpubench.model import Measure, Settings, Work, store
from gpubench.tools import rendering

RECORDINGS = Path(__file__).parent / "recordings"
H200 = "whole/h200.jsonl.gz"
BF16, FP8 = "gemm/square[dtype=bfloat16,n=8192]", "gemm/square[dtype=float8_e4m3,n=8192]"
TF32, FP64 = "gemm/square[dtype=tf32,n=8192]", "gemm/square[dtype=float64,n=2048]"
READ, SOFTMAX = (
    "bandwidth/read[size=4GiB,dtype=float32]",
    "compilers/softmax[rows=32768,cols=4096,dtype=float16,by=nvrtc]",
)
PREFILL = "inference/prefill[model=llama-3-8b,weights=float16,tokens=2048]"


@cache
def recording(name: str):
    return store.read_run(RECORDINGS / name)


@cache
def explainer(name: str) -> Explainer:
    return Explainer(Summary(recording(name)))


def ladder(run, case_id: str):
    known = explainer(H200) if run is recording(H200) else Explainer(Summary(run))
    (spread,) = (spread for spread in known.summary.spreads() if spread.case.id == case_id)
    return known.ladder(spread)


def factors(found: Ladder) -> dict[str, float]:
    product: dict[str, float] = {"unexplained": found.unexplained}
    for rung in found.rungs:
        product[rung.name] = product.get(rung.name, 1.0) * rung.factor
    return product


def slowed(run, case_id: str, times: float, clock: float = 1.0, extra_s: float = 0.0):
    """Return the run with each sample of a case longer, half as many of them, and the clock after them changed."""
    results = []
    for result in run.results:
        if result.case.id == case_id:
            series = [
                dataclasses.replace(
                    one,
                    values=tuple(value * times + extra_s for value in one.values[:: max(round(times), 1)]),
                    clock_hz=one.clock_hz * clock if one.clock_hz else None,
                )
                if one.role == "primary"
                else one
                for one in result.series
            ]
            result = dataclasses.replace(result, series=tuple(series))
        results.append(result)
    return dataclasses.replace(run, results=tuple(results))


def scaled(run, case_id: str, factor: float, *measures: Measure):
    """Return the run with the readings of counters of these measures changed in the window of a case."""
    begin, end = next(result.window for result in run.results if result.case.id == case_id)
    names = {counter.name for counter in run.manifest.counters if counter.measures in measures}
    samples = []
    for chunk in run.samples:
        inside = [begin <= at <= end for at in chunk.at]
        columns = tuple(
            (
                name,
                tuple(v * factor if v is not None and now else v for v, now in zip(values, inside, strict=True))
                if name in names
                else values,
            )
            for name, values in chunk.columns
        )
        samples.append(dataclasses.replace(chunk, columns=columns))
    return dataclasses.replace(run, samples=tuple(samples))


def lower_clock(run, case_id):
    return scaled(slowed(run, case_id, 1 / 0.9, 0.9), case_id, 0.9, Measure.CORE_CLOCK)


def half_the_blocks(run, case_id):
    return scaled(slowed(run, case_id, 2), case_id, 0.5, Measure.SM_ACTIVITY, Measure.TENSOR_ACTIVITY)


def stalled(run, case_id):
    return scaled(slowed(run, case_id, 1 / 0.7), case_id, 0.7, Measure.TENSOR_ACTIVITY)


def doubled_bytes(run, case_id):
    return slowed(run, case_id, 2)  # the counter sees as many bytes per second as before


def slow_launch(run, case_id):
    """Return the run with empty kernels, the case and its twin by another compiler all longer by nine launches."""
    run = slowed(run, "latency/launch", 10)
    for slower in {case_id, case_id.replace("by=nvrtc", "by=triton")}:
        run = slowed(run, slower, 1, extra_s=9 * 1.261e-6)
    return run


def copied(direction: str, memory: str, size: str) -> str:
    return f"bandwidth/{direction}[memory={memory},size={size}]"


def on(units: int, engine: str = "bulk-copy") -> str:
    return f"bandwidth/device_copy_on[engine={engine},units={units},size=256MiB]"


# The rung that must carry a slow-down; the slow and the fast case are measured, or the slow one is altered.
MEASURED = [
    *(
        ("way", copied(direction, "pageable", size), copied(direction, "pinned", size))
        for direction in ("h2d", "d2h")
        for size in ("64KiB", "1MiB", "256MiB")
    ),
    *(
        ("size", copied(direction, "pinned", size), copied(direction, "pinned", "256MiB"))
        for direction in ("h2d", "d2h")
        for size in ("64KiB", "1MiB")
    ),
    *(("blocks", on(units), on(132, "load-store")) for units in (4, 16)),
    (
        "way",
        "compilers/pointwise[chain=swiglu,rows=32768,cols=4096,dtype=float16,by=cupy-fused]",
        "compilers/pointwise[chain=swiglu,rows=32768,cols=4096,dtype=float16,by=nvrtc]",
    ),
]
ALTERED = [
    *(("clock", lower_clock, case_id) for case_id in (BF16, FP8, TF32, FP64, PREFILL)),
    *(("blocks", half_the_blocks, case_id) for case_id in (BF16, FP8)),
    *(("stalls", stalled, case_id) for case_id in (BF16, FP8)),
    ("traffic", doubled_bytes, READ),
    *(("launch", slow_launch, case_id) for case_id in (SOFTMAX, "gemm/square[dtype=float16,n=2048]")),
]


def carries(rung: str, slow: Ladder, fast: Ladder) -> bool:
    """Return whether a rung carries at least 80 % of a slow-down, and no other one as much as a fifth of it."""
    lost = math.log(slow.whole / fast.whole)
    before, after = factors(fast), factors(slow)
    parts = {
        name: math.log(after.get(name, 1.0) / before.get(name, 1.0)) / lost for name in before.keys() | after.keys()
    }
    return parts[rung] >= 0.8 and all(abs(part) < 0.2 for name, part in parts.items() if name != rung)


@pytest.mark.parametrize(("rung", "slow", "fast"), MEASURED)
def test_a_measured_slow_down_is_on_the_rung_of_its_cause(rung, slow, fast):
    run = recording(H200)
    assert carries(rung, ladder(run, slow), ladder(run, fast))


@pytest.mark.parametrize(("rung", "alter", "case_id"), ALTERED)
def test_an_altered_recording_is_slow_on_the_rung_of_its_cause(rung, alter, case_id):
    run = recording(H200)
    assert carries(rung, ladder(alter(run, case_id), case_id), ladder(run, case_id))


def test_the_synthetic_slow_downs_are_at_least_twenty():
    assert len(MEASURED) + len(ALTERED) >= 20
    assert {rung for rung, *_ in (*MEASURED, *ALTERED)} >= {"clock", "blocks", "traffic", "way", "size", "launch"}


@pytest.mark.parametrize("case_id", [BF16, READ, SOFTMAX, PREFILL, "bandwidth/copy[size=1GiB,dtype=float32]"])
def test_the_rungs_and_the_rest_multiply_to_the_share_of_the_peak(case_id):
    found = ladder(recording(H200), case_id)
    share = next(
        spread.figure.share_of("spec").fraction
        for spread in Summary(recording(H200)).spreads()
        if spread.case.id == case_id
    )
    assert math.prod(factors(found).values()) == pytest.approx(found.whole) == pytest.approx(share)
    assert found.levels[-1] == ("unexplained", found.whole)
    assert all(rung.evidence and rung.deviation >= 0 for rung in found.rungs)


def test_the_large_product_is_explained_to_five_per_cent():
    found = ladder(recording(H200), BF16)
    assert abs(found.unexplained - 1) < 0.05
    assert factors(found) == pytest.approx(
        {"clock": 0.877, "unit": 0.892, "blocks": 0.950, "edges": 0.985, "stalls": 0.970, "unexplained": 1.004},
        abs=5e-4,
    )
    assert "1.605 GHz: power cap of 700 W" in found.rung("clock").evidence
    assert found.rung("clock").together == ("data",)


def test_a_step_that_launches_early_pays_no_launches_and_a_prefill_its_kernels_between_products():
    run = recording(H200)
    step = ladder(run, "inference/step[model=llama-3-8b,weights=float16,batch=1,context=2048]")
    assert "without their launch" in step.rung("weights").evidence
    assert not step.rung("gaps")
    assert (step.rung("weights").factor, step.unexplained) == pytest.approx((0.855, 1.0), abs=1e-3)
    found = ladder(run, PREFILL)
    assert (found.rung("other kernels").factor, found.unexplained) == pytest.approx((0.945, 1.013), abs=1e-3)
    layer = 2 * 12 * 4096 + 4 * 6144 + 2 * 28672 + 2 * 14336  # two norms, the rotation, and the gate of llama-3-8b
    assert f"move {units.round_size(2048 * 32 * layer)} at" in found.rung("other kernels").evidence
    results = [
        dataclasses.replace(result, notes=(*result.notes, ("attention", "another kernel")))
        if result.case.id == PREFILL
        else result
        for result in run.results
    ]
    assert not ladder(dataclasses.replace(run, results=tuple(results)), PREFILL).rung("attention")


def test_the_runs_own_product_of_zeros_separates_the_data_from_the_clock():
    run = recording(H200)
    product = next(result for result in run.results if result.case.id == BF16)
    params = (("data", "zeros"), ("dtype", "bfloat16"), ("n", 8192))
    series = (dataclasses.replace(product.series[0], clock_hz=1.98e9), *product.series[1:])
    zeros = dataclasses.replace(
        product, case=dataclasses.replace(product.case, name="data", params=params), series=series, notes=()
    )
    found = ladder(dataclasses.replace(run, results=(*run.results, zeros)), BF16)
    assert found.rung("data").factor == pytest.approx(1605 / 1980)
    assert found.rung("clock").factor * found.rung("data").factor == pytest.approx(0.8774, abs=1e-4)
    assert found.rung("clock").together == ()


def test_a_run_without_counters_explains_less_and_says_so():
    run = recording(H200)
    bare = ladder(dataclasses.replace(run, samples=()), BF16)
    assert not bare.rung("stalls")
    assert bare.unexplained < ladder(run, BF16).unexplained
    assert "the run has no counters" in bare.missing[0]


def test_without_the_bare_instruction_the_unit_is_unexplained():
    found = ladder(recording(H200), FP8)
    assert found.rung("unit") is None
    assert any("the bare instruction of tensor.float8" in reason for reason in found.missing)


def test_a_clock_that_the_user_has_set_is_the_users_to_win():
    run = recording(H200)
    device = run.manifest.facts.devices[0]
    details = tuple({**dict(device.details), "clock.application_hz": "1500000000"}.items())
    devices = (dataclasses.replace(device, details=details), *run.manifest.facts.devices[1:])
    facts = dataclasses.replace(run.manifest.facts, devices=devices)
    manifest = dataclasses.replace(run.manifest, facts=facts)
    rung = ladder(lower_clock(dataclasses.replace(run, manifest=manifest), FP64), FP64).rung("clock")
    assert ("the user has set the clocks" in rung.evidence, rung.remedy) == (True, "user")


def test_a_small_copy_does_not_stand_for_the_link():
    case = "ipc/pull[path=peer,size=1GiB]"
    assert ladder(recording("h200x2-quick.jsonl.gz"), case).rung("unit") is None


def test_a_card_without_a_data_sheet_has_a_ladder_from_its_nominal_clock_or_a_reason():
    run = recording(H200)
    device = dataclasses.replace(run.manifest.facts.devices[0], name="NVIDIA Unknown")
    facts = dataclasses.replace(run.manifest.facts, devices=(device, *run.manifest.facts.devices[1:]))
    unknown = dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, facts=facts))
    assert "nominal 1.980 GHz" in ladder(unknown, BF16).source
    refused = ladder(unknown, "bandwidth/h2d[memory=pinned,size=256MiB]")
    assert isinstance(refused, NoLadder)
    assert "no data sheet of NVIDIA Unknown" in refused.reason


def test_the_key_figures_of_a_run_have_ladders():
    found = key_ladders(Summary(recording(H200)))
    assert [one.case.partition("[")[0] for _, one in found] == [
        *("bandwidth/read", "bandwidth/copy", "latency/chase", "gemm/square", "gemm/square", "bandwidth/h2d"),
        *("inference/step", "inference/prefill"),
    ]


@pytest.mark.parametrize("name", ["whole/h200x2", "whole/h200-five-suites", "h200-inference", "host/compilers"])
def test_every_case_of_a_recording_has_a_ladder_whose_rungs_lose_no_more_than_the_case_or_a_reason(name):
    summary = Summary(recording(f"{name}.jsonl.gz"))
    explainer = Explainer(summary)
    for spread in summary.spreads():
        found = explainer.ladder(spread)
        assert found.reason if isinstance(found, NoLadder) else found.unexplained < 1.3, spread.case.id


def test_an_imported_figure_cannot_be_explained_and_the_reason_says_why(call, tmp_path):
    call("import", Path(__file__).parent / "imports/babelstream-5.0.txt", "-o", tmp_path / "i.jsonl")
    assert "an imported figure names no peak" in call("explain", tmp_path / "i.jsonl", "Triad").stderr
    assert "has no key figure with a peak" in call("explain", tmp_path / "i.jsonl").stderr


def test_the_peak_of_a_host_is_what_its_vector_units_reached_in_the_same_run():
    timed = {"limit": "float64", "quantity": "flops"}
    square = make.result(
        make.timing(2.0, work=Work(flops=6e9), **timed),
        of=make.case("square", suite="gemm", dtype="float64", n=2048),
        devices=("host",),
    )
    fused = [
        make.result(
            make.timing(seconds, work=Work(flops=6e9), **timed),
            of=make.case("vector_fma", suite="gemm", dtype="float64", bits=512, cores=cores),
            devices=("host",),
        )
        for cores, seconds in ((1, 0.5), (2, 1.0))  # all cores count
    ]
    host = {"facts": make.facts(make.device("host", "AMD EPYC", units=2))}
    alone, beside = (make.run(*results, **host) for results in ((square,), (square, *fused)))
    assert "measure both in one run" in ladder(alone, square.case.id).reason
    found = ladder(beside, square.case.id)
    assert (found.whole, found.source) == (pytest.approx(0.5), fused[1].case.id)


def test_the_page_shows_where_the_peak_of_each_key_figure_goes():
    page = rendering.report("html").render(recording(H200))
    section = page.partition('<section id="peak">')[2].partition("</section>")[0]
    assert section.count("% of the peak</text>") == 7, "and the latency, whose top is the first cache level"
    found = dict(key_ladders(Summary(recording(H200))))
    assert found["GEMM bfloat16"].brief in section
    assert "the user can win it" in section
    bare = dataclasses.replace(recording("host/soak.jsonl.gz"))
    assert 'id="peak"' not in rendering.report("html").render(bare)


def test_the_command_prints_a_case_in_ten_lines(call):
    done = call("explain", str(RECORDINGS / H200), BF16)
    lines = done.stdout.splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith(f"{BF16} on cuda:0: 705.5 TFLOP/s, 71.3 % of 989.0 TFLOP/s")
    assert lines[-1].startswith("unexplained")


def test_the_command_lists_the_key_figures_and_prints_json(call):
    assert len(call("explain", str(RECORDINGS / H200)).stdout.splitlines()) == 9
    (document,) = json.loads(call("explain", str(RECORDINGS / H200), BF16, "--json").stdout)
    assert document["case"] == BF16
    assert [rung["name"] for rung in document["rungs"]] == ["clock", "unit", "blocks", "edges", "stalls"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("square", "11 cases match 'square': name one of"),
        ("nothing-like-it", "no case of this run matches"),
        ("p2p/read*engine*1GiB*", "cannot be explained: needs"),
    ],
)
def test_a_case_that_cannot_be_explained_is_refused_with_a_reason(call, wanted, message):
    done = call("explain", str(RECORDINGS / H200), wanted)
    assert done.returncode == 2
    assert message in done.stderr


# ---- counterfactuals


@cache
def cases_of(tier: str, *suites: str):
    settings = Settings(suites, ("cuda:0",), tier)
    return [job.case for job in plan.make(recording(H200).manifest.facts, settings).jobs]


@pytest.mark.parametrize(
    ("tier", "case_id", "expected"),
    [
        (
            "full",
            BF16,
            {
                "tensor/wgmma[dtype=bfloat16,sums=float32,columns=256,a=shared,wait=late]",
                "gemm/data[data=zeros,dtype=bfloat16,n=8192]",
                "gemm/burst[dtype=bfloat16,shape=6144x5632x8192]",
                "gemm/burst[dtype=bfloat16,shape=8192x8192x8192]",
            },
        ),
        (
            "quick",
            copied("h2d", "pinned", "1MiB"),
            {copied("h2d", "pinned", "256MiB"), copied("h2d", "pageable", "1MiB")},
        ),
        ("quick", on(16), {on(132), "bandwidth/read[size=4GiB,dtype=float32]"}),
    ],
)
def test_the_counterfactual_cases_do_without_one_cause_each(tier, case_id, expected):
    cases = cases_of(tier, "gemm", "tensor", "bandwidth", "latency")
    (case,) = (case for case in cases if case.id == case_id)
    ids = [other.id for other in chosen(case, cases)]
    assert ids[0] == case_id
    assert expected | {"latency/launch"} <= set(ids)
    assert len(ids) == len(set(ids)) <= MOST_CASES


def beside(run, name: str, rate: float, counted_hz: float, **params):
    """Return the run with the large product as another case, at a multiple of its rate and a clock that SMs counted."""
    product = next(result for result in run.results if result.case.id == BF16)
    first = product.series[0]
    case = dataclasses.replace(product.case, name=name, params=tuple(params.items()))
    series = (
        dataclasses.replace(first, values=tuple(value / rate for value in first.values)),
        dataclasses.replace(first, name="clock", unit="Hz", role="derived", values=(counted_hz,)),
    )
    return dataclasses.replace(run, results=(*run.results, dataclasses.replace(product, case=case, series=series)))


def burst_of(rate: float):
    """Return the recording with clocks that SMs counted: 1.44 GHz in the product, 1.62 GHz in a burst at this rate."""
    run = beside(recording(H200), "data", 1, 1.44e9, data="normal", dtype="bfloat16", n=8192)
    return beside(run, "burst", rate, 1.62e9, dtype="bfloat16", shape="8192x8192x8192")


def test_the_bursts_of_an_h200_confirm_the_rungs_of_its_product():
    run = recording("explain.jsonl.gz")
    after, checks = checked(ladder(run, BF16), Summary(run))
    assert [(check.rung, check.verdict) for check in checks] == [
        *(("data", "confirmed"), ("data", "confirmed"), ("edges", "confirmed")),
    ]
    assert factors(after) == pytest.approx(
        {"clock": 1.066, "counted clock": 0.912, "data": 0.806, "unit": 0.999, "blocks": 0.945, "edges": 0.985}
        | {"stalls": 0.970, "unexplained": 1.028},
        abs=1e-3,
    )


def test_the_clock_that_sms_count_is_a_rung_below_the_drivers():
    found = ladder(burst_of(1.125), BF16)
    assert found.rung("counted clock").factor == pytest.approx(1.44 / 1.605)
    assert "SMs counted 1.440 GHz, the driver said 1.605 GHz" in found.rung("counted clock").evidence
    assert found.rung("unit").factor == pytest.approx(0.9994, abs=1e-4), "the instruction by its own cycles"
    assert factors(found)["unexplained"] == pytest.approx(1.004 * 0.8924 / (1.44 / 1.605 * 0.9994), abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "verdict", "left"), [(1.125, "confirmed", 1), (1.05, "corrected", 1.125 / 1.05), (0.9, "corrected", None)]
)
def test_a_rung_that_its_counterfactual_misses_takes_the_measured_factor_and_the_rest_is_unexplained(
    rate, verdict, left
):
    run = burst_of(rate)
    before = ladder(run, BF16)
    after, checks = checked(before, Summary(run))
    (check,) = (check for check in checks if check.rung == "clock")
    assert (check.verdict, check.predicted) == (verdict, pytest.approx(1.62 / 1.44))
    assert check.measured == pytest.approx(rate)
    moved = left or 1 / before.rung("clock").factor  # slower without its cause: nothing of the rung has evidence
    assert after.rung("clock").factor == pytest.approx(before.rung("clock").factor * moved)
    assert after.unexplained == pytest.approx(before.unexplained / moved)
    assert after.whole == before.whole
    assert check.text.endswith("corrected, the rest unexplained" if verdict == "corrected" else "confirmed")


def test_measuring_takes_one_case_and_no_run(call):
    done = call("explain", str(RECORDINGS / H200), BF16, "--measure")
    assert done.returncode == 2
    assert "--measure takes the id of one case and no run file" in done.stderr
    assert "no case of gemm on this machine has the id gemm/none" in call("explain", "gemm/none", "--measure").stderr


# ---- other cards of the model


def test_the_measured_figures_of_cards_are_those_of_the_recordings():
    assert cards_table.TABLE.read_text(encoding="utf-8") == cards_table.text()


def test_every_public_figure_has_an_address_and_a_method():
    public = [figure for figure in card_figures() if figure.rank == "public"]
    common = "H200|H100 80GB|H100 PCIe|A100.*40GB|A100.*80GB|L40S|L4$|RTX 4090|RTX 5090|B200|MI250X|MI300X"
    models = {figure.model for figure in public}
    assert [name for name in common.split("|") if not any(re.search(name, model) for model in models)] == []
    assert all(figure.source.startswith("https://") and figure.method and figure.value > 0 for figure in public)


def test_a_figure_is_compared_with_other_runs_on_its_model():
    copy = "bandwidth/copy[size=1GiB,dtype=float32]"
    values = sorted(figure.value for figure in card_figures() if (figure.rank, figure.case) == ("measured", copy))
    count = len(values)
    best, worst = standing("NVIDIA H200", copy, 1, 9e12, "more"), standing("NVIDIA H200", copy, 1, 1e12, "more")
    assert best.startswith(
        f"as good as {count} of {count} runs on NVIDIA H200 ({count} measured); public: 4010 GB/s by"
    )
    assert worst.startswith(f"as good as 0 of {count} runs")
    assert standing("NVIDIA H200", copy, 1, values[0], "more").startswith(f"as good as 0 of {count - 1} runs"), "itself"
    assert standing("NVIDIA H200", copy, 99, 9e12, "more").startswith("public:")
    assert standing("NVIDIA Unknown", copy, 1, 9e12, "more") == ""
    latency = "latency/chase[size=4GiB]"
    assert standing("NVIDIA H200", latency, 1, 1e-9, "less").split(" runs")[0] != "as good as 0 of 5"


def test_a_contribution_has_no_name_of_its_machine(call, tmp_path):
    done = call("contribute", RECORDINGS / H200, "-o", tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    (contributed,) = json.loads(text)
    facts = recording(H200).manifest.facts
    secrets = {device.uuid for device in facts.devices} | {value for name, value in facts.host if "hostname" in name}
    assert not [secret for secret in secrets if secret in text]
    assert len(text) < 5000
    assert contributed["model"] == "NVIDIA H200"
    assert len(contributed["figures"]) == 8
    assert contributed["run_sha256"] == store.file_hash(RECORDINGS / H200)
    assert "pull request" in done.stderr


def test_a_run_of_the_host_has_nothing_to_contribute(call):
    done = call("contribute", RECORDINGS / "host/compilers.jsonl.gz")
    assert done.returncode == 2
    assert "no key figure of a GPU" in done.stderr


def test_gates_split_a_change_into_the_clock_and_the_rest():
    runs = [store.read_run(RECORDINGS / f"sessions/{number}.jsonl.gz") for number in (1, 2)]
    readings = [evidence.Reading.of(run, str(number)) for number, run in enumerate(runs)]
    (against,) = comparison.compare(readings, lambda _: 0.02).against
    (prefill,) = (found for found in against.judgement.findings if found.case.name == "prefill")
    ((rung, change),) = prefill.parts
    assert (rung, math.expm1(change)) == ("clock", pytest.approx(1590 / 1680 - 1, abs=0.01))
    assert finding_text.attribution(prefill).startswith("clock −4.9 %, rest +")
    (read,) = (found for found in against.judgement.findings if found.case.id == READ)
    assert finding_text.attribution(read) == "", "the memory clock did not change"


@pytest.mark.parametrize(
    ("alter", "text"),
    [(lower_clock, "−10.0 %: clock −10.0 %, rest"), (half_the_blocks, "−50.0 %: blocks −50.3 %, rest")],
)
def test_compare_splits_a_change_into_the_rungs_of_the_case(call, tmp_path, alter, text):
    run = recording(H200)
    for name, written in (("a", run), ("b", alter(run, BF16))):
        (tmp_path / f"{name}.jsonl").write_bytes(store.encode_run(written))
    assert f"{text} " in call("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl").stdout
    assert f"{text} " in call("gate", tmp_path / "b.jsonl", "-b", tmp_path / "a.jsonl", "--all").stdout
