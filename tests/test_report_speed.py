"""The growth of the work of reports and comparisons with the cases, counted in calls; slow: their time.

.venv/bin/pytest -m slow tests/test_report_speed.py
"""

import cProfile
import pstats

import large_runs
import pytest

from gpubench.judging import comparison
from gpubench.judging.evidence import Reading
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
