"""The gate on a dry run, whose cases are ok and have no figure: it never passes."""

import dataclasses
import json
from pathlib import Path

import _files as files
import _make as make
import pytest
from _sides import TRIAD, noisy


@pytest.fixture(autouse=True)
def _runs(call):
    """Write a dry run of a case, `dry.jsonl`, and a measured one, `measured.jsonl`, into the folder of `call`."""
    timed = (make.result(of=TRIAD, replicate=index, labels=("dry-run",)) for index in range(5))
    dry = [dataclasses.replace(result, series=()) for result in timed]
    files.write(Path("dry.jsonl"), *dry)
    measured = [make.result(make.timing(v), of=TRIAD, replicate=i) for i, v in enumerate(noisy())]
    files.write(Path("measured.jsonl"), *measured)


@pytest.mark.parametrize(
    ("candidate", "baseline", "side"),
    [
        ("dry.jsonl", "measured.jsonl", "candidate"),
        ("measured.jsonl", "dry.jsonl", "baseline"),
        ("dry.jsonl", "dry.jsonl", "candidate"),
    ],
)
def test_a_gate_refuses_to_judge_a_dry_run_on_either_side(call, candidate, baseline, side):
    status, out, _ = call("gate", candidate, "--baseline", baseline)
    assert status == 4
    assert out.startswith("CANNOT JUDGE: nothing is decided in bandwidth: 1 invalid (exit status 4: ")
    assert f"{side}: invalid: a dry run measures nothing" in out


def test_a_gate_and_a_comparison_of_a_dry_run_decide_nothing(call):
    status, out, _ = call("gate", "dry.jsonl", "--baseline", "dry.jsonl", "--json")
    document = json.loads(out)
    assert (status, document["status"], document["counts"]) == (4, 4, {"invalid": 1})
    assert document["findings"][0]["candidate"]["median"] is None
    assert call("compare", "dry.jsonl", "dry.jsonl")[1].startswith(
        "B against A: no case can be compared; nothing is proven (0 of 1 case is decided)\n"
    )
