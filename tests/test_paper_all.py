"""The smoke tier of all suites in one command on the HIP runtime on paper, and the gate on it: `bash ci/rocm.sh all`.

The cases that test_paper_hip.py leaves out, because they take long, are among them. Nothing is measured.
"""

import json

import pytest
from _paper import BEYOND_4_GIB, built, expect_dry_run, gpubench, needs_wheel, results_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), *needs_wheel]
LIMIT_S = 2400


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return a GPU on paper with 4 GiB, which cannot hold a model that would take hours."""
    return {**built(tmp_path_factory.mktemp("paper")), "PAPER_HIP_GIB": "4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("all") / "run"


@pytest.fixture(scope="module")
def dry_run(environment, folder):
    """Return the results of `gpubench run all --device rocm:0 --tier smoke` by the case's id, and the command."""
    return results_of(environment, folder, "all", limit_s=LIMIT_S)


def test_the_run_has_every_case_of_the_plan(environment, folder, dry_run):
    arguments = ("plan", "all", "--device", "rocm:0", "--tier", "smoke", "--json")
    planned = json.loads(gpubench(environment, folder, *arguments).stdout)
    assert set(dry_run[0]) == {job["case"] for job in planned["jobs"]}


def test_every_case_passes_or_names_what_is_missing(environment, tmp_path, dry_run):
    expect_dry_run(environment, tmp_path, dry_run[0])


def test_the_exit_status_is_that_of_the_cases(dry_run):
    results, done = dry_run
    assert done.returncode == (3 if any(result.status == "failed" for result in results.values()) else 0)


def test_no_other_case_is_skipped_for_the_little_memory_of_the_gpu_on_paper(dry_run):
    skipped = {case.partition("[")[0] for case, result in dry_run[0].items() if "are free" in result.reason}
    assert skipped == BEYOND_4_GIB


def test_no_gate_judges_a_run_on_paper(environment, folder, dry_run):
    judged = gpubench(environment, folder, "gate", "a.jsonl", "--baseline", "a.jsonl")
    assert judged.returncode == 4
    assert judged.stdout.startswith("CANNOT JUDGE: nothing is decided in bandwidth, ")
    assert "a dry run measures nothing" in judged.stdout
    arguments = ("--device", "rocm:0", "--tier", "smoke", "--filter", "bandwidth/copy[", "--replicates", "1")
    judged = gpubench(environment, folder, "gate", "--run", "bandwidth", *arguments, "--baseline", "a.jsonl")
    assert judged.returncode == 4, judged.stderr
    assert "a dry run measures nothing" in judged.stdout
