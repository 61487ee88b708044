"""Shared by all tests: which tests are left out by default, and the isolation from the developer's history and runs."""

import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile

import _browser
import _command
import hypothesis
import pytest
from _modules import opened

from gpubench import plugins
from gpubench.measuring import inventory

SLOWNESS = [hypothesis.HealthCheck.too_slow]


@functools.cache
def _has_gpu():
    program = shutil.which("nvidia-smi")
    return bool(program) and subprocess.run([program, "-L"], capture_output=True, check=False).returncode == 0


def pytest_configure(config):
    """Keep tests from the developer's history and from other runs, and leave slow tests out by default."""
    os.environ.pop("GPUBENCH_HISTORY", None)  # tests must not write into the developer's history
    sys.dont_write_bytecode = False  # else hundreds of processes would each compile every module that they import
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # each process that imports NumPy would start threads that wait by spinning
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # concurrent test runs must not notice each other as runs on the same device
    runtime = tempfile.TemporaryDirectory(prefix="gpubench-tests-")
    config.add_cleanup(runtime.cleanup)
    os.environ["XDG_RUNTIME_DIR"] = runtime.name
    # other tests run at the same time, so that no example has a time limit
    hypothesis.settings.register_profile("tests", deadline=None, max_examples=50, suppress_health_check=SLOWNESS)
    hypothesis.settings.load_profile("tests")
    config.option.markexpr = config.option.markexpr or "not slow"


def pytest_collection_finish(session):
    """Leave what the collection made to no later search for garbage: it is a million objects, and all stay."""
    gc.freeze()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        if not _has_gpu():
            pytest.skip("no NVIDIA GPU answers nvidia-smi here")
        # without NVLink multicast, because these tests run on shared machines; the product leaves it to NCCL
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")


@pytest.fixture
def outside_of_ci(monkeypatch):
    """Let commands print what a user sees: in a CI the names of machines are pseudonyms."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "JENKINS_URL", "TF_BUILD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(tmp_path, monkeypatch, outside_of_ci):
    """Return the command as a user without settings calls it in an empty folder outside of any CI, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return _command.gpubench


@pytest.fixture(scope="module")
def host():
    return opened()


@pytest.fixture(scope="module")
def browser():
    with _browser.browser() as shown:
        yield shown


def _first_gpu():
    device = inventory.facts().devices[0]
    return plugins.load("backends", device.backend).open(device)


@pytest.fixture(scope="module")
def gpu():
    return _first_gpu()


@pytest.fixture(scope="module")
def real_gpu():
    """Return the first GPU, open in this process, where `gpu` is one on paper."""
    return _first_gpu()
