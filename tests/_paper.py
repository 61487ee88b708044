"""Run gpubench with CuPy's unmodified wheel for ROCm on a HIP runtime on paper (paper_hip/)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.model import store

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("GPUBENCH_ROCM_ROOT", "/nonexistent"))
WHEEL, HEADERS = ROOT / "opt/cupy", ROOT / "usr/include"
needs_wheel = [
    pytest.mark.skipif(not WHEEL.is_dir(), reason="needs the wheel cupy-rocm-7-0: bash ci/rocm.sh"),
    pytest.mark.skipif(not (HEADERS / "hip").is_dir(), reason="needs AMD's headers: bash ci/rocm.sh"),
]
# Cases of a model with eight billion weights. One pass over the weights takes three minutes on two cores, and a case
# makes ten or more. A program in paper_hip/programs runs a smaller model instead.
TOO_LARGE = {"gemm/decoder", "inference/prefill", "inference/step"}
# Cases that are skipped because they need more than the 4 GiB of the GPU on paper.
BEYOND_4_GIB = TOO_LARGE | {"virtual/churn"}
# Cases that time one transfer beside another. With two cores the other one may end first in every attempt.
_OVERLAPPING = {"bandwidth/beside_gemm", "bandwidth/beside_gemm_on", "p2p/control"}
_MEMORY = re.compile(r"needs \S+ GiB of memory, \S+ GiB are free")
# The reasons for which gpubench may skip a case on AMD: a limit of CuPy on ROCm or of AMD's GPUs, or a library that
# no wheel contains.
_REASONS = re.compile(
    "CuPy on ROCm does not (support|bind|register)|CuPy does not support .* on amd GPUs|gfx90a does not support|"
    r"does not support matrix products in (tf32|float8)|hip(COMP|BLASLt) is not usable here|needs an NVIDIA GPU|"
    r"\(NVIDIA, sm_90 or newer\)|CuPy does not bind|CUDA's driver|NVIDIA's driver|cuda-bindings|needs cuBLASLt"
)


def built(folder):
    """Build the libraries on paper; return an environment in which Python finds the wheel, and the wheel finds them."""
    subprocess.run([sys.executable, str(HERE / "paper_hip/make.py"), str(WHEEL), str(HEADERS), str(folder)], check=True)
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
    places = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(WHEEL), "ROCM_HOME": str(folder), "PATH": path}
    return {**os.environ, **places, "CUPY_CACHE_DIR": str(folder / "cache"), "GPUBENCH_HISTORY": "off"}


def python(environment, folder, *arguments, limit_s=360):
    """Run Python with these words in that environment and folder, for six minutes at most unless told otherwise."""
    command = [sys.executable, "-W", "ignore", "-P", *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=limit_s
    )


def gpubench(environment, folder, *arguments, limit_s=360):
    """Run a command of gpubench."""
    return python(environment, folder, "-m", "gpubench", *arguments, limit_s=limit_s)


def results_of(environment, folder, suite, filters=(), limit_s=360):
    folder.mkdir()
    filter_words = [word for case in filters for word in ("--filter", case)]
    command = ("run", suite, "--device", "rocm:0", "--tier", "smoke", "-o", "a.jsonl", *filter_words)
    done = gpubench(environment, folder, *command, limit_s=limit_s)
    assert (folder / "a.jsonl").is_file(), done.stderr
    return {result.case.id: result for result in store.read_run(folder / "a.jsonl").results}, done


def expect_dry_run(environment, folder, results):
    """Check that each case went through without a figure, or was skipped for a listed reason.

    A check of times may fail while other programs use the processor: a case that failed has a second try.
    """
    bad = {case for case, result in results.items() if result.status not in ("ok", "skipped")}
    for suite in {case.partition("/")[0] for case in bad}:
        filters = [case for case in bad if case.startswith(f"{suite}/")]
        results = {**results, **results_of(environment, folder / suite, suite, filters)[0]}
    problems = [f"{case}: {problem}" for case, result in results.items() if (problem := _problem(result))]
    assert not problems, "\n".join(problems)


def _problem(result):
    """Return what is wrong with how a case ended, and an empty text if nothing is."""
    name = f"{result.case.suite}/{result.case.name}"
    if result.status == "ok":
        return "" if "dry-run" in result.labels and not result.series else "it has a figure, or no label of a dry run"
    if result.status == "skipped":
        is_large = name in BEYOND_4_GIB and _MEMORY.search(result.reason)
        return "" if is_large or _REASONS.search(result.reason) else result.reason
    is_late = result.cause == "discarded" and name in _OVERLAPPING
    return "" if is_late else f"{result.status}: {result.reason}"
