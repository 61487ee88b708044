"""The content of a page beside its visible part: the results, the cases that unfold, the numbers that zoom."""

import base64
import gzip
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import _make as make
import pytest
from _modules import room_module

from gpubench.analysis.overview import overview
from gpubench.analysis.summary import Summary
from gpubench.model import Case, Device, KeyFigure, SuiteInfo, View, Work, store
from gpubench.tools import enclosing, rendering

EVENTS = make.counter("nvml.event_reasons", "bits", "event", 0.1, "nvidia-smi -q -d PERFORMANCE")


def html():
    return rendering.report("html")


def enclosed(tmp_path, run):
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


def test_a_page_keeps_the_extremes_of_too_many_readings_and_says_so(tmp_path):
    power = [300 + 7 * (index % 91) / (index + 1) for index in range(60_000)]
    sampled = make.samples([0.1 * index for index in range(60_000)], power=power)
    page, file = enclosed(tmp_path, make.run(make.result(series(30)), sampled=[sampled]))
    (kept,) = store.read_run(file).samples
    assert len(kept.at) <= 400
    assert (min(kept.columns[0][1]), max(kept.columns[0][1])) == (min(power), max(power))
    assert f"Of 60000 counter samples, {len(kept.at)} are kept" in page


def test_the_download_of_a_page_is_the_run_and_samples_of_too_many_cases_are_rounded_before_they_are_left_out(
    tmp_path,
):
    run = make.run(make.result(series(30)), sampled=[make.samples([1.0, 2.0], power=[3.0, None])])
    page, file = enclosed(tmp_path, run)
    assert store.read_run(file) == run
    assert "rounded" not in page
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


# ---- The structure of a page: the answer first, everything else folded under a line, a place for each case.


KEY = KeyFigure("Memory read", "read", (("size_bytes", 2**30),))
GIB = 2**30


class PageElements(HTMLParser):
    def __init__(self, run):
        super().__init__()
        self.found, self.words, self._open, self._inside = [], [], [], ""
        self.text = rendering.report("html").render(run)
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.found.append((tag, dict(attrs), tuple(self._open)))
        if tag == "details":
            self._open.append(dict(attrs).get("class", ""))

    def handle_endtag(self, tag):
        if tag == "details":
            self._open.pop()

    def handle_data(self, data):
        if self._inside not in ("style", "script") and data.strip():
            self.words.append(data.strip())

    def attributes(self, tag, name):
        return [attrs[name] for element, attrs, _ in self.found if element == tag and name in attrs]


def read(size_bytes=GIB, seconds=1e-3, suite="mine", name="read", **fields):
    timed = make.timing(*(seconds * factor for factor in (0.999, 1.0, 1.001) * 3), moved=4.6e12 * seconds, limit="dram")
    return make.result(timed, of=make.case(name, suite, size_bytes=size_bytes), **fields)


def run_of(*results, views=(), **fields):
    names = dict.fromkeys(result.case.suite for result in results)
    suites = tuple(SuiteInfo(name, f"what {name} measures", tuple(views), (KEY,)) for name in names)
    return make.run(*results, suites=suites, **fields)


def sizes(**fields):
    return [read(2**power, **fields) for power in (20, 24, 28, 30)]


def test_the_page_begins_with_the_same_summary_as_every_other_form():
    run = run_of(*sizes(), read(suite="ipc", status="failed", reason="wrong answer"))
    summary, page = overview(Summary(run)), PageElements(run)
    head = " ".join(page.words[page.words.index(summary.devices[0]) :])
    value = summary.values[0]
    for text in (
        *summary.devices,
        " · ".join(summary.conditions),
        f"T{summary.brief_trust[1:]}",
        *summary.doubts,
        value.title,
        value.figure.text,
    ):
        assert text in head
    assert "95.8 % of data sheet" in head
    assert head.index("Memory read") < head.index("Trustworthy: no, 1 reason") < head.index("1 case failed")
    assert head.index("1 case failed") < head.index(" 4 ok")
    assert "more is better" in head


def test_each_key_figure_has_a_picture_of_its_samples_on_one_scale():
    def paths(*times):
        timed = make.result(make.timing(*times, moved=1e9), of=make.case("read", "mine", size_bytes=GIB))
        return [path for path in PageElements(run_of(timed)).attributes("path", "d") if path.endswith("0v6")]

    assert paths(*[1e-3] * 9) == ["M50 0v6"]
    (path,) = paths(*[1e-3] * 9, 0.99e-3, 1.2e-3)
    assert [place.split()[0] for place in path.split("M")[1:]] == ["1", "50", "60"]


def test_the_markdown_begins_with_the_same_answer():
    run = run_of(*sizes(), read(suite="ipc", status="failed", cause="hang", reason="no answer"))
    head = rendering.report("md").render(run).partition("\n## ")[0]
    assert "| group | key figure | median | 95 % within process | better | of data sheet |" in head
    assert "| mine | Memory read | **4600 GB/s** | ± 0.1 % | more | 95.8 % |" in head
    assert "**Trustworthy: no, 1 reason**\n\n- 1 case failed (hang)" in head
    assert "| mine | what mine measures | 4 ok |" in head
    assert head.splitlines()[2].startswith("tier quick · 5 cases")


def test_the_contents_and_the_line_of_each_suite_lead_to_its_section():
    page = PageElements(run_of(*sizes(), read(suite="my suite")))
    sections = [id_ for id_ in page.attributes("section", "id") if id_.startswith("suite-")]
    links = page.attributes("a", "href")
    assert sections == ["suite-mine", "suite-my_suite"]
    assert all(links.count(f"#{id_}") == 2 for id_ in sections), "in the contents, and in the table of suites"


def test_each_case_in_a_folded_group_has_a_link_to_its_own_place():
    page = PageElements(run_of(*sizes()))
    rows = [(attrs["id"], inside) for tag, attrs, inside in page.found if tag == "tr" and "id" in attrs]
    assert rows[-1] == ("mine/read[size=1GiB]", ("fold of-cases",))
    assert "#mine/read%5Bsize=1GiB%5D" in page.attributes("a", "href")
    assert not [attrs for tag, attrs, _ in page.found if tag == "details" and "open" in attrs]
    assert "4 cases" in page.words
    devices = [make.device("cuda:0"), make.device("cuda:1")]
    page = PageElements(run_of(*(read(devices=(device.id,)) for device in devices), facts=make.facts(*devices)))
    assert {"mine/read[size=1GiB]@cuda:0", "mine/read[size=1GiB]@cuda:1"} <= set(page.attributes("tr", "id"))
    few, many = (html().render(make.run(*(make.result(of=make.case(n=n)) for n in range(c)))) for c in (40, 41))
    assert (few.count('<div class="more">'), few.count("data-more=")) == (40, 0)
    assert (many.count('<div class="more">'), many.count("<details data-more=")) == (0, 41), "packed"
    assert "<noscript>" in many


def test_charts_of_a_gpu_come_first_and_two_of_a_suite_are_open():
    views = [View("bars", f"Chart {letter}", ("read",)) for letter in "ABCD"]
    page = PageElements(run_of(*sizes(), views=views))
    assert [inside for tag, _, inside in page.found if tag == "figure"] == [(), (), ("fold",), ("fold",)]
    assert "Chart C, Chart D" in page.words
    facts = make.facts(make.device(), make.device("host", "CPU", arch="x86-64"))
    host = [replace(result, case=replace(result.case, name="cores")) for result in sizes(devices=("host",))]
    views = [View("bars", "Of the host", ("cores",)), View("bars", "Of the GPU", ("read",))]
    texts = PageElements(run_of(*host, *sizes(), views=views, facts=facts)).words
    assert texts.index("Of the GPU") < texts.index("Of the host")


def test_warnings_are_unfolded_only_if_something_failed():
    failed = read(suite="ipc", status="failed", reason="no answer")
    for results, is_open in ((sizes(), False), ([*sizes(), failed], True)):
        groups = [attrs for tag, attrs, _ in PageElements(run_of(*results)).found if attrs.get("id") == "notices"]
        assert [group for group in groups if "open" in group] == groups
        assert bool(groups) == is_open


@pytest.mark.parametrize("kind", ["curve", "bars", "staircase", "transfer", "matrix"])
def test_fewer_than_three_points_are_no_chart(kind):
    view = View(kind, "Chart", ("read",), x="size_bytes", y="size_bytes")
    few = PageElements(run_of(*sizes()[:2], views=[view]))
    assert "figure" not in {tag for tag, _, _ in few.found}
    assert "Chart" not in few.words
    assert "figure" in {tag for tag, _, _ in PageElements(run_of(*sizes(), views=[view])).found}


def test_a_peak_is_drawn_only_where_it_holds_and_each_bar_is_marked_with_its_own():
    view = View("curve", "Chart", ("read",), x="size_bytes")
    same = run_of(*sizes(), views=[view])
    unlike = [replace(result, series=(replace(result.series[0], limit="l2"),)) for result in sizes()[:1]]
    assert 'class="peak"' in PageElements(same).text
    assert 'class="peak"' not in PageElements(run_of(*unlike, *sizes()[1:], views=[view])).text
    unlimited = [replace(result, series=(replace(result.series[0], limit=""),)) for result in sizes()[:1]]
    page = PageElements(run_of(*unlimited, *sizes()[1:], views=[View("bars", "Chart", ("read",))]))
    assert page.text.count('class="target"') == 3


def ticks(values, unit, **fields):
    placed = room_module("reports", "_svg").axis(values, unit, 100.0, 400.0, **fields)
    return [label for _, label in placed.ticks], placed.unit


@pytest.mark.parametrize(
    ("low", "high", "unit"),
    [(2e-9, 900e-9, "ns"), (16e-9, 5e-6, "ns"), (2e-6, 9e-3, "µs"), (2e-9, 5e-3, ""), (1.5e-3, 20.0, "")],
)
def test_the_ticks_of_a_logarithmic_axis_are_in_a_unit_that_fits_each_of_them(low, high, unit):
    labels, positions = ticks([low, high], "s", log=True)
    assert positions == unit
    assert all(1 <= float(label.split()[0]) < 10_000 for label in labels), labels


def test_axes_have_the_unit_of_their_greatest_value():
    assert ticks([79.0, 900.0], "W", count=3) == (["0", "500", "1000"], "W")
    assert ticks([0.0, 0.0], "") == (["0", "0.2", "0.4", "0.6", "0.8", "1"], "")
