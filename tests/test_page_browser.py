"""The page in a real browser: it lays out, unfolds and zooms at desktop and phone width, light and dark, in silence.

.venv/bin/pytest -m slow tests/test_page_browser.py
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpubench.model import store
from gpubench.tools import enclosing, rendering

RECORDING = Path(__file__).parent / "recordings/whole/h200.jsonl.gz"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET = ("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0")
LOOK = """
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const frame = document.querySelector("iframe");
frame.addEventListener("load", async () => {
  const page = frame.contentDocument;
  const overflow = () => page.documentElement.scrollWidth - page.documentElement.clientWidth;
  const first = overflow();
  await wait(2000);
  const details = page.querySelector("details[data-more]");
  details.open = true;
  await wait(500);
  details.querySelector(".more > button").click();
  await wait(500);
  const found = {
    overflow: Math.max(first, overflow()), plots: page.querySelectorAll(".uplot").length,
    figures: page.querySelectorAll("figure[data-zoom]").length, unfolded: details.querySelectorAll("table").length,
    shown: page.querySelector(".zoom-tools output").textContent,
    paper: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
  };
  document.title = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module")
def page():
    run = store.read_run(RECORDING)
    return rendering.report("html").enclose(run, enclosing.enclosure(run, RECORDING))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not BROWSER, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("scheme", "paper"), [(1, "rgb(255, 255, 255)"), (0, "rgb(20, 23, 28)")], ids=["light", "dark"]
)
def test_a_page_unfolds_and_zooms_with_no_overflow_and_nothing_on_the_console(page, tmp_path, width, scheme, paper):
    frame = f'<iframe srcdoc="{html.escape(page)}" width="{width}" height="60000"></iframe>'
    (tmp_path / "look.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}<script>{LOOK}</script>")
    command = [BROWSER, *OPTIONS, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([*command, f"file://{tmp_path / 'look.html'}"], capture_output=True, text=True, check=True)
    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert found["overflow"] <= 0
    assert found["plots"] == found["figures"] > 10
    assert found["unfolded"] >= 2
    assert re.fullmatch(r"\d+\.\d\d s to \d+\.\d\d s", found["shown"])
    assert found["paper"] == paper
    assert "CONSOLE" not in done.stderr
