"""The cards that people have, on paper: their plans hold, and every kernel that a plan launches compiles."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import _hiprtc
import _parade
import pytest
from _parade import ARCHS, CARDS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that nothing computed


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """Replace the vendors' libraries, and let no test wait for a rank."""
    _parade.libraries(monkeypatch)


SAMPLE = [("t4", "tensor"), ("rtx-5090", "bandwidth"), ("thor", "latency"), ("vgpu", "virtual"), ("mi355x", "tensor")]


@pytest.mark.parametrize(("card", "suite"), SAMPLE)
def test_the_plan_of_a_suite_holds_on_a_card_on_paper(card, suite):
    result = _parade.parade(card, "quick", (suite,))
    assert result.launches.kernels
    assert (result.launches.faults, _parade.false_reasons(result)) == ([], [])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_plan_holds_and_every_kernel_of_it_compiles(arch):
    cards = [card for card in CARDS if CARDS[card]["arch"] == arch]
    everything, bad = _parade.Launches(), []
    for card in cards:
        result = _parade.parade(card, os.environ.get("GPUBENCH_PARADE_TIER", "quick"))
        bad += [f"{card}: {fault}" for fault in (*result.launches.faults, *_parade.false_reasons(result))]
        everything.sources |= result.launches.sources
        for key, names in result.launches.kernels.items():
            for name, launches in names.items():
                everything.kernels.setdefault(key, {}).setdefault(name, set()).update(launches)
        if folder := os.environ.get("GPUBENCH_PARADE_OUT"):
            Path(folder, f"{card}.json").write_text(json.dumps(_parade.row(result)))
    assert not bad, "\n".join(bad)
    if arch not in _hiprtc.archs() if arch.startswith("gfx") else _parade.nvrtc(arch) is None:
        pytest.skip(f"no compiler for {arch} here: bash ci/parade.sh")
    faults = _parade.compile_faults(arch, everything, cards)
    assert not faults, "\n".join(faults)


def test_the_checks_of_the_parade_find_a_launch_that_is_too_large_and_a_reason_that_is_false():
    gpu = _parade.PaperGpu("t4", _parade.facts_of("t4").devices[0], _parade.Launches())
    kernel = gpu.kernel("", "some", {})
    kernel((1,), (1024,), ())
    kernel((1, 70000), (2048,), (), 2**17)
    assert [fault.partition("some: ")[2] for fault in gpu.launches.faults] == [
        "2048 threads a block", "131072 bytes of shared memory of 65536", "a grid of (1, 70000)",
        "2048 threads of 1024 an SM",
    ]  # fmt: skip
    false = {
        "a": "needs sm_80 or newer, not sm_89",
        "b": "needs sm_90 or newer, not sm_89",
        "c": "needs sm_90 or newer, not sm_75",
    }
    result = _parade.Parade("l4", skipped=false, missed={"d": "KeyError: 1", "e": "StalledError: rank 1"})
    assert [text[0] for text in _parade.false_reasons(result)] == ["d", "a", "c"]


def test_every_card_is_a_gpu_of_its_own_and_of_a_known_architecture():
    named = Counter(card["name"] for key, card in CARDS.items() if key != "wsl")
    assert max(named.values()) == 1
    for key in CARDS:
        device = _parade.facts_of(key).devices[0]
        assert device.architecture.vendor == ("amd" if re.match("mi[23]", key) else "nvidia")
        assert device.units, device.memory_bytes
