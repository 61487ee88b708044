"""The whole program on a simulated machine: a GPU on paper (paper_hip/), and the files of an MI250X in place of /sys.

CuPy's wheel for ROCm and pyrsmi's are unmodified; `bash ci/rocm.sh` fetches them. Nothing is measured.
"""

import json
import os
import subprocess
import sys

import _fake_sysfs as fake
import pytest
from _paper import ROOT, built, needs_wheel
from test_amd_doctor import MACHINE
from test_amd_libraries import namespace

from gpubench.model import store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), *needs_wheel]
CASE = ("run", "bandwidth", "--device", "rocm:0", "--tier", "smoke", "--filter", "bandwidth/copy", "-o")


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return built(tmp_path_factory.mktemp("paper"))


@pytest.fixture
def gpubench(paper, tmp_path):
    def run(*arguments, throttle=0):
        tree = fake.build(tmp_path / f"tree{throttle}", "mi250x")
        for index in range(2):
            table = fake.gpu_metrics(3, throttle=throttle, gfx_mhz=1300, power_w=500)
            (fake.folder(tree, index) / "gpu_metrics").write_bytes(table)
        variables = {**paper, "PYTHONPATH": os.pathsep.join((paper["PYTHONPATH"], f"{ROOT}/opt/pyrsmi"))}
        command = [*namespace(), "sh", "-c", MACHINE, str(tree), sys.executable, "-W", "ignore", "-P", "-m", "gpubench"]
        return subprocess.run(
            [*command, *arguments],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_doctor_names_the_source_in_use_and_why_each_earlier_source_failed(gpubench):
    """No amdsmi is here, and pyrsmi finds no library of AMD."""
    versions = dict(json.loads(gpubench("doctor", "--json").stdout)["versions"])
    files, amdsmi, pyrsmi = versions["amd.counters"].split("; ")
    assert files == "the driver's files"
    assert amdsmi == "amdsmi ended (exit status 1: ModuleNotFoundError: No module named 'amdsmi')"
    assert pyrsmi.startswith("pyrsmi ended (exit status 1: pyrsmi.rocml.ROCMLError_LibraryNotFound: AMD SMI library")


def test_the_monitor_shows_the_gpu(gpubench):
    lines = gpubench("monitor", "--count", "1", "--interval", "0.5", throttle=1 << 32).stdout.splitlines()
    values = "busy 93 %, power 412.0 W, memory 11.50 GiB, clock 1.700 GHz, temp 61 °C, throttle reasons thermal (GPU)"
    assert lines[0].partition(" ")[2] == f"rocm:0 {values}"


def test_a_gpu_that_is_too_hot_gives_no_figure_and_one_at_its_power_cap_is_watched(gpubench, tmp_path):
    gpubench(*CASE, "hot.jsonl", throttle=1 << 36)
    (hot,) = store.read_run(tmp_path / "hot.jsonl").results
    assert (hot.status, hot.cause) == ("invalid", "discarded")
    assert "thermal" in hot.reason
    gpubench(*CASE, "capped.jsonl", throttle=1)
    (capped,) = store.read_run(tmp_path / "capped.jsonl").results
    assert capped.status == "ok"
    assert "unwatched" not in capped.labels
