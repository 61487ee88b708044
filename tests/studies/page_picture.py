"""Photographs the head of a page for the README: docs/gallery/report.png, of the recording of one H200.

bash ci/study.sh page_picture          needs Chromium
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _browser import browser

from gpubench.model import store
from gpubench.tools import enclosing, rendering

_ROOT = Path(__file__).parents[2]
_RECORDING = _ROOT / "tests/recordings/whole/h200.jsonl.gz"
_PICTURE = _ROOT / "docs/gallery/report.png"
_WIDTH, _HEIGHT = 1280, 800


def main() -> None:
    """Write the picture."""
    run = store.read_run(_RECORDING)
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        page = Path(folder) / "page.html"
        page.write_text(rendering.report("html").enclose(run, enclosing.enclosure(run, _RECORDING)), encoding="utf-8")
        opened.show(page, _WIDTH, _HEIGHT)
        opened.photograph(_PICTURE, height=_HEIGHT)


if __name__ == "__main__":
    main()
