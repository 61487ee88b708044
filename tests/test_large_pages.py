"""The cases that the page of a large run leaves out, and its note on them; a study measures the time."""

import base64
import gzip
import json
import random
import re

import _make as make
import pytest

from gpubench.api.suite import View
from gpubench.model import Case, Counter, SuiteInfo
from gpubench.tools import rendering

MOVED = 1e9


def points(count, **fields):
    """Return results of one case over many sizes, each a little slower than the one before."""
    return [
        make.result(
            make.timing(*(1e-3 + 1e-7 * (index + sample) for sample in range(3)), moved=MOVED),
            of=make.case("triad", size_bytes=1024 + index),
            window=(float(index), index + 0.9),
            **fields,
        )
        for index in range(count)
    ]


def page(*results, views=(), **fields):
    suites = (SuiteInfo("bandwidth", "sustained memory bandwidth", tuple(views)),)
    return rendering.report("html").render(make.run(*results, suites=suites, **fields))


def unfolded(page):
    """Return the content that the script of a page puts beneath its cases."""
    packed = re.search(r'id="details">([^<]*)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.slow
def test_the_page_of_ten_thousand_cases_has_five_megabytes_at_the_most_and_says_what_it_leaves_out():
    views = [View("curve", "Over size", ("triad",), x="size_bytes", log_x=True), View("bars", "All", ("triad",))]
    power = make.samples([0.5 * n for n in range(20_000)], power=[300.0 + n % 7 for n in range(20_000)])
    html = page(*points(10_000), views=views, sampled=[power])
    assert len(html.encode()) < 5e6
    assert len(re.findall(r'<tr id="[^"]+" class="ok">', html)) == 2000
    assert html.count("<details data-more=") == 400
    assert len(unfolded(html)) == 400
    assert "The tables list 2000 of 10000 cases, of which 400 have their details on this page" in html
    assert html.count("2000 of 10000 cases") == 2


def test_a_page_with_many_cases_never_leaves_out_a_failed_one():
    failed = make.result(of=make.case("copy"), status="failed", cause="crash", reason="died")
    both = make.facts(make.device("cuda:0"), make.device("cuda:1"))
    html = page(*points(1100), failed, *points(1100, replicate=1), *points(1100, devices=("cuda:1",)), facts=both)
    place = re.search(
        r'<tr id="bandwidth/copy@cuda:0" class="failed">\s*<th scope="row">.*?<details data-more="(\d+)">', html
    )
    assert "bandwidth/copy" in unfolded(html)[int(place[1])], "and it can be opened"
    assert "The tables list" not in page(*points(100))


def test_of_many_bars_the_outermost_are_drawn_and_cases_too_narrow_are_one_shape_of_the_timeline():
    html = page(*points(200), views=[View("bars", "All", ("triad",))])
    assert "the 20 lowest and the 20 highest of 200" in html
    assert len(re.findall(r'class="value"', html)) == 40
    power = make.samples([0.0, 5000.0], power=[300.0, 301.0])
    html = page(*points(5000), sampled=[power])
    lanes, counter = re.findall(r"<svg.*?</svg>", html)[-2:]
    assert lanes.count("<rect") < 400
    assert re.search(r"triad\[size=\d+B?\] and \d+ more: \d+", lanes)
    assert len(re.search(r'd="([^"]*)" class="band"', counter)[1]) < 100, "all of them follow one another"


@pytest.mark.parametrize(("count", "said"), [(100, True), (400, False)])
def test_the_points_of_a_chart_have_tool_tips_unless_there_are_too_many(count, said):
    html = page(*points(count), views=[View("curve", "Over size", ("triad",), x="size_bytes")])
    drawing = next(svg for svg in re.findall(r"<svg.*?</svg>", html) if "polyline" in svg and "circle" in svg)
    assert drawing.count("<circle") == count
    assert ("<title>" in drawing) == said


def counters(*names):
    return tuple(Counter(f"nvml.{name}", "Hz", "gauge", 0.1, "nvidia-smi") for name in names)


def test_a_counter_that_never_changes_is_named_and_many_counters_share_the_points_of_their_drawings():
    clocks = make.samples([0.0, 1.0, 2.0], still=[3.2e9] * 3, moving=[1e9, 2e9, 1e9])
    html = page(*points(3), sampled=[clocks], counters=counters("still", "moving"))
    assert "<dt>nvml.still</dt><dd>3.200 GHz</dd>" in html
    assert 'aria-label="nvml.still' not in html
    assert 'aria-label="nvml.moving' in html
    rng = random.Random(0)
    at, names = [0.1 * n for n in range(1000)], [f"c{n}" for n in range(80)]
    clocks = make.samples(at, **{name: [rng.random() for _ in at] for name in names})
    html = page(*points(3), sampled=[clocks], counters=counters(*names))
    drawn = [len(points.split()) for points in re.findall(r'<polyline points="([^"]*)"', html)]
    assert len(drawn) == 80
    assert max(drawn) <= 120


def is_dominated(pair, others):
    """Return whether another pair is at least as good in both values and better in one."""
    return any(
        rival[0] >= pair[0] and rival[1] >= pair[1] and (rival[0] > pair[0] or rival[1] > pair[1]) for rival in others
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_line_of_a_pareto_view_joins_exactly_the_cases_that_no_other_dominates(seed):
    rng = random.Random(seed)
    pairs = [(rng.randint(1, 12), rng.randint(1, 12)) for _ in range(40)]
    results = [
        make.result(
            make.timing(float(x), name="x", better="more"),
            make.timing(float(y), name="y", better="more"),
            of=Case("bandwidth", f"c{index}"),
        )
        for index, (x, y) in enumerate(pairs)
    ]
    names = tuple(f"c{index}" for index in range(len(pairs)))
    html = page(*results, views=[View("pareto", "Both", names, x="x", y="y")])
    members = re.search(r"Pareto frontier: ([^\"]*)\"", html)[1]
    assert set(members.split(", ")) == {
        f"c{index}" for index, pair in enumerate(pairs) if not is_dominated(pair, pairs)
    }
