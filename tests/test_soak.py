"""The soak: which counters have grown, and one whole soak of a minute."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "ci" / "_soak.py"
MODULE = runpy.run_path(str(SOAK))
SoakRow, Usage, grown = MODULE["SoakRow"], MODULE["Usage"], MODULE["grown"]


def rows(values, name="main_mib"):
    held = {"main_mib": 60.0, "sampler_mib": 50.0, "children_mib": 500.0, "descriptors": 10, "processes": 4}
    return [SoakRow(f"run {number}", 1.0, 0, Usage(**held | {name: value})) for number, value in enumerate(values)]


def test_values_have_grown_if_they_rise_steadily_over_three_rows_after_the_warm_up():
    assert grown(rows([400.0, 2480.0, 1970.0, 2480.0, 1970.0, 2480.0, 1970.0], "children_mib")) == []
    assert grown(rows([60.0, 64.0, 65.0, 64.5, 66.0, 68.0, 70.0])) == []
    assert grown(rows([60.0 + 5 * number for number in range(10)])) == ["main MiB grew from 75.0 to 95.0"]
    assert grown(rows(range(10, 30), "descriptors")) == ["descriptors grew from 16.0 to 24.0"]
    assert grown(rows([0.0, 60.0, 900.0])) == []


def test_the_peaks_of_workers_are_compared_only_where_there_are_several_rows_of_the_same_work():
    rising = rows([400.0 + 200 * number for number in range(12)], "children_mib")
    assert grown(rising) == ["children MiB grew from 1000.0 to 2200.0"]
    assert grown(rising, has_same_work=False) == []
    assert grown(rising[:6]) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_finds_nothing():
    done = subprocess.run([sys.executable, SOAK, "1"], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "soak: nothing grew and nothing was left behind")
