"""gpubench's copies of many small blocks beside those of a C program, in turn, on the first GPU.

The same lists of addresses, memory, stream and driver functions serve both; only the program that submits differs::

    bash ci/study.sh blocks_beside_c [LIBRARY]      needs a C compiler, or the compiled blocks_by_hand.c

A round takes samples of gpubench, C, C, gpubench, so that drift falls on both alike. The ratio is the median of the
rounds' ratios. Both are checked: every word of every block must arrive. For the loop, CuPy's binding is a third party.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _modules import suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import inventory
from gpubench.model import Case

SUITE = plugins.load("suites", "bandwidth")
BLOCKS = suite_module("bandwidth", "_blocks")
POINTS = [(2**12, 256), (2**14, 64), (2**14, 256), (2**14, 1024), (2**16, 256)]
ROUNDS, SAMPLES = 6, 15  # rounds, and samples in a turn; each program has two turns per round
Sampler = Callable[[], tuple[list[float], list[float]]]


def compiled(folder: str) -> str:
    """Compile the C program and return the path of its library."""
    library = f"{folder}/blocks_by_hand.so"
    source = Path(__file__).with_name("blocks_by_hand.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def by_hand(library: Any, pools: Any, layout: Any, way: str, stream: int) -> Sampler:
    """Return the C program's samples of a copy: the seconds of the device and those of the submission."""
    targets, sources = pools._addresses()
    sizes = np.full(layout.count, layout.block_bytes, np.uint64)
    device_s, host_s = np.zeros(SAMPLES), np.zeros(SAMPLES)
    lists = [ctypes.c_void_p(array.ctypes.data) for array in (targets, sources, sizes)]
    results = [ctypes.c_void_p(array.ctypes.data) for array in (device_s, host_s)]

    def sample(_keep: Any = (targets, sources, sizes)) -> tuple[list[float], list[float]]:
        status = library.measure(
            int(way == "batch"), *lists, ctypes.c_size_t(layout.count), ctypes.c_void_p(stream), SAMPLES, *results
        )
        if status:
            raise RuntimeError(f"the C program ended with the driver's error {status}")
        return device_s.tolist(), host_s.tolist()

    return sample


def by_gpubench(device: Any, call: Callable[[], object]) -> Sampler:
    """Return gpubench's samples of a copy, timed as its engine times them."""

    def sample() -> tuple[list[float], list[float]]:
        timings = [device.time(call, 1, "hot", gated=False) for _ in range(SAMPLES)]
        return [timing.device[0] for timing in timings], [timing.host for timing in timings]

    return sample


def compared(device: Any, library: Any, way: str, direction: str, block_bytes: int, count: int) -> dict[str, Any]:
    """Return one point: medians in microseconds, and the ratios of gpubench to C."""
    facts = inventory.facts()
    bench = Bench(device, Case("bandwidth", "blocks", ()), Target(facts, device.device), SUITE.package, 1)
    layout = BLOCKS.BlockLayout.of(bench, block_bytes, count, "shuffled")
    pools = BLOCKS.GpuBlocks(bench, layout, direction == "h2d")
    programs = {"c": by_hand(library, pools, layout, way, device.stream)}
    programs["ours"] = by_gpubench(device, pools.submission(way)[0])
    if way == "loop":
        programs["binding"] = by_gpubench(device, pools.submission("binding")[0])
    for sample in programs.values():  # this warms up and proves that each program copies everything
        bench.poison(pools.target)
        sample()
        device.synchronize()
        pools.check()
    order = [name for name in ("ours", "binding", "c") if name in programs]
    samples: dict[str, list[list[tuple[list[float], list[float]]]]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        turns = [(name, programs[name]()) for name in (*order, *reversed(order))]
        for name in programs:
            samples[name].append([turn for owner, turn in turns if owner == name])
    pools.close()
    point: dict[str, Any] = {"way": way, "direction": direction, "block_bytes": block_bytes, "count": count}
    for series, key in enumerate(("device_us", "host_us")):
        medians = {
            name: [statistics.median([value for turn in turns for value in turn[series]]) for turns in rounds]
            for name, rounds in samples.items()
        }
        point[key] = {name: round(1e6 * statistics.median(values), 2) for name, values in medians.items()}
        ratios = [ours / c for ours, c in zip(medians["ours"], medians["c"], strict=True)]
        point[f"{key[:-3]}_ratio"] = round(statistics.median(ratios), 4)
        point[f"{key[:-3]}_ratios"] = [round(min(ratios), 4), round(max(ratios), 4)]
    return point


def line_of(point: dict[str, Any]) -> str:
    """Return the line of a point."""
    at, host = point["device_us"], point["host_us"]
    low, high = point["device_ratios"]
    binding = f"{host['binding']:9.1f}" if "binding" in host else ""
    return (
        f"{point['way']:5} {point['direction']:9} {point['block_bytes']:6} {point['count']:5}"
        f"   {at['ours']:8.1f} {at['c']:7.1f}  {point['device_ratio']:.3f} ({low:.3f}–{high:.3f})"
        f"   {host['ours']:8.1f} {host['c']:7.1f}{binding}\n"
    )


def main(arguments: list[str]) -> None:
    """Compare all points and print them."""
    gpu = inventory.facts().devices[0]
    device = plugins.load("backends", gpu.backend).open(gpu)
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(arguments[0] if arguments else compiled(folder))
    status = library.prepare()
    if status:
        raise SystemExit(f"the driver refuses the C program: {status}")
    write = sys.stdout.write
    write("way   direction  block count   device µs       C  ratio (range)         host µs       C  binding\n")
    points = []
    for direction in ("h2d", "d2h"):
        for point in POINTS:
            for way in ("loop", "batch"):
                points.append(compared(device, library, way, direction, *point))
                write(line_of(points[-1]))
    for way in ("loop", "batch"):
        ratios = [point["device_ratio"] for point in points if point["way"] == way]
        near = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
        write(f"{way}: {min(ratios):.3f} to {max(ratios):.3f} of C's time, {near} of {len(ratios)} within 5 %\n")


if __name__ == "__main__":
    main(sys.argv[1:])
