"""Hold large work against its time limits: reports, comparisons, a gate, and one series of a long history.

    bash ci/study.sh speed_limits       on a machine with two free cores; status 1 if a limit is exceeded

The least disturbed of several attempts counts. `bash ci/test.sh --slow` runs it with no other test beside it.
"""

from __future__ import annotations

import hashlib
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import _files as files
import _make as make
import large_runs
import numpy as np

from gpubench.analysis.fingerprint import fingerprint
from gpubench.model import record, store
from gpubench.tools.history import reading, recording

_CASES = 10_000
_PAGE_BYTES = 5e6


def _run(*arguments: object) -> tuple[float, float]:
    """Return elapsed and processor seconds of a command; other programs lengthen the second less."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-P", "-m", "gpubench", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, passed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return passed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def reports_and_comparisons(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Ten thousand cases with a million readings: processor time of the page, elapsed time of a comparison."""
    before, after, page = (folder / name for name in ("before.jsonl", "after.jsonl", "page.html"))
    before.write_bytes(store.encode_run(large_runs.large(_CASES)))
    after.write_bytes(store.encode_run(large_runs.large(_CASES, 1.03)))
    yield "report, processor seconds", min(_run("report", before, "-o", page, "--force")[1] for _ in range(3)), 5.0
    yield "report, bytes of the page", page.stat().st_size, _PAGE_BYTES
    yield "compare, seconds", min(_run("compare", before, after)[0] for _ in range(5)), 3.0


def _write_run(path: Path, seed: int) -> None:
    """Write a whole run file of many cases without a sync to the disk for each record."""
    rng, digest = np.random.default_rng(seed), hashlib.sha256()
    with path.open("wb") as file:
        lines = [record.encode(make.manifest())]
        for index in range(_CASES):
            values = (1e-3 * (1 + 0.002 * rng.standard_normal()) * (1 + 0.01 * rng.standard_normal(30))).tolist()
            of = make.case("triad", size_bytes=2**20 + 4096 * index, dtype="float32")
            timed = make.timing(*values, moved=3e9, stop="interval"), make.timing(*values, name="host")
            lines.append(record.encode(make.result(*timed, of=of, window=(1.0, 2.0), elapsed_s=0.9)))
        for line in lines:
            digest.update(line)
            file.write(line)
        file.write(record.encode(record.End(_CASES + 1, digest.hexdigest())))


def gates(folder: Path) -> Iterator[tuple[str, float, float]]:
    """A gate with ten run files of ten thousand cases each."""
    runs = [folder / f"{index}.jsonl" for index in range(10)]
    for index, path in enumerate(runs):
        _write_run(path, index)
    baseline = [word for path in runs[5:] for word in ("--baseline", path)]
    yield "gate, seconds", min(_run("gate", *runs[:5], *baseline)[0] for _ in range(3)), 5.0


def histories(folder: Path) -> Iterator[tuple[str, float, float]]:
    """One series out of a million results: 250 cases in 4000 runs."""
    place, lines, runs = folder / "history.sqlite", 250, 4000
    with recording.HistoryRecorder(place) as recorder:
        recorder.record(files.write(folder / "one.jsonl", make.result(of=make.case(size_bytes=2**30))))
    direct = sqlite3.connect(place)
    columns = "version, tier, series, unit, better, devices, fingerprint, headline"
    (template,) = direct.execute(f"SELECT {columns} FROM lines")
    with direct:
        cases = [(f"suite/case[n={number}]", *template) for number in range(lines)]
        direct.executemany("INSERT INTO lines VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", cases)
        sources = [(f"key{run}", f"{run}.jsonl", 1e9 + 3600 * run, lines) for run in range(runs)]
        direct.executemany("INSERT INTO runs VALUES (NULL, ?, ?, ?, 0, 'node', '[[\"cublas\", \"13.1\"]]', ?)", sources)
        points = ((line + 2, 1e9 + 3600 * run, run + 2) for run in range(runs) for line in range(lines))
        direct.executemany("INSERT INTO points VALUES (?, ?, ?, 0, 1.0, 1.0, 1.0, 0.001, 100, '')", points)
    direct.close()
    kind = fingerprint(make.facts(), ("cuda:0",)).id
    took = []
    with reading.History(place) as reader:
        for _ in range(15):
            started = time.perf_counter()
            found = reader.last("suite/case[n=77]", 1, "quick", kind, 1000)
            took.append(time.perf_counter() - started)
            assert len(found) == 1000
    yield "history, seconds", min(took), 0.02


def main() -> int:
    """Print each figure beside its limit; return 1 if one is exceeded."""
    exceeded = False
    for study in (histories, gates, reports_and_comparisons):
        with tempfile.TemporaryDirectory() as place:
            for name, value, limit in study(Path(place)):
                exceeded |= value > limit
                sys.stdout.write(f"{name:28} {value:10.4g} of {limit:g}\n")
                sys.stdout.flush()
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
