"""Gives recordings the key figures, summaries and titles of charts of today's suites; what was measured stays.

python tests/recordings/renew_words.py tests/recordings/NAME.jsonl.gz …
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpubench import plugins
from gpubench.measuring.plan import load_suite
from gpubench.model import Run, SuiteInfo, View, store


def main(*paths: str) -> None:
    """Rewrite these files."""
    for path in paths:
        run = renewed(store.read_run(path))
        Path(path).write_bytes(store.content(run, packed=path.endswith(".gz")))


def renewed(run: Run) -> Run:
    """Return the run whose suites have the words of today."""
    suites = tuple(map(_renewed, run.manifest.suites))
    return replace(run, manifest=replace(run.manifest, suites=suites))


def _renewed(info: SuiteInfo) -> SuiteInfo:
    if info.name not in plugins.names("suites"):
        return info
    suite = load_suite(info.name)
    titles = {_shown(view): view.title for view in suite.views}
    views = tuple(replace(view, title=titles.get(_shown(view), view.title)) for view in info.views)
    return replace(info, summary=suite.summary, views=views, key_figures=suite.key_figures)


def _shown(view: View) -> tuple[object, ...]:
    """Return what a view shows, whatever its title."""
    return (view.kind, view.cases, view.x, view.y, view.series, view.by)


if __name__ == "__main__":
    main(*sys.argv[1:])
