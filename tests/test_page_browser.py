"""The page in a real browser, at desktop and phone width, light and dark, on every recording.

.venv/bin/pytest -m slow tests/test_page_browser.py
"""

import re
from pathlib import Path

import _browser
import _make as make
import pytest
from test_columns import side_by_side

from gpubench.model import SuiteInfo, View, store
from gpubench.tools import enclosing, rendering

RECORDINGS = Path(__file__).parent / "recordings"
WHOLE = RECORDINGS / "whole/h200.jsonl.gz"
RUNS = [path for path in sorted(RECORDINGS.rglob("*.jsonl.gz")) if path.parent.name != "counters"]
SCREEN, MOST_SCREENS, MOST_BYTES = (1280, 800), 12, 1_000_000
LARGEST = {"h200x2.jsonl.gz": 1.4}  # 560 cases, and the counters of two GPUs
A4 = (794, 1123)  # width and height of a sheet in pixels
OPEN_ALL = "document.querySelectorAll('details.fold').forEach((fold) => (fold.open = true))"
pytestmark = _browser.MARKS


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the page of a recording, with its results inside, as a file."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def page(path):
        if path not in made:
            run = store.read_run(path)
            made[path] = folder / f"{len(made)}.html"
            made[path].write_text(rendering.report("html").enclose(run, enclosing.enclosure(run, path)))
        return made[path]

    return page


def name_of(path):
    return path.relative_to(RECORDINGS).as_posix()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_no_text_is_clipped_or_overprinted_and_nothing_leaves_its_box(browser, pages, path, width):
    browser.show(pages(path), width)
    assert browser.overflow() <= 0
    browser.expect_whole()
    assert browser.messages == []


@pytest.mark.parametrize("width", [1280, 390])
def test_runs_as_columns_lie_in_their_boxes(browser, tmp_path, width):
    runs = [store.read_run(RECORDINGS / f"{name}.jsonl.gz") for name in ("whole/h200", "h200-quick", "h200x2-quick")]
    (tmp_path / "runs.html").write_text(rendering.report("html").compare(side_by_side(*runs)))
    browser.show(tmp_path / "runs.html", width)
    browser.expect_whole()
    browser.ask(SEARCH.format("h2d pinned"))
    assert 0 < shown(browser) < 20
    assert browser.messages == []


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_page_has_at_most_twelve_screens_and_a_megabyte_before_anything_is_opened(browser, pages, path):
    browser.show(pages(path), *SCREEN)
    browser.ask("document.body.style.fontFamily = '\"Liberation Sans\", Arial'")  # both are equally wide
    times = LARGEST.get(path.name, 1)
    assert browser.ask("document.documentElement.scrollHeight") <= MOST_SCREENS * times * SCREEN[1]
    assert pages(path).stat().st_size <= MOST_BYTES * times


def contrasts(browser):
    return browser.ask("""(() => {
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = (colour) => numbers(colour).slice(0, 3).map((c) => (c /= 255) <= 0.03928 ? c / 12.92
            : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => { for (; e; e = e.parentElement) {
            const found = getComputedStyle(e).backgroundColor; if (numbers(found)[3] !== 0) return found; } };
        const found = {};
        for (const e of document.querySelectorAll("h1, p, a, td, th, summary span, summary b, .tiles span, .tiles b")) {
            if (!e.getClientRects().length || getComputedStyle(e).opacity !== "1") continue;
            const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
            found[`${e.tagName}.${e.className}`] = (a + 0.05) / (b + 0.05);
        }
        return found;
    })()""")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half_or_more(browser, pages, dark):
    browser.show(pages(WHOLE), dark=dark)
    browser.ask(OPEN_ALL)
    assert {kind: contrast for kind, contrast in contrasts(browser).items() if contrast < 4.5} == {}
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_number_of_a_matrix_has_a_contrast_of_four_and_a_half_with_its_shade(browser, tmp_path, dark):
    cases = [make.case("read", device=number // 7, peer=number % 7) for number in range(49)]
    results = [make.result(make.timing(1e-3 * (2 + number)), of=case) for number, case in enumerate(cases)]
    suites = (SuiteInfo("bandwidth", "", (View("matrix", "Peers", ("read",), "peer", "device"),)),)
    (tmp_path / "matrix.html").write_text(rendering.report("html").render(make.run(*results, suites=suites)))
    browser.show(tmp_path / "matrix.html", dark=dark)
    colours = browser.ask("""(() => {
        const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => (c /= 255) <= 0.03928 ? c / 12.92
            : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        return Object.fromEntries([...document.querySelectorAll("svg rect + text")].map((text) => {
            const fills = [text, text.previousElementSibling].map((each) => light(getComputedStyle(each).fill));
            const [a, b] = fills.sort((x, y) => y - x);
            return [text.getAttribute("class"), (a + 0.05) / (b + 0.05)];
        }));
    })()""")
    assert set(colours) == {f"t{shade}" for shade in range(7)}
    assert {shade: contrast for shade, contrast in colours.items() if contrast < 4.5} == {}


WAIT = "new Promise((done) => setTimeout(done, {}))"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_case_unfolds_and_its_counters_zoom(browser, pages, width):
    browser.show(pages(WHOLE), width)
    browser.ask(OPEN_ALL)
    browser.ask("document.querySelector('details[data-more]').open = true")
    browser.ask(WAIT.format(600))
    assert browser.ask("document.querySelectorAll('details[data-more][open] table').length") >= 2
    browser.ask("document.querySelector('.more > button').click()")
    browser.ask(WAIT.format(600))
    plots, figures = browser.ask(
        "['.uplot', 'figure[data-zoom]'].map((each) => document.querySelectorAll(each).length)"
    )
    assert plots == figures > 10
    text = browser.ask("document.querySelector('.zoom-tools output').textContent")
    assert re.fullmatch(r"\d+\.\d\d s to \d+\.\d\d s", text)
    assert browser.overflow() <= 0
    assert browser.messages == []


def shown(browser):
    """Return the number of visible rows in the table of cases."""
    return browser.ask(
        "[...document.querySelectorAll('.of-cases tr[id]')].filter((row) => row.checkVisibility()).length"
    )


SEARCH = (
    "(() => {{ const i = document.querySelector('nav input'); i.value = '{}'; i.dispatchEvent(new Event('input')) }})()"
)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_search_shows_the_cases_that_hold_every_word_and_nothing_else(browser, pages, width):
    browser.show(pages(WHOLE), width)
    assert shown(browser) == 0
    browser.ask(SEARCH.format("h2d pinned"))
    assert shown(browser) == 5
    assert browser.ask("document.querySelector('nav output').textContent") == "5 of 534 cases"
    browser.ask(SEARCH.format("skipped"))
    assert shown(browser) == 150
    browser.ask(SEARCH.format(""))
    assert shown(browser) == 0


KEY = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{}', bubbles: true }}))"


def test_a_slash_begins_a_search_and_escape_ends_it(browser, pages):
    browser.show(pages(WHOLE))
    browser.ask(KEY.format("/"))
    assert browser.ask("document.activeElement === document.querySelector('nav input')")
    browser.ask(SEARCH.format("h2d pinned"))
    assert shown(browser) == 5
    browser.ask(KEY.format("Escape"))
    assert (shown(browser), browser.ask("document.activeElement === document.body")) == (0, True)


HALVES = """[...document.querySelectorAll(".suite")].filter((suite) => {
    const box = suite.getBoundingClientRect(), middle = (box.left + box.right) / 2;
    const shown = [...suite.querySelectorAll("figure, table, .fold, .tiles")].filter((part) => part.checkVisibility());
    return !shown.some((part) => part.getBoundingClientRect().right > middle + 40);
}).map((suite) => suite.id)"""


def test_beside_a_lone_chart_the_page_is_not_empty(browser, pages):
    for path in (WHOLE, RECORDINGS / "h200x2-headline.jsonl.gz"):
        browser.show(pages(path), 1280)
        assert browser.ask(HALVES) == []
        tops = browser.ask("""[...document.querySelectorAll(".lone > .charts")].map((charts) =>
            [charts, charts.parentElement.querySelector(".fold")].map((part) => part.getBoundingClientRect().top))""")
        assert all(abs(chart - fold) < 60 for chart, fold in tops), "the cases stand beside the chart"


def test_a_permalink_opens_the_groups_that_its_case_lies_in_and_the_case(browser, pages):
    browser.show(f"file://{pages(WHOLE)}#latency/chase%5Bsize=64KiB%5D")
    browser.ask(WAIT.format(600))
    row = "document.getElementById('latency/chase[size=64KiB]')"
    assert browser.ask(f"{row}.getBoundingClientRect().top >= 0 && {row}.getBoundingClientRect().top < innerHeight")
    assert browser.ask(f"{row}.querySelectorAll('.more table').length") >= 2
    assert browser.ask("document.querySelectorAll('details.of-cases[open]').length") == 1


def test_every_link_within_a_page_leads_somewhere(browser, pages):
    browser.show(pages(WHOLE))
    lost = "[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => decodeURIComponent(a.hash.slice(1)))"
    assert browser.ask(f"{lost}.filter((id) => !document.getElementById(id))") == []


MEDIANS = "[...document.querySelectorAll('#suite-latency .of-cases tr[id]')].map((r) => r.cells[1].textContent)"


def test_a_table_sorts_by_value_across_prefixes_and_returns_to_the_measured_order(browser, pages):
    browser.show(pages(WHOLE))
    browser.ask(OPEN_ALL)
    measured = browser.ask(MEDIANS)
    click = "document.querySelectorAll('#suite-latency .of-cases .sort')[1].click()"
    browser.ask(click)
    falling = browser.ask(MEDIANS)
    browser.ask(click)
    rising = browser.ask(MEDIANS)
    browser.ask(click)
    units = {"ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    timed = [float(text.split()[0]) * units[text.split()[1]] for text in rising if text.split()[-1] in units]
    assert timed == sorted(timed)
    assert (rising[-1], falling[-1]) == ("–", "–"), "what is missing stands last"
    assert browser.ask(MEDIANS) == measured


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without"])
def test_on_paper_every_group_is_open_and_fits_the_sheet(browser, pages, script):
    browser.show(pages(WHOLE), *A4, media="print", script=script)
    if script:
        browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.overflow() <= 0
    rows = "[...document.querySelectorAll('.of-cases tr[id]')]"
    assert browser.ask(f"{rows}.length === {rows}.filter((row) => row.getBoundingClientRect().height > 0).length")
