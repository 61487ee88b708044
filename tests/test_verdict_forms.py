"""What gate, compare and history say on every terminal: the verdict first, figures whole, names folded at commas."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import _make as make
import pytest
from _sides import noisy, reading
from rich.console import Console
from test_trend_page import LINE, trend_of

from gpubench import plugins
from gpubench.base.clean import tidy
from gpubench.cli import _findings, _print, compare, history
from gpubench.judging import comparison
from gpubench.judging.answer import answer
from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.finding_text import finding_cells
from gpubench.judging.judge import Judgement, exit_status, settled
from gpubench.judging.policy import Policy
from gpubench.model import Verdict
from gpubench.tools import rendering
from gpubench.tools.gating import readings

RECORDINGS = Path(__file__).parent / "recordings"
LONG = "n" * 200
HEBREW = "מדידה"
CASES = {
    "slow": make.case("a_case", corpus="field", codec="gdeflate", size_bytes=2**28, chunk_bytes=2**16),
    "fine": make.case("copy", size_bytes=2**30),
    "unsure": make.case("unsure", size_bytes=2**20),
    "long": make.case(LONG),
    "hebrew": make.case(HEBREW),
}
CENTRES = {"slow": 1.1, "fine": 1.0001, "unsure": 1.0195, "long": 1.2, "hebrew": 1.3}


def judged(*names, **policy):
    """Return the gate's judgement of these cases; CENTRES has the slow-down of each candidate."""
    before = [reading(noisy(spread=1e-3), of=CASES[name]) for name in names]
    after = [reading(noisy(CENTRES[name], 1.1e-3), of=CASES[name]) for name in names]
    gate = plugins.load("gates", "regression")
    return tidy(settled(gate.judge(Evidence([before]), Evidence([after]), Policy(**policy))))


@pytest.fixture
def lines(monkeypatch, capsys):
    def shown(make_parts, width):
        out = Console(width=width, highlight=False, emoji=False, no_color=True)
        monkeypatch.setattr(_print, "out", lambda: out)
        capsys.readouterr()
        _findings.show(make_parts())
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return shown


def gate_parts(judgement, every=False, wide=False, title="gpubench gate"):
    return _findings.answer_parts(judgement, answer(judgement, exit_status(judgement), title), every, wide)


def is_command(line):
    """Return whether the line is a command by itself, which a terminal wraps so that it can be copied whole."""
    return line.startswith("    gpubench ")


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("width", [40, 80, 100, 140, 1000])
def test_every_figure_of_a_gate_stands_whole_in_a_line_that_fits(lines, width, wide):
    judgement = judged(*CASES)
    printed = lines(lambda: gate_parts(judgement, True, wide), width)
    assert [line for line in printed if len(line) > width and not is_command(line)] == []
    assert printed[0].startswith("SLOWER: 3 of 5 cases are")
    for finding in judgement.findings:
        cells = finding_cells(finding)
        for figure in (cells.before, cells.after, cells.change, cells.interval):
            assert any(figure in line for line in printed), figure
    text = "".join("".join(line.split()) for line in printed)
    assert LONG in text
    assert HEBREW in text


def test_the_table_of_recorded_runs_fits_eighty_columns_with_all_its_figures(lines):
    paths = [RECORDINGS / "longer" / f"{name}.jsonl.gz" for name in ("base", "3")]
    before, after = (Evidence([[reading]]) for reading in readings.read_all(paths))
    judgement = settled(plugins.load("gates", "regression").judge(before, after, Policy()))
    text = lines(lambda: gate_parts(judgement), 80)
    figures = ["753.0", "TFLOP/s", "719.3", "TFLOP/s", "−4.3", "%", "−6.2", "to", "−1.0", "%", "5.1", "%"]
    assert any(line.split() == figures for line in text)
    assert max(len(line) for line in text if not is_command(line)) <= 80


def test_verdict_reasons_and_next_steps_stand_before_the_cases_and_the_worst_case_first(lines):
    text = lines(lambda: gate_parts(judged("fine", "unsure", "slow")), 1000)
    starts = [line.split(" ")[0] for line in text if line and not is_command(line)]
    assert starts == [*("SLOWER:", "-", "-", "next:", "next:", "threshold", "verdict", "slower", "inconclusive", "not")]
    assert "exit status 1: a case is slower" in text[0]
    assert "not listed: 1 passing case; --all lists them" in text


def test_cases_that_pass_are_counted_and_with_all_they_are_listed(lines):
    judgement = judged("fine", "slow")
    assert not any("bandwidth/copy" in line for line in lines(lambda: gate_parts(judgement), 140))
    assert any("bandwidth/copy" in line for line in lines(lambda: gate_parts(judgement, every=True), 140))
    assert lines(lambda: gate_parts(judged("fine")), 80)[0] == (
        "PASSED: none of 1 case is slower (exit status 0: the gate passes)"
    )
    nothing = lines(lambda: gate_parts(Judgement(())), 80)
    assert nothing == ["CANNOT JUDGE: no case has a figure on both sides (exit status 4: the gate cannot", "judge)"]


def test_a_gate_whose_cases_all_failed_names_them(lines):
    failed = reading([1.0] * 5, of=CASES["fine"], status="failed", cause="crash", reason="the worker ended")
    gate = plugins.load("gates", "regression")
    judgement = gate.judge(Evidence([[reading(noisy(), of=CASES["fine"])]]), Evidence([[failed]]), Policy())
    text = lines(lambda: gate_parts(judgement), 80)
    assert text[0] == "FAILED: 1 of 1 case failed (exit status 3: a case failed)"
    assert any("the worker ended" in line for line in text)
    assert "    gpubench run bandwidth --filter 'bandwidth/copy[size=1GiB]'" in text


def test_cases_that_cannot_be_compared_come_last_with_a_reason_in_one_sentence():
    old = [reading(noisy(spread=1e-3), of=CASES[name]) for name in ("slow", "fine")]
    other_version = replace(CASES["fine"], version=2)
    new = [reading(noisy(1.1, 1e-3), of=CASES["slow"]), reading(noisy(spread=1e-3), of=other_version)]
    judgement = plugins.load("gates", "regression").judge(Evidence([old]), Evidence([new]), Policy())
    assert [finding.verdict for finding in judgement.findings][-1] is Verdict.NOT_COMPARABLE
    assert finding_cells(judgement.findings[-1]).change == "–"
    why = answer(judgement, 1, "gpubench gate").reasons
    assert "not comparable: bandwidth/copy[size=1GiB]: case version was 1, is 2" in why


def test_a_right_to_left_name_has_a_line_of_its_own_so_that_no_figure_moves(lines):
    text = lines(lambda: gate_parts(judged("hebrew")), 1000)
    (named,) = [line for line in text if HEBREW in line and line.startswith("slower")]
    assert not re.search(r"\d", named)


# ---- what is not decided


def single(name, seconds, manifest=None, **fields):
    """Return a run with one process of a case whose figure is a rate."""
    result = make.result(make.timing(seconds, moved=1e9), of=make.case("triad"), **fields)
    return replace(Reading.of(make.run(result, **(manifest or {}))), source=name)


def compared(*runs):
    return comparison.compare(runs, lambda _: 0.02)


def test_an_undecided_change_has_neither_colour_nor_a_verb_in_any_form(monkeypatch):
    """13 % with one process on each side: nothing is decided, so nothing is better."""
    comparison = compared(single("a", 1.13e-3), single("b", 1e-3))
    assert [(mean.text, mean.direction) for mean in comparison.against[0].geomeans] == [("+13.0 %", 0)]
    monkeypatch.setattr(_print, "out", lambda: Console(width=100))
    styles = {str(span.style) for part in compare._parts(comparison) for span in getattr(part, "spans", ())}
    assert not styles & {"green", "cyan", "red", "bold red"}
    for form in ("html", "md"):
        body = re.sub(r"<style>.*?</style>", "", rendering.report(form).compare(comparison), flags=re.DOTALL)
        assert "+13.0 %" in body
        assert "13 % better" not in body
        assert 'class="good"' not in body
        assert "effect good" not in body


def test_a_decided_change_of_all_cases_of_a_suite_is_better(monkeypatch):
    before, after = (
        replace(
            Reading.of(
                make.run(
                    *(
                        make.result(make.timing(value, moved=1e9), of=make.case("triad"), replicate=number)
                        for number, value in enumerate(noisy(centre, 1e-3))
                    )
                )
            ),
            source=name,
        )
        for name, centre in (("a", 1.13e-3), ("b", 1e-3))
    )
    comparison = compared(before, after)
    assert [(mean.text, mean.counts) for mean in comparison.against[0].geomeans] == [
        ("13 % better", "1 of 1 case decided")
    ]
    assert 'class="good"' in rendering.report("html").compare(comparison)


def test_chart_and_table_show_one_number_for_a_time_and_for_a_rate():
    """A time that doubles is 2 times in chart and table, not a ratio of 50 %."""

    def run(name, seconds):
        results = [
            make.result(make.timing(value, **more), of=make.case(case), replicate=number)
            for case, more in (("rate", {"moved": 1e9}), ("time", {}))
            for number, value in enumerate(noisy(seconds, 1e-3))
        ]
        return replace(Reading.of(make.run(*results)), source=name)

    page = rendering.report("html").compare(compared(run("a", 1e-3), run("b", 2e-3)))
    drawing = re.search(r"<figure>.*?</figure>", page, re.DOTALL)[0]
    for change in ("2 times", "−50.0 %"):
        assert f"<b>{change}</b>" in page
        assert change in drawing
    assert not re.search(r"\d times as good", page)


@pytest.mark.parametrize("width", [40, 80, 100, 140, 1000])
def test_a_comparison_says_its_verdict_first_and_keeps_every_figure_whole(lines, width):
    paths = [RECORDINGS / "headline" / f"{number}.jsonl.gz" for number in (1, 2)]
    comparison = compared(
        *(replace(reading, source=str(number)) for number, reading in enumerate(readings.read_all(paths)))
    )
    text = lines(lambda: compare._parts(comparison, compare.CaseSelection(every=True)), width)
    assert text[0].startswith("B against A: no case differs by 1 % or")
    assert [line for line in text if len(line) > width and not is_command(line)] == []
    for finding in comparison.against[0].judgement.findings:
        cells = finding_cells(finding)
        for figure in (cells.before, cells.after, cells.change, cells.interval):
            assert any(figure in line for line in text), figure


# ---- the history


@pytest.mark.parametrize("width", [40, 80, 100, 140, 1000])
def test_a_history_lists_what_became_worse_first_and_keeps_every_figure_whole(lines, width):
    named = [replace(LINE, case=case) for case in ("bandwidth/steady", "bandwidth/worse", f"bandwidth/{LONG}")]
    values = ([4.0e12] * 20, [4.0e12] * 10 + [3.8e12] * 10, [4.0e12] * 4)
    trends = [trend_of(medians, line) for line, medians in zip(named, values, strict=True)]
    printed = lines(lambda: history.trend_rows(trends, True, width), width)
    assert [line for line in printed if len(line) > width] == []
    text = "\n".join(printed)
    assert text.index("bandwidth/worse") < text.index("bandwidth/steady")
    assert LONG in "".join("".join(line.split()) for line in printed)
    for figure in ("3800 GB/s", "4000 GB/s", "5.0 % less (worse), 2026-01-12"):
        assert any(figure in line for line in printed), figure


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_bars_of_a_series_fit_the_terminal(monkeypatch, width):
    monkeypatch.setattr(_print, "out", lambda: Console(width=width))
    (bars,) = [text.plain for text in history.trend_lines(trend_of([4.0e12] * 100)) if "▅" in text.plain]
    assert len(bars) <= width
    assert bars.startswith("4000 GB/s ▅")


def test_a_dumb_terminal_keeps_its_width(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert _print.out().width == 40


# ---- the exit status, in every form


def test_verdict_reasons_and_next_step_are_the_same_text_in_every_form(lines):
    judgement = judged("slow", "unsure", "fine")
    gate_answer = answer(judgement, exit_status(judgement), "gpubench gate")
    terminal = "\n".join(lines(lambda: gate_parts(judgement), 1000))
    junit = plugins.load("publications", "junit").render(judgement, gate_answer)
    document = plugins.load("publications", "json").render(judgement, gate_answer)
    markdown = (
        plugins.load("publications", "markdown").render(judgement, gate_answer).replace("\\", "").replace("`", "")
    )
    for form in (terminal, junit, document, markdown):
        assert gate_answer.verdict in form
        assert form.index(gate_answer.verdict) < form.index(gate_answer.next_steps[0].text)
    assert all(sentence in junit for sentence in gate_answer.reasons)
    assert all(sentence in terminal for sentence in gate_answer.reasons)
