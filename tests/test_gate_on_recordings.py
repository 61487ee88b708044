"""The gate on real replicates of identical code, as far as recordings go: it is not alarmed."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_on_recordings import DESIGNS, Recording, smallest, tally

from gpubench.readings import read_all

FILES = sorted((Path(__file__).parent / "recordings").glob("*headline*.jsonl.gz"))


@pytest.fixture(scope="module")
def recording():
    return Recording(read_all(FILES))


@pytest.mark.parametrize("design", DESIGNS)
def test_replicates_of_identical_code_alarm_at_most_one_suite_in_a_hundred(recording, design):
    if design in ("sittings", "history") and len(recording.readings) < 2:
        pytest.skip("needs recordings of two sittings")
    found = tally(recording, design, draws=200, threshold=0.02)
    assert found.draws == 200
    assert found.alarmed <= 2


def test_a_slow_down_of_five_per_cent_is_found_in_nearly_every_case_of_a_gpu(recording):
    least = {case: values[1] for case, values in smallest(recording, 0.02, draws=300)}
    assert len(least) >= 4
    assert sum(value <= 0.05 for value in least.values()) >= 0.75 * len(least)
