"""The page of trends: its drawings, its policy that allows only its style sheet, and inert text."""

import base64
import dataclasses
import hashlib
import re

import numpy as np
import pytest
from _injections import TOGETHER, poisoned
from test_reports import Tags

from gpubench.analysis import trend
from gpubench.analysis.fingerprint import Fingerprint
from gpubench.analysis.sparkline import sparkline
from gpubench.stats import Interval
from gpubench.tools import rendering, sharing

H200 = Fingerprint((("model", "NVIDIA H200"), ("units", "132")))
LINE = trend.Line("bandwidth/triad[size=1GiB]", 1, "quick", "hot", "B/s", "more", ("cuda:0",), H200)
DAY_S = 86400.0
FIRST = 1767322800.0  # 2026-01-02 03:00 UTC


def trend_of(values, line=LINE, every_s=DAY_S, width=0.001, **versions):
    """Return a trend of these medians, a run a day; from the 10th on with these versions."""
    points = [
        trend.TrendPoint(
            trend.RunSource(
                f"{index:03}",
                f"/home/me/runs/{index:03}.jsonl",
                FIRST + every_s * index,
                "node7",
                tuple(versions.items()) if index >= 10 else (("cublas", "13.1"),),
            ),
            0,
            Interval(value * (1 - width), value, value * (1 + width)),
            0.001,
            100,
            ("power-capped",),
        )
        for index, value in enumerate(values)
    ]
    return trend.Trend.of(line, points)


def page_of(*trends):
    return rendering.report("html").trends(trends)


STEP = trend_of([4.0e12] * 10 + [3.8e12] * 10, cublas="13.2")


def test_a_change_is_marked_in_the_drawing_and_described_in_text_above_the_list_of_runs():
    page = Tags(page_of(STEP))
    assert (page.count("line", "change"), page.count("circle", "bad"), page.count("line", "level")) == (1, 1, 2)
    assert "2026-01-12 03:00 5.0 % less (worse) 4000 GB/s 3800 GB/s cublas 13.1 → 13.2" in page.text
    row = "2026-01-21 03:00 3800 GB/s 3796 – 3804 GB/s 1 power-capped 019.jsonl 2026-01-20 03:00"
    assert row in page.text, "the newest first, with its interval and labels"
    (label,) = (attrs["aria-label"] for tag, attrs in page.found if tag == "svg")
    assert label == (
        "bandwidth/triad[size=1GiB]: 20 runs from 2026-01-02 03:00 to 2026-01-21 03:00, "
        "newest 3800 GB/s; 1 step, 0 drifts"
    )


def test_two_states_and_a_level_seen_before_are_told_instead_of_steps():
    values = [4.0e12, 3.99e12] * 5 + [3.8e12, 3.79e12] * 5
    states = trend_of([*values, *values])
    assert (states.state, states.changes, states.states[0].switches) == ("two states", (), (10, 20, 30))
    page = Tags(page_of(states))
    assert (page.count("line", "change"), page.count("line", "level")) == (0, 4)
    assert "Two states, 3795 GB/s and 3995 GB/s: 3 switches in 40 runs, the last 10 at 3795 GB/s." in page.text
    assert sparkline(states, 40)[1] == "=" * 40
    returned = trend_of([4.0e12] * 10 + [3.8e12] * 10 + [4.0e12] * 10, cublas="13.1")
    assert [change.note for change in returned.changes] == ["perhaps a second state", "a level seen before"]
    assert "5.3 % more (better), a level seen before" in Tags(page_of(returned)).text
    assert STEP.changes[0].note == "", "cuBLAS differs, which explains the step"
    page = Tags(page_of(trend_of([2e-6] * 10 + [1e-6] * 10, dataclasses.replace(LINE, unit="s", better="less"))))
    assert (page.count("circle", "good"), "50.0 % less (better)" in page.text) == (1, True), "of a time"


def drifting_values(count, total, seed=2):
    noise = np.random.default_rng(seed).normal(0, 0.003, count)
    return [float(value) for value in 1e12 * (np.linspace(1, 1 + total, count) + noise)]


def test_a_drift_is_drawn_as_a_sloped_line_and_described_with_its_rate():
    drifting = trend_of(drifting_values(60, -0.02))
    assert (drifting.state, drifting.changes, len(drifting.drifts)) == ("changed", (), 1)
    page = Tags(page_of(drifting))
    assert page.count("line", "level") == 1
    assert re.search(r"drift, [12]\.\d % less over 60 runs \(worse\)", page.text)
    assert re.search(r"0\.3\d % less every 10 runs, 95 % interval 0\.\d+ % – 0\.\d+ %", page.text)
    assert sparkline(drifting, 30)[1] == "~" * 30


def test_a_drift_begins_without_a_step_and_its_interval_covers_the_true_slope():
    (drift,) = trend_of(drifting_values(60, 0.06)).drifts
    assert drift.rate.low < 0.06 / 59 * 10 < drift.rate.high
    assert not drift.is_worse
    assert drift.text.startswith("drift, ")
    values = drifting_values(40, 0.0) + [
        value * (1 + 0.1 * index / 40) for index, value in enumerate(drifting_values(40, 0.0, seed=3))
    ]
    late = trend_of(values)
    assert (len(late.drifts), late.changes) == (1, ())
    assert late.newest_event == late.drifts[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "too few runs to tell a change: 1 of at least 9"),
        ([1.0, 2.0], "too few runs to tell a change: 2 of at least 9; newest 100.0 % more than the run before"),
        (
            [4e12] * 4 + [2e12],
            "too few runs to tell a change: 5 of at least 9; newest 50.0 % less than the median of the 4 runs before",
        ),
        ([1.0] * 9, "no change in 9 runs; newest equals the median of the 8 runs before"),
    ],
)
def test_a_trend_without_a_change_says_why_and_where_its_newest_run_stands(values, message):
    assert trend_of(values).state_text == message
    assert message.lower() in Tags(page_of(trend_of(values))).text.lower()


def test_several_trends_are_listed_first_with_links_to_each():
    second_trend = trend_of([1e-6] * 9, dataclasses.replace(LINE, case="latency/launch", unit="s", better="less"))
    page = Tags(page_of(STEP, second_trend))
    links = [attrs["href"] for tag, attrs in page.found if tag == "a"]
    assert links == ["#trend-1", "#trend-2"]
    assert {attrs.get("id") for tag, attrs in page.found if tag == "h2"} == {"trend-1", "trend-2"}
    assert "latency/launch 9 1.000 µs no change" in page.text
    assert [tag for tag, _ in Tags(page_of(STEP)).found if tag == "a"] == []
    assert "03:10" in Tags(page_of(trend_of([1e12] * 9, every_s=600))).text, "runs of one day have their hour"


@pytest.mark.parametrize("values", [[1e12], [1e12, 2e12], [1e12] * 9, [0.0, 1e-30, 1e30], [-1.0, 2.0]])
def test_few_equal_and_extreme_values_are_drawn(values):
    page = page_of(trend_of(values))
    assert "nan" not in page.lower()
    assert Tags(page).count("svg") == 1


def test_a_long_trend_is_small_and_only_its_last_runs_have_changes():
    values = [4e12 * (1 + 0.001 * (index % 7)) for index in range(300)] + [3e12] * 100
    page = page_of(trend_of(values))
    assert Tags(page).count("circle") == 1
    assert len(page) < 120_000
    values = [1.0] * 100 + [2.0] * trend.MOST_JUDGED
    assert trend_of(values).changes == ()
    assert trend_of(values[50:]).changes == ()
    assert [change.index for change in trend_of(values[100 - 50 : 100 + 50]).changes] == [50]


def test_anonymising_removes_hosts_and_folders_from_a_trend():
    hosts = [dataclasses.replace(moment.source, host=f"node{index // 10}") for index, moment in enumerate(STEP.moments)]
    points = [
        trend.TrendPoint(source, 0, moment.interval, 0.0, 9) for source, moment in zip(hosts, STEP.moments, strict=True)
    ]
    named = trend.Trend.of(LINE, points)
    assert named.changes[0].differences == ("cublas 13.1 → 13.2", "host node0 → node1")
    (shared,) = sharing.shared((named,), b"salt")
    assert [change.differences for change in sharing.shared((STEP,), b"salt")[0].changes] == [("cublas 13.1 → 13.2",)]
    first, other = (shared.moments[index].source.host for index in (0, -1))
    assert shared.changes[0].differences == ("cublas 13.1 → 13.2", f"host {first} → {other}")
    assert first != other
    assert not re.search("node[01]|/home", repr(shared))


@pytest.mark.parametrize("text", TOGETHER)
def test_injected_text_is_inert_in_the_page_of_trends(text):
    page, plain = (Tags(page_of(*[poisoned(STEP, words)] * 2)) for words in (text, "plain"))
    assert {tag for tag, _ in page.found} <= {"wbr", *(tag for tag, _ in plain.found)}
    assert not {name for _, attrs in page.found for name in attrs if name.startswith("on") or name in ("style", "src")}
    assert {attrs["href"] for tag, attrs in page.found if tag == "a"} == {"#trend-1", "#trend-2"}
    assert page.count("style") == 1


def test_the_page_allows_its_own_style_sheet_and_nothing_else():
    page = page_of(STEP)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert f'content="{policy}"' in page
    assert not re.search(r"<(script|link|img|iframe)|url\(|https?:", page)


@pytest.mark.parametrize(
    ("values", "width", "bars", "marks"),
    [
        ([1.0], 10, "▅", ""),
        ([1.0, 1.0, 1.0], 10, "▅▅▅", ""),
        ([0.0, 1.0, 7.0], 10, "▁▂█", ""),
        ([0.0, 0.0, 1.0, 1.0], 2, "▁█", ""),
        ([1.0] * 10 + [2.0] * 10, 60, "▁" * 10 + "█" * 10, " " * 10 + "^"),
        ([1.0] * 10 + [2.0] * 10, 10, "▁" * 5 + "█" * 5, " " * 5 + "^"),
    ],
)
def test_a_sparkline_has_a_bar_per_run_and_marks_the_changes(values, width, bars, marks):
    assert sparkline(trend_of(values), width) == (bars, marks)
