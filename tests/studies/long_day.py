"""Write and report a day of thirty counters at 10 Hz, and measure the time and memory of each.

    bash ci/study.sh long_day [SECONDS]        default 86400

Each step runs in a process of its own. The values are as a GPU's: few digits of most, a counter that rises, gaps.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpubench.model import Counter, Samples, store
from gpubench.model.disk import Packed

_RECORDING = Path(__file__).parents[1] / "recordings/h200-quick.jsonl.gz"
_GPUBENCH = Path(sys.executable).parent / "gpubench"
_COUNTERS = 30
_HZ = 10
_ROWS = 4000  # a record: six minutes and a half


def write(path: Path, seconds: int) -> None:
    """Write the run file of a day of `seconds`."""
    manifest = store.read_run(_RECORDING).manifest
    counters = tuple(
        Counter(f"nvml.c{number}", _unit(number), _kind(number), 1 / _HZ, "") for number in range(_COUNTERS)
    )
    with store.RunWriter.create(path, dataclasses.replace(manifest, counters=counters)) as writer:
        for samples in day(seconds):
            writer.samples(samples)
        writer.end()


def _unit(number: int) -> str:
    return ("W", "%", "J")[number % 3]


def _kind(number: int) -> str:
    return "cumulative" if number % 3 == 2 else "gauge"


def day(seconds: int) -> Iterator[Samples]:
    """Yield the samples by chunks: power with three decimals, integer per cents, rising joules."""
    rng = np.random.default_rng(8)
    joules = 0.0
    for start in range(0, seconds * _HZ, _ROWS):
        count = min(_ROWS, seconds * _HZ - start)
        at = np.round((start + np.arange(count)) / _HZ + rng.uniform(0, 1e-3, count), 6)
        watts = np.round(400 + 250 * np.sin(at / 600) + rng.normal(0, 20, count), 3)
        energy = np.round(joules + np.cumsum(watts) / _HZ, 3)
        joules = float(energy[-1])
        made = (watts, np.floor(rng.uniform(0, 101, count)), energy)
        packed = [Packed[float | None](values.tolist()) for values in made]
        columns = tuple((f"nvml.c{number}", packed[number % 3]) for number in range(_COUNTERS))
        yield Samples("nvml", "cuda:0", Packed(at.tolist()), columns)


def _run_timed(*arguments: str | Path) -> str:
    """Run a command; return its time, its CPU time and its largest memory as text. Exits if the command fails."""
    start = time.perf_counter()
    child = subprocess.Popen(arguments)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{arguments[0]} ended with {os.waitstatus_to_exitcode(status)}")
    elapsed = time.perf_counter() - start
    return f"{elapsed:5.1f} s, of processors {used.ru_utime + used.ru_stime:5.1f} s, {used.ru_maxrss / 1024:4.0f} MB"


def main(seconds: int) -> None:
    """Write it, report it, print what each took."""
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder, "day.jsonl"), Path(folder, "day.html")
        wrote = _run_timed(sys.executable, __file__, "--write", path, str(seconds))
        numbers = seconds * _HZ * _COUNTERS / 1e6
        print(f"written:  {wrote}; {numbers:.1f} M numbers, {path.stat().st_size / 1e6:.0f} MB")  # noqa: T201
        reported = _run_timed(_GPUBENCH, "report", path, "-o", page)
        print(f"reported: {reported}; {page.stat().st_size / 1e3:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 86_400)
