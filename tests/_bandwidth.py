"""Shared by tests of the bandwidth suite: build a case on a device, and assert that its check can fail."""

import dataclasses
from functools import partial

import _make as make
from _earlier import expect_found
from _modules import bench_on, opened, suite_module
from _poison import called

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.model import Facts
from gpubench.plugins.backend import Traits

H200 = dataclasses.replace(make.H200, dtypes=("float32", "float16"))
A100 = dataclasses.replace(H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80", memory_bytes=80 * 2**30, units=108)
SUITE = plugins.load("suites", "bandwidth")
MIB = 2**20


def ids(device, tier):
    return [case.id for case in SUITE.cases(Target(Facts((device,)), device, tier))]


sibling = partial(suite_module, "bandwidth")


def bench_of(name, params, backend="host"):
    return bench_on(opened(backend), SUITE, name, **params)


def build(name, backend="host", **params):
    return SUITE.build(bench_of(name, params, backend))


def build_on(open_device, name, **params):
    """Return the task of a case on a device that is already open."""
    return SUITE.build(bench_on(open_device, SUITE, name, **params))


def assert_checked(task, device=None):
    """Assert that poisoned outputs fail the check and fresh ones pass, and that of two inputs an earlier answer fails.

    `device` is the open device of the task, by default the host."""
    for _ in range(2):
        called(task)
    if any(stage.inputs for stage in task.stages.values()):
        expect_found(task, device or bench_of("read", {}).open_device)
    task.close()


class PlainGpu:
    """A GPU without features, as far as a case asks before it allocates."""

    device = A100
    traits = Traits("nvidia", "sm_70", "cuda", ("hot",), "none", is_gpu=True)

    def free_bytes(self):
        return 2**40
