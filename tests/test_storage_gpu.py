"""Files into the memory of a real GPU, and the parts of the start of a process on it."""

import math
import os

import numpy as np
import pytest
from _modules import suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring.data_files import data_files
from gpubench.model import Case

pytestmark = pytest.mark.gpu
STORAGE, STARTUP = (plugins.load("suites", name) for name in ("storage", "startup"))
CUFILE = suite_module("storage", "_read")
SIZE = 2**24 + 4096 + 100


@pytest.fixture(scope="module")
def bench_of_case():
    facts = inventory.facts()
    device = plugins.load("backends", facts.devices[0].backend).open(facts.devices[0])

    def bench(suite, name, tier="smoke", data=(), **params):
        target = Target(facts, facts.devices[0], tier, tuple(data))
        return Bench(device, Case(suite.name, name, tuple(params.items())), target, suite.package, 1)

    yield bench
    device.release()


def read(bench_of_case, path, file="made", data=()):
    params = {"path": path, "file": file, "cache": "cold", "size_bytes": SIZE, "block_bytes": 2**20, "depth": 4}
    return STORAGE.build(bench_of_case(STORAGE, "read", data=data, **params))


@pytest.mark.parametrize("path", ["buffered", "direct"])
def test_a_file_gets_into_the_memory_of_a_gpu_and_a_wrong_byte_is_found(bench_of_case, path, tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(np.random.default_rng(1).bytes(SIZE))
    with file.open("rb") as written:
        os.fsync(written.fileno())
    task = read(bench_of_case, path, "weights", data_files([file]))
    assert task.stages[""].call() > 0
    times, content = file.stat(), file.read_bytes()
    with file.open("r+b") as stream:
        stream.seek(SIZE - 1)
        stream.write(bytes([content[-1] ^ 1]))
        os.fsync(stream.fileno())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(WrongAnswer, match=f"1 of {SIZE} bytes .* first at {SIZE - 1}:"):
        task.stages[""].call()
    task.close()


def test_cufile_reads_every_byte_and_its_statistics_say_how(bench_of_case):
    task, reason = None, ""
    try:
        task = read(bench_of_case, "cufile")
    except Unavailable as error:
        pytest.skip(f"{error}")
    except Skip as refused:
        reason = str(refused)
    if task is None:
        assert "cuFile does not read from this file system" in reason
        assert ("/run/udev" in reason) is not os.access("/run/udev", os.R_OK)
        pytest.skip(reason)
    assert task.stages[""].call() > 0
    counts = task.check()
    ways = [counts[name].value for name in CUFILE._KINDS.values()]
    assert sum(ways) >= 17, "a read for each block at the least"
    assert task.labels == CUFILE.labels_of(dict(zip(CUFILE._KINDS, ways, strict=True)))
    task.close()


@pytest.mark.parametrize("loading", ["lazy", "eager"])
def test_the_parts_of_a_start_on_a_gpu_sum_to_the_whole(bench_of_case, loading):
    params = {"loading": loading, "files": "cold", "size_bytes": 2**24}
    parts = {
        name: stage.call()[0]
        for name, stage in STARTUP.build(bench_of_case(STARTUP, "ledger", **params)).stages.items()
    }
    total = parts.pop("whole")
    steps = ["cupy", "init", "context", "compile", "module", "kernel", "blas", "product", "graph", "weights"]
    assert list(parts) == ["interpreter", "numpy", "gpubench", "inputs", *steps]
    assert math.fsum(parts.values()) == pytest.approx(total, rel=0.05)


def test_the_first_collective_of_a_process_has_its_parts(bench_of_case):
    task = STARTUP.build(bench_of_case(STARTUP, "collective", loading="lazy"))
    assert list(task.stages)[-3:] == ["nccl", "communicator", "collective"]
