"""Shared by tests of the compression suite: build its tasks on a device and check them."""

import dataclasses

import numpy as np

from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import DataFile, Facts


def file_of(tmp_path, data, label="mine.bin"):
    path = tmp_path / label
    path.write_bytes(data)
    return DataFile(label, str(path), len(data))


def build(suite, opened, codec, tier="smoke", seed=0, data=(), size_bytes=None, **chosen):
    """Return the task of one codec on the first corpus or on `chosen`; `size_bytes` replaces the case's size."""
    target = Target(Facts((opened.device,)), opened.device, tier, tuple(data))
    wanted = {"codec": codec, **chosen}
    case = next(case for case in suite.cases(target) if wanted.items() <= dict(case.params).items())
    if size_bytes:
        case = sized(case, size_bytes)
    return suite.build(Bench(opened, case, target, suite.package, seed))


def sized(case, size_bytes):
    params = tuple((axis, size_bytes if axis == "size_bytes" else value) for axis, value in case.params)
    return dataclasses.replace(case, params=params)


def verify(opened, task):
    """Run and check the task as the engine does, and return the observed values."""
    return Engine(opened, POLICIES["smoke"]).verify(task)


def trip_of(task):
    """Return the round trip behind the stages of a task, so that a test can damage its buffers."""
    return next(iter(task.stages.values())).call.__self__


def noise(size):
    return np.random.default_rng(5).bytes(size)


def run_back(task):
    """Restore the compressed chunks and run the check."""
    task.stages["decompress"].call()
    task.check()


def case_named(suite, opened, name, data, tier="full"):
    target = Target(Facts((opened.device,)), opened.device, tier, tuple(data))
    return next(case for case in suite.cases(target) if case.name == name), target
