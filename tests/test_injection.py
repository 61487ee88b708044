"""Sixty texts that are code in some form, each in every field of text: inert in every form of a run or comparison.

Where one takes long, texts that are code wherever they stand come as one by default; slow tests have each by itself.
"""

import base64
import csv
import dataclasses
import gzip
import html
import io
import json
import re
from html.parser import HTMLParser

import _make as make
import pytest
from _injections import INJECTIONS, TOGETHER, poisoned
from markdown_it import MarkdownIt
from rich.console import Console
from test_trend_page import trend_of

from gpubench import model, plugins
from gpubench.analysis.summary import Summary
from gpubench.api.notebook import NotebookRun
from gpubench.base import streams
from gpubench.cli import _findings, _print, _summary, doctor, history, profile
from gpubench.cli.compare import _parts
from gpubench.judging import comparison
from gpubench.judging.answer import answer
from gpubench.judging.evidence import Reading
from gpubench.measuring import examination, sampler
from gpubench.measuring.health import Health, HealthFinding
from gpubench.model import Case, View
from gpubench.plugins.collector import HealthSign
from gpubench.plugins.report import Enclosure
from gpubench.tools import rendering

FORMS = plugins.names("reports")
COMPARED = tuple(name for name in FORMS if hasattr(rendering.report(name), "compare"))
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u034f\u115f\u200b\u200f\u2028-\u202e\u2060\u2066-\u2069\ud800-\udfff"
    "\ufe0f\ufeff\uffa0\U000e0041]"
)
# each of the sixty texts by itself, or the few that contain all of them
TEXTS = pytest.mark.parametrize(
    "texts", [pytest.param(TOGETHER, id="few"), pytest.param(INJECTIONS, id="all", marks=pytest.mark.slow)]
)
# Text outside of code that GitHub and GitLab turn into links, mentions, references, emoji and formulas.
REFERENCE = re.compile(
    r"@\w|#\d|\bGH-\d|CVE-\d|GHSA-|[!$&~^*]\w|%\d|:[a-z0-9+]+:|://|www\.|\b[0-9a-f]{7,40}\b|\[\w+:\d|\$"
)
TAGS_OF_MARKDOWN = {
    *("h1", "h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "blockquote")
}


def plain_run(scale=1.0, replicates=1):
    """Return a run with content in every kind of field: devices, versions, views, notes, counters, failures."""
    detail = ("serial", "1")
    gpu = make.device(uuid="GPU-1", pci="0000:01:00.0", dtypes=("float32",), peers=("cuda:1",), details=(detail,))
    facts = make.facts(
        gpu,
        make.device("host", "CPU"),
        host=(("hostname", "h"), ("cpu", "c")),
        versions=(("driver", "1"),),
        absent=(model.UnavailablePart("rocm", "none", "install"),),
    )
    views = (View("bars", "Kernels", ("triad",)), View("curve", "Rate", ("sized",), x="n", by=("dtype",)))
    results = [
        make.result(
            *(make.timing(*(scale * base * (1 + 0.001 * i) for i in range(8)), moved=1e9) for base in (1e-3,)),
            make.timing(scale * 2e-3, name="cold", moved=1e9, limit="dram"),
            of=case,
            replicate=replicate,
            labels=("loaded",),
            discarded=(("thermal", 2),),
            notes=(("library", "x 1.0"),),
            window=(1.0, 2.0),
        )
        for replicate in range(replicates)
        for case in (make.case(dtype="float32"), *(make.case("sized", n=n, dtype="float32") for n in (1, 2, 3)))
    ]
    bad = [
        make.result(of=make.case("bad", n=7), status=status, cause="crash", reason="it ended: line\nTraceback")
        for status in ("failed", "skipped", "invalid")
    ]
    bad = [dataclasses.replace(result, replicate=number) for number, result in enumerate(bad)]
    run = make.run(
        *results,
        *bad,
        sampled=[make.samples([1.0, 1.5, 2.0], power=[1.0, 2.0, 3.0])],
        facts=facts,
        settings=model.Settings(
            ("bandwidth",), ("cuda:0",), filters=("x",), data=(model.DataFile("a", "/a", 1, "00"),)
        ),
        suites=(model.SuiteInfo("bandwidth", "what it measures", views),),
    )
    return dataclasses.replace(run, warnings=("a warning",), complete=False)


def run_with_text(text, scale=1.0, replicates=1):
    """Return the run with the text in every field; only numbers still distinguish the cases."""
    return poisoned(plain_run(scale, replicates), text)


def compared(text):
    """Return the comparison of two runs with the text in every field, of which the second is slower."""
    sides = [Reading.of(run_with_text(text, scale, 5), text) for scale in (1.0, 1.2)]
    return poisoned(comparison.compare(sides, lambda case: 0.02), text)


class TagStructure(HTMLParser):
    """The tags of a page with the names of their attributes, and the values of the attributes."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags |= {tag, *((tag, name) for name, _ in attrs)}
        self.attributes += [(name, value or "") for name, value in attrs]


def is_inert_page(page, plain):
    """Assert that a page has the tags and attributes of one with a harmless text, and refers to nothing outside."""
    structure, expected = TagStructure(page), TagStructure(plain)
    assert structure.tags - {"wbr"} <= expected.tags
    assert not [name for name, _ in structure.attributes if name.startswith("on")]
    links = [value for name, value in structure.attributes if name in ("href", "src", "action", "xlink:href")]
    assert [value for value in links if not value.startswith(("#", "data:application/", "blob:"))] == []
    assert not UNSEEN.search(page)


def is_inert_markdown(written):
    """Assert that the document has only known elements, no link or reference, and whole tables."""
    rendered_html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(written)
    assert set(re.findall(r"<([a-z0-9]+)", rendered_html)) <= TAGS_OF_MARKDOWN
    outside = html.unescape(re.sub("<[^>]*>", " ", re.sub("<code>.*?</code>", " ", rendered_html)))
    assert REFERENCE.findall(outside) == []
    assert not re.search("^/", written, re.MULTILINE), "GitLab takes such a line of a comment for an order"
    assert not UNSEEN.search(written)
    tables = re.findall(r"((?:^\|.*\n)+)", written, re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)


def is_inert_csv(written):
    """Assert that no cell is a formula of a spreadsheet, and that all rows are equally long."""
    rows = list(csv.reader(io.StringIO(written)))
    assert len({len(row) for row in rows}) == 1
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if re.match(r"\s*[=+@\t\r＝＋－＠]|\s*-(?![\d.])|\s*-.*[^\d.e+-]", cell)]
    assert not UNSEEN.search(written)


def is_inert_json(written):
    json.loads(written, parse_constant=pytest.fail)
    assert not UNSEEN.search(written)


def is_inert_exposition(written):
    """Assert that every line follows the grammar of Prometheus and has no invisible character."""
    sample = re.compile(r'gpubench_\w+(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? \S+')
    lines = written.split("\n")
    assert all(re.fullmatch(r"# (HELP|TYPE) gpubench_[^\n]*|# EOF|", line) or sample.fullmatch(line) for line in lines)
    assert not UNSEEN.search(written)


def is_inert_parquet(written):
    """Assert that no text in the table has an invisible character."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    texts = [cell for row in parquet.read_table(io.BytesIO(written)).to_pylist() for cell in row.values()]
    assert not [text for text in texts if isinstance(text, str) and UNSEEN.search(text)]


CHECKS = {
    "md": is_inert_markdown,
    "csv": is_inert_csv,
    **dict.fromkeys(("json", "bencher", "github_bigger", "github_smaller"), is_inert_json),
    "trace": is_inert_json,
    "prom": is_inert_exposition,
    "parquet": is_inert_parquet,
}


def check(form, written, plain):
    """Assert that a form is inert; an unlisted form is checked as a page."""
    CHECKS[form](written) if form in CHECKS else is_inert_page(written, plain)


def test_the_injection_tests_use_sixty_hostile_texts():
    assert len(set(INJECTIONS)) == 60


@TEXTS
@pytest.mark.parametrize("form", FORMS)
def test_text_of_a_run_stays_inert_text_in_every_form(form, texts):
    report = rendering.report(form)
    plain = report.render(run_with_text("plain"))
    for text in texts:
        check(form, report.render(run_with_text(text)), plain)


@TEXTS
@pytest.mark.parametrize("form", COMPARED)
def test_text_of_two_runs_stays_inert_text_in_every_form(form, texts):
    report = rendering.report(form)
    plain = report.compare(compared("plain"))
    for text in texts:
        check(form, report.compare(compared(text)), plain)


@TEXTS
def test_text_of_a_run_stays_inert_text_in_a_notebook(texts):
    plain = NotebookRun(run_with_text("plain"))._repr_html_()
    for text in texts:
        is_inert_page(NotebookRun(run_with_text(text))._repr_html_(), plain)


def commands(output):
    """Return the lines of output that are commands to the runners of GitHub, Azure, TeamCity or GitLab."""
    return [
        line
        for line in re.split("[\r\n]", output)
        if line.lstrip().startswith("::") or re.search(r"##(\w*)\[|section_(start|end):\d+:\S+\r?\x1b", line)
    ]


def printed(*parts):
    """Return what `gpubench` prints of the parts when a program reads its output."""
    output = io.BytesIO()
    stream = streams._CommandFreeStream(output, encoding="utf-8", errors="backslashreplace")
    Console(file=stream, width=_print._WIDE, highlight=False, emoji=False).print(*parts, sep="\n")
    stream.flush()
    return output.getvalue().decode()


def shown_doctor(text, monkeypatch):
    """Return the output of `doctor` for a machine whose every text is this one."""
    facts = poisoned(plain_run().manifest.facts, text)
    finding = HealthFinding(next(iter(HealthSign)), text, 1.0, text, "sick", text, text)
    counter = model.Counter(text, text, "gauge", 0.1, text)
    absent = [model.UnavailablePart(text, text, text)]
    monkeypatch.setattr(examination, "examine", lambda devices: [Health(text, (finding,)), Health(text, (), text)])
    monkeypatch.setattr(
        sampler, "list_counters", lambda devices: ([sampler.DeviceCounter(counter, text, text)], absent)
    )
    parts = []
    monkeypatch.setattr(Console, "print", lambda self, *given, **more: parts.extend(given))
    doctor._show(facts, counters=False)
    doctor._show(facts, counters=True)
    monkeypatch.undo()
    return parts


def shown_history(text, monkeypatch):
    """Return the output of `history` for a trend whose every text is this one, by itself and in a list."""
    trends = [poisoned(trend_of([4.0e12] * 10 + values), text) for values in ([3.8e12] * 10, [4.0e12] * 10)]
    lines = [line for trend in trends for line in history.trend_lines(trend)]
    return [*lines, *history.trend_rows(trends, True, _print._WIDE)]


def shown_gate(judgement):
    """Return the output of `gate` for a judgement, with every case and every column."""
    return _findings.answer_parts(judgement, answer(judgement, 1, "gpubench gate"), every=True, wide=True)


PRINTED = {
    "show": lambda text, _: [
        *_summary.run_parts(run_with_text(text), text),
        *_summary.cases(Summary(run_with_text(text)), wide=True),
    ],
    "show of replicates": lambda text, _: _summary.cases(Summary(run_with_text(text, replicates=3)), wide=True),
    "profile": lambda text, _: profile.profiled(run_with_text(text), _print.err()),
    "compare": lambda text, _: _parts(compared(text)),
    "gate": lambda text, _: shown_gate(compared(text).against[0].judgement),
    "history": shown_history,
    "doctor": shown_doctor,
    "list and plan": lambda text, _: [_print.table((text,), [(text,)], text), _print.plain(text)],
}


@TEXTS
@pytest.mark.parametrize("form", PRINTED)
def test_text_of_a_run_gives_no_command_to_a_terminal_or_a_ci(form, texts, monkeypatch):
    for text in texts:
        output = printed(*PRINTED[form](text, monkeypatch))
        assert not UNSEEN.search(output)
        assert ("[red]" in text) == ("[red]x[/red]" in output), "markup is shown, not obeyed"
        assert commands(output) == []


def test_these_tests_recognise_the_commands_of_a_ci():
    assert len(commands("::error::x\n  ::add-mask::x\na ##[group]x\n##vso[a]\nb ##teamcity[c]\nd :: e\n## [f]")) == 5


@pytest.mark.parametrize("text", INJECTIONS)
def test_json_on_standard_output_keeps_every_text_and_starts_no_command(text, capsys):
    _print.document([{text: text}])
    written = streams.without_commands(capsys.readouterr().out, is_json=True)
    assert json.loads(written) == [{text: text}]
    assert not UNSEEN.search(written)
    assert commands(written) == []


def test_the_comparison_in_these_tests_has_slower_and_invalid_cases():
    counts = compared("plain").against[0].judgement.counts()
    assert {"slower", "invalid"} <= set(counts)


def packed(page, name):
    return gzip.decompress(base64.b64decode(re.search(rf'id="{name}">([^<]*)<', page)[1])).decode()


def many(texts):
    """Return too many cases to stand unfolded in a page, each with its own text in the folded parts, and counters."""
    results = [
        make.result(
            make.timing(*[1e-3] * 6, moved=1e9),
            of=Case("bandwidth", f"case{number}", (("x", text),)),
            labels=(text,),
            notes=((text, text),),
            discarded=((text, 1),),
            window=(number, number + 0.5),
        )
        for number, text in enumerate(texts)
    ]
    counters = tuple(model.Counter(f"nvml.{text}", text, "gauge", 0.1, text) for text in dict.fromkeys(texts))
    columns = tuple((counter.name, (1.0, 2.0)) for counter in counters)
    sampled = [model.Samples("nvml", "cuda:0", (1.0, 41.0), columns)]
    return make.run(*results, sampled=sampled, counters=counters)


def test_text_stays_inert_in_the_packed_parts_of_a_page():
    html = rendering.report("html")
    enclosure = Enclosure("0" * 64, b"", "<script>alert(1)</script>")
    plain = html.enclose(many(["plain"] * 41), enclosure)
    page = html.enclose(many([*INJECTIONS, "plain"]), enclosure)
    is_inert_page(page, plain)
    allowed = TagStructure("".join(json.loads(packed(plain, "details")))).tags
    unfolded = "".join(json.loads(packed(page, "details")))
    assert TagStructure(unfolded).tags - {"wbr"} <= allowed
    assert not UNSEEN.search(unfolded)
    assert not UNSEEN.search(packed(page, "zoom"))
