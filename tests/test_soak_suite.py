"""Soaking: one wrong bit in a product, in memory or in a copy is found at once and named."""

import dataclasses
import re

import _grid
import numpy as np
import pytest
from _grid_device import PAPER, products_by_numpy
from _grid_device import bench as paper_bench
from _modules import suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "soak")
LINKS, MEMORY, PRODUCT = suite_modules("soak", "_links", "_memory", "_product")
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


def test_a_product_that_is_not_computed_or_wrong_from_the_first_one_on_is_found(monkeypatch):
    task, multiply = SUITE.build(bench("product", dtype="float32", size=64)), np.matmul
    monkeypatch.setattr(np, "matmul", lambda left, right, out: out)
    with pytest.raises(WrongAnswer, match="4096 of 4096 values are wrong"):
        call(task)

    def faulty(left, right, out=None):
        product = multiply(left, right, out=out)
        if out is not None:
            out[0, 0] += 100
        return product

    monkeypatch.setattr(np, "matmul", faulty)
    with pytest.raises(WrongAnswer, match="the first product has a relative error of"):
        SUITE.build(bench("product", dtype="float64", size=64))


PATTERNS = ("random", "address", "checkerboard", "walking", "inversions")
GRID = pytest.mark.skipif(_grid.COMPILER is None, reason="the kernels of a GPU are built by g++")
ON_BOTH = pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=GRID)])


def pattern(name, on_gpu, nbytes=8 * 1000):
    return MEMORY.MemoryPattern(paper_bench(SUITE) if on_gpu else bench("memory"), name, nbytes)


def spoil(memory, monkeypatch, at_step, place, mask):
    """Change a word after the given step of a call; a lost step is one with `mask` None."""
    run, steps = memory.run, []

    def faulty(name, flip):
        steps.append(name)
        if len(steps) - 1 == at_step and mask is None:
            return
        run(name, flip)
        if len(steps) - 1 == at_step:
            memory.memory[place] ^= np.uint64(mask)

    monkeypatch.setattr(memory, "run", faulty)


@ON_BOTH
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("step", [0, 2])  # the pattern and its inverse; of inversions the write and the second exchange
def test_a_wrong_bit_in_memory_is_found_in_both_turns_and_named(name, step, on_gpu, monkeypatch):
    monkeypatch.setattr(MEMORY, "_CHUNK_WORDS", 64)
    memory = pattern(name, on_gpu)
    assert memory.task().stages[""].call() > 0
    spoil(memory, monkeypatch, step, 900, 4)
    with pytest.raises(WrongAnswer) as caught:
        memory.task().stages[""].call()
    message = str(caught.value)
    expected, seen = (int(word, 16) for word in re.findall("0x[0-9a-f]{16}", message)[-2:])
    assert f"memory pattern {name}: 1 of 1000 values are wrong" in message
    assert f"address {memory.memory.ctypes.data + 7200:#x} (element 900)" in message
    assert (expected ^ seen, "wrong bits: 1" in message) == (4, True)
    assert expected in {int(MEMORY.words(name, 900, 2, memory.seed)[0]) ^ flip for flip in (0, MEMORY._ALL)}


@ON_BOTH
def test_a_store_that_is_lost_is_found(on_gpu, monkeypatch):
    memory = pattern("address", on_gpu)
    memory.task().stages[""].call()
    spoil(memory, monkeypatch, 0, 0, None)
    with pytest.raises(WrongAnswer, match="1000 of 1000 values are wrong"):
        memory.task().stages[""].call()


def test_a_word_that_is_right_when_read_again_is_reported_as_such():
    memory = pattern("random", False)
    memory.run("write", 0)
    right = int(memory.memory[7])
    memory.wrong.array[:4] = 1, 7, right ^ 1, right
    with pytest.raises(WrongAnswer, match=r"random: 1 of 1000 values are wrong.*element 7.*right when read again"):
        memory.wrong.expect_none(memory.kernel, memory.memory)


@pytest.mark.parametrize("name", PATTERNS[:4])
def test_a_pattern_and_its_inverse_set_and_clear_every_bit(name):
    memory = pattern(name, False)
    seen = np.zeros(2, np.uint64)
    for flip in (0, MEMORY._ALL):
        memory.run("write", flip)
        seen |= memory.memory[10], ~memory.memory[10]
        assert (memory.memory == MEMORY.words(name, 0, 1000, memory.seed) ^ np.uint64(flip)).all()
    assert list(seen) == [MEMORY._ALL] * 2
    assert name != "address" or (MEMORY.words(name, 0, 1000, 0) == 8 * np.arange(1000)).all()


def marched(marching, launches):
    """Return the bytes that the passes moved beside nothing."""
    moved = 0.0
    for _ in range(launches):
        marching.beside(lambda: None)
        moved += marching.moved()
    return moved


@GRID
def test_passes_beside_products_continue_where_they_ended_and_find_a_wrong_bit(monkeypatch):
    monkeypatch.setattr(PRODUCT, "_PART_VECTORS", 2**10)
    monkeypatch.setattr(PRODUCT, "_MOST_PARTS", 3)
    made = paper_bench(SUITE)
    made.open_device.host.together = lambda *calls: [call() for call in reversed(calls)]
    marching = PRODUCT._Marching(made, 3, 2**18)  # 16 parts: a block has five or six
    assert marched(marching, 12) == 12 * 3 * 3 * 2 * 2**14  # 36 parts a block: six passes and more
    marching.memory.memory[5] ^= np.uint64(2**40)
    with pytest.raises(WrongAnswer, match=r"memory passes beside products: 1 of .*element 5.*wrong bits: 1"):
        marched(marching, 6)


@GRID
@pytest.mark.parametrize("load", ["", "constant", "pulse"])
def test_products_of_a_gpu_are_compared_with_the_first_and_a_wrong_bit_is_named(load, monkeypatch):
    monkeypatch.setattr(PRODUCT, "vendor", products_by_numpy)
    monkeypatch.setattr(PRODUCT, "_MOST_PARTS", 2)
    monkeypatch.setattr(PRODUCT, "_MOST_PRODUCTS", 5)
    made = paper_bench(SUITE)
    made.open_device.host.together = lambda *calls: [call() for call in reversed(calls)]
    marching = PRODUCT._Marching(made, 1, 2**23) if load else None
    products = PRODUCT._Products(made, "float16", 64, marching, load == "pulse")
    task = products.task()
    assert task.stages[""].call() > 0
    assert not load or task.stages[""].probe()["beside"].value > 0
    turns = products._turns

    def faulty():
        for number, (call, out) in enumerate(turns):

            def spoiled(call=call, out=out, number=number):
                call()
                if number == 2:
                    out.view(np.uint64)[70] ^= np.uint64(1 << 9)

            yield spoiled, out

    products._turns = faulty()
    with pytest.raises(
        WrongAnswer, match=r"product of float16 .*: 1 of .* values are wrong.*element 70.*wrong bits: 1"
    ):
        task.stages[""].call()


@GRID
@pytest.mark.parametrize("is_spoiled", [False, True])
def test_copies_between_all_pairs_are_compared_and_a_wrong_word_names_its_link(is_spoiled):
    made = paper_bench(SUITE)
    peers = tuple(dataclasses.replace(PAPER, id=f"cuda:{number}") for number in range(3))
    made = dataclasses.replace(made, rank=1, world=3, peers=peers, exchange=lambda value: [value] * 3)
    gpu = made.open_device
    gpu.device, gpu.host.together = peers[1], lambda *calls: [call() for call in calls]
    gpu.host.peer_memory = lambda peer, nbytes: np.zeros(nbytes, np.uint8)
    copy, copied = gpu.host.copy, []

    def faulty(target, source):
        copy(target, source)
        copied.append(target)
        if is_spoiled and len(copied) == 2:
            target[77] ^= 1

    gpu.copy = faulty
    task = LINKS._Links(made, 2**12).task()
    assert task.stages[""].work.payload == 2 * 2**12
    if is_spoiled:
        with pytest.raises(WrongAnswer, match="copy from cuda:1 to cuda:2: 1 of 512 words are wrong"):
            task.stages[""].call()
    else:
        assert task.stages[""].call() > 0
        assert len(copied) == 2


def test_the_links_are_planned_once_for_all_gpus_and_never_for_one():
    names = [f"cuda:{number}" for number in range(3)]
    devices = [dataclasses.replace(PAPER, id=name, peers=tuple(n for n in names if n != name)) for name in names]
    planned = {
        device.id: [
            (case.ranks, case.devices)
            for case in SUITE.cases(Target(Facts(tuple(devices)), device))
            if case.name == "links"
        ]
        for device in devices
    }
    assert planned == {"cuda:0": [(3, 3)], "cuda:1": [], "cuda:2": []}
    assert [case for case in SUITE.cases(Target(Facts((PAPER,)), PAPER)) if case.name == "links"] == []


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
