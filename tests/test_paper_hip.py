"""The suites through CuPy's unmodified wheel for ROCm, on a HIP runtime on paper (paper_hip/): a dry run.

`bash ci/rocm.sh` fetches the wheel and AMD's headers. What goes through shows that the calls are right and in order,
and that kernels give right answers with 64 lanes to a warp. Nothing is measured: no figure says anything about a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench import plugins
from gpubench.model import store

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("GPUBENCH_ROCM_ROOT", "/nonexistent"))
WHEEL, HEADERS = ROOT / "opt/cupy", ROOT / "usr/include"
# cases that the paper cannot stand in for, by suite
BLOCKS_AT_ONCE = "blocks that wait for each other: on the host one runs after another"
TOO_LARGE = "takes minutes on the host"
LEFT_OUT = {
    "bandwidth": {"beside_gemm": TOO_LARGE, "beside_gemm_on": TOO_LARGE},
    "gemm": {"read": TOO_LARGE, "skinny": TOO_LARGE, "decoder": TOO_LARGE},
    "ipc": {"within": BLOCKS_AT_ONCE},
    "latency": {
        "barrier": BLOCKS_AT_ONCE,
        "loaded": BLOCKS_AT_ONCE,
        "slices": "an access of the host's memory takes less time than reading the clock",
        "host_flag": "a request and its answer take a time slice of the host's scheduler",
        "constant": "its array is in the module's data, which is not written from outside",
    },
    "patterns": {},
    "p2p": {"control": "a message waits for a time slice of the host's scheduler"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not WHEEL.is_dir(), reason="needs the wheel cupy-rocm-7-0: bash ci/rocm.sh"),
    pytest.mark.skipif(not (HEADERS / "hip").is_dir(), reason="needs AMD's headers: bash ci/rocm.sh"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """An environment in which Python finds the wheel, and the wheel the libraries on paper."""
    folder = tmp_path_factory.mktemp("paper")
    subprocess.run([sys.executable, str(HERE / "paper_hip/make.py"), str(WHEEL), str(HEADERS), str(folder)], check=True)
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
    places = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(WHEEL), "ROCM_HOME": str(folder), "PATH": path}
    return {**os.environ, **places, "CUPY_CACHE_DIR": str(folder / "cache"), "GPUBENCH_HISTORY": "off"}


def gpubench(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-P", "-m", "gpubench", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_the_wheel_imports_and_computes(environment):
    program = (
        "import cupy; a = cupy.arange(10, dtype='float32'); b = cupy.ones((30, 40), 'float16');"
        "print(cupy.cuda.runtime.is_hip, (a * 2 + 1).sum(), (b @ b.T)[0, 0])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "100.0", "40.0"], done.stderr


def test_the_devices_are_found(environment, tmp_path):
    done = gpubench(environment, tmp_path, "doctor", "--json")
    devices = [device["name"] for device in json.loads(done.stdout)["devices"]]
    assert devices[:2] == ["GPU on paper", "GPU on paper"], done.stderr


@pytest.mark.parametrize("name", list(LEFT_OUT))
def test_every_case_of_a_suite_goes_through_or_says_what_is_missing(name, environment, tmp_path):
    definitions = plugins.load("suites", name).definitions
    cases = [
        f"{name}/{case}{'[' if definitions[case].axes else ''}" for case in definitions if case not in LEFT_OUT[name]
    ]
    filters = [word for case in cases for word in ("--filter", case)]
    words = ("run", name, "--device", "rocm:0", "--tier", "smoke", "-o", "a.jsonl", *filters)
    done = gpubench(environment, tmp_path, *words)
    results = store.read_run(tmp_path / "a.jsonl").results
    bad = [f"{result.case.id}: {result.reason}" for result in results if result.status not in ("ok", "skipped")]
    assert bad == [], done.stderr[-2000:]
    assert sum(result.status == "ok" for result in results) >= 5
    assert all(result.reason for result in results if result.status == "skipped")
