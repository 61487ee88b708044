"""The output of `run` and `show`: the answer first, then cases by suite that fit every terminal."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import _make as make
import pytest
from _command import gpubench
from _command import terminal_lines as lines
from _files import write
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpubench.analysis.frame import listing
from gpubench.analysis.summary import Summary
from gpubench.cli import _print, _summary
from gpubench.model import store

RECORDINGS = Path(__file__).parent / "recordings"
WHOLE = RECORDINGS / "whole/h200.jsonl.gz"


@pytest.fixture(scope="module")
def whole_run():
    return store.read_run(WHOLE)


@pytest.mark.parametrize("width", [9, 30, 1000])
@pytest.mark.parametrize("title", ["", "title"])
def test_a_table_prints_as_rich_prints_it(width, title):
    rows = [["a", "1.5", Text("two\nlines", "dim")], [Text("漢字\n", "yellow") + Text("dim", "dim"), "", "last"]]
    printed = _print.table(["name", "median\nof all", "end"], rows, title, right=["median\nof all"])
    console = Console(width=width, highlight=False)
    by_rich = "".join(segment.text for segment in Table.__rich_console__(printed, console, console.options))
    assert lines([printed], width) == [line.rstrip() for line in by_rich.splitlines()]


def test_a_run_of_many_warnings_shows_the_first_200():
    text = lines(_summary.run_parts(replace(make.run(), warnings=tuple(map(str, range(300)))), "run.jsonl"), 80)
    assert (text.count("- 199"), text.count("- 200"), text.count("- and 100 more warnings: see the run file")) == (
        1,
        0,
        1,
    )


def show(*arguments):
    """Return what `gpubench show` prints."""
    status, printed, said = gpubench("show", *arguments)
    assert status == 0, said
    return printed


def test_a_whole_run_of_an_h200_is_shown_in_44_lines_with_groups_of_key_figures(whole_run):
    text = lines(_summary.run_parts(whole_run, "run.jsonl"), 80)
    assert len(text) <= 44
    assert text[0] == "NVIDIA H200 (cuda:0), 132 SMs, 139.8 GiB"
    assert max(map(len, text)) <= 80
    table = [" ".join(line.split()) for line in text[text.index("memory") : text.index("trustworthy: yes")]]
    groups = [line for line in table if line in ("memory", "compute", "links", "models")]
    assert groups == ["memory", "compute", "links", "models"]
    assert "Memory read 4692 GB/s ± 0.02 % more 97.8 % 102.0 %" in table
    assert table[3].startswith("Memory latency 351.0 ns ± 0.4 % less ")
    assert table[-1] == "range: ± spans all values, which are fewer than 6"
    assert "trustworthy: yes" in text
    assert text[-1] == "every case: gpubench show run.jsonl --all"


def test_a_run_of_few_cases_lists_them(tmp_path):
    out = show(write(tmp_path / "run.jsonl", make.result(make.timing(*[1e-3] * 8, moved=1e9), of=make.case("copy"))))
    assert "copy  1000 GB/s" in out
    assert "every case" not in out


def test_the_heads_of_tables_are_explained_below_them(whole_run):
    text = " ".join(lines(_summary.cases(Summary(whole_run), ["gemm/"]), 140))
    assert "of peak: share of the named peak" in text
    assert "bound by: what limits it, by its counters" in text
    assert "median loss" not in text  # no table has it


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_every_figure_stands_whole_in_a_line_that_fits(whole_run, width, wide):
    suites = listing(Summary(whole_run), ["gemm/", "bandwidth/", "ipc/"])
    printed = lines([part for suite in suites for part in _summary._suite_parts(suite, wide, width)], width)
    assert max(map(len, printed)) <= width
    text = "\n".join(printed)
    for suite in suites:
        for case in suite.cases:
            assert case.median in text
            assert case.interval in text


@pytest.mark.parametrize("width", [24, 34, 44, 60])
def test_a_name_is_folded_behind_a_comma_and_a_figure_never(width):
    of = make.case("device_copy", engine="bulk-copy", size_bytes=2**28, dtype="float32")
    run = make.run(make.result(make.timing(*[1e-3] * 8, moved=1e9), of=of), make.result(of=make.case("other")))
    (suite,) = listing(Summary(run))
    printed = lines(_summary._suite_parts(suite, False, width), width)
    text = "\n".join(printed)
    assert max(map(len, printed)) <= width
    assert all(word in text for word in ("size=256MiB,", "dtype=float32]", "1000 GB/s"))


def test_axes_that_all_cases_of_a_name_share_stand_in_the_heading():
    results = [make.result(of=make.case("copy", size_bytes=2**size, dtype="float32")) for size in (20, 30)]
    (suite,) = listing(Summary(make.run(*results, make.result(of=make.case("dot", dtype="float32")))))
    assert [case.name for case in suite.cases] == ["copy[size=1MiB]", "copy[size=1GiB]", "dot[dtype=float32]"]
    assert suite.constants == "on cuda:0; dtype=float32 in copy"


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_sum_of_the_host_links_of_two_gpus_is_shown_at_every_width(width):
    run = store.read_run(RECORDINGS / "whole/h200x2.jsonl.gz")
    (suite,) = listing(Summary(run), ["host_link_all*"])
    shown = lines(_summary._suite_parts(suite, False, width), width)
    assert [line for line in shown if line.startswith("  sum ")] == ["  sum 104.4 GB/s", "  sum 102.5 GB/s"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_shares_of_the_roof_are_shown_at_every_width(whole_run, width):
    (suite,) = listing(Summary(whole_run), ["gemm/grouped", "gemm/tall"])
    text = "\n".join(lines(_summary._suite_parts(suite, False, width), width))
    assert "of roof" in text
    assert "47.8 %" in text
    assert "83.9 %" in text


def test_a_misaligned_product_says_so_though_its_id_does_not(whole_run):
    names = {case.case_id: case.name for suite in listing(Summary(whole_run), ["aligned"]) for case in suite.cases}
    assert names["gemm/aligned[n=4097,dtype=bfloat16]"] == "aligned[dtype=bfloat16], misaligned rows"
    results = [make.result(of=make.case("aligned", "gemm", n=n)) for n in (4095, 4096, 4097)]
    (suite,) = listing(Summary(make.run(*results)))
    assert [case.name for case in suite.cases] == [
        "aligned[n=4095], misaligned rows",
        "aligned[n=4096]",
        "aligned[n=4097], misaligned rows",
    ]


@pytest.mark.parametrize(("replicates", "head"), [(1, ("± within", "process")), (3, ("± of", "processes"))])
def test_the_head_of_the_intervals_says_what_they_cover(replicates, head):
    results = [
        make.result(make.timing(1e-3, 1.1e-3, moved=1e9), replicate=index, of=make.case("copy"))
        for index in range(replicates)
    ]
    above, below = lines(_summary.cases(Summary(make.run(*results))), 100)[2:4]
    assert (above.split("  ")[-1].strip(), below.split()[-1]) == head


def test_cases_can_be_filtered_sorted_and_limited_in_number(whole_run):
    summary = Summary(whole_run)
    (suite,) = listing(summary, ["gemm/square*float16"])
    assert {case.case_id.partition("[")[0] for case in suite.cases} == {"gemm/square"}
    noisy = [case for suite in listing(summary, order="noise", top=5) for case in suite.cases]
    assert len(noisy) == 5
    most = max(spread.figure.noise for spread in summary.spreads() if spread.figure)
    assert any(case.within == f"{most * 100:.1f} %" for case in noisy)
    (best,) = [case for suite in listing(summary, order="share", top=1) for case in suite.cases]
    assert best.shares[2] == "100.0 %"
    longest = [suite.name for suite in listing(summary, order="duration", top=3)]
    assert longest


def test_few_samples_have_a_range_and_failed_cases_come_first():
    def interval(count):
        times = (1e-3 + 1e-6 * index for index in range(count))
        (suite,) = listing(Summary(make.run(make.result(make.timing(*times, moved=1e9)))))
        return suite.cases[0].interval

    assert interval(1) == ""
    assert interval(5) == "± 0.2 % range"
    assert interval(6) == "± 0.2 %"
    failed = make.result(status="failed", cause="wrong-answer", reason="1 of 2 elements are wrong")
    text = lines(_summary.run_parts(make.run(failed), "run.jsonl"), 100)
    trust = text.index("trustworthy: no, 1 reason")
    assert text[trust + 1] == "- 1 case failed (wrong answer)"
    assert "- failed: bandwidth/triad: 1 of 2 elements are wrong" in text


@pytest.mark.parametrize("results", [(), (make.result(status="failed", cause="crash"),)], ids=["none", "all failed"])
@pytest.mark.parametrize("width", [40, 80])
def test_a_run_without_any_figure_is_shown_too(results, width):
    text = lines(_summary.run_parts(make.run(*results), "run.jsonl"), width)
    assert any(line.startswith("trustworthy: ") for line in text)


def test_long_and_right_to_left_names_are_shown_and_the_json_is_that_of_the_report():
    name = "א" * 100 + "x" * 100
    text = lines(_summary.cases(Summary(make.run(make.result(of=replace(make.case(), params=(("axis", name),)))))), 80)
    assert "א" in "".join(text)
    assert len(json.loads(show(WHOLE, "--json"))["results"]) == 534


# ---- Standard output: a window is fitted, a pipe is never folded, a full disk is reported in one line.


COMMAND = [sys.executable, "-P", "-m", "gpubench"]
LONG = make.case("device_copy", engine="bulk-copy", size_bytes=2**28, dtype="float32", more="x" * 60)
NAME = LONG.id.removeprefix("bandwidth/")


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "run.jsonl", make.result(make.timing(*[1e-3] * 8, moved=1e9), of=LONG))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file here that is always full")
@pytest.mark.parametrize("arguments", [["show"], ["--version"]], ids=lambda arguments: arguments[0])
def test_a_full_standard_output_is_reported_in_one_line(arguments, file):
    files = {"show": [file], "compare": [file, file]}.get(arguments[0], [])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *files], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == (
        "gpubench: cannot write to standard output: No space left on device; make room or send it elsewhere\n"
    )


def test_an_id_is_never_folded_in_a_pipe(file, call):
    (line,) = [line for line in call("show", file).stdout.splitlines() if line.startswith("device_copy")]
    assert NAME in line
    assert "1000 GB/s" in line


BAD = {
    "truncated": lambda data: data[:200],
    "damaged": lambda data: data.replace(b'"status":"ok"', b'"status":"fine"'),
    "edited": lambda data: data.replace(b"0.001", b"0.002"),
    "foreign": lambda data: b'{"name": "somebody else\'s"}\n',
    "newer": lambda data: data.replace(b"gpubench.run/1", b"gpubench.run/9"),
    "hostile": lambda data: b"[" * 100_000,
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_damaged_file_gives_one_line_and_no_output(bad, file, call):
    wrong = file.with_name("wrong.jsonl")
    wrong.write_bytes(BAD[bad](file.read_bytes()))
    for arguments in (["report", wrong], ["compare", file, wrong]):
        status, printed, said = call(*arguments, "-o", "page.html")
        assert (status, printed) == (5, "")
        assert said.startswith(f"gpubench: {wrong}: line ")
        assert said.count("\n") == 1
        assert sorted(path.name for path in file.parent.iterdir()) == ["run.jsonl", "wrong.jsonl"]
