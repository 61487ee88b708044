"""What the reports say of a run: golden files, each kind of view, and text that must come out inert."""

import base64
import csv
import dataclasses
import hashlib
import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import _make as make
import pytest

from gpubench import model
from gpubench.model import Case, Device, Result, Run, Samples, Series, SuiteInfo, View, Work
from gpubench.tools import rendering

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ("html", "md", "csv", "json")
KINDS = ("curve", "bars", "matrix", "pareto", "staircase", "transfer")
GPU = Device(
    "cuda:0", "cuda", "Example GPU", "sm_00", memory_bytes=16 * 2**30, units=8, details=(("power limit", "300 W"),)
)
HOST = Device("host", "host", "Example CPU", "x86-64")
GIB = 2**30


def timed(seconds, moved=3.0 * GIB, name="hot", limit="dram", **more):
    values = tuple(seconds * (1 + 0.001 * (index % 5)) for index in range(10))
    return make.timing(*values, name=name, work=Work(moved=moved), quantity="moved", limit=limit, **more)


def value(name, *values, unit="", better="more"):
    return Series(name, unit, values, better=better)


def result(suite, name, params=(), series=(), status="ok", devices=("cuda:0",), **more):
    return Result(Case(suite, name, tuple(params)), devices, status, series=tuple(series), **more)


def run_of(*results, views=(), devices=(GPU,), **more):
    names = tuple(dict.fromkeys(result.case.suite for result in results))
    return Run(
        model.Manifest(
            schema=model.SCHEMA,
            gpubench="0.1.0",
            facts=model.Facts(
                devices,
                (("cpu", "Example CPU"),),
                (("driver", "1.2"),),
                (model.UnavailablePart("rocm", "no AMD device", "install the extra rocm7"),),
            ),
            settings=model.Settings(names, ("cuda:0",)),
            suites=tuple(SuiteInfo(name, f"What {name} measures", tuple(views)) for name in names),
            counters=more.pop("counters", ()),
            argv=("gpubench", "run"),
            started="2026-11-20T09:00:00Z",
            started_at=100.0,
        ),
        tuple(results),
        **more,
    )


def small_run():
    return run_of(
        result(
            "bandwidth",
            "triad",
            (("size_bytes", GIB), ("dtype", "float32")),
            [timed(8e-4, calls=20, stop="interval narrow enough", warmup_s=0.12), timed(9e-4, name="cold")],
            discarded=(("thermal limit", 2),),
            labels=("power-capped",),
            notes=(("clock", "1980 MHz"),),
            window=(100.5, 101.0),
            elapsed_s=0.5,
        ),
        result("bandwidth", "copy", (("size_bytes", GIB), ("dtype", "float32")), [timed(7e-4)], window=(101.2, 101.8)),
        result("bandwidth", "peer", status="skipped", cause="devices", reason="needs 2 devices, here is 1"),
        result("gemm", "square", (("n", 512),), status="failed", cause="wrong", reason="error 0.3 | above 1e-3"),
        views=[View("bars", "STREAM kernels", ("triad", "copy")), View("curve", "Rate over size", ("square",), x="n")],
        counters=(
            make.counter("nvml.power", "W", "gauge", 0.1, "nvidia-smi"),
            make.counter("nvml.energy", "J", "cumulative", 0.1, ""),
        ),
        samples=(
            Samples(
                "nvml",
                "cuda:0",
                tuple(100.5 + 0.1 * index for index in range(13)),
                (
                    ("nvml.power", tuple(300.0 + index for index in range(13))),
                    ("nvml.energy", tuple(30.0 * index for index in range(13))),
                ),
            ),
        ),
    )


def render(kind, run):
    return rendering.report(kind).render(run)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found, self.words, self._inside = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("style", "script"):
            self.words.append(data)

    def count(self, tag, class_=None):
        """Return the number of elements with this tag and, if given, this class."""
        classes = [(attrs.get("class") or "").split() for name, attrs in self.found if name == tag]
        return sum(not class_ or class_ in names for names in classes)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(run):
    return Tags(render("html", run))


def csv_of(run):
    return list(csv.DictReader(io.StringIO(render("csv", run))))


def json_of(run):
    return json.loads(render("json", run), parse_constant=pytest.fail)


def curves(view, points):
    results = (result("suite", *view.cases, params, [timed(seconds)]) for params, seconds in points)
    return run_of(*results, views=[view])


@pytest.mark.parametrize("kind", FORMATS)
def test_the_report_of_a_small_run_equals_the_stored_one(kind):
    written = re.sub(r"<(script|style)>.*?</\1>", r"<\1>…</\1>", render(kind, small_run()), flags=re.DOTALL)
    written = re.sub(r"'sha256-[^']*'", "'sha256-…'", written)
    path = GOLDEN / f"report.{kind}"
    if os.environ.get("GPUBENCH_WRITE_GOLDEN"):
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


def test_a_curve_draws_a_line_for_each_value_of_by_and_sizes_in_binary_units():
    points = [
        ((("size_bytes", 2**power), ("mode", mode)), 1e-4 * power)
        for mode in ("hot", "warm")
        for power in (12, 14, 16, 18)
    ]
    page = page_of(curves(View("curve", "By size", ("chase",), x="size_bytes", by=("mode",), log_x=True), points))
    assert page.count("polyline", "line") == 2
    assert page.count("circle", "c1") == 4 + 1  # the points of the second line and its entry in the legend
    assert {"4KiB", "256KiB", "hot", "warm"} <= set(page.words)


def test_bars_have_their_labels_dots_on_a_logarithmic_scale_and_the_colours_of_by():
    points = [((("size_bytes", GIB), ("dtype", dtype)), 1e-3) for dtype in ("float16", "float32", "float64")]
    page = page_of(curves(View("bars", "Copies", ("copy",)), points))
    assert page.count("rect", "c0") == 3
    assert {"float32", "float64", "size 1GiB"} <= set(page.words)
    points = [((("n", n),), seconds) for n, seconds in enumerate((1e-3, 1e-2, 1.0))]
    page = page_of(curves(View("bars", "Copies", ("copy",), log_x=True), points))
    assert (page.count("rect", "c0"), page.count("circle", "c0")) == (0, 3)
    points = [((("codec", codec), ("data", data)), 1e-3) for codec in ("lz4", "zstd") for data in ("text", "walk")]
    page = page_of(curves(View("bars", "Codecs", ("zip",), by=("data",)), points))
    assert (page.count("rect", "c0"), page.count("rect", "c1")) == (2, 2)
    assert page.count("ul", "legend") == 1


def test_the_labels_of_many_bars_stand_beside_them():
    drawn = [
        render("html", curves(View("bars", "B", ("c",)), [((("n", n),), 1e-3) for n in range(m)])) for m in (14, 15)
    ]
    tall, dense = [float(re.search(r'<svg viewBox="0 0 460 ([\d.]+)" role', page)[1]) for page in drawn]
    assert dense < tall * 0.7


def test_a_view_of_two_units_is_two_charts():
    results = [
        result("ipc", name, (("n", n),), [series])
        for name, series in (("open", value("seconds", 1e-6, unit="s")), ("touch", timed(1e-3)))
        for n in range(3)
    ]
    page = render("html", run_of(*results, views=[View("bars", "Handles", ("open", "touch"))]))
    assert Tags(page).count("figure") == 2
    assert re.findall(r"<title>ipc/(open|touch)", page) == ["open"] * 3 + ["touch"] * 3


def test_series_of_few_points_are_dots_and_a_curve_of_one_point_is_left_out():
    points = [((("n", n), ("dtype", f"d{kind}")), 1e-3) for kind in range(10) for n in range(2 if kind < 9 else 3)]
    page = page_of(curves(View("curve", "Rate", ("c",), x="n", by=("dtype",)), points))
    assert page.count("polyline") == 1, "the series of three points alone, which comes first"
    legend = [attrs["class"] for tag, attrs in page.found if tag == "line" and "x2" in attrs and attrs["x2"] == "18"]
    assert legend == ["line c0", *(f"line c{number} dots" for number in range(1, 10))]
    points = [((("n", 1), ("dtype", dtype)), 1e-3) for dtype in ("float32", "float64")]
    page = page_of(curves(View("curve", "Rate", ("c",), x="n", by=("dtype",)), points))
    assert page.count("figure") == 0
    assert "without a chart" not in page.text


def test_the_figures_of_a_chart_have_the_unit_of_its_axis_and_short_calls_say_so():
    results = [
        result("s", "c", (("n", n),), [value("rate", rate, unit="FLOP/s")]) for n, rate in enumerate((1e14, 5e14, 2e15))
    ]
    page = page_of(run_of(*results, views=[View("bars", "Products", ("c",))]))
    texts = [words for words in page.words if words.endswith("FLOP/s")]
    assert {"100.0 TFLOP/s", "500.0 TFLOP/s", "2000 TFLOP/s", "TFLOP/s"} <= set(texts)
    short = [result("s", "c", (("n", n),), [timed(s, moved=4e6)]) for n, s in enumerate((1e-6, 1e-3, 2e-3))]
    text = page_of(run_of(*short, views=[View("bars", "Reads", ("c",))])).text
    assert "n=0 · 1.0 µs per call" in text
    assert text.count("per call: too short") == 1


def test_a_matrix_has_a_cell_with_its_number_for_every_case():
    points = [((("source", a), ("target", b)), 1e-3 * (a + 2 * b + 1)) for a in range(3) for b in range(3)]
    page = page_of(curves(View("matrix", "Peers", ("peer",), x="target", y="source"), points))
    cells = sum(page.count("rect", f"h{shade}") for shade in range(7))
    numbers = sum(page.count("text", f"t{shade}") for shade in range(7))
    assert (cells, numbers) == (9, 9)
    assert page.count("rect", "h6") == 1
    assert re.search(r"best \S+ GB/s at target 0, source 0", page.text)


def test_ok_replicates_of_a_case_are_one_point_at_the_median_of_their_medians():
    results = [
        result("s", "c", (("n", n),), [value("rate", median)], replicate=replicate)
        for n in (1, 2, 3)
        for replicate, median in enumerate((10.0, 11.0, 30.0))
    ]
    results.append(result("s", "c", (("n", 4),), [value("rate", 9.0)], "invalid"))
    page = render("html", run_of(*results, views=[View("curve", "Rate", ("c",), x="n")]))
    assert re.findall(r"<title>s/c\[n=(\d)\]: (\d+\.\d+)", page) == [("1", "11.00"), ("2", "11.00"), ("3", "11.00")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_without_results_is_left_out(kind):
    view = View(kind, "Nothing", ("other",), x="a", y="b")
    page = page_of(run_of(result("s", "copy", (), [timed(1e-3)]), views=[view]))
    assert "Nothing" not in page.text
    assert page.count("figure") == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", [1.7e308, 5e-324, -1e-200, 0.0, -3.0])
def test_a_view_of_extreme_numbers_does_not_break_the_page(kind, extreme):
    results = [
        result("s", "c", (("n", n), ("m", 10**400)), [value("a", extreme), value("b", 1.0)]) for n in (0, 10**400)
    ]
    views = [
        View(kind, "Extreme", ("c",), x=x, y="b", log_x=log, log_y=log)
        for x in ("n", "a", "m")
        for log in (False, True)
    ]
    assert "s/c" in render("html", run_of(*results, views=views))


def test_the_page_contains_its_style_and_script_and_refers_to_nothing_else():
    page = re.sub(r"<script>.*?</script>", "", render("html", small_run()), flags=re.DOTALL)
    assert not re.search(r"https?://|\bsrc=|\bhref=\"[^#]|url\(|@import", page)
    page = render("html", small_run())
    allowed = f"style-src 'sha256-{digest_of(page, 'style')}'; script-src 'sha256-{digest_of(page, 'script')}'"
    assert policy_of(page) == f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    page = render("html", run_of(result("s", "c", (), [timed(1e-3)])))
    assert Tags(page).count("script") == 1
    assert "uPlot" not in page


def policy_of(page):
    metas = [attrs for tag, attrs in Tags(page).found if tag == "meta"]
    return next(attrs["content"] for attrs in metas if attrs.get("http-equiv") == "Content-Security-Policy")


def digest_of(page, tag):
    inside = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
    return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


def test_the_bundled_script_equals_its_published_version_by_hash_and_has_its_licence():
    folder = Path(__file__).parents[1] / "reports"
    held = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("uplot.js", "uplot.css")}
    record = (folder.parent / "docs/reports.md").read_text()
    assert all(digest in record for digest in held.values())
    assert (folder / "uplot.LICENSE").read_text() in render("html", small_run())


def test_every_drawing_has_a_text_alternative_and_every_table_a_caption():
    page = page_of(small_run())
    drawings = [attrs for tag, attrs in page.found if tag == "svg" and attrs.get("role") == "img"]
    assert len(drawings) == 5  # the timeline of cases, two counters, and the samples of two cases
    assert all(attrs["aria-label"] for attrs in drawings)
    assert page.count("table") == page.count("caption")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_run_without_results_and_a_case_that_failed_in_every_replicate_are_reported_too(kind):
    assert render(kind, run_of())
    lost = [result("s", "c", (), (), "failed", reason="it ended", replicate=index) for index in range(2)]
    assert "it ended" in render(kind, run_of(*lost))
    samples = ((), (1.0, 2.0), (2.0, 3.0))  # one process has none, so that the median is not a number
    assert render(
        kind, run_of(*(result("soak", "memory", (), [value("a", *samples[n])], replicate=n) for n in range(3)))
    )


@pytest.mark.parametrize("kind", ["html", "md"])
def test_the_report_of_a_partial_run_says_that_it_is_partial(kind):
    assert "the run was interrupted before all cases were measured" in render(kind, run_of(complete=False))


def test_a_run_of_failures_alone_is_not_trustworthy_and_names_each_reason_once():
    page = page_of(run_of(*(result("s", "c", (("n", n),), status="failed", reason="crashed") for n in range(9))))
    assert "Trustworthy: no, 1 reason 9 cases failed (no cause given)" in " ".join(page.text.split())
    assert page.count("ul", "tiles") == 0
    assert "9 cases failed: crashed" in page.text
    assert "and 3 more" in page.text


@pytest.mark.parametrize("kind", ["html", "md"])
def test_figures_of_the_host_are_never_shown_as_those_of_a_gpu(kind):
    run = run_of(result("s", "c", (), [timed(1.0)], devices=("host",)), devices=(GPU, HOST))
    assert "these are figures of the host processor, not of a GPU" in Tags(render(kind, run)).text
    assert "figures of the host processor" not in render(kind, small_run())


def test_a_share_above_the_specification_gives_a_warning_and_a_label_in_every_form():
    device = dataclasses.replace(GPU, name="NVIDIA H200")
    run = run_of(result("s", "c", (), [timed(1e-3), timed(1e-4, name="cold")]), devices=(device,))
    page = page_of(run)
    assert "1 case is above-peak, above the peak of the device: the counted work, the timing or" in page.text
    assert "s/c (cold: 669.7 % of peak (data sheet), dram)" in page.text
    assert "Trustworthy: no, 1 reason 1 case above the peak of the device" in " ".join(page.text.split())
    assert any(attrs.get("id") == "s/c" and attrs["class"] == "ok" for _, attrs in page.found)
    assert "above-peak" in render("md", run)
    assert [line["labels"] for line in csv_of(run)] == ["", "above-peak"]
    assert json_of(run)["results"][0]["above_peak"] == ["cold"]


def test_noisy_failed_and_wide_cases_are_told():
    noisy = Series("hot", "s", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    assert "s/c (74.1 %)" in page_of(run_of(result("s", "c", (), [noisy]))).text
    page = render("md", run_of(result("s", "c", (), [timed(1e-3)], status="failed", reason="wrong answer")))
    assert "| `c` | – | – | – | – | – | – | failed: wrong answer |" in page
    page = page_of(run_of(result("s", "c", (), [Series("hot", "s", (1.0, 1.0, 1.0, 1.0, 1.2))])))
    assert "1 case with a 95 % confidence interval within a process wider than ± 5 %" in page.text


def test_a_long_track_is_drawn_with_few_points_and_keeps_its_spike():
    values = tuple(100.0 if index != 4321 else 900.0 for index in range(20_000))
    at = tuple(100.0 + 0.01 * index for index in range(20_000))
    run = run_of(
        result("s", "c", (), [timed(1e-3)]),
        counters=(make.counter("nvml.power", "W", "gauge", 0.01, ""),),
        samples=(Samples("nvml", "cuda:0", at, (("nvml.power", values),)),),
    )
    places = re.search(r'<polyline points="([^"]+)" class="line c0"', render("html", run))[1].split()
    heights = [float(place.split(",")[1]) for place in places]
    assert len(places) <= 600
    assert sum(height == min(heights) for height in heights) == 1


def test_a_case_shows_the_counters_of_its_own_window():
    page = page_of(small_run()).text
    assert "nvml.power cuda:0 302.5 W 300.0 W – 305.0 W 6" in page
    assert "nvml.energy cuda:0 300.0 W" in page


def ladder_run(*more, **fields):
    """Return a run with 16 ns up to 256 KiB and 142 ns beyond, on a device that states its caches."""
    device = dataclasses.replace(GPU, cache_bytes=4 * 2**20, details=(("shared.unit_bytes", str(228 * 1024)),))
    results = [
        result(
            "latency",
            "chase",
            (("size_bytes", 2**power),),
            [
                dataclasses.replace(timed(16e-9 if power <= 18 else 142e-9), quantity="value", limit="", work=Work()),
                value("cycles", 32.0 if power <= 18 else 281.0, unit="cycles", better="less"),
            ],
        )
        for power in range(12, 25)
    ]
    view = View("staircase", "Ladder", ("chase",), x="size_bytes", series="hot", log_x=True, log_y=True)
    return run_of(*results, *more, views=[view], devices=(device,), **fields)


def test_a_staircase_draws_its_levels_and_every_form_lists_them():
    page = page_of(ladder_run())
    assert (page.count("rect", "soft"), page.count("line", "end"), page.count("path", "known")) == (3, 1, 1)
    texts = set(page.words)
    assert {"16.0 ns · 32.0 cycles", "142 ns · 281 cycles", "362 KiB", "shared memory 228 KiB"} <= texts
    assert {"Levels: Ladder, chase", "256 KiB – 512 KiB", "shared memory 228 KiB, × 1.59", "not reached"} <= texts
    drawing = next(attrs for tag, attrs in page.found if tag == "svg" and attrs.get("role"))
    assert "16.03 ns up to 362 KiB, then 142.3 ns" in drawing["aria-label"]
    run = ladder_run()
    written = render("md", run)
    assert "### Levels: Ladder, chase" in written
    assert (
        "| 16.03 ns | 16.03 – 16.03 ns | 32.00 | 4 KiB – 256 KiB (7 points) | 362 KiB | 256 KiB – 512 KiB |" in written
    )
    lines = [line for line in csv_of(run) if line["quantity"] == "derived"]
    assert [line["series"] for line in lines] == [
        *("level 1", "level 1 cycles", "level 1 end", "level 2", "level 2 cycles")
    ]
    assert (lines[2]["unit"], float(lines[2]["low"]), float(lines[2]["high"])) == ("B", 2**18, 2**19)
    (staircase,) = json_of(run)["levels"]
    assert [level["cycles"] for level in staircase["levels"]] == [32.0, 281.0]
    assert staircase["levels"][0]["known"][0]["bytes"] == 228 * 1024
    assert staircase["levels"][1]["end"] is None


def paths_run():
    """Return a run of two engines that cross at 264 kB: 2 µs and 30 GB/s, 6 µs and 55 GB/s."""
    engines = {"kernel": (2e-6, 3e10), "engine": (6e-6, 5.5e10)}
    results = [
        result(
            "link",
            "h2d",
            (("engine", name), ("size_bytes", 2**power)),
            [dataclasses.replace(timed(alpha + 2**power / beta, moved=2.0**power), limit="")],
        )
        for name, (alpha, beta) in engines.items()
        for power in range(3, 31)
    ]
    return run_of(*results, views=[View("transfer", "Engines", ("h2d",), x="size_bytes", by=("engine",))])


def test_a_transfer_view_draws_models_and_crossovers_and_every_form_lists_them():
    page = page_of(paths_run())
    assert (page.count("polyline", "line"), page.count("polyline", "model"), page.count("circle", "ring")) == (2, 2, 1)
    assert "Transfer model: Engines" in page.text
    assert "kernel 8 B – 1 GiB 2.004 µs 29.94 GB/s" in page.text
    assert re.search(r"kernel engine 2\d\d(\.\d)? KiB 128 KiB – 512 KiB 257.8 KiB", page.text)
    run = paths_run()
    assert "| kernel | engine | 2" in render("md", run)
    lines = [line for line in csv_of(run) if line["quantity"] == "derived"]
    assert [line["series"] for line in lines if line["params"] == "kernel"] == [
        *("model alpha", "model beta", "half rate", "residual")
    ]
    assert lines[-1]["series"] == "crossover kernel to engine"
    (transfer,) = json_of(run)["transfers"]
    assert transfer["paths"][1]["pieces"][0]["beta"] == pytest.approx(5.5e10, rel=0.01)
    assert transfer["crossovers"][0]["below"] == "kernel"


def test_a_large_matrix_is_a_map_of_shades_with_a_scale():
    points = [
        ((("unit", unit), ("slice", place)), 1e-9 * (100 + unit % 2 * 50)) for unit in range(40) for place in range(30)
    ]
    page = page_of(curves(View("matrix", "Far", ("far",), x="slice", y="unit"), points))
    assert 0 < sum(page.count("path", f"h{shade}") for shade in range(7)) <= 7
    assert sum(page.count("rect", f"h{shade}") for shade in range(7)) == 7, "the scale alone has rectangles"
    assert "40 × 30 values" in page.text


def test_a_case_whose_series_are_rows_is_a_matrix_of_their_values():
    rows = [
        value(f"unit{unit}", *(200.0 + 10 * unit + place for place in range(64)), unit="cycles") for unit in range(8)
    ]
    view = View("matrix", "Slices", ("slices",), x="line", y="unit", series="unit*")
    page = page_of(run_of(result("latency", "slices", (), [timed(1e-3), *rows]), views=[view]))
    assert "8 × 64 values, 200.0 cycles to 333.0 cycles" in page.text
    assert {"line →", "unit ↓", "7"} <= set(page.words)


def test_json_holds_finite_numbers_only():
    odd = result("s", "c", (), [Series("empty", "s", ())])
    document = json_of(run_of(odd))
    assert document["schema"] == "gpubench.summary/1"
    assert [figure["median"] for figure in document["results"][0]["figures"]] == [None]


def replicated_run():
    """Return two cases in three replicates: one whose processes differ by 10 %, one that crashed once."""
    cases = {"steady": (1e-3, 1e-3, 1e-3), "wide": (0.9e-3, 1e-3, 1.1e-3)}
    results = [
        result(
            "bandwidth",
            name,
            (("n", 1),),
            [value("rate", seconds, seconds, unit="s", better="less"), value("ratio", 2.0 + replicate)],
            replicate=replicate,
            labels=("loaded",) if name == "wide" and replicate == 2 else (),
        )
        for replicate in range(3)
        for name, seconds in ((name, times[replicate]) for name, times in cases.items())
    ]
    lost = result("bandwidth", "steady", (("n", 1),), (), "failed", cause="crash", reason="it ended", replicate=1)
    return run_of(*(lost if result.key == lost.key else result for result in results))


def test_replicates_are_one_row_with_the_noise_within_and_between_processes_in_every_form():
    page = page_of(replicated_run())
    heads = "case median 95 % of processes % of peak of roof noise within process between processes bound by state"
    assert heads in page.text
    wide = page.text[page.text.index("wide [n=1]") :]
    assert re.search(r"1\.000 ms ± 10\.0 % range – – 0\.0 % 10\.0 % – loaded", wide)
    assert "2 ok, 1 failed" in page.text
    assert "Between processes: the standard deviation (n - 1) of the medians" in page.text
    steady, wide = (Tags(part).text for part in render("html", replicated_run()).split('<tr id="')[1:])
    assert "Replicates, each in new processes" in steady
    assert "1 – – – – failed" in steady
    assert "2 1.100 ms" in wide
    assert "ratio 3.000" in wide, "another series is joined as the headline is: 2, 3 and 4"
    written = render("md", replicated_run())
    heads = "case | median | 95 % of processes | % of peak | noise within process | between processes | bound by | also"
    assert f"| {heads} | state |" in written
    rows = [line for line in written.splitlines() if line.startswith(("| `steady[", "| `wide["))]
    assert [row.rsplit(" | ", 4)[1:] for row in rows] == [
        ["–", "–", "ratio 3.000", "2 ok, 1 failed: it ended |"],  # the deviation between two processes is unknown
        ["10.0 %", "–", "ratio 3.000", "loaded |"],
    ]
    lines = csv_of(replicated_run())
    wide = [line for line in lines if line["case"] == "bandwidth/wide[n=1]" and line["series"] == "rate"]
    assert [line["replicates"] for line in wide] == ["3", "3", "3"]
    assert {(float(line["lowest"]), float(line["highest"])) for line in wide} == {(0.9e-3, 1.1e-3)}
    assert {line["replicates"] for line in lines if line["series"] == "ratio"} == {""}
    assert [line["labels"] for line in wide] == ["", "", "loaded"]
    document = json_of(replicated_run())
    steady, wide = document["spreads"]
    assert (steady["case"], steady["replicates"], steady["between"]) == ("bandwidth/steady[n=1]", 2, 0.0)
    assert wide["medians"] == [0.9e-3, 1e-3, 1.1e-3]
    assert (wide["median"], wide["lowest"], wide["highest"]) == (1e-3, 0.9e-3, 1.1e-3)
    assert wide["between"] == pytest.approx(0.1)
    assert json_of(small_run())["spreads"] == []


@pytest.mark.parametrize("kind", ["html", "md"])
def test_the_interval_within_a_process_stands_beside_the_deviation_between_processes(kind):
    case = (("size_bytes", GIB), ("dtype", "float32"))
    device = dataclasses.replace(GPU, name="NVIDIA H200")
    written = render(kind, run_of(result("bandwidth", "triad", case, [timed(1e-3)]), devices=(device,)))
    text = Tags(written).text if kind == "html" else written
    assert "95 % within process" in text
    assert "95 % interval |" not in text
    assert "0.03 % recorded" in text
    assert "Recorded: taken from recordings that gpubench ships, not measured by this run (NVIDIA H200" in text


def test_files_for_programs_have_the_deviation_between_processes_and_its_source():
    case = (("size_bytes", GIB), ("dtype", "float32"))
    device = dataclasses.replace(GPU, name="NVIDIA H200")
    run = run_of(result("bandwidth", "triad", case, [timed(1e-3), timed(2e-3, name="cold")]), devices=(device,))
    hot, cold = csv_of(run)
    assert (float(hot["reproducibility"]), cold["reproducibility"]) == (pytest.approx(0.00028), "")
    assert hot["reproducibility_of"].startswith("NVIDIA H200, 2026-11-20, recordings headline/1")
    deviation = json_of(run)["results"][0]["reproducibility"]
    assert (deviation["between"], deviation["processes"]) == (pytest.approx(0.00028), 48)
    wide = json_of(replicated_run())["results"][-1]["reproducibility"]
    assert (wide["between"], wide["processes"], wide["source"]) == (pytest.approx(0.1), 3, "this run")


def test_labels_stand_beside_the_status_and_the_settings_name_a_headline_run():
    run = run_of(result("s", "c", (), [timed(1e-3)], labels=("power-capped", "loaded")))
    assert "power-capped, loaded" in page_of(run).text
    assert "| power-capped, loaded |" in render("md", run)
    assert csv_of(run)[0]["labels"] == "power-capped;loaded"
    assert json_of(run)["results"][0]["labels"] == ["power-capped", "loaded"]
    run = small_run()
    settings = dataclasses.replace(run.manifest.settings, headline=True)
    headline = dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, settings=settings))
    assert "cases the representative cases of each suite" in page_of(headline).text
    assert "representative cases" not in page_of(run).text


def run_with_events(*values):
    """Return a run whose throttle reasons had these values, a tenth of a second apart."""
    return run_of(
        result("s", "c", (), [timed(1e-3)], window=(100.0, 101.0)),
        counters=(make.counter("nvml.event_reasons", "bit mask", "event", 0.1, ""),),
        samples=(
            Samples(
                "nvml",
                "cuda:0",
                tuple(100.0 + 0.1 * index for index in range(len(values))),
                (("nvml.event_reasons", tuple(map(float, values))),),
            ),
        ),
    )


def test_event_reasons_are_named_lanes_and_a_run_without_them_says_so():
    page = page_of(run_with_events(0, 4, 4, 0, 0x44, 1 << 20, 0, 0))
    assert "power cap in 38 % of the samples; thermal, by hardware in 12 % of the samples; bit 20 in 12 %" in page.text
    assert "nvml.event_reasons cuda:0 power cap, thermal, by hardware, bit 20 – 8" in page.text
    assert (page.count("path", "capped"), page.count("path", "slowed"), page.count("path", "c7")) == (1, 2, 0)
    assert "none in the whole run" in page_of(run_with_events(0, 0, 0)).text


def test_a_case_that_failed_is_a_cross_on_the_timeline_also_where_it_was_never_timed():
    run = small_run()
    timed_out = result("gemm", "late", (), [timed(1e-3)], status="failed", reason="hang", window=(101.3, 101.6))
    page = page_of(dataclasses.replace(run, results=(*run.results, timed_out)))
    assert page.count("path", "failure") == 2
    assert "when each case ran; crosses: 2 failed" in page.text
    assert "gemm/square[n=512] failed: error 0.3 | above 1e-3" in page.text


def test_further_stages_and_observed_values_of_a_case_stand_beside_its_headline():
    measured = result(
        "zip",
        "trip",
        (),
        [
            timed(1e-3, name="compress.hot", limit="", stop="interval"),
            timed(5e-4, name="decompress.hot", limit="", stop="interval"),
            value("ratio", 2.5),
        ],
    )
    text = "decompress 6430 GB/s, ratio 2.500"
    assert text in page_of(run_of(measured)).text
    assert f"| {text} | ok |" in render("md", run_of(measured))
    assert "| `trip compress` | 3215 GB/s |" in render("md", run_of(measured))


def test_a_great_linear_axis_of_bytes_has_one_unit():
    run = run_of(
        result("s", "c", (), [timed(1e-3)]),
        counters=(make.counter("host.memory.available", "B", "gauge", 0.1, ""),),
        samples=(Samples("host", "host", (1.0, 2.0), (("host.memory.available", (124.2 * GIB, 125.3 * GIB)),)),),
    )
    texts = page_of(run).words
    assert {"124GiB", "124.5GiB", "125GiB"} <= set(texts)
