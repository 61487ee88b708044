"""A site of many runs: its index and pages, which of them are made again, and what it never shows."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import _browser
import _make as make
import pytest

from gpubench.base.errors import FileError, UsageError
from gpubench.cli import _sharing as sharing
from gpubench.model import KeyFigure, Settings, SuiteInfo, store
from gpubench.tools import site

GPUBENCH = Path(sys.executable).parent / "gpubench"
RECORDINGS = Path(__file__).parent / "recordings"
HOST = "very-secret-host"
SUITE = SuiteInfo("mine", "sustained memory bandwidth", key_figures=(KeyFigure("Memory triad", "triad"),))


@pytest.fixture(autouse=True, scope="module")
def _salt(tmp_path_factory):
    """Keep the salt of pseudonyms in a temporary folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def folder(tmp_path):
    """Return a folder of three runs, one a day, the last on two devices."""
    return three_runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a site of three runs and one of another tier, and the messages of its build; tests only read it."""
    parent = tmp_path_factory.mktemp("built")
    write(three_runs(parent / "runs") / "smoke.jsonl", day=4, tier="smoke")
    return build(parent / "runs", parent / "site")


def three_runs(runs):
    """Write three runs, one of them in a deeper folder and one on two devices."""
    write(runs / "a.jsonl", day=1)
    write(runs / "deeper/b.jsonl.gz", day=2, seconds=1.2e-3)
    both = (make.device(), make.device("cuda:1"))
    write(runs / "c.jsonl", day=3, devices=both)
    return runs


def write(path, day, seconds=1e-3, devices=(), results=3, tier="quick", **fields):
    """Write a run with a number of results on a day of January."""
    devices = devices or (make.device(),)
    ids = tuple(device.id for device in devices)
    facts = make.facts(*devices, host=(("hostname", HOST), ("cpu", "EPYC")), versions=(("nvidia.driver", "580.1"),))
    measured = [
        make.result(
            make.timing(seconds, seconds * 1.001, seconds * 1.002, moved=1e9),
            of=make.case(suite="mine", n=2**n),
            devices=ids,
        )
        for n in range(results)
    ]
    started = f"2026-01-{day:02d}T03:04:05+00:00"
    settings = Settings(suites=("mine",), devices=ids, tier=tier)
    run = make.run(*measured, facts=facts, started=started, settings=settings, suites=(SUITE,), **fields)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(store.encode_run(run, packed=path.suffix == ".gz"))
    return run


def build(folder, out, no_redact=False, **options):
    messages = []
    share = lambda value, manifests: sharing.shareable(value, no_redact, manifests, is_told=False)  # noqa: E731
    return site.build(folder, out, share, not no_redact, messages.append, **options), messages


class Links(HTMLParser):
    """Collects the links of a page and the files that it would load."""

    def __init__(self, page):
        super().__init__()
        self.links, self.loaded, self.policies = [], [], []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag == "a":
            self.links.append(named["href"])
        elif tag in ("link", "img", "script", "iframe") and (named.get("src") or named.get("href")):
            self.loaded.append(named)
        elif named.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(named["content"])


def pages(out):
    return sorted(out.rglob("*.html"))


def names(out, kind):
    return {path.name for path in (out / kind).iterdir()}


def test_the_index_lists_each_run_by_device_and_date_and_every_link_leads_to_a_file(built):
    site, _ = built
    assert (site.runs, site.new, site.refused) == (4, 4, ())
    links = [link for link in Links(site.index).links if not link.startswith("#")]
    assert len([link for link in links if link.startswith("runs/")]) == 4
    assert [link for link in links if not (site.index.parent / link).is_file()] == []
    text = site.index.read_text()
    assert text.index("2 × NVIDIA H200</h2>") < text.index(">NVIDIA H200</h2>")
    assert text.index("2026-01-02 03:04 UTC</a><span>") < text.index("2026-01-01 03:04 UTC</a><span>")
    assert re.search(r"Memory triad</th>.*999\.0 GB/s", text, re.DOTALL)
    assert '<td class="trusted" data-label="trustworthy">yes</td>' in text
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', text)
    assert heads.index("Memory triad") < heads.index("trustworthy") < heads.index("cases"), "figures first"


def test_the_index_counts_the_reasons_not_to_trust_a_run_and_its_page_names_them(tmp_path):
    failed = make.result(status="failed", cause="wrong answer", of=make.case(suite="mine", n=9))
    interrupted = write(tmp_path / "runs/a.jsonl", day=1, results=0)
    run = dataclasses.replace(interrupted, results=(failed,), complete=False)
    (tmp_path / "runs/a.jsonl").write_bytes(store.encode_run(run, packed=False))
    built, _ = build(tmp_path / "runs", tmp_path / "site")
    assert '<td class="doubted" data-label="trustworthy">no, 2 reasons</td>' in built.index.read_text()
    assert "wrong answer" not in built.index.read_text()
    (page,) = (tmp_path / "site/runs").glob("*.html")
    assert "1 case failed (wrong answer)" in page.read_text()


ROWS = """[...document.querySelectorAll(".site tbody tr")]
    .map((row) => [getComputedStyle(row).display, row.offsetHeight])"""


@pytest.mark.slow
@pytest.mark.skipif(not _browser.PROGRAM, reason="there is no Chromium here")
def test_a_run_is_a_line_on_a_desk_and_a_card_on_a_phone(tmp_path):
    for name in ("h200", "h200x2", "h200x2-compression"):
        path = RECORDINGS / f"whole/{name}.jsonl.gz"
        (tmp_path / "runs").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "runs")
    built, _ = build(tmp_path / "runs", tmp_path / "site")
    with _browser.browser() as browser:
        for width, display, most in ((1280, "table-row", 80), (390, "grid", 400)):
            browser.show(built.index, width=width)
            rows = browser.ask(ROWS)
            assert [shown for shown, _ in rows] == [display] * 3
            assert max(height for _, height in rows) <= most
            boxes = "[...document.querySelectorAll('.site, main')].map((box) => box.scrollWidth - box.clientWidth)"
            assert max(browser.ask(boxes)) <= 0, "the key figures of an H200 fit"


def test_the_page_of_a_run_leads_back_to_the_index(built):
    pages = list((built[0].index.parent / "runs").glob("*.html"))
    assert pages
    assert all('<a href="../index.html">All runs</a>' in page.read_text() for page in pages)


def test_each_run_is_compared_with_the_one_before_on_the_same_device_and_of_the_same_tier(built):
    site, messages = built
    (comparison,) = (site.index.parent / "comparisons").iterdir()
    assert "b.jsonl.gz: compared with a.jsonl" in messages
    text = comparison.read_text()
    assert "2026-01-01 03:04 UTC" in text
    assert "mine/triad[n=1]" in re.sub(r"<wbr>", "", text)


def test_the_trends_are_of_the_key_figures_alone(built):
    trends = [page.read_text().replace("<wbr>", "") for page in (built[0].index.parent / "trends").iterdir()]
    assert len(trends) == 2
    assert [len(set(re.findall(r"triad\[n=\d\]", text))) for text in trends] == [1, 1], "of three cases each"
    assert any("The 2 runs, newest first" in text for text in trends)


def test_the_catalogue_has_a_page_of_each_card_and_of_each_case_with_the_distribution_over_its_runs(built):
    out = built[0].index.parent
    cards = {re.search("<h1>(.*?)</h1>", page.read_text())[1]: page.read_text() for page in (out / "cards").iterdir()}
    assert cards.keys() == {"NVIDIA H200", "2 × NVIDIA H200"}
    rows = re.findall("<span>(.*?),", cards["NVIDIA H200"])
    assert rows.count("smoke: hot") == rows.count("quick: hot") == 3, "a tier has rows of its own"
    (page,) = (page for page in (out / "cases").iterdir() if "n=1]</h1>" in page.read_text())
    text = page.read_text()
    assert "sustained memory bandwidth" in text
    both, smoke, quick = text.split("<tr>")[2:]
    assert [row.count("h0") for row in (both, smoke, quick)] == [1, 1, 2], "a dot for each run"
    assert re.findall(r"<td>([\d.]+ GB/s)", quick) == ["915.8 GB/s", "832.5 GB/s", "999.0 GB/s"]
    assert "quick: hot, more is better, version 1, 6 samples" in quick
    assert {(page.parent / link).resolve().is_file() for link in Links(page).links} == {True}


CATALOGUE = Path(__file__).parents[1] / "docs/catalogue"
DISTURBED = shutil.ignore_patterns("longer", "shared", "link-loaded")  # as in ci/catalogue.sh


@pytest.mark.parametrize("part", ["host", pytest.param(".", marks=pytest.mark.slow)])
def test_the_shipped_catalogue_is_the_one_that_ci_catalogue_sh_makes_now(tmp_path, part):
    runs, out = tmp_path / "runs", tmp_path / "site"
    shutil.copytree(RECORDINGS / part, runs, ignore=DISTURBED)
    build(runs, out, no_redact=True, has_runs=False)
    made, shipped = (
        {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")} for folder in (out, CATALOGUE)
    )
    named = {name for name in made if part == "." or (name != "index.html" and "NVIDIA" not in shipped[name])}
    assert len(named) > 10
    assert {name for name in named if made[name] != shipped[name]} == set(), "run bash ci/catalogue.sh"
    assert part != "." or made.keys() == shipped.keys()
    recorded = {path.name for path in RECORDINGS.rglob("*.jsonl.gz") if path.parent.name != "longer"}
    assert set(re.findall(r"· ([^<]+\.jsonl\.gz)<", shipped["index.html"])) == recorded - {"4.jsonl.gz"}
    assert sum(map(len, shipped.values())) < 1.3e6


def test_every_page_works_without_a_network_under_a_policy_of_hashes(built):
    for page in pages(built[0].index.parent):
        links = Links(page)
        (policy,) = links.policies
        linked = [(page.parent / loaded["href"]).resolve() for loaded in links.loaded]
        style = "'self' file:;" if linked else "'sha256-"
        assert policy.startswith(f"default-src 'none'; style-src {style}"), page
        assert "unsafe" not in policy
        assert linked in ([], [built[0].index.parent / "site.css"])
        assert [link for link in links.links if re.match(r"[a-z]+:|/", link) and not link.startswith("data:")] == []


def test_a_run_whose_file_is_unchanged_is_neither_read_nor_written_again(folder, tmp_path, monkeypatch):
    out = tmp_path / "site"
    build(folder, out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    os.utime(folder / "a.jsonl")  # the time of the file does not matter, only its content
    monkeypatch.setattr(store, "read_run", lambda path: pytest.fail(f"{path} is read"))
    built, messages = build(folder, out)
    assert (built.runs, built.new, messages) == (3, 0, [])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == times


def test_a_changed_run_gets_a_new_page_and_the_old_one_is_removed(folder, tmp_path):
    out = tmp_path / "site"
    build(folder, out)
    before = names(out, "runs")
    write(folder / "a.jsonl", day=1, results=4)
    built, _ = build(folder, out)
    assert (built.runs, built.new) == (3, 1)
    assert (len(names(out, "runs") - before), len(before - names(out, "runs"))) == (2, 2)
    assert "4 ok" in built.index.read_text()


def test_the_pages_of_a_deleted_run_are_removed_and_no_other_file(folder, tmp_path):
    out = tmp_path / "site"
    build(folder, out)
    (out / "runs/notes.html").write_text("somebody's own")
    (folder / "a.jsonl").unlink()
    built, _ = build(folder, out)
    assert built.runs == 2
    assert len(names(out, "runs")) == 2 * 2 + 1
    assert names(out, "comparisons") == set()
    assert "2026-01-01" not in built.index.read_text()


def test_of_several_copies_of_a_run_the_most_complete_one_counts(folder, tmp_path):
    write(folder / "copy.jsonl.gz", day=1)
    write(folder / "partial.jsonl", day=1, results=1)
    built, _ = build(folder, tmp_path / "site")
    again, _ = build(folder, tmp_path / "site")
    assert (built.runs, again.runs, again.new) == (3, 3, 0)
    assert "1 ok" not in built.index.read_text()


def test_a_damaged_file_is_listed_in_one_line_and_affects_no_other(folder, tmp_path):
    (folder / "broken.jsonl").write_text('{"broken\n' * 3)
    (folder / "empty.jsonl").touch()
    (folder / "torn.jsonl.gz").write_bytes((folder / "deeper/b.jsonl.gz").read_bytes()[:40])
    built, _ = build(folder, tmp_path / "site")
    assert built.runs == 3
    assert [file for file, _ in built.refused] == ["broken.jsonl", "empty.jsonl", "torn.jsonl.gz"]
    assert all(reason and "\n" not in reason and str(folder) not in reason for _, reason in built.refused)
    text = built.index.read_text()
    assert "Files that could not be read" in text
    assert "<b>broken.jsonl</b>: line 1: " in text


def test_no_file_of_the_site_names_the_host_even_if_an_earlier_one_did(folder, tmp_path):
    out = tmp_path / "site"
    shutil.copy(folder / "a.jsonl", folder / f"{HOST}.jsonl")
    write(folder / f"{HOST}-2.jsonl", day=5)
    (folder / f"damaged-{HOST}.jsonl").write_text("{")
    for no_redact in (False, True, False):
        built, _ = build(folder, out, no_redact)
        leaks = [path.name for path in out.rglob("*") if path.is_file() and HOST in path.read_text()]
        assert bool(leaks) == no_redact, leaks
    assert built.new == 4, "each page was made again"


def test_a_hostile_name_is_text_and_never_a_path(folder, tmp_path):
    name = '<script>alert(1)</script>"&\n../../x'
    write(folder / '"><img src=x onerror=alert(1)>.jsonl', day=6, devices=(make.device(name=name),))
    built, _ = build(folder, tmp_path / "site")
    text = built.index.read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert {re.sub(r"[0-9a-f]{16}", "#", path.name) for path in built.index.parent.rglob("*.*") if path.is_file()} == {
        *("index.html", "site.css", "#.html", "#.json", "#-#.html")
    }


def test_a_page_that_is_no_index_of_a_site_is_not_replaced(folder, tmp_path):
    out = tmp_path / "site"
    out.mkdir()
    (out / "index.html").write_text("my own home page")
    with pytest.raises(UsageError, match="is not the index of a site"):
        build(folder, out)
    assert (out / "index.html").read_text() == "my own home page"
    assert [path.name for path in out.iterdir()] == ["index.html"]


def test_a_folder_without_run_files_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no run file"):
        build(tmp_path / "empty", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_place_that_cannot_be_written_is_refused_in_one_line(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*/file/site: Not a directory; choose another folder"):
        build(folder, tmp_path / "file/site")
    build(folder, tmp_path / "site")
    index = tmp_path / "site/index.html"
    (tmp_path / "site/trends").rename(tmp_path / "elsewhere")
    (tmp_path / "site/trends").symlink_to("/dev/full/x")
    with pytest.raises(UsageError, match="cannot write"):
        build(folder, tmp_path / "site")
    assert "3 runs" in index.read_text(), "the index before is whole"


def test_a_damaged_stored_entry_is_made_again(folder, tmp_path):
    out = tmp_path / "site"
    build(folder, out)
    kept = sorted((out / "runs").glob("*.json"))
    kept[0].write_text('{"gpubench": 1}')
    kept[1].write_bytes(b"\xff")
    built, _ = build(folder, out)
    assert (built.runs, built.new) == (3, 2)


def test_a_run_without_a_start_a_result_or_a_device_has_its_line(tmp_path):
    run = make.run(started="", facts=dataclasses.replace(make.facts(), devices=()), suites=())
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/none.jsonl").write_bytes(store.encode_run(run))
    built, _ = build(tmp_path / "runs", tmp_path / "site")
    assert built.runs == 1
    assert "no results" in built.index.read_text()


def call(*arguments):
    return subprocess.run([GPUBENCH, "site", *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_command_builds_the_site_of_the_recordings_and_succeeds_beside_a_damaged_file(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "site"
    shutil.copytree(RECORDINGS / "headline", runs)
    (runs / "broken.jsonl").write_text("{")
    done = call(runs, "-o", out)
    assert (done.returncode, done.stdout) == (0, f"{out / 'index.html'}: 4 runs, 4 of them new or changed\n")
    assert "not in the site: broken.jsonl: line 1" in done.stderr
    assert call(runs, "-o", runs / "broken.jsonl").returncode == 2
    assert call(tmp_path / "nowhere", "-o", out).returncode == 5
    if _browser.PROGRAM:
        with _browser.browser() as browser:
            for width in (1280, 390):
                for page in pages(out):
                    browser.show(page, width=width)
                    wider = browser.ask("document.documentElement.scrollWidth > document.documentElement.clientWidth")
                    assert (wider, browser.messages) == (False, []), page
