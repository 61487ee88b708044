"""The cards that people have, on paper: their plans hold, and every kernel that a plan launches compiles."""

import functools
import json
import os
import re
from collections import Counter
from pathlib import Path

import _hiprtc
import _parade
import pytest
from _parade import ARCHS, CARDS

from gpubench.knowledge import hardware
from gpubench.model import LIMITS

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


def test_no_case_tells_the_owner_of_an_amd_gpu_to_install_a_package_of_nvidia_s():
    result = _parade.parade("mi355x", "full", ("compilers",), ("*by=numba-cuda*",))
    assert result.skipped
    assert not _parade.false_reasons(result)
    assert set(result.skipped.values()) == {"gpubench has not tried numba-cuda on amd GPUs"}


@pytest.mark.parametrize(("card", "threads"), [("h100-sxm", 1024), ("rtx-4090", 512), ("t4", 1024), ("mi300x", 1024)])
def test_no_block_of_triad_leaves_a_third_of_an_sm_without_threads(card, threads):
    result = _parade.parade(card, "smoke", ("bandwidth",), ("bandwidth/triad[*",))
    launches = [names["triad"] for names in result.launches.kernels.values() if "triad" in names]
    assert {size for sizes in launches for size, _ in sizes} == {threads}


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


# Bandwidth of the memory in GB/s, and of the link to the host: by the makers' data sheets, None where none was found.
MEMORY = {
    "a100-sxm-40": 1555, "a100-sxm-80": 2039, "a100-pcie-40": 1555, "a100-pcie-80": 1935, "a10": 600, "a30": 933,
    "l4": 300, "l40": 864, "l40s": 864, "rtx-3090": 936, "rtx-4090": 1008, "rtx-5090": 1792, "rtx-6000-ada": 960,
    "rtx-pro-6000": 1792, "v100": 900, "t4": 320, "h100-sxm": 3350, "h100-pcie": 2039, "h100-nvl": 3900, "h20": 4000,
    "h800": 3350, "h200-sxm": 4800, "h200-nvl": 4800, "gh200": 4000, "b200": 7700, "b300": 7700, "gb200": 8000,
    "gb300": 8000, "gb10": 273, "thor": 273, "orin": 204.8, "mig": 3350 / 8, "vgpu": None, "wsl": 936, "mi210": 1638.4,
    "mi250x": 1638.4, "mi300a": 5325, "mi300x": 5325, "mi325x": 6000, "mi350x": 8000, "mi355x": 8000,
}  # fmt: skip


@pytest.mark.parametrize("card", CARDS)
def test_the_peaks_of_a_card_have_a_source_or_are_unknown(card):
    device = _parade.facts_of(card).devices[0]
    peaks = {limit: peak for limit in LIMITS if (peak := hardware.peak(device, limit))}
    assert all(peak.source and peak.value > 0 for peak in peaks.values())
    assert (peaks["dram"].value / 1e9 if "dram" in peaks else None) == pytest.approx(MEMORY[card])
    assert peaks or card == "vgpu"
    assert not peaks or hardware.address_of(device)
    rates = [hardware.per_clock(device, limit) for limit in hardware.per_clock_limits(device.arch)]
    assert all(rate.source for rate in rates)
    assert bool(rates) == (card != "thor")


def test_parts_of_cards_and_shared_memories_have_their_own_peaks():
    peaks = {card: functools.partial(hardware.peak, _parade.facts_of(card).devices[0]) for card in CARDS}
    mig = peaks["mig"]
    assert mig("dram").source.startswith("1 of 8 slices of memory of NVIDIA H100/H200 SXM data sheet")
    assert mig("tensor.float16").value == pytest.approx(989e12 * 16 / 132)
    assert mig("link.peer") is None
    assert mig("link.h2d").value == peaks["h100-sxm"]("link.h2d").value
    gh200, gb10 = peaks["gh200"], peaks["gb10"]
    assert (gh200("link.d2h").value, gh200("link.d2h").source[:11]) == (450e9, "NVLink-C2C,")
    assert gb10("link.h2d").value == 273e9 / 2
    assert "which a copy reads and writes" in gb10("link.h2d").source
    assert peaks["b200"]("tensor.float4").value == 9e15
    details = {
        card: dict(_parade.facts_of(card).devices[0].details) for card in ("gb10", "gh200", "h200-sxm", "mi300a")
    }
    traits = {card: [name for name in ("memory.integrated", "memory.host_page_tables") if name in seen]
              for card, seen in details.items()}  # fmt: skip
    assert traits == {
        "gb10": ["memory.integrated", "memory.host_page_tables"], "gh200": ["memory.host_page_tables"],
        "h200-sxm": [], "mi300a": ["memory.integrated"],
    }  # fmt: skip


def test_doctor_says_of_a_card_what_would_run_what_is_known_and_that_it_never_ran(call):
    said = call("doctor", "--card", "rtx-4090").stdout
    assert said.startswith("NVIDIA GeForce RTX 4090: sm_89, 128 compute units")
    assert "dram 1008 GB/s" in said
    assert "peaks unknown: l2, shared, link.peer, " in said
    assert re.search(r"^tensor: \d+ cases planned in the quick tier$", said, re.MULTILINE)
    assert "never ran: this project has measured NVIDIA H200 and no NVIDIA GeForce RTX 4090" in said
    assert re.search(r"tensor\.int8 660\.6 TOP/s .*\n.*\ndata sheet: https://images\.nvidia\.com", said)
    assert re.search(
        r"^ipc: .* of them need a peer, which it lacks$", call("doctor", "--card", "orin").stdout, re.MULTILINE
    )
    assert call("doctor", "--card", "h200-sxm").stdout.endswith("measured: this project has measured this model\n")
    for words, message in (
        (("--card", "gtx-1"), "choose from a10, a100-pcie-40"),
        (("--card", "H100"), "did you mean h100-nvl or h100-pcie or h100-sxm?"),
        (("--card", "t4", "--noise"), "no other"),
    ):
        done = call("doctor", *words)
        assert (done.returncode, message in done.stderr) == (2, True)
