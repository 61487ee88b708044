"""Gives recordings the summaries, views and key figures that their suites declare today; the measured data stay.

bash ci/study.sh renew_words tests/recordings/NAME.jsonl.gz …
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpubench import plugins
from gpubench.measuring.plan import load_suite
from gpubench.model import Run, SuiteInfo, store


def main(*paths: str) -> None:
    """Rewrite these files."""
    for path in paths:
        run = renewed(store.read_run(path))
        Path(path).write_bytes(store.encode_run(run, packed=path.endswith(".gz")))


def renewed(run: Run) -> Run:
    """Return the run with the declarations of the installed suites."""
    suites = tuple(map(_renewed, run.manifest.suites))
    return replace(run, manifest=replace(run.manifest, suites=suites))


def _renewed(info: SuiteInfo) -> SuiteInfo:
    return load_suite(info.name).info() if info.name in plugins.names("suites") else info


if __name__ == "__main__":
    main(*sys.argv[1:])
