"""Codecs of a GPU on small buffers and on hostile streams, which may cost a worker and never the run.

    pytest -m gpu tests/test_compression_gpu.py

The logic is also tried on codecs in host memory, without a GPU.
"""

import json

import _codec_device as device_of
import numpy as np
import pytest
from _gpu_hostile import attack, device_module, round_trips, say, survey
from _hostile import buffers

from gpubench import plugins
from gpubench.errors import Skip
from gpubench.model import Case, Device, Facts
from gpubench.native import nvcomp
from gpubench.suite import Bench, Target

MANY = 10_000


@pytest.fixture(scope="module")
def suite():
    return plugins.load("suites", "compression")


def bench_of(suite, opened):
    return Bench(opened, Case(suite.name, "x"), Target(Facts((opened.device,)), opened.device), suite.package)


@pytest.fixture
def paper(suite, monkeypatch):
    """A GPU and an nvCOMP in host memory."""
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.Library(device_of.Functions()))
    backend = plugins.load("backends", "host")
    host = backend.open(backend.devices()[0])
    return bench_of(suite, device_of.GpuInHostMemory(host, Device("cuda:0", "cupy", "GPU", "sm_90")))


@pytest.fixture(scope="module")
def gpu(suite):
    backend = plugins.load("backends", "cupy")
    return bench_of(suite, backend.open(backend.devices()[0]))


@pytest.fixture(scope="module")
def chunks():
    return buffers(np.random.default_rng(6), MANY)


def test_without_a_gpu_small_buffers_come_back_and_the_others_are_told(paper):
    codec = device_module().open_codec(paper, "deflate")
    chunks = buffers(np.random.default_rng(3), 200)
    found = round_trips(paper, codec, chunks)
    assert found == {"came back": 200, "of": 200, "first that did not": []}


def test_without_a_gpu_every_mutation_is_accounted_for(paper):
    codec = device_module().open_codec(paper, "deflate")
    chunks = [chunk for chunk in buffers(np.random.default_rng(4), 220) if chunk][:200]
    found = attack(paper, codec, chunks, np.random.default_rng(5))
    overrun = found.pop("overrun")
    assert (sum(found.values()), overrun) == (200, 0)
    assert found["refused"] > 100


@pytest.mark.gpu
@pytest.mark.parametrize("name", device_module().VARIANTS)
def test_ten_thousand_small_buffers_come_back_on_a_gpu(gpu, chunks, name):
    try:
        codec = device_module().open_codec(gpu, name)
    except Skip as reason:
        pytest.skip(str(reason))
    found = round_trips(gpu, codec, chunks)
    say(f"{name} {json.dumps(found)}")
    assert found["came back"] == len(chunks)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_ten_thousand_mutations_of_every_codec_end_no_run_on_a_gpu():
    """Each is refused, of a wrong length, seen by the comparison, or unharmed; a worker's death costs a batch."""
    outcomes = survey(MANY, list(nvcomp.ALGORITHMS))
    for name in nvcomp.ALGORITHMS:
        of_name = [outcome for each, _, outcome in outcomes if each == name]
        totals = {key: sum(each.get(key, 0) for each in of_name if key != "of") for each in of_name for key in each}
        say(f"{name} {json.dumps(totals)} {[each['of'] for each in of_name if 'of' in each][:3]}")
        kinds = ("refused", "wrong length", "other bytes", "unharmed", "died")
        assert sum(totals.get(kind, 0) for kind in kinds) == MANY
