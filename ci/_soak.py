"""Run gpubench on the host for a long time, and check that nothing grows and nothing is left behind.

bash ci/soak.sh [MINUTES] Half of the time goes to repeated runs, which shows what a run leaves behind; the other
half goes to one run with many replicates, which shows what grows inside a run."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN = ("run", "all", "--tier", "smoke", "--device", "host")
TERMINATED = 128 + signal.SIGTERM
_PERIOD_S = 0.25
_PARTS = 12  # parts that the long run is divided into
_REPLICATES = 1000  # more than the time allows, so that SIGTERM ends the run
_GRACE_S = 30.0
_RUN_VARIABLE = "GPUBENCH_SOAK"  # an environment variable that every process of the runs inherits
_SLACK, _SLACK_MIB = 1.05, 8.0  # growth that is allowed, because an allocator sometimes keeps a little more
_MIB = 2**20
_SHARED_MEMORY = Path("/dev/shm")
_HEADS = ("", "seconds", "status", "main MiB", "sampler MiB", "children MiB", "descriptors", "processes", "left behind")
_NUMBERS = ("main_mib", "sampler_mib", "children_mib", "descriptors", "processes")
_LONG_LIVED = ("main_mib", "sampler_mib", "descriptors", "processes")  # workers end with their replicate
_LEAST_ROWS = 3  # least rows per third to compare peaks of short-lived workers, because a sample may miss a peak


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that the processes of a run held at a moment, or their maximum in a period.

    `main_mib` is the resident memory of the main process, `children_mib` the resident memory of all its descendants."""

    main_mib: float
    sampler_mib: float  # of the oldest child process, which lasts as long as the run
    children_mib: float
    descriptors: int  # of the main process
    processes: int


@dataclass(frozen=True, slots=True)
class SoakRow:
    """A line of the table: a run, or a part of the long run.

    `seconds` counts from the start of the run, and `usage` is the maximum."""

    name: str
    seconds: float
    status: int | None
    usage: Usage
    left: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row as texts, in the order of `_HEADS`."""
        usage = self.usage
        memory = (f"{usage.main_mib:.1f}", f"{usage.sampler_mib:.1f}", f"{usage.children_mib:.1f}")
        status = "" if self.status is None else str(self.status)
        counts = (f"{usage.descriptors}", f"{usage.processes}")
        return (self.name, f"{self.seconds:.0f}", status, *memory, *counts, ", ".join(self.left) or "nothing")


def usage(main: psutil.Process) -> Usage | None:
    """Return the resources that a process and its descendants hold now; None if the process has ended."""
    try:
        children = [_resident(child) for child in sorted(main.children(recursive=True), key=_start_time)]
        main_mib = main.memory_info().rss / _MIB
        return Usage(main_mib, children[0] if children else 0.0, sum(children), main.num_fds(), 1 + len(children))
    except psutil.NoSuchProcess:
        return None


def _start_time(process: psutil.Process) -> float:
    """Return when a process started, in seconds since 1970; infinity if it has ended."""
    try:
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return float("inf")


def _resident(process: psutil.Process) -> float:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    try:
        return float(process.memory_info().rss / _MIB)
    except psutil.NoSuchProcess:
        return 0.0


def maximum(usages: Sequence[Usage]) -> Usage:
    """Return the maximum of each number over `usages`, at least one."""
    return Usage(*(max(getattr(moment, name) for moment in usages) for name in _NUMBERS))


def grown(rows: Sequence[SoakRow], has_same_work: bool = True) -> list[str]:
    """Return a message for each number of `Usage` that grew over the rows, which must be in the order measured.

    The first row warms up and is left out; fewer than three others give no message."""
    rows = rows[1:]
    third = len(rows) // 3
    if not third:
        return []
    growths = []
    for name in _NUMBERS if has_same_work and third >= _LEAST_ROWS else _LONG_LIVED:
        first = max(getattr(row.usage, name) for row in rows[:third])
        last = min(getattr(row.usage, name) for row in rows[-third:])
        slack = _SLACK_MIB if name.endswith("mib") else 1.0
        if last > first * _SLACK + slack:
            growths.append(f"{name.replace('_mib', ' MiB')} grew from {first:.1f} to {last:.1f}")
    return growths


class Soak:
    """Runs of the `gpubench` beside this Python, in `folder`, where temporary files must be gone after each run."""

    def __init__(self, folder: Path) -> None:
        """Make the folders `runs` and `temporary` in `folder`, and remember what lies in /dev/shm."""
        self._runs, self._temporary = folder / "runs", folder / "temporary"
        self._runs.mkdir()
        self._temporary.mkdir()
        self._shared = set(_SHARED_MEMORY.iterdir())
        self._token = folder.name

    def repeated(self, seconds: float) -> Iterator[SoakRow]:
        """Run again and again until `seconds` have passed, at least once, and yield a row after each run."""
        end, number = time.monotonic() + seconds, 0
        while number == 0 or time.monotonic() < end:
            number += 1
            begun = time.monotonic()
            process = self._start_run("--out", str(self._runs / f"{number}.jsonl"))
            usages = list(self._sample_usage(process, begun + 3600))
            yield SoakRow(
                f"run {number}", time.monotonic() - begun, process.wait(), maximum(usages), self._left_behind()
            )

    def long(self, seconds: float) -> Iterator[SoakRow]:
        """Run once for `seconds`, and yield a row for each of twelve parts; SIGTERM ends the run.

        Raises subprocess.TimeoutExpired if the run does not end within 30 s."""
        begun = time.monotonic()
        process = self._start_run("--replicates", str(_REPLICATES), "--out", str(self._runs / "long.jsonl"))
        for number in range(1, _PARTS + 1):
            usages = list(self._sample_usage(process, begun + seconds * number / _PARTS))
            if number == _PARTS:
                process.terminate()
                yield SoakRow(
                    "end", time.monotonic() - begun, process.wait(_GRACE_S), maximum(usages), self._left_behind()
                )
            elif usages:
                yield SoakRow(f"part {number}", time.monotonic() - begun, None, maximum(usages))

    def _start_run(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `gpubench run` for all suites on the host in the smoke tier, with further `arguments`."""
        command = [str(Path(sys.executable).with_name("gpubench")), *RUN, *arguments]
        environment = os.environ | {
            _RUN_VARIABLE: self._token,
            "TMPDIR": str(self._temporary),
            "GPUBENCH_HISTORY": "off",
        }
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _sample_usage(self, process: subprocess.Popen[bytes], until: float) -> Iterator[Usage]:
        """Yield the resources of a run four times per second, until it ends or `until` is reached."""
        main = psutil.Process(process.pid)
        while process.poll() is None and time.monotonic() < until:
            if moment := usage(main):
                yield moment
            time.sleep(_PERIOD_S)

    def _left_behind(self) -> tuple[str, ...]:
        """Return the names of leftovers of a run: processes, temporary files, shared memory, partial run files."""
        places = [*self._temporary.iterdir(), *(path for path in self._runs.iterdir() if path.suffix != ".jsonl")]
        shared = set(_SHARED_MEMORY.iterdir()) - self._shared
        places += [path for path in shared if "gpubench" in path.name]
        return (*(f"process {pid}" for pid in self._remaining_processes()), *(path.name for path in places))

    def _remaining_processes(self) -> list[int]:
        """Return the ids of the processes of these runs that still exist."""
        pids = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_RUN_VARIABLE) == self._token:
                    pids.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return pids


def line(cells: Iterable[str]) -> str:
    """Return the cells of a row as a line of the table, each as wide as its head."""
    return "  ".join(cell.rjust(max(len(head), 8)) for cell, head in zip(cells, _HEADS, strict=True))


def main() -> int:
    """Run the soak test for the minutes in `sys.argv`, 60 by default, and return the exit status.

    A line per row is printed, then the problems. The status is 3 if a run failed, 1 for another problem, else 0."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    sys.stdout.write(line(_HEADS) + "\n")
    with tempfile.TemporaryDirectory(prefix="gpubench-soak-") as folder:
        soak = Soak(Path(folder))
        repeated = list(_print_each(soak.repeated(minutes * 30)))
        long = list(_print_each(soak.long(minutes * 30)))
    failed = [row.name for row in repeated if row.status] + [
        row.name for row in long if row.status not in (None, TERMINATED)
    ]
    problems = [*grown(repeated), *grown([row for row in long if row.status is None], has_same_work=False)]
    problems += [f"{row.name} left {', '.join(row.left)}" for row in (*repeated, *long) if row.left]
    for message in (*(f"{name} failed" for name in failed), *problems):
        sys.stdout.write(f"soak: {message}\n")
    if not failed and not problems:
        sys.stdout.write("soak: nothing grew and nothing was left behind\n")
    return 3 if failed else int(bool(problems))


def _print_each(rows: Iterator[SoakRow]) -> Iterator[SoakRow]:
    """Print each row on standard output as soon as it is measured, and yield it."""
    for row in rows:
        sys.stdout.write(line(row.cells()) + "\n")
        sys.stdout.flush()
        yield row


if __name__ == "__main__":
    sys.exit(main())
