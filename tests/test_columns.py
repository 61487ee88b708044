"""Several runs as columns of one page: environments, machines or days side by side, without a verdict."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import _make as make

from gpubench.judging import comparison
from gpubench.judging.evidence import Reading
from gpubench.model import KeyFigure, SuiteInfo
from gpubench.tools import rendering

KEY = KeyFigure("Memory read", "read", (("size_bytes", 2**30),))


class ParsedTable(HTMLParser):
    """The texts in each row of a page's tables."""

    def __init__(self, page):
        super().__init__()
        self.rows, self._is_cell = [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td") and self.rows:
            self.rows[-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag):
        self._is_cell &= tag not in ("th", "td")

    def handle_data(self, data):
        if self._is_cell and data.strip():
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()


def run(seconds, size_bytes=2**30, more=(), **fields):
    timed = make.timing(*(seconds * factor for factor in (0.999, 1.0, 1.001) * 3), moved=4e9, limit="dram")
    read = make.result(timed, of=make.case("read", "mine", size_bytes=size_bytes))
    suites = (SuiteInfo("mine", "memory bandwidth", key_figures=(KEY,)),)
    return make.run(read, *more, suites=suites, **fields)


def side_by_side(*runs):
    """Return the runs side by side, judged if there are two, as the command `report` does."""
    readings = [Reading.of(run, comparison.letter(index)) for index, run in enumerate(runs)]
    return replace(comparison.beside(readings, (lambda _: 0.02) if len(runs) == 2 else None), runs=runs)


def page(*runs):
    return rendering.report("html").compare(side_by_side(*runs))


def rows_of(*runs):
    return {row[0].removeprefix("# "): row[1:] for row in ParsedTable(page(*runs)).rows if row}


def test_each_key_figure_is_a_row_with_its_change_and_runs_are_judged_where_they_have_cases_in_common():
    rows = rows_of(run(1e-3), run(1.1e-3), run(1e-3))
    assert rows["Memory read"] == [
        "4000 GB/s 83.3 % of data sheet",
        "3636 GB/s -9.1 % 75.8 % of data sheet",
        "4000 GB/s 0.0 % 83.3 % of data sheet",
    ]
    assert rows["read [size=1GiB]"] == ["4000 GB/s", "3636 GB/s -9.1 %", "4000 GB/s 0.0 %"]
    rows = rows_of(timed(1e-3), timed(1.1e-3))
    for title in ("Memory read", "read [size=1GiB]"):
        assert re.fullmatch(r"3\d+ GB/s −9\.1 % \(−9\.\d to −\d\.\d %\) slower", rows[title][1].split(" of data")[0])
    written = rendering.report("md").compare(side_by_side(timed(1e-3), timed(1.1e-3)))
    assert "9.1 % worse; proven: 1 slower (1 of 1 case is decided)**" in written
    nothing = replace(run(1e-3), results=())
    assert "slower" not in rendering.report("md").compare(side_by_side(run(1e-3), nothing))
    rows = rows_of(run(1e-3), run(1e-3, size_bytes=2**28))
    assert rows["Memory read"] == [
        "4000 GB/s 83.3 % of data sheet; mine/read[size=1GiB]",
        "4000 GB/s 83.3 % of data sheet; mine/read[size=256MiB]",
    ]
    assert rows["read [size=256MiB]"] == ["–", "4000 GB/s"]


def timed(seconds):
    """Return a run of one read in five processes, about `seconds` each."""
    reads = [
        make.result(
            make.timing(*(seconds * factor * (1 + replicate / 5000) for factor in (0.999, 1.0, 1.001) * 3), moved=4e9),
            of=make.case("read", "mine", size_bytes=2**30),
            replicate=replicate,
        )
        for replicate in range(5)
    ]
    return make.run(*reads, suites=(SuiteInfo("mine", "memory bandwidth", key_figures=(KEY,)),))


def test_a_failed_case_and_what_differs_in_the_environment_are_told():
    failed = make.result(of=make.case("copy"), status="failed", cause="wrong-answer", reason="off by 3")
    rows = rows_of(run(1e-3, more=[failed]), run(1e-3, more=[replace(failed, status="ok", cause="", reason="")]))
    assert rows["copy"][0] == "failed: wrong answer"
    devices = [make.device(details=(("power.limit_w", f"{watts}.0"),)) for watts in (500, 700)]
    rows = rows_of(*(run(1e-3, facts=make.facts(device)) for device in devices))
    assert rows["power.limit"] == ["500 W", "700 W"]


def test_markdown_has_the_same_columns():
    written = rendering.report("md").compare(side_by_side(run(1e-3), run(1.1e-3), run(1e-3)))
    assert (
        "| Memory read | **4000 GB/s**, 83.3 % of data sheet | **3636 GB/s** (-9.1 %), 75.8 % of data sheet |"
        in written
    )
    assert "| `read[size=1GiB]` | **4000 GB/s** | **3636 GB/s** (-9.1 %) |" in written
