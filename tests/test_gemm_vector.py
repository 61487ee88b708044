"""Multiply-adds of the host's vector units: exact sums, the width in the machine code, and hosts without it."""

import platform

import pytest
from _modules import bench_on, opened, suite_module
from _poison import called

from gpubench import plugins
from gpubench.base.errors import Skip

pytest.importorskip("llvmlite")
SUITE = plugins.load("suites", "gemm")
AT = suite_module("gemm", "_vector")
ARM = ("aarch64-unknown-linux-gnu", "neoverse-v1", "", "v")
XEON = ("x86_64-unknown-linux-gnu", "skylake-avx512", "", "zmm")


def build(**params):
    return SUITE.build(bench_on(opened(), SUITE, "vector_fma", **params))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_every_number_of_a_width_is_exact_and_an_output_that_is_not_written_is_found(bits, dtype):
    try:
        task = build(dtype=dtype, bits=bits, cores=1)
    except Skip as skip:
        pytest.skip(str(skip))
    stage = task.stages[""]
    for put in (lambda: None, stage.inputs, stage.inputs):
        put()
        called(task)
    observed = stage.probe()
    assert observed["clock"].value > 1e8
    # per clock and core, no processor completes more than four vectors
    assert 0 < observed["pipes"].value < 4.5
    task.close()


@pytest.mark.parametrize(
    ("target", "bits", "dtype"), [(ARM, 128, "float32"), (ARM, 128, "float64"), (XEON, 512, "float32")]
)
def test_the_machine_code_of_each_processor_has_a_multiply_add_for_each_chain(target, bits, dtype):
    """NEON's are `fmla` on registers v0 to v31; a shorter width than asked for would show in the register's name."""
    assembly = AT.assembled(AT.vector_code(dtype, bits), *target)
    assert assembly.multiply_adds == AT._CHAINS, assembly.text


def test_a_width_that_the_processor_splits_is_not_taken_for_the_width_asked_for():
    halved = AT.assembled(AT.vector_code("float32", 512), "x86_64-unknown-linux-gnu", "haswell", "", "zmm")
    assert halved.multiply_adds == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features of x86")
def test_a_host_without_avx_512_skips_its_width_with_the_reason(monkeypatch):
    host = AT._host()
    monkeypatch.setattr(host, "get_host_cpu_features", lambda: {"fma": True})
    with pytest.raises(Skip, match="no avx512f, which multiply-adds of 512 bits need"):
        build(dtype="float32", bits=512, cores=1)


def test_more_cores_than_the_process_may_use_are_skipped():
    with pytest.raises(Skip, match="needs 4096 cores"):
        AT._Team(4096)
