"""The pages of comparisons and trends in a real browser: nothing is clipped or overprinted, on a desk and on a phone.

.venv/bin/pytest -m slow tests/test_compare_browser.py
"""

from pathlib import Path

import _browser
import pytest
from test_compare import changed
from test_trend_page import STEP, page_of, trend_of

from gpubench.judging import comparison
from gpubench.tools import rendering
from gpubench.tools.gating import readings

RECORDINGS = Path(__file__).parent / "recordings"
PAIRS = {
    "cards": ("headline/1", "headline/2"),
    "three runs": ("headline/1", "headline/2", "headline/3"),
    "longer": ("longer/base", "longer/3"),
    "one process": ("whole/h200", "whole/h200x2"),
}
pytestmark = _browser.MARKS


def comparison_of(*names):
    evidence = readings.read_all([RECORDINGS / f"{name}.jsonl.gz" for name in names])
    return rendering.report("html").compare(comparison.compare(evidence, lambda _: 0.02))


PAGES = {name: lambda names=names: comparison_of(*names) for name, names in PAIRS.items()}
PAGES["far apart"] = lambda: rendering.report("html").compare(changed(1269.0, 19.0))
PAGES["trends"] = lambda: page_of(STEP, trend_of([4.0e12] * 5))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_clipped_or_overprinted_and_nothing_leaves_its_box(browser, tmp_path, name, width, dark):
    page = tmp_path / "page.html"
    page.write_text(PAGES[name]())
    browser.show(page, width, dark=dark)
    browser.expect_whole()
    assert browser.messages == []
