"""Plant mistakes in how the backend uses HIP, each in a copy of the package: the dry run on paper finds each one.

    bash ci/study.sh paper_mutations [NAME…]    needs what `bash ci/rocm.sh` fetches, which also runs it; default all

Each takes minutes. The status is 1 if the dry run misses one, or calls the sound package wrong.
"""

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _paper import HEADERS, HERE, WHEEL, built, gpubench

from gpubench.model import store

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


def copied(folder: Path) -> Path:
    """Copy the package with its rooms, which lie beside it in a checkout, and return the copy."""
    package = folder / "gpubench"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE.parent / "gpubench", package, ignore=ignored)
    for room in ROOMS:
        shutil.copytree(HERE.parent / room, package / room, ignore=ignored)
    return package


def outcomes(environment: dict[str, str], folder: Path, case: str) -> set[tuple[str, str]]:
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


def outcome_of(mistake: SourceMutation, environment: dict[str, str], folder: Path) -> str:
    """Return what is wrong with how the dry run took a mistake, and an empty text if it found it."""
    place = copied(folder) / mistake.file
    healthy = outcomes(environment, folder, mistake.case)
    if any(status not in ("ok", "skipped") or mistake.finding in reason for status, reason in healthy):
        return f"without the mistake: {healthy}"
    text = place.read_text(encoding="utf-8")
    if text.count(mistake.right) != 1:
        return f"{mistake.file} has the right text {text.count(mistake.right)} times"
    place.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    (folder / "a.jsonl").unlink()
    results = outcomes(environment, folder, mistake.case)
    is_found = any(status != "ok" and mistake.finding in reason for status, reason in results)
    return "" if is_found else f"not found: {results}"


def main(names: list[str]) -> int:
    """Print for each mistake whether it is found; return 1 if one is not."""
    if not (WHEEL.is_dir() and (HEADERS / "hip").is_dir()):
        raise SystemExit("the wheel cupy-rocm-7-0 and AMD's headers are not here: bash ci/rocm.sh all")
    problems = 0
    with tempfile.TemporaryDirectory() as place:
        environment = built(Path(place))
        for name in names or MISTAKES:
            with tempfile.TemporaryDirectory() as folder:
                problem = outcome_of(MISTAKES[name], environment, Path(folder))
            problems += bool(problem)
            sys.stdout.write(f"{name}: {problem or 'found'}\n")
            sys.stdout.flush()
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
