"""gpubench through CuPy's unmodified wheel for ROCm, on a HIP runtime on paper (paper_hip/): how tests start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("GPUBENCH_ROCM_ROOT", "/nonexistent"))
WHEEL, HEADERS = ROOT / "opt/cupy", ROOT / "usr/include"
needs_wheel = [
    pytest.mark.skipif(not WHEEL.is_dir(), reason="needs the wheel cupy-rocm-7-0: bash ci/rocm.sh"),
    pytest.mark.skipif(not (HEADERS / "hip").is_dir(), reason="needs AMD's headers: bash ci/rocm.sh"),
]


def built(folder: Path) -> dict[str, str]:
    """Build the libraries on paper; return an environment in which Python finds the wheel, and the wheel finds them."""
    subprocess.run([sys.executable, str(HERE / "paper_hip/make.py"), str(WHEEL), str(HEADERS), str(folder)], check=True)
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
    places = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(WHEEL), "ROCM_HOME": str(folder), "PATH": path}
    return {**os.environ, **places, "CUPY_CACHE_DIR": str(folder / "cache"), "GPUBENCH_HISTORY": "off"}


def python(environment: Mapping[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in that environment and folder, for six minutes at most."""
    command = [sys.executable, "-W", "ignore", "-P", *words]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=360
    )


def gpubench(environment: Mapping[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of gpubench."""
    return python(environment, folder, "-m", "gpubench", *words)
