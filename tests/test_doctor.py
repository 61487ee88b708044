"""The output of `gpubench doctor` on a machine: the answer first, and no figure broken in a narrow terminal."""

from pathlib import Path

import _make as make
import pytest
from _command import terminal_lines as lines

from gpubench.base import units
from gpubench.cli import _machine
from gpubench.measuring.health import Health
from gpubench.measuring.sampler import DeviceCounter
from gpubench.model import UnavailablePart, store

RECORDINGS = Path(__file__).parent / "recordings"
FACTS = store.read_run(RECORDINGS / "whole/h200.jsonl.gz").manifest.facts
COUNTERS = [DeviceCounter(make.POWER, "cuda:0"), DeviceCounter(make.ENERGY, "cuda:0", "the driver does not report it")]


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_a_machine_is_described_in_lines_that_fit_and_no_figure_is_broken(width):
    printed = lines(_machine.machine(FACTS, [Health("cuda:0", (), "no answer")], COUNTERS, []), width)
    assert max(map(len, printed)) <= width
    text = " ".join(" ".join(printed).split())
    for phrase in ("132 SMs, 139.8 GiB", "1980 MHz", "power.limit 700 W", "cache.l3 300 MiB", "memory.bus 6016 bit"):
        assert phrase in text


def test_the_first_line_names_the_device_and_counters_are_counted_or_named():
    assert lines(_machine.machine(FACTS, [], [], []))[0] == "ready to measure 1 GPU: NVIDIA H200"
    host = make.facts(
        make.device("host", "Processor", arch="x86_64"), absent=(UnavailablePart("cupy", "is not here", "pip"),)
    )
    assert lines(_machine.machine(host, [], [], []))[:5] == [
        "no GPU is usable: `gpubench run` measures the host processor",
        "",
        "unavailable",
        "cupy: is not here",
        "    pip",
    ]
    absent = [UnavailablePart("amd", "no supported device", ""), UnavailablePart("gpm", "no supported device", "")]
    text = lines(_machine.machine(FACTS, [], COUNTERS, absent))
    start = text.index("counters")
    assert text[start + 1 : start + 5] == [
        "cuda:0: 1 of 2 counters are available",
        "    nvml.energy is unavailable: the driver does not report it",
        "not sampled: amd, gpm: no supported device",
        "every counter: gpubench doctor --counters",
    ]


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("clock.sm_hz", "1980000000", ("clock.sm", "1980 MHz")),
        ("shared.unit_bytes", "233472", ("shared.unit", "228 KiB")),
        ("power.limit_w", "700.0", ("power.limit", "700 W")),
        ("cache.l3", "314572800", ("cache.l3", "300 MiB")),
        ("memory.bus_bits", "6016", ("memory.bus", "6016 bit")),
        ("ecc", "on", ("ecc", "on")),
        ("clock.sm_hz", "unknown", ("clock.sm_hz", "unknown")),
        ("power.limit_w", "nan", ("power.limit_w", "nan")),
        ("pcie.width", "16", ("pcie.width", "16")),
        ("clock.sm_hz", "inf", ("clock.sm_hz", "inf")),
    ],
)
def test_each_fact_is_printed_with_its_unit(name, text, fact):
    assert units.fact(name, text) == fact
