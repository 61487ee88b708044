"""The output of `profile` fits every terminal: numbers stay whole, names fold, phases are rows over the counters."""

import io
import re
from pathlib import Path

import _make as make
import numpy as np
import pytest
from _command import terminal_lines
from rich.cells import cell_len
from rich.console import Console

from gpubench.analysis.summary import Summary
from gpubench.analysis.views.phase_tables import MOST_LANES, phase_lanes, phase_tables, result_lanes
from gpubench.analysis.views.table import Table
from gpubench.base import blocks
from gpubench.cli import profile
from gpubench.model import Case, Samples, Series, store
from gpubench.tools import rendering
from gpubench.tools.profile import traced

RECORDING = Path(__file__).parent / "recordings/h200-profile.jsonl.gz"
TRACED = Path(__file__).parent / "recordings/h200-trace.jsonl.gz"
GIB = 2.0**30


@pytest.fixture(scope="module")
def recorded():
    return store.read_run(RECORDING)


def printed(run, width, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False, **options)
    console.print(*profile.profiled(run, console), sep="\n")
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def spans(case, *times):
    series = Series("time", "s", tuple(end - begin for begin, end in times), at=tuple(begin for begin, _ in times))
    return make.result(series, of=case, window=(times[0][0], times[-1][1]))


def program(*results, end=10.0, memory=(), devices=("cuda:0",)):
    at = tuple((np.arange(len(memory)) * 0.25).tolist())
    sampled = [Samples("program", "host", at, ((traced.MEMORY.name, tuple(memory)),))] if memory else []
    program = spans(Case("profile", "program"), (0.0, end))
    return make.run(program, *results, sampled=sampled, counters=(traced.MEMORY, traced.CPU, make.POWER))


def phase(name, *times):
    return spans(Case("profile", "phase", (("name", name),)), *times)


def cells(run, head):
    (table,) = phase_tables(Summary(run))
    return [row[table.heads.index(head)] for row in table.rows]


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_every_number_of_the_recording_is_unbroken_in_a_terminal_of_any_width(width, recorded):
    lines = printed(recorded, width)
    text = "\n".join(lines)
    assert max(map(cell_len, lines)) <= width
    (table,) = phase_tables(Summary(recorded))
    for place, head in enumerate(table.heads):
        assert head in table.text_heads or all(row[place] in text for row in table.rows), head


def test_a_phase_has_the_memory_of_the_host_and_its_growth_over_all_its_spans():
    memory = [GIB] * 8 + [5 * GIB] * 4 + [3 * GIB] * 28 + [0.0]
    run = program(phase("load", (0.5, 2.8)), phase("rest", (3.0, 9.0)), memory=memory)
    assert cells(run, "host memory") == ["5.000 GiB", "5.000 GiB", "3.000 GiB"]
    assert cells(run, "change") == ["+2.000 GiB", "+3.600 GiB", "0 B"]
    run = program(phase("step", (0.0, 1.0), (2.0, 3.0)), memory=[GIB * (1 + number) for number in range(41)])
    assert cells(run, "change")[1] == "+8.000 GiB"
    assert "host memory" not in phase_tables(Summary(program(phase("step", (0.0, 1.0)))))[0].heads


@pytest.mark.parametrize(
    "name", ["a" * 200, "step of " * 25, "שלום " * 20, "训练" * 60, "x\x1b[31m\nred"], ids=range(5)
)
@pytest.mark.parametrize("width", [40, 80])
def test_a_long_name_is_folded_and_the_numbers_beside_it_stay_whole(name, width):
    lines = printed(program(phase(name, (1.0, 3.5)), memory=[GIB] * 41), width)
    assert max(map(cell_len, lines)) <= width
    assert any(re.search(r"\b1\.00 s\b.*\b2\.50 s\b", line) for line in lines)
    assert "\x1b" not in "".join(lines)


def test_above_the_counters_a_row_for_each_phase_shows_when_it_ran():
    memory = [GIB] * 20 + [2 * GIB] * 21
    run = program(phase("late", (5.0, 10.0)), phase("both", (0.0, 2.5), (7.5, 10.0)), memory=memory)
    drawn = phase_lanes(Summary(run), 8)
    assert [(lane.name, lane.shares) for lane in drawn.lanes] == [
        ("phase both", (1, 1, 0, 0, 0, 0, 1, 1)),
        ("phase late", (0, 0, 0, 0, 1, 1, 1, 1)),
    ]
    (memory_lane,) = drawn.counters
    assert (memory_lane.name, memory_lane.highest) == ("host memory", "2.000 GiB")
    assert memory_lane.fractions == pytest.approx((0.5,) * 4 + (1.0,) * 4)
    lines = printed(run, 60)
    first, second = (next(line for line in lines if line.startswith(name)) for name in ("phase both", "phase late"))
    assert (first.count("█"), second.count("█")) == (pytest.approx(17, abs=1), pytest.approx(17, abs=1))


def test_of_many_phases_the_longest_are_drawn_and_the_others_counted():
    run = program(*(phase(f"p{n}", (n * 0.1, n * 0.1 + 0.01 * (n + 1))) for n in range(20)))
    drawn = phase_lanes(Summary(run), 40)
    assert [lane.name for lane in drawn.lanes] == [f"phase p{n}" for n in range(20 - MOST_LANES, 20)]
    assert drawn.left_out == 20 - MOST_LANES
    assert "8 shorter phases are not drawn; the table has them" in printed(run, 80)
    names = [f"p{n}" for n in range(20 - MOST_LANES, 20)]
    assert list(result_lanes(run.results)) == ["program", *names], "on the page too"
    assert phase_lanes(Summary(make.run(make.result())), 40) is None, "a run of suites has no rows of phases"
    assert blocks.chart((0.0, 0.5, 1.0, None, -3.0, 9.0)) == "▁▅█ ▁█"
    assert blocks.chart((0.0, 1.0), ascii_only=True).isascii()


def test_the_page_on_profiling_shows_what_the_recording_prints(recorded):
    text = "\n".join(f"    {line}".rstrip() for line in printed(recorded, 96))
    assert text in (Path(__file__).parents[1] / "docs/profile.md").read_text()


def test_the_page_on_profiling_shows_what_the_recorded_trace_prints():
    lines = printed(store.read_run(TRACED), 116)
    page = (Path(__file__).parents[1] / "docs/profile.md").read_text()
    text = page.split("h200-trace.jsonl.gz`", 1)[1].split("\n\n    ", 1)[1].split("\n\n| table |")[0]
    text = [line.removeprefix("    ") for line in text.splitlines()]
    assert len(text) > 15
    assert [line for line in text if line not in ("…", *lines)] == []


def test_the_page_draws_a_lane_for_each_phase_over_the_counters():
    both, late = phase("both", (0.0, 2.5), (7.5, 10.0)), phase("late", (5.0, 7.0))
    page = rendering.report("html").render(program(both, late, memory=[GIB] * 20 + [2 * GIB] * 21))
    (drawing,) = re.findall(
        r"<svg[^>]*aria-label=\"When each case ran: program, both, late\".*?</svg>", page, re.DOTALL
    )
    assert len(re.findall(r"profile/phase\[name=both\]: 2\.50 s</title>", drawing)) == 2, "a box each time it came"
    assert re.findall(r">(both|late)</text>", drawing) == ["both", "late"]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_tables_of_a_trace_fold_their_words_and_keep_their_numbers(width):
    kernels = Table(
        "Kernels and copies",
        ("kernel or copy", "device", "calls", "total", "of busy time", "median", "maximum"),
        (
            ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "cuda:0", "41910", "2.731 s", *("68.90 µs",) * 3),
            ("copy h2d, 40.06 GiB", "cuda:1", "1368", "831.1 ms", "3.6 %", "609.0 µs", "1.980 ms"),
        ),
        ("kernel or copy", "device"),
    )
    device = Table(
        "Time of the device",
        ("device", "busy", "launch gaps", "events"),
        (("cuda:0", "23.3 s (68 %)", "3.54 s (10 %)", "689904 kernels, 33143 copies, 12 lost"),),
        ("device", "events"),
    )
    lines = terminal_lines([part for table in (kernels, device) for part in profile._table_parts(table, width)], width)
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    numbers = (cell for row in kernels.rows for cell in row[2:])
    assert all(number in text for number in (*numbers, "23.3 s (68 %)", "3.54 s (10 %)"))
