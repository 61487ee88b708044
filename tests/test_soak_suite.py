"""Soaking: one wrong bit in a product, in memory or in a copy is found at once and named."""

from __future__ import annotations

import numpy as np
import pytest
from _modules import suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "soak")
MEMORY = suite_module("soak", "_memory")
(HOST,) = plugins.load("backends", "host").devices()
(CLOCKWORK,) = plugins.load("backends", "clockwork").devices()


def bench(name, device=HOST, **params):
    target = Target(Facts((device,)), device, "smoke")
    return Bench.untimed(Case("soak", name, tuple(params.items())), target, SUITE.package, 1)


def call(task):
    return task.stages[""].call()


def test_products_of_fixed_matrices_have_the_same_bits_in_each_call_and_each_process():
    first, again = (SUITE.build(bench("product", dtype="float32", size=96)) for _ in range(2))
    assert call(first) > 0
    assert call(first) > 0
    second_process = SUITE.build(bench("product", dtype="float64", size=96))
    digests = [dict(task.notes)["soak.digest"] for task in (first, again, second_process)]
    assert digests[0] == digests[1] != digests[2]


def test_a_wrong_bit_in_one_product_is_found_and_named(monkeypatch):
    task = SUITE.build(bench("product", dtype="float64", size=64))
    multiply, calls = np.matmul, []

    def faulty(left, right, out):
        multiply(left, right, out=out)
        calls.append(out)
        if len(calls) == 3:
            out.view(np.uint64)[5, 7] ^= np.uint64(1 << 50)
        return out

    monkeypatch.setattr(np, "matmul", faulty)
    with pytest.raises(WrongAnswer) as caught:
        call(task)
    message = str(caught.value)
    place = calls[2].ctypes.data + 8 * (5 * 64 + 7)
    seen = int(calls[2].view(np.uint64)[5, 7])
    assert message.startswith(f"host ({HOST.name}), product of float64 matrices of 64 × 64: 1 of 4096 values are wrong")
    assert f"address {place:#x} (element 327)" in message
    assert f"expected 0x{seen ^ 1 << 50:016x}, seen 0x{seen:016x}, wrong bits: 1" in message


def test_a_product_that_is_not_computed_is_found(monkeypatch):
    task = SUITE.build(bench("product", dtype="float32", size=64))
    monkeypatch.setattr(np, "matmul", lambda left, right, out: out)
    with pytest.raises(WrongAnswer, match="4096 of 4096 values are wrong"):
        call(task)


def test_a_first_product_that_is_wrong_is_found_by_a_product_in_float64(monkeypatch):
    multiply = np.matmul

    def faulty(left, right, out=None):
        product = multiply(left, right, out=out)
        if out is not None:
            out[0, 0] += 100
        return product

    monkeypatch.setattr(np, "matmul", faulty)
    with pytest.raises(WrongAnswer, match="the first product has a relative error of"):
        SUITE.build(bench("product", dtype="float64", size=64))


@pytest.mark.parametrize("pattern", ["random", "address", "checkerboard"])
@pytest.mark.parametrize("flip", [0, MEMORY._ALL])
def test_a_wrong_bit_in_memory_is_found_in_both_turns_and_named(pattern, flip, monkeypatch):
    monkeypatch.setattr(MEMORY, "_CHUNK_WORDS", {False: 64})
    memory = MEMORY.MemoryPattern(bench("memory"), pattern, 8 * 1000)  # the last chunk is incomplete
    assert memory.task().stages[""].call() > 0
    write = memory.write

    def faulty(turn):
        write(turn)
        if turn == flip:
            memory.memory[900] ^= np.uint64(4)

    monkeypatch.setattr(memory, "write", faulty)
    with pytest.raises(WrongAnswer) as caught:
        memory.task().stages[""].call()
    seen = int(memory.memory[900])
    assert f"address {memory.memory.ctypes.data + 7200:#x} (element 900)" in str(caught.value)
    assert f"expected 0x{seen ^ 4:016x}, seen 0x{seen:016x}, wrong bits: 1" in str(caught.value)


def test_a_word_that_is_right_when_read_again_is_reported_as_such(monkeypatch):
    memory = MEMORY.MemoryPattern(bench("memory"), "random", 8 * 1000)
    count_wrong = memory.count_wrong

    def faulty(flip):
        count_wrong(flip)
        memory._wrong[0] = 1

    monkeypatch.setattr(memory, "count_wrong", faulty)
    with pytest.raises(WrongAnswer, match=r"memory pattern random: 1 of 1000 values are wrong.*right when read again"):
        memory.task().stages[""].call()


def test_a_store_that_is_lost_is_found(monkeypatch):
    memory = MEMORY.MemoryPattern(bench("memory"), "address", 8 * 1000)
    memory.task().stages[""].call()
    write = memory.write
    monkeypatch.setattr(memory, "write", lambda flip: None if flip == 0 else write(flip))
    with pytest.raises(WrongAnswer, match="1000 of 1000 values are wrong"):
        memory.task().stages[""].call()


def test_the_pattern_address_gives_every_word_of_memory_its_own_value(monkeypatch):
    monkeypatch.setattr(MEMORY, "_CHUNK_WORDS", {False: 64})
    memory = MEMORY.MemoryPattern(bench("memory"), "address", 8 * 1000)
    memory.write(0)
    assert (memory.memory == 8 * np.arange(1000)).all()


def test_a_wrong_bit_in_a_copy_is_found_and_named(monkeypatch):
    made = bench("copy", direction="local", size_bytes=4096)
    task = SUITE.build(made)
    assert call(task) > 0
    copy = made.device.copy

    def faulty(target, source):
        copy(target, source)
        target[4095] ^= 128

    monkeypatch.setattr(made.device, "copy", faulty)
    with pytest.raises(WrongAnswer, match=r"copy local of 4096 bytes: 1 of 4096 .*element 4095.*wrong bits: 1"):
        call(task)


def test_copies_take_the_time_of_the_devices_clock():
    made = bench("copy", CLOCKWORK, direction="h2d", size_bytes=2**20)
    measured = Engine(made.device, POLICIES["smoke"]).measure(SUITE.build(made))
    assert measured.series[0].values == pytest.approx([2**20 / 1e9] * len(measured.series[0].values))
