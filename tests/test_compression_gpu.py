"""Codecs of a GPU on small buffers and on hostile streams, which may cost a worker and never the run.

    pytest -m gpu tests/test_compression_gpu.py

The logic is also tried on codecs in host memory, without a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import _codec_device as device_of
import numpy as np
import pytest
from _gpu_hostile import attack, device_module, round_trips, say
from _hostile import buffers
from _modules import bench_on, opened

from gpubench import plugins
from gpubench.base.errors import Skip
from gpubench.devices.native import nvcomp
from gpubench.model import Device, store

MANY = 10_000
MUTATIONS = 2_000  # number of mutations for each codec


@pytest.fixture(scope="module")
def suite():
    return plugins.load("suites", "compression")


@pytest.fixture
def paper(suite, monkeypatch):
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.NvcompLibrary(device_of.Functions()))
    return bench_on(device_of.GpuInHostMemory(opened(), Device("cuda:0", "cupy", "GPU", "sm_90")), suite, "x")


@pytest.fixture(scope="module")
def gpu(suite):
    return bench_on(opened("cupy"), suite, "x")


@pytest.fixture(scope="module")
def chunks():
    return buffers(np.random.default_rng(6), MANY)


def test_without_a_gpu_every_small_buffer_comes_back(paper):
    codec = device_module().DeviceCodec(paper, "deflate")
    chunks = buffers(np.random.default_rng(3), 200)
    outcome = round_trips(paper, codec, chunks)
    assert outcome == {"came back": 200, "of": 200, "first that did not": []}


def test_without_a_gpu_every_mutation_has_one_of_the_counted_outcomes(paper):
    codec = device_module().DeviceCodec(paper, "deflate")
    chunks = [chunk for chunk in buffers(np.random.default_rng(4), 220) if chunk][:200]
    outcome = attack(paper, codec, chunks, np.random.default_rng(5))
    overrun = outcome.pop("overrun")
    assert (sum(outcome.values()), overrun) == (200, 0)
    assert outcome["refused"] > 100


@pytest.mark.gpu
@pytest.mark.parametrize("name", device_module().VARIANTS)
def test_ten_thousand_small_buffers_come_back_on_a_gpu(gpu, chunks, name):
    try:
        codec = device_module().DeviceCodec(gpu, name)
    except Skip as reason:
        pytest.skip(str(reason))
    outcome = round_trips(gpu, codec, chunks)
    say(f"{name} {json.dumps(outcome)}")
    assert outcome["came back"] == len(chunks)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_every_mutation_has_one_of_the_counted_outcomes_on_a_gpu():
    """Each is refused, has a wrong length, fails the comparison or is unharmed; a worker's death costs a batch."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "_gpu_hostile.py"), str(MUTATIONS), *nvcomp.ALGORITHMS]
    # with PYTHONSAFEPATH the script's folder is not on the path
    path = os.pathsep.join((str(here), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    for name, ways in json.loads(done.stdout).items():
        say(f"{name} {json.dumps(ways)}")
        kinds = ("refused", "wrong length", "other bytes", "unharmed", "died", "hung")
        assert sum(ways[way].get(kind, 0) for way in ways for kind in kinds) == MUTATIONS


@pytest.mark.gpu
def test_a_case_whose_stream_ends_its_worker_is_failed_and_the_next_one_runs_on_a_gpu(tmp_path):
    (tmp_path / "hostile.py").write_text(HOSTILE.format(tests=str(Path(__file__).parent)))
    chosen = ("--filter", "hostile/", "--filter", "codec=snappy", "--tier", "smoke", "--out", "a.jsonl")
    command = [sys.executable, "-P", "-m", "gpubench", "run", "hostile.py", "compression", *chosen]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    results = store.read_run(tmp_path / "a.jsonl").results
    outcomes_by_suite = {result.case.suite: (result.status, result.reason) for result in results}
    say(json.dumps(outcomes_by_suite))
    assert outcomes_by_suite["hostile"][0] == "failed"
    assert outcomes_by_suite["compression"][0] == "ok"


HOSTILE = """
import sys

import numpy as np
from gpubench.api.suite import Stage, Suite, Task

sys.path.insert(0, {tests!r})
import _gpu_hostile
from _hostile import buffers

suite = Suite("a stream that no GPU survives, or at least no comparison")


@suite.case()
def snappy(bench):
    \"\"\"A thousand mutated streams, checked as if they were none.\"\"\"
    rng = np.random.default_rng([11, 0])
    chunks = [chunk for chunk in buffers(rng, 1100) if chunk][:1000]
    codec, found = _gpu_hostile.device_module().DeviceCodec(bench, "snappy"), {{}}

    def call():
        found.update(_gpu_hostile.attack(bench, codec, chunks, rng))
        return 1.0

    def check():
        assert found["unharmed"] == 1000
        return {{}}

    return Task.of(Stage(call, clock="self"), check=check)
"""
