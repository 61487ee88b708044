"""Mistakes planted in how the backend uses HIP, each in a copy of the package: the dry run on paper finds each one.

`bash ci/rocm.sh all` fetches what it needs and runs it.
"""

import os
import shutil
from dataclasses import dataclass

import pytest
from _paper import HERE, built, gpubench, needs_wheel

from gpubench.model import store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), *needs_wheel]
BACKENDS = "devices/backends"
ROOMS = ("suites", "collectors", "reports", "ci")


@dataclass(frozen=True, slots=True)
class SourceMutation:
    """A text in a file of the package, its wrong replacement, a case that runs it, and the message of the dry run."""

    file: str
    right: str
    wrong: str
    case: str
    finding: str


MISTAKES = {
    "a wrong order of arguments": SourceMutation(
        f"{BACKENDS}/cupy.py",
        "memcpyAsync(_address(target), _address(source), ",
        "memcpyAsync(_address(source), _address(target), ",
        "bandwidth/h2d[",
        "words are wrong",
    ),
    "a missing synchronisation": SourceMutation(
        f"{BACKENDS}/_streams.py", "        after.synchronize()\n", "", "bandwidth/copy[", "hipErrorNotReady"
    ),
    "a warp of 32 threads": SourceMutation(
        f"{BACKENDS}/_gpu_facts.py", 'warp=int(props["warpSize"])', "warp=32", "tensor/fma[", "values are wrong"
    ),
    "a wrong unit of events": SourceMutation(
        f"{BACKENDS}/_streams.py",
        "_SECONDS_OF_MS = 1e-3",
        "_SECONDS_OF_MS = 1.0",
        "bandwidth/copy[",
        "the device's events count",
    ),
    "memory that HIP's driver calls would map": SourceMutation(
        f"{BACKENDS}/_memory.py",
        'is_hip and kind in ("pool", "virtual")',
        "is_hip and not kind",
        "ipc/mapping[",
        "cuda-bindings",
    ),
    "the resources of a kernel, whose calls CuPy's wheel for ROCm has not": SourceMutation(
        f"{BACKENDS}/cupy.py",
        "        if self._cupy.cuda.runtime.is_hip:  # these calls were never tried on ROCm\n            return None\n",
        "",
        "tensor/fma[",
        "hip",
    ),
    "a status that is not asked for": SourceMutation(
        f"{BACKENDS}/_streams.py",
        "        if self._runtime.is_hip:\n            raise Skip(",
        "        if False:\n            raise Skip(",
        "ipc/event[path=same",
        "hipError",
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return built(tmp_path_factory.mktemp("paper"))


def copied(folder):
    """Copy the package with its rooms, which lie beside it in a checkout, and return the copy."""
    package = folder / "gpubench"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE.parent / "gpubench", package, ignore=ignored)
    for room in ROOMS:
        shutil.copytree(HERE.parent / room, package / room, ignore=ignored)
    return package


def outcomes(environment, folder, case):
    """Return how the cases ended, with their reasons, by the copy of the package in the folder."""
    paths = os.pathsep.join((str(folder), environment["PYTHONPATH"]))
    arguments = (
        "run",
        case.partition("/")[0],
        "--device",
        "rocm:0",
        "--tier",
        "smoke",
        "--filter",
        case,
        "-o",
        "a.jsonl",
    )
    done = gpubench({**environment, "PYTHONPATH": paths}, folder, *arguments)
    assert (folder / "a.jsonl").is_file(), done.stderr
    return {(result.status, result.reason) for result in store.read_run(folder / "a.jsonl").results}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_the_dry_run_finds_each_planted_mistake(name, environment, tmp_path):
    mistake = MISTAKES[name]
    place = copied(tmp_path) / mistake.file
    healthy = outcomes(environment, tmp_path, mistake.case)
    assert {status for status, _ in healthy} <= {"ok", "skipped"}
    assert not any(mistake.finding in reason for _, reason in healthy)
    text = place.read_text(encoding="utf-8")
    assert text.count(mistake.right) == 1
    place.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    (tmp_path / "a.jsonl").unlink()
    results = outcomes(environment, tmp_path, mistake.case)
    assert any(status != "ok" and mistake.finding in reason for status, reason in results), results
