"""The content of a page beside its visible part: the results, the cases that unfold, the numbers that zoom."""

import base64
import gzip
import json
import random
import re

import _make as make
import pytest

from gpubench.model import Case, Device, Work, store
from gpubench.tools import enclosing, rendering

EVENTS = make.counter("nvml.event_reasons", "bits", "event", 0.1, "nvidia-smi -q -d PERFORMANCE")


def html():
    return rendering.report("html")


def enclosed(tmp_path, run):
    """Return the page of a run that was read from a file, and what can be downloaded from it."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(store.encode_run(run))
    page = html().enclose(run, enclosing.enclosure(run, path))
    name, content = re.search(r'download="([^"]+)" href="data:application/gzip;base64,([^"]+)"', page).groups()
    (tmp_path / name).write_bytes(base64.b64decode(content))
    assert store.file_hash(path) in page
    return page, tmp_path / name


def series(count, seed=0):
    rng = random.Random(seed)
    return make.timing(*(rng.gauss(1e-3, 1e-5) for _ in range(count)), moved=1e9)


def test_the_download_of_a_page_is_the_run(tmp_path):
    run = make.run(make.result(series(30)), sampled=[make.samples([1.0, 2.0], power=[3.0, None])])
    page, file = enclosed(tmp_path, run)
    assert store.read_run(file) == run
    assert "rounded" not in page


def test_a_page_keeps_the_extremes_of_too_many_readings_and_says_so(tmp_path):
    power = [300 + 7 * (index % 91) / (index + 1) for index in range(60_000)]
    sampled = make.samples([0.1 * index for index in range(60_000)], power=power)
    page, file = enclosed(tmp_path, make.run(make.result(series(30)), sampled=[sampled]))
    (kept,) = store.read_run(file).samples
    assert len(kept.at) <= 400
    assert (min(kept.columns[0][1]), max(kept.columns[0][1])) == (min(power), max(power))
    assert f"Of 60000 counter samples, {len(kept.at)} are kept" in page


def test_samples_of_too_many_cases_are_rounded_before_they_are_left_out(tmp_path):
    results = [make.result(series(100, n), of=make.case(n=n)) for n in range(250)]
    page, file = enclosed(tmp_path, make.run(*results))
    kept = store.read_run(file).results[0].series[0].values
    assert kept == pytest.approx(results[0].series[0].values, rel=1e-8)
    assert kept != results[0].series[0].values
    assert "Samples are rounded to 9 digits." in page


def test_a_page_of_very_many_results_contains_their_headline_figures_alone(tmp_path):
    results = [make.result(series(100, n), of=make.case(n=n)) for n in range(2000)]
    page, file = enclosed(tmp_path, make.run(*results))
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert len(lines) == 2001
    assert lines[0] == "case,devices,status,unit,median,low,high,noise,samples"
    assert lines[1].startswith("bandwidth/triad[n=0],cuda:0,ok,B/s,")
    assert "The samples themselves are left out: the run file has" in page


def zoomed(page):
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'id="zoom">([^<]*)<', page)[1])))


def test_a_chart_that_zooms_has_the_numbers_of_its_counter_and_the_spans_of_throttling():
    sampled = make.samples([100.0, 100.1, 100.2, 100.3], power=[300.0, 700.0, 699.0, 310.0], event_reasons=[0, 4, 4, 0])
    run = make.run(make.result(window=(100.1, 100.2)), sampled=[sampled], counters=(make.POWER, EVENTS))
    charts = zoomed(html().render(run))
    assert charts["cases"] == [["bandwidth/triad", 0.1, 0.2]]
    lanes, power, events = charts["charts"]
    assert lanes["bands"] == [["bandwidth", "", [0.1, 0.2]]]
    assert (power["unit"], power["at"], power["values"]) == ("W", [0.0, 0.1, 0.2, 0.3], [300.0, 700.0, 699.0, 310.0])
    assert power["bands"] == events["bands"] == [["power cap", "capped", [0.0, 0.2]]]


def test_the_numbers_of_a_zoomable_chart_are_thinned_to_the_extremes_and_the_page_says_so():
    power = [float(index % 97) for index in range(200_000)]
    sampled = make.samples([0.1 * index for index in range(200_000)], power=power)
    page = html().render(make.run(make.result(window=(1.0, 2.0)), sampled=[sampled]))
    numbers = zoomed(page)["charts"][1]["values"]
    assert len(numbers) <= 60_000
    assert (min(numbers), max(numbers)) == (0.0, 96.0)
    assert f"Zoomed charts leave out {200_000 - len(numbers)} samples" in page


def roofline(*results):
    page = html().render(make.run(*results, facts=make.facts(Device("cuda:0", "cuda", "NVIDIA H200", "sm_90"))))
    return re.search(r'aria-label="Roofline: ([^"]*)".*?</svg>', page, re.DOTALL)


def result_with_work(name, flops, moved, limit, quantity="flops"):
    """Return a result of a millisecond with these operations and bytes moved."""
    work = Work(moved=moved, flops=flops)
    timed = make.timing(1e-3, 1e-3, limit=limit)
    timed = type(timed)("hot", "s", timed.values, work=work, quantity=quantity, limit=limit)
    return make.result(timed, of=Case("gemm", name))


def test_the_roofline_has_every_case_that_declares_operations_and_bytes_under_the_specified_and_the_reached_roofs():
    chart = roofline(
        result_with_work("square", 8e11, 1e9, "tensor.float16"),
        result_with_work("gemv", 4e9, 4e9, "dram", "moved"),
        result_with_work("axpy", 1e9, 4e9, "dram", "moved"),
        result_with_work("read", 0.0, 4e9, "dram", "moved"),
    )
    assert chart[1].startswith("3 cases; tensor.float16 up to 800.0 TFLOP/s; dram up to 4.000 TFLOP/s")
    assert "gemm/square: 800.0 TFLOP/s at 800.0 FLOP/B" in chart[0]
    assert "989 TFLOP/s float16" in chart[0]
    assert "dram 4800 GB/s" in chart[0]
    assert chart[0].count('class="peak roof"') == chart[0].count('class="roof reached"') == 2


def test_the_page_contains_few_cases_unfolded_and_many_packed():
    few, many = (html().render(make.run(*(make.result(of=make.case(n=n)) for n in range(c)))) for c in (40, 41))
    assert (few.count('<div class="more">'), few.count("data-more=")) == (40, 0)
    assert (many.count('<div class="more">'), many.count("<details data-more=")) == (0, 41)
    assert "<noscript>" in many


def test_the_samples_of_a_case_are_drawn_with_their_median():
    page = html().render(make.run(make.result(series(30))))
    assert "30 samples of hot, " in page
