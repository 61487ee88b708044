"""The growth of the work of reports and comparisons with the cases, counted in calls; slow: their time.

.venv/bin/pytest -m slow tests/test_report_speed.py
"""

import cProfile
import os
import pstats
import resource
import subprocess
import sys
import time
from pathlib import Path

import large_runs
import pytest

from gpubench.judging import comparison
from gpubench.judging.evidence import Reading
from gpubench.model import store
from gpubench.tools import rendering

FORMS = ("html", "md", "json", "csv", "prom", "trace")
SMALL, LARGE = 1000, 3000


def calls(work):
    """Return the number of Python calls of some work, which is the same on any machine."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls


@pytest.fixture(scope="module")
def runs():
    """Runs of two sizes and readings of each, with a second that is 3 % slower."""
    return {count: large_runs.large(count) for count in (SMALL, LARGE)}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_work_of_a_report_grows_no_faster_than_its_cases(form, runs):
    report = rendering.report(form)
    report.render(runs[SMALL])  # work that is done once per process, such as loading templates
    small, large = (calls(lambda run=run: report.render(run)) for run in runs.values())
    assert large < 1.1 * small * LARGE / SMALL


def test_the_work_of_a_comparison_grows_no_faster_than_its_cases(runs):
    def compared(run):
        return comparison.compare([Reading.of(run), Reading.of(run)], lambda _: 0.02)

    small, large = (calls(lambda run=run: compared(run)) for run in runs.values())
    assert large < 1.1 * small * LARGE / SMALL


REPORT_S, COMPARE_S, PAGE_BYTES = 5.0, 3.0, 5e6


def spent(*arguments):
    """Return elapsed and processor seconds of a command; other programs lengthen the second less."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([Path(sys.executable).parent / "gpubench", *arguments], check=True, stdout=subprocess.DEVNULL)
    after, passed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return passed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two runs are read by two processes")
def test_ten_thousand_cases_with_a_million_readings_are_reported_in_five_seconds_and_compared_in_three(tmp_path):
    """Reports are measured by processor time, the comparison in two processes by elapsed time on an idle machine."""
    before, after, page = tmp_path / "before.jsonl", tmp_path / "after.jsonl", tmp_path / "page.html"
    before.write_bytes(store.encode_run(large_runs.large(10_000)))
    after.write_bytes(store.encode_run(large_runs.large(10_000, 1.03)))
    reports = [min(spent("report", before, "-o", page, "--force")) for _ in range(3)]
    assert min(reports) < REPORT_S
    assert page.stat().st_size < PAGE_BYTES
    compared = [spent("compare", before, after)[0] for _ in range(5)]
    assert min(compared) < COMPARE_S
