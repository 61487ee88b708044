"""Decode attention: its kernels against double precision on a grid on the host, its parts, its counting."""

import dataclasses

import _grid
import _nvrtc
import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _grid_device import PaperBench, bench
from _modules import suite_module
from _poison import overwrite

from gpubench import plugins
from gpubench.base.errors import Skip, WrongAnswer

SUITE = plugins.load("suites", "inference")
ATTENTION = suite_module("inference", "_attention")
Shape, DecodeAttention = ATTENTION.AttentionShape, ATTENTION.DecodeAttention

SMALL = Shape(batch=2, context=300, heads=8, kv_heads=2, dim=128)
SHAPES = [
    SMALL,
    Shape(batch=3, context=1, heads=2, kv_heads=2, dim=128),
    Shape(batch=1, context=130, heads=8, kv_heads=1, dim=128),
    Shape(batch=2, context=200, heads=4, kv_heads=1, dim=64),
    Shape(batch=2, context=200, heads=2, kv_heads=2, dim=64),
]
# With matrix instructions: further groups, larger heads, and several new tokens that see the tokens up to themselves.
MATRIX_SHAPES = [
    *SHAPES,
    Shape(batch=2, context=200, heads=10, kv_heads=2, dim=128),
    Shape(batch=2, context=100, heads=7, kv_heads=1, dim=256),
    Shape(batch=2, context=100, heads=8, kv_heads=2, dim=128, fresh=3),
    Shape(batch=1, context=300, heads=8, kv_heads=1, dim=128, fresh=4),
    Shape(batch=2, context=200, heads=8, kv_heads=2, dim=128, cache="float8_e4m3"),
    Shape(batch=1, context=200, heads=8, kv_heads=1, dim=256, cache="float8_e4m3"),
]


def attention(shape=SMALL, order="ordered", vendor="amd"):
    return DecodeAttention(bench(SUITE, vendor), shape, order)


def error_once(case):
    """Run the attention over every copy once on overwritten results, and return the error of the check."""
    overwrite(case)
    for call in case.calls():
        call()
    return case.check()["error"].value


FEW = {("amd", SMALL), ("nvidia", MATRIX_SHAPES[7]), ("nvidia", MATRIX_SHAPES[9])}


@needs_compiler
@pytest.mark.parametrize(
    ("vendor", "shape"),
    [
        pytest.param(vendor, shape, marks=[] if (vendor, shape) in FEW else pytest.mark.slow)
        for vendor, shapes in (("amd", SHAPES), ("nvidia", MATRIX_SHAPES))
        for shape in shapes
    ],
)
def test_every_head_is_that_of_double_precision(vendor, shape):
    decode = attention(shape, vendor=vendor)
    assert error_once(decode) < 2**-11
    rows = decode.caches[-1].out.view(np.float16).reshape(shape.batch, -1, shape.dim)
    for sequence, results in enumerate(rows):
        for row, result in enumerate(results):
            np.testing.assert_allclose(result, decode.expected(sequence, row)[0], atol=1e-3)
    if shape == SHAPES[0]:
        expect_found(decode.task(), bench(SUITE).open_device)


@needs_compiler
@pytest.mark.parametrize("order", [pytest.param("ordered", marks=pytest.mark.slow), "shuffled"])
@pytest.mark.parametrize("page", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_pages_in_any_order_give_the_same_as_one_run(page, order):
    assert error_once(attention(dataclasses.replace(SMALL, page=page), order)) < 2**-11


class WaveBench(PaperBench):
    """A bench whose kernels run in waves of 64 lanes, as on AMD's GPUs."""

    def kernel(self, file, name, **defines):
        return super().kernel(file, name, WARP=64, **defines)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_waves_of_64_lanes_give_the_same(shape, page):
    base = bench(SUITE)
    wave = WaveBench(base.open_device, base.case, base.target, base.package, 1)
    assert error_once(DecodeAttention(wave, dataclasses.replace(shape, page=page), "shuffled")) < 2**-11


@needs_compiler
@pytest.mark.slow
def test_a_case_builds_runs_and_checks_itself_on_a_gpu_on_paper():
    task = ATTENTION.kv_pages(bench(SUITE), page=16, order="shuffled", batch=2, context=100)
    overwrite(task)
    for call in task.stages[""].rotation:
        call()
    assert task.check()["error"].value < 2**-11


@pytest.mark.skipif(_nvrtc.library() is None, reason="needs NVRTC")
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("shape", MATRIX_SHAPES)
def test_the_kernels_compile_for_nvidia_without_values_in_local_memory(shape, rotary, arch):
    if shape.itemsize == 1 and arch == "sm_80":
        pytest.skip("float8 needs sm_89")
    shape = shape.supported(bench(SUITE, "nvidia").traits)
    macros = {
        **shape.defines,
        "THREADS": shape.plan(132).threads,
        "ROTARY": rotary * (shape.fresh * shape.itemsize == 2),
    }
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *defines]
    status, log = _nvrtc.compiled(_grid.source("inference/attention.cu"), options)
    assert status == 0, log
    assert log.count("0 bytes spill stores") == 4, log


@needs_compiler
def test_the_check_sees_results_that_are_wrong_missing_or_differ_between_copies():
    wrong, decode = attention(), attention()
    for call in wrong.calls():
        call()
    wrong.caches[0].keys[:] = np.roll(wrong.caches[0].keys, 128)
    with pytest.raises(WrongAnswer, match="relative error"):
        wrong.check()
    assert error_once(decode) == error_once(decode)
    decode.caches[1].out[5] ^= 1
    with pytest.raises(WrongAnswer, match="1 results of 2 copies differ"):
        decode.check()
    overwrite(decode)
    with pytest.raises(WrongAnswer, match="no copy"):
        decode.check()
    lengths = wrong._lengths
    assert lengths.min() < SMALL.context
    assert wrong.work.moved == int(lengths.sum()) * 2 * 128 * 2 * 2 + 2 * 2 * 8 * 128 * 2
    assert wrong.work.flops == 4 * 8 * 128 * int(lengths.sum())
    lengths[:] = SMALL.context
    with pytest.raises(WrongAnswer, match="NaN"):  # a kernel that reads beyond a length meets it
        error_once(wrong)
    with pytest.raises(Skip, match="the kernel does not support 12 heads of 128 elements over 4 KV heads"):
        attention(dataclasses.replace(SMALL, heads=12, kv_heads=4))


def test_parts_fill_whole_waves_of_blocks():
    """132 compute units hold 528 blocks of 128 threads."""
    plan = Shape(batch=8, context=4096, heads=32, kv_heads=8, dim=128).plan(132)
    assert plan.threads == 128
    assert 8 * sum(plan.parts) / 528 > 0.9 * -(-8 * sum(plan.parts) // 528)
    for context in (1, 100, 4096, 32768):
        plan = Shape(1, context, 32, 8, 128).plan(132)
        assert plan.chunk % (plan.threads // 4) == 0
        assert (plan.parts[0] - 1) * plan.chunk < context <= plan.parts[0] * plan.chunk
