"""Soaking a real GPU: the same bits in each process, one wrong bit found and named, the whole command once."""

import itertools

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
    facts = inventory.facts()
    target = Target(facts, facts.devices[0], "smoke")
    device = plugins.load("backends", target.device.backend).open(target.device)
    yield lambda name, **params: Bench(device, Case("soak", name, tuple(params.items())), target, SUITE.package, 1)
    device.release()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "int8", "tf32", "float64"])
@pytest.mark.parametrize("units", [0, 16])
def test_products_on_a_gpu_are_the_same_bit_for_bit_and_a_wrong_bit_is_named(bench_of_case, dtype, units):
    bench = bench_of_case("product", dtype=dtype, size=1024)
    marching = PRODUCT._Marching(bench, units, 2**28) if units else None
    products = PRODUCT._Products(bench, dtype, 1024, marching)
    assert products._call() > 0
    assert not units or products._beside > 0
    assert products._digest == PRODUCT._Products(bench, dtype, 1024, marching)._digest
    turns = list(itertools.islice(products._turns, 4))

    def spoiled():
        turns[1][0]()
        turns[1][1].view(np.uint64)[77] ^= np.uint64(1)

    products._turns = itertools.cycle([turns[0], (spoiled, turns[1][1])])
    with pytest.raises(WrongAnswer, match=r"product of .*values are wrong, .*element 77.*wrong bits: 1"):
        products._call()


@pytest.mark.parametrize("pattern", MEMORY._NUMBERS)
@pytest.mark.parametrize("step", [0, 2])
def test_a_wrong_bit_in_the_memory_of_a_gpu_is_named(bench_of_case, pattern, step, monkeypatch):
    memory = MEMORY.MemoryPattern(bench_of_case("memory"), pattern, 2**25 + 8 * 1000)
    assert memory._call() > 0
    run, steps, at = memory.run, [], memory.memory.size - 3

    def faulty(name, flip):
        run(name, flip)
        if len(steps) == step:
            memory.memory[at] ^= np.uint64(1 << 63)
        steps.append(name)

    monkeypatch.setattr(memory, "run", faulty)
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
