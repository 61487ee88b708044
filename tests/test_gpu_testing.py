"""The pytest plugin on a real GPU: the timed stream is timed, and work on other streams is found."""

import os
import subprocess
import sys
import textwrap

import pytest

from gpubench.analysis.summary import Summary
from gpubench.model import store

pytestmark = pytest.mark.gpu

KERNEL = """
extern "C" __global__ void twice(const double* in, double* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}
"""
TESTS = """
    import cupy
    import numpy as np
    import pytest

    N = 2**24

    def arrays(gpubench):
        host = gpubench.rng.random(N)
        data, out = gpubench.xp.asarray(host), gpubench.xp.empty(N)
        return data, out, lambda: assert_twice(gpubench.device.to_host(out), host)

    def assert_twice(out, host):
        assert (out == 2 * host).all()

    def test_cupy(gpubench):
        before = cupy.cuda.get_current_stream().ptr, cupy.cuda.Device().id
        data, out, check = arrays(gpubench)
        modes = ("hot", "cold", "graph")
        timed = gpubench(
            lambda: cupy.multiply(data, 2.0, out=out), moved=16 * N, modes=modes, check=check,
            poison=lambda: out.fill(0), limit="dram",
        )
        assert (cupy.cuda.get_current_stream().ptr, cupy.cuda.Device().id) == before
        names = [series.label for series in timed.result.series]
        assert set(modes) <= set(names)

    def test_kernel(gpubench):
        data, out, check = arrays(gpubench)
        kernel = gpubench.kernel("twice.cu", "twice")
        args = (data, out, np.int64(N))
        gpubench(lambda: kernel((N // 256,), (256,), args), moved=16 * N, check=check)

    def test_stray_of_another_stream(gpubench):
        data, out, _ = arrays(gpubench)
        other = cupy.cuda.Stream(non_blocking=True)

        def call():
            with other:
                for _ in range(20):
                    cupy.multiply(data, 2.0, out=out)

        gpubench(call)

    def test_stray_that_is_short(gpubench):
        data, out = cupy.ones(64), cupy.empty(64)
        other = cupy.cuda.Stream(non_blocking=True)

        def call():
            with other:
                cupy.multiply(data, 2.0, out=out)

        gpubench(call)

    def test_a_wait_in_the_call(gpubench):
        data, out, check = arrays(gpubench)

        def call():
            cupy.multiply(data, 2.0, out=out)
            cupy.cuda.get_current_stream().synchronize()

        gpubench(call, waits=True, clock="host", check=check)

    def test_torch(gpubench):
        torch = pytest.importorskip("torch")
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        stream = torch.cuda.ExternalStream(gpubench.stream)

        def call():
            with torch.cuda.stream(stream):
                return a @ a

        gpubench(call, flops=2 * 4096**3)

    def test_stray_of_torch(gpubench):
        torch = pytest.importorskip("torch")
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        gpubench(lambda: a @ a, flops=2 * 4096**3)
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Return a session on the first GPU: what pytest said, and the run."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_gpu.py").write_text(textwrap.dedent(TESTS))
    (folder / "twice.cu").write_text(KERNEL)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    options = ("-q", "-rA", "-p", "no:cacheprovider", "--gpubench-out", "a.jsonl")
    command = [sys.executable, "-m", "pytest", "test_gpu.py", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=110, check=False, env=environment
    )
    return done.stdout, store.read_run(folder / "a.jsonl")


def rows(session):
    return {row.result.case.name: row for row in Summary(session[1]).rows()}


def test_a_users_call_and_kernel_reach_the_memory_bandwidth(session):
    for name in ("test_cupy", "test_kernel"):
        row = rows(session)[name]
        assert row.result.devices[0].startswith("cuda:")
        assert row.result.status == "ok", session[0]
        assert row.figure.unit == "B/s"
        assert 0.3e12 < row.figure.interval.centre < 1.2e13
    cold = next(series for series in rows(session)["test_cupy"].result.series if series.label == "cold")
    assert min(cold.values) > 0


@pytest.mark.parametrize("name", ["test_cupy", "test_kernel", "test_a_wait_in_the_call"])
def test_work_on_the_timed_stream_passes(session, name):
    assert f"PASSED test_gpu.py::{name}" in session[0], session[0]


def test_work_on_another_stream_is_refused_and_torch_is_timed_on_the_stream_that_it_is_given(session):
    text = session[0]
    assert "FAILED test_gpu.py::test_stray_of_another_stream" in text
    assert "of work on another stream than the one that is timed" in text
    assert "FAILED test_gpu.py::test_stray_that_is_short" in text, text
    assert rows(session).keys().isdisjoint({"test_stray_of_another_stream", "test_stray_that_is_short"})
    pytest.importorskip("torch")
    row = rows(session)["test_torch"]
    assert row.figure.unit == "FLOP/s"
    assert 5e13 < row.figure.interval.centre < 2.5e15
    assert "FAILED test_gpu.py::test_stray_of_torch" in session[0]


def test_counters_are_sampled_beside_the_tests(session):
    assert {chunk.collector for chunk in session[1].samples} >= {"nvml", "host"}
