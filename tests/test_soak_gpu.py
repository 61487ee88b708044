"""Soaking a real GPU: the same bits in each process, one wrong bit found and named, the whole command once."""

from __future__ import annotations

import numpy as np
import pytest
from _command import gpubench
from _modules import suite_modules

from gpubench import plugins
from gpubench.analysis.soak import ledger_of
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.model import Case
from gpubench.model.store import read_run

pytestmark = pytest.mark.gpu
SUITE = plugins.load("suites", "soak")
COPIES, MEMORY, PRODUCT = suite_modules("soak", "_copies", "_memory", "_product")


@pytest.fixture(scope="module")
def bench_of_case():
    """Yield a function that makes the bench of a case on the first device."""
    facts = inventory.facts()
    target = Target(facts, facts.devices[0], "smoke")
    device = plugins.load("backends", target.device.backend).open(target.device)
    yield lambda name, **params: Bench(device, Case("soak", name, tuple(params.items())), target, SUITE.package, 1)
    device.release()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_products_on_a_gpu_are_the_same_bit_for_bit_and_a_wrong_bit_is_named(bench_of_case, dtype, monkeypatch):
    bench = bench_of_case("product", dtype=dtype, size=1024)
    product = PRODUCT._Product(bench, dtype, 1024)
    assert product._call() > 0
    assert product._digest == PRODUCT._Product(bench, dtype, 1024)._digest
    multiply, calls = product._multiply, []

    def faulty(out):
        multiply(out)
        calls.append(out)
        if len(calls) == 2:
            words = out.view(PRODUCT.bits(out).dtype)
            words[5, 7] ^= words.dtype.type(1)

    monkeypatch.setattr(product, "_multiply", faulty)
    with pytest.raises(WrongAnswer) as caught:
        product._call()
    address = calls[1].data.ptr + calls[1].itemsize * (5 * 1024 + 7)
    assert f"1 of 1048576 values are wrong, the first at address {address:#x} (element 5127)" in str(caught.value)
    assert "wrong bits: 1" in str(caught.value)


@pytest.mark.parametrize("pattern", ["random", "address", "checkerboard"])
@pytest.mark.parametrize("flip", [0, MEMORY._ALL])
def test_a_wrong_bit_in_the_memory_of_a_gpu_is_named(bench_of_case, pattern, flip, monkeypatch):
    monkeypatch.setattr(MEMORY, "_CHUNK_WORDS", {True: 2**12})
    # several chunks and a part of one
    memory = MEMORY.MemoryPattern(bench_of_case("memory"), pattern, 2**17 + 8 * 1000)
    assert memory._call() > 0
    write, at = memory.write, memory.memory.size - 3

    def faulty(turn):
        write(turn)
        if turn == flip:
            memory.memory[at] ^= np.uint64(1 << 63)

    monkeypatch.setattr(memory, "write", faulty)
    with pytest.raises(WrongAnswer) as caught:
        memory._call()
    assert f"address {memory.memory.data.ptr + 8 * at:#x} (element {at})" in str(caught.value)
    assert "wrong bits: 1" in str(caught.value)


@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d"])
def test_a_wrong_bit_in_a_copy_is_named(bench_of_case, direction, monkeypatch):
    bench = bench_of_case("copy", direction=direction, size_bytes=2**22)
    copies = COPIES._Copy(bench, direction, 2**22)
    assert copies._call() > 0
    copy = bench.device.copy

    def faulty(target, source):
        copy(target, source)
        bench.device.synchronize()
        target[4242] ^= np.uint8(16)

    monkeypatch.setattr(bench.device, "copy", faulty)
    with pytest.raises(WrongAnswer, match=rf"copy {direction} .*: 1 of 4194304 .*element 4242.*wrong bits: 1"):
        copies._call()


@pytest.mark.slow
def test_a_short_soak_of_a_gpu_has_no_wrong_bit_and_reports_its_temperature(tmp_path):
    out = tmp_path / "soak.jsonl"
    done = gpubench("soak", "--for", "20s", "-o", out)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = ledger_of(read_run(out))
    assert ledger.passes >= 2
    assert any("temperature" in gauge for gauge in ledger.devices[0].gauges)
    assert ledger.devices[0].errors
