"""The examples in docs/history.md equal the command's output for these prepared runs."""

import random
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from gpubench.analysis import trend
from gpubench.analysis.fingerprint import Fingerprint
from gpubench.cli import _print, history
from gpubench.stats import Interval

PAGE = (Path(__file__).parents[1] / "docs/history.md").read_text()
DEVICE = Fingerprint((("model", "NVIDIA H200"), ("units", "132"), ("driver", "nvidia 580")))
CASE = "bandwidth/triad[size=1GiB,dtype=float32]"
LINE = trend.Line(CASE, 1, "quick", "hot", "B/s", "more", ("cuda:0",), DEVICE)
LAST, DAY_S = datetime(2026, 10, 30, 5, 0, tzinfo=UTC).timestamp(), 86400.0


def trend_of(medians, seed, noise, newer_from):
    """Return a trend of runs, one a day, the last on 30 October; from one of them on cuBLAS is newer."""
    rng = random.Random(seed)
    points = []
    for index, median in enumerate(medians):
        value, at = median * (1 + noise * rng.gauss(0, 1)), LAST - DAY_S * (len(medians) - 1 - index)
        path = f"gpubench-runs/{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}.jsonl"
        versions = (("cublas", "13.2" if newer_from <= index else "13.1"),)
        source = trend.RunSource(f"{index:03}", path, at, "", versions)
        points.append(trend.TrendPoint(source, 0, Interval(value * 0.999, value, value * 1.001), 0.001, 100, ()))
    return trend.Trend.of(LINE, points)


EXAMPLES = {
    "two steps": trend_of([4.30e12] * 12 + [4.13e12] * 11 + [4.30e12] * 10, 1, 0.002, 12),
    "drift": trend_of([4.02e12 * (1 - 0.00035 * index) for index in range(60)], 2, 0.004, 0),
    "two states": trend_of(([4.30e12] * 10 + [4.13e12] * 8) * 2, 1, 0.002, 0),
    "no change": trend_of([4.30e12] * 28, 3, 0.002, 0),
    "too few": trend_of([4.30e12] * 4 + [2.15e12], 4, 0.001, 0),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_shows_what_history_prints(name, monkeypatch):
    console = Console(width=100, highlight=False)
    monkeypatch.setattr(_print, "out", lambda: console)
    with console.capture() as capture:
        console.print(*history.trend_lines(EXAMPLES[name]), sep="\n", soft_wrap=True)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    quoted = lines if name in ("two steps", "drift") else [lines[1]]
    assert textwrap.indent("\n".join(quoted), "    ") in PAGE, "\n" + textwrap.indent("\n".join(quoted), "    ")
