"""Runs side by side: what differs, what changed, what can be told; and every form of it."""

import base64
import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path

import _make as make
import pytest
from _files import write

from gpubench.judging import comparison
from gpubench.judging.evidence import Reading
from gpubench.judging.finding_text import finding_cells
from gpubench.model import store
from gpubench.tools import rendering

RECORDINGS = Path(__file__).parent / "recordings"


def replicated(name, seconds, suite="bandwidth", moved=1e9, count=5, **more):
    """Return a case in several processes, that differ by a thousandth from one to the next."""
    return [
        make.result(
            make.timing(*(seconds * (1 + 0.001 * replicate),) * 9, moved=moved),
            of=make.case(name, suite=suite),
            replicate=replicate,
            **more,
        )
        for replicate in range(count)
    ]


def reading(name, *results, **manifest):
    return Reading.of(make.run(*results, **manifest), name)


def compared(before, after, *others, threshold=0.02):
    return comparison.compare([before, after, *others], lambda case: threshold)


def verdicts(against):
    return {finding.case.name: str(finding.verdict) for finding in against.judgement.findings}


@pytest.fixture
def two_runs_compared():
    """Return the comparison of two runs: one case slower, one faster, one the same."""
    before = reading("before", *replicated("triad", 1e-3), *replicated("copy", 1e-3), *replicated("dot", 1e-3))
    after = reading("after", *replicated("triad", 1.1e-3), *replicated("copy", 0.8e-3), *replicated("dot", 1e-3))
    return compared(before, after)


def test_every_case_of_both_has_its_effect_interval_and_verdict_the_worst_first(two_runs_compared):
    (against,) = two_runs_compared.against
    assert [finding.case.name for finding in against.judgement.findings] == ["triad", "copy", "dot"]
    assert verdicts(against) == {"triad": "slower", "copy": "faster", "dot": "same"}
    worst = against.judgement.findings[0]
    assert worst.observed_change == pytest.approx(1 / 1.1 - 1, rel=1e-2)
    low, high = worst.bounds
    assert low < worst.observed_change < high < 0


def test_better_and_worse_and_the_change_of_a_suite_follow_from_the_ratios_of_its_cases(two_runs_compared):
    (mean,) = two_runs_compared.against[0].geomeans
    assert (mean.suite, mean.cases) == ("bandwidth", 3)
    assert mean.ratio == pytest.approx((1 / 1.1 / 0.8) ** (1 / 3), rel=1e-3)
    before = reading("a", *replicated("launch", 1e-6, moved=0.0), *replicated("copy", 1e-3))
    after = reading("b", *replicated("launch", 2e-6, moved=0.0), *replicated("copy", 0.5e-3))
    by_name = {finding.case.name: finding for finding in compared(before, after).against[0].judgement.findings}
    assert comparison.ratio(by_name["launch"]) == pytest.approx(0.5)
    assert comparison.ratio(by_name["copy"]) == pytest.approx(2.0)
    assert by_name["launch"].observed_change == pytest.approx(1.0)


def test_of_single_processes_the_change_is_shown_and_nothing_is_decided():
    comparison = compared(
        reading("a", *replicated("triad", 1e-3, count=1), *replicated("copy", 1e-3, count=1)),
        reading("b", *replicated("triad", 1.5e-3, count=1), *replicated("copy", 1.01e-3, count=1)),
    )
    worst, second = comparison.against[0].judgement.findings
    assert (worst.case.name, str(worst.verdict), worst.effect) == ("triad", "inconclusive", None)
    assert finding_cells(worst).change == "−33.3 %"
    assert finding_cells(worst).interval == "–"
    assert "do not show the noise between processes" in finding_cells(worst).explanation
    assert second.case.name == "copy"


def test_of_the_environments_only_differences_are_listed():
    old = make.facts(make.device(units=132), versions=(("nvidia.driver", "580.1"), ("cupy", "14.2")))
    new = make.facts(make.device(name="NVIDIA H100", units=132), versions=(("nvidia.driver", "590.2"),))
    before, after = (
        reading("a", *replicated("triad", 1e-3), facts=old),
        reading("b", *replicated("triad", 1.3e-3), facts=new),
    )
    comparison = compared(before, after)
    assert {difference.name: difference.values for difference in comparison.differences} == {
        "model": ("NVIDIA H200", "NVIDIA H100"),
        "nvidia.driver": ("580.1", "590.2"),
        "cupy": ("14.2", ""),
    }
    assert verdicts(comparison.against[0]) == {"triad": "slower"}, "what differs is no reason not to weigh"


def test_cases_of_another_method_and_figures_that_are_not_positive_are_in_no_mean():
    odd = make.result(dataclasses.replace(make.timing(0.0), quantity="value"), of=make.case("odd"))
    copies = replicated("copy", 1e-3)
    changed = [dataclasses.replace(r, case=dataclasses.replace(r.case, version=2)) for r in replicated("dot", 2e-3)]
    comparison = compared(reading("a", odd, *replicated("dot", 1e-3), *copies), reading("b", odd, *changed, *copies))
    assert verdicts(comparison.against[0])["dot"] == "not comparable"
    assert [mean.cases for mean in comparison.against[0].geomeans] == [1]
    assert {finding.case.name for finding in comparison.against[0].judgement.findings} == {"odd", "copy", "dot"}


def test_every_other_run_is_compared_with_the_first_and_cases_of_one_side_are_named():
    sides = [
        reading(name, *replicated("triad", seconds)) for name, seconds in (("a", 1e-3), ("b", 1.2e-3), ("c", 0.9e-3))
    ]
    three = compared(*sides)
    assert [column.name for column in three.columns] == ["a", "b", "c"]
    assert [verdicts(against)["triad"] for against in three.against] == ["slower", "faster"]
    result = compared(
        reading("a", *replicated("triad", 1e-3), *replicated("gone", 1e-3)),
        reading("b", *replicated("triad", 1e-3), *replicated("fresh", 1e-3)),
    )
    assert comparison.one_sided_cases(result, result.against[0]) == [
        "only a has a figure of bandwidth/gone",
        "only b has a figure of bandwidth/fresh",
    ]


@pytest.mark.parametrize(
    ("ratio", "direction", "verdict"),
    [(1.034, 1, "3.4 % better"), (0.85, -1, "15 % worse"), (1.13, 0, "+13.0 %"), (0.9, 0, "−10.0 %")],
)
def test_a_mean_is_better_or_worse_only_where_its_cases_are_and_from_two_on_it_is_written_as_times(
    ratio, direction, verdict
):
    assert comparison.Geomean("gemm", ratio, 3, 1, direction).text == verdict
    for factor, text in ((1.02, "2.0 % better"), (2.1, "2.1 times as good"), (0.4, "over 50 % worse")):
        assert comparison.better_or_worse(factor) == text


def test_two_ordinary_runs_get_one_line_that_says_what_differs_and_that_once_proves_nothing():
    sides = [
        reading(name, *(make.result(make.timing(t, moved=1e9), of=make.case(case)) for case, t in times))
        for name, times in (("a", (("triad", 1e-3), ("copy", 1e-3))), ("b", (("triad", 1.2e-3), ("copy", 1.001e-3))))
    ]
    reply = comparison.answer(compared(*sides).against[0], "B")
    assert reply.verdict == "B against A: bandwidth/triad −16.7 % (+ is better); seen once, which proves nothing"
    (step,) = reply.next_steps
    assert step.command.startswith("gpubench run bandwidth --filter")
    assert step.command.endswith("--replicates 5")
    (copy,) = [finding for finding in compared(*sides).against[0].judgement.findings if comparison.is_small(finding)]
    assert copy.case.name == "copy"


def render(form, comparison):
    return rendering.report(form).compare(comparison)


def test_the_page_allows_its_own_style_and_nothing_else(two_runs_compared):
    page = render("html", two_runs_compared)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; script-src 'sha256-" in page
    assert "base-uri 'none'; form-action 'none'" in page
    assert not re.search(r"https?://|\bsrc=|url\(|@import|<script ", page)
    assert "after against before" in page
    assert page.count('class="effect bad"') >= 1


def changed(rate, latency):
    """Return a comparison of a rate and a latency after their times were multiplied by these factors."""
    latencies = {"moved": 0.0, "suite": "latency"}
    before = reading("before", *replicated("copy", 1.0), *replicated("chase", 1.0, **latencies))
    return compared(before, reading("after", *replicated("copy", rate), *replicated("chase", latency, **latencies)))


@pytest.mark.parametrize(
    ("factors", "ticks"),
    [
        ((1.03, 0.999), ["0.98×", "0.99×", "1×", "1.01×", "1.02×"]),
        ((1.3, 0.9), ["0.8×", "0.9×", "1×", "1.1×", "1.25×"]),
        ((12.0, 1.001), ["0.1×", "½×", "1×", "2×", "10×"]),
        ((19.0, 1 / 10), ["0.1×", "1×", "10×"]),
        ((1269.0, 2.0), ["0.001×", "0.01×", "0.1×", "1×", "10×", "100×", "1000×"]),
    ],
)
def test_the_chart_of_changes_has_an_axis_of_round_ratios(factors, ticks):
    page = render("html", changed(*factors))
    labels = re.findall(r'<text [^>]*text-anchor="middle"[^>]*>([\d.½]+×)</text>', page)
    assert labels == ticks
    assert page.count("%</text>") == 0  # beside an axis of ratios
    assert ">← worse</text>" in page
    assert ">better →</text>" in page


def test_a_latency_and_a_rate_that_became_ten_times_as_bad_stand_at_one_place():
    (drawing,) = re.findall(r'<svg[^>]*aria-label="Changes.*?</svg>', render("html", changed(10.0, 10.0)), re.DOTALL)
    rate, latency = (float(x) for x in re.findall(r'cx="([\d.]+)"', drawing))
    assert rate == pytest.approx(latency, abs=0.2)
    assert rate < 40


def test_a_reason_that_many_cases_share_is_given_once():
    cases = [f"case{number}" for number in range(9)]
    sides = [
        reading(n, *(r for case in cases for r in replicated(case, s, count=1))) for n, s in (("a", 1.0), ("b", 1.1))
    ]
    comparison = compared(*sides)
    for form in ("html", "md"):
        assert render(form, comparison).count("do not show the noise between processes") == 1
        assert "and 8 more: " in render(form, comparison)


def test_a_comparison_as_a_comment_fits_and_keeps_the_worst():
    slow = {f"a_case_with_a_long_name_{number}": 1.5 if number == 789 else 1.1 for number in range(1000)}
    before, after = (
        reading(side, *(r for name, share in slow.items() for r in replicated(name, 1e-3 * share**power, count=3)))
        for side, power in (("a", 0), ("b", 1))
    )
    written = render("md", compared(before, after))
    assert len(written.encode()) <= 65_536
    rows = re.findall(r"^\| \S+ \| `bandwidth/a_case_with_a_long_name_(\d+)`", written, re.MULTILINE)
    assert rows[0] == "789"
    assert f"{1000 - len(rows)} more, none worse" in written


def test_the_json_has_every_finding_with_numbers_in_si(two_runs_compared):
    document = json.loads(render("json", two_runs_compared), parse_constant=pytest.fail)
    assert document["schema"] == "gpubench.compare/1"
    worst = document["against"][0]["findings"][0]
    assert (worst["case"], worst["verdict"], worst["unit"]) == ("bandwidth/triad", "slower", "B/s")
    assert worst["before"] == {"median": pytest.approx(1e9 / 1.002e-3), "processes": 5}
    assert worst["low"] < worst["change"] < worst["high"]
    assert worst["threshold"] >= 0.02


@pytest.fixture
def files(tmp_path):
    facts = make.facts(make.device(uuid="GPU-1234"), host=(("hostname", "gpu17"),))
    return [
        write(tmp_path / name, *replicated("triad", seconds), manifest=make.manifest(facts=facts))
        for name, seconds in (("old.jsonl", 1e-3), ("new.jsonl.gz", 1.2e-3))
    ]


def test_the_terminal_names_the_runs_the_differences_and_the_changes(call, files):
    status, out, said = call("compare", *files)
    assert (status, said) == (0, "")
    assert out.startswith("B against A: bandwidth/triad 17 % worse; proven: 1 slower (1 of 1 case is decided)\n")
    assert "\nA: old, " in out
    assert "no known environment differences" in out
    assert re.search(r"slower +bandwidth/triad +998\.0 GB/s +831\.7 GB/s +−16\.7 %", out)


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_the_suffix_chooses_the_form_and_no_form_names_the_machine(call, files, form):
    assert call("compare", *files, "-o", f"c.{form}") == (0, "", f"written: c.{form}\n")
    written = Path(f"c.{form}").read_text()
    assert "bandwidth/triad" in written
    assert not re.search("gpu17|GPU-1234", written)


def test_different_boards_are_distinguished_by_pseudonyms_or_by_their_names(call, tmp_path):
    paths = []
    for number in (1, 2):
        facts = make.facts(make.device(uuid=f"GPU-{number}"))
        manifest = make.manifest(facts=facts)
        paths.append(write(tmp_path / f"{number}.jsonl", *replicated("triad", 1e-3 * number), manifest=manifest))
    shared = call("compare", *paths, "--json")[1]
    (board,) = (difference for difference in json.loads(shared)["differences"] if difference["name"] == "board")
    assert all(re.fullmatch(r"device-[0-9a-f]{12}", value) for value in board["values"])
    status, plain, said = call("compare", *paths, "--json", "--no-redact")
    assert (status, said.startswith("not anonymised")) == (0, True)
    assert json.loads(plain)["differences"][0]["values"] == ["GPU-1", "GPU-2"]


def test_runs_of_the_same_name_are_numbered(call, files, tmp_path):
    (tmp_path / "x").mkdir()
    namesake = tmp_path / "x" / "old.jsonl"
    namesake.write_bytes(files[0].read_bytes())
    assert "old (1)" in call("compare", files[0], namesake)[1]


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("old.jsonl",), 2, "name two run files or more"),
        (("old.jsonl", "missing.jsonl"), 5, "missing.jsonl: No such file or directory"),
        (
            ("old.jsonl", "new.jsonl.gz", "-o", "c.csv"),
            2,
            "cannot write a comparison to .csv; choose from .html, .json, .md",
        ),
        (("old.jsonl", "new.jsonl.gz", "-o", "c.json", "--json"), 2, "leave out one of them"),
        (("old.jsonl", "new.jsonl.gz", "-o", "old.jsonl"), 2, ""),
        (("old.jsonl", "new.jsonl.gz", "-o", "there.html"), 2, "there.html exists; --force replaces it"),
        (("old.jsonl", "new.jsonl.gz", "-o", "missing/c.html"), 2, "cannot write missing/c.html"),
        (("old.jsonl", "damaged.jsonl", "-o", "c.html"), 5, "damaged.jsonl: line"),
        (("old.jsonl", "foreign.txt", "-o", "c.html"), 5, "cannot be read as a run of gpubench"),
        (("old.jsonl", "full.jsonl"), 2, "measure both on the same kind of device with the same --tier"),
        (
            ("report", "old.jsonl", "full.jsonl", "-o", "r.html"),
            2,
            "not comparable: A measured a GPU in the tier quick, B",
        ),
        (("old.jsonl", "gemm.jsonl", "-o", "c.html"), 2, "no case in common: old has bandwidth; gemm has gemm"),
    ],
)
def test_runs_that_cannot_be_compared_give_one_line_and_no_file(call, files, tmp_path, arguments, status, line):
    (tmp_path / "damaged.jsonl").write_bytes(files[0].read_bytes().replace(b"0.001", b"0.002", 1))
    (tmp_path / "foreign.txt").write_text("hello\n")
    (tmp_path / "there.html").write_text("mine")
    write(tmp_path / "gemm.jsonl", *replicated("square", 1e-3, suite="gemm"))
    manifest = make.manifest()
    other_tier = dataclasses.replace(manifest.settings, tier="full", devices=("undescribed",))
    write(
        tmp_path / "full.jsonl",
        *replicated("triad", 1e-3),
        manifest=dataclasses.replace(manifest, settings=other_tier),
    )
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    exit_status, out, said = call(*(("compare",) if arguments[0] != "report" else ()), *arguments)
    assert (exit_status, out, said.count("\n")) == (status, "", 1), said
    assert line in said
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("names", [("h200-quick", "h200x2-quick"), ("h200x2-headline", "h200x2-headline")])
def test_recorded_runs_of_real_devices_compare_in_every_form(names):
    readings = [Reading.of(store.read_run(RECORDINGS / f"{name}.jsonl.gz"), name) for name in names]
    result = comparison.compare(readings, lambda case: 0.02)
    assert len(result.against[0].judgement.findings) >= 5
    assert all(math.isfinite(mean.ratio) for mean in result.against[0].geomeans)
    for form in ("html", "md", "json"):
        assert render(form, result)
    assert len(render("html", result).encode()) < 1_000_000
