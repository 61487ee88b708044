"""Faults of the machine that a run meets: limits, streams, folders, disks, the environment, signals, the clock."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

Meanwhile = Callable[[subprocess.Popen[bytes], Path], None]
_KIB = 2**10
_DONE, _USAGE, _FAILED, _FILE = 0, 2, 3, 5
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, at);
    if (clock == CLOCK_REALTIME) {
        const char *shift = getenv("CLOCK_SHIFT_S"), *step = getenv("CLOCK_STEP_S");
        if (step) at->tv_sec -= at->tv_sec % 1000 * atol(step);
        if (shift) at->tv_sec = atol(shift);
    }
    return status;
}
"""


def nothing() -> None:
    """Prepare nothing."""


def let_run(run: subprocess.Popen[bytes], path: Path) -> None:
    """Do nothing meanwhile."""


@dataclass(frozen=True)
class MachineFault:
    """The start of a run on a machine with a fault, and the exit statuses that it may have.

    `is_mute`: there is nobody to tell, or the run file is nowhere that the script can read.
    """

    statuses: Sequence[int] = (_DONE,)
    prepare: Callable[[], object] = nothing
    env: Mapping[str, str | None] = field(default_factory=dict)
    out: Callable[[Path], Path] = lambda place: place / "run.jsonl"
    wrapper: Callable[[Path], Sequence[str]] = lambda place: ()
    meanwhile: Meanwhile = let_run
    is_mute: bool = False


def limited(kind: int, most: int) -> Callable[[], None]:
    """Return a preparation that lowers a limit of the process."""
    return lambda: resource.setrlimit(kind, (most, most))


def closed(*descriptors: int) -> Callable[[], None]:
    """Return a preparation that closes streams."""

    def prepare() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return prepare


def to_full(descriptor: int) -> Callable[[], None]:
    """Return a preparation that connects a stream to a full disk."""
    return lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)


def to_nobody() -> None:
    """Connect the standard output to a pipe without a reader."""
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(reading)


def lost_folder() -> None:
    """Change to a folder and remove it."""
    folder = Path("lost")
    folder.mkdir()
    os.chdir(folder)
    Path("../lost").resolve().rmdir()


def mounted(commands: str) -> Callable[[Path], Sequence[str]]:
    """Return the begin of a command that mounts file systems for this run only; `$1` is the folder of the run."""
    script = f'{commands}; shift; exec "$@"'
    return lambda place: ("unshare", "-rm", "sh", "-ec", script, "sh", str(place))


def shifted(place: Path) -> Sequence[str]:
    """Return the beginning of a command whose real-time clock is shifted."""
    (place / "clock.c").write_text(_CLOCK)
    built = place / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, place / "clock.c", "-ldl"], check=True)
    return ("env", f"LD_PRELOAD={built}")


def make(maker: Callable[[Path], object]) -> Callable[[Path], Path]:
    """Return a place for the run file at which `maker` has made something."""

    def out(place: Path) -> Path:
        path = place / "made.jsonl"
        maker(path)
        return path

    return out


def has_begun(run: subprocess.Popen[bytes], path: Path) -> bool:
    """Wait for the first record of a run; return whether it is there and the run still goes on."""
    while run.poll() is None:
        if os.path.exists(path) and path.stat().st_size:  # noqa: PTH110 - false for a name that is too long
            return True
        time.sleep(0.01)
    return False


def signalled(number: int, after_s: float = 0.2) -> Meanwhile:
    """Return a function that sends a signal to gpubench while it measures."""

    def meanwhile(run: subprocess.Popen[bytes], path: Path) -> None:
        if has_begun(run, path):
            time.sleep(after_s)
            run.send_signal(number)

    return meanwhile


def on_child(module: str, numbers: Sequence[int], keeper: bool = False) -> Meanwhile:
    """Return a function that sends signals to the process of a module, or to the keeper above it, one per second."""

    def meanwhile(run: subprocess.Popen[bytes], path: Path) -> None:
        if not has_begun(run, path):
            return
        for pid in _find_process(run, module, keeper):
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                time.sleep(1.0 if len(numbers) > 1 else 0.0)

    return meanwhile


def _find_process(run: subprocess.Popen[bytes], module: str, keeper: bool) -> list[int]:
    """Return the process of a module, or the keeper above it, as a list of one; empty if the run has ended."""
    processes: list[int] = []
    while not processes and run.poll() is None:
        with contextlib.suppress(psutil.Error):
            keepers = [child for child in psutil.Process(run.pid).children() if module in " ".join(child.cmdline())]
            processes = [process.pid for above in keepers for process in ([above] if keeper else above.children())]
    return processes[:1]


def stopped(run: subprocess.Popen[bytes], path: Path) -> None:
    """Stop gpubench for two seconds."""
    if has_begun(run, path):
        run.send_signal(signal.SIGSTOP)
        time.sleep(2)
        run.send_signal(signal.SIGCONT)


def changed(change: Callable[[Path], object]) -> Meanwhile:
    """Return a function that changes the run file while it is written."""

    def meanwhile(run: subprocess.Popen[bytes], path: Path) -> None:
        if has_begun(run, path):
            change(path)

    return meanwhile


def appended(path: Path) -> None:
    """Write into a file that another process writes."""
    with path.open("ab") as file:
        file.write(b"rubbish")


_ANY = (_DONE, _USAGE, _FAILED, _FILE)
_REFUSED = (_USAGE, _FILE)
FAULTS: dict[str, MachineFault] = {
    "none": MachineFault(),
    # limits
    "10 descriptors": MachineFault(_REFUSED, limited(resource.RLIMIT_NOFILE, 10)),
    "20 descriptors": MachineFault(_REFUSED, limited(resource.RLIMIT_NOFILE, 20)),
    "40 descriptors": MachineFault(_ANY, limited(resource.RLIMIT_NOFILE, 40)),
    "files of 100 bytes": MachineFault(_REFUSED, limited(resource.RLIMIT_FSIZE, 100), is_mute=True),
    "files of 4 KiB": MachineFault(_REFUSED, limited(resource.RLIMIT_FSIZE, 4 * _KIB)),
    "files of 8 KiB": MachineFault(_ANY, limited(resource.RLIMIT_FSIZE, 8 * _KIB)),
    "no core files": MachineFault(prepare=limited(resource.RLIMIT_CORE, 0)),
    "address space of 1 GiB": MachineFault(_ANY, limited(resource.RLIMIT_AS, 2**30)),
    "address space of 4 GiB": MachineFault(_ANY, limited(resource.RLIMIT_AS, 2**32)),
    "stack of 512 KiB": MachineFault(_ANY, limited(resource.RLIMIT_STACK, 512 * _KIB)),
    "no locked memory": MachineFault(prepare=limited(resource.RLIMIT_MEMLOCK, 0)),
    "least priority": MachineFault(prepare=lambda: os.nice(19)),
    "one processor": MachineFault(prepare=lambda: os.sched_setaffinity(0, {0})),
    "umask 777": MachineFault(_ANY, lambda: os.umask(0o777)),
    "umask 0": MachineFault(prepare=lambda: os.umask(0)),
    # streams
    "standard input closed": MachineFault(prepare=closed(0)),
    "standard output closed": MachineFault(prepare=closed(1)),
    "standard error closed": MachineFault(prepare=closed(2)),
    "all streams closed": MachineFault(prepare=closed(0, 1, 2)),
    "standard output full": MachineFault(_ANY, to_full(1)),
    "standard error full": MachineFault(_ANY, to_full(2), is_mute=True),
    "standard output read by nobody": MachineFault((*_ANY, 141), to_nobody),
    # folders
    "HOME missing": MachineFault(env={"HOME": "/nowhere"}),
    "HOME unset": MachineFault(env={"HOME": None}),
    "TMPDIR missing": MachineFault(env={"TMPDIR": "/nowhere"}),
    "XDG_RUNTIME_DIR missing": MachineFault(env={"XDG_RUNTIME_DIR": "/nowhere"}),
    "XDG_RUNTIME_DIR a file": MachineFault(env={"XDG_RUNTIME_DIR": "/etc/passwd"}),
    "XDG_RUNTIME_DIR takes no file": MachineFault(env={"XDG_RUNTIME_DIR": "/proc"}),
    "working folder removed": MachineFault(_ANY, lost_folder),
    # the run file
    "a folder that is missing": MachineFault(_ANY, out=lambda place: place / "none" / "run.jsonl"),
    "a folder for a file": MachineFault(_REFUSED, out=make(Path.mkdir)),
    "a named pipe for a file": MachineFault(_REFUSED, out=make(os.mkfifo)),
    "a file that is there": MachineFault(_REFUSED, out=make(lambda path: path.write_text(""))),
    "a loop of links": MachineFault(_REFUSED, out=make(lambda path: path.symlink_to(path))),
    "a link to nowhere": MachineFault(_ANY, out=make(lambda path: path.symlink_to("/nowhere/file"))),
    "/dev/full": MachineFault(_REFUSED, out=lambda place: Path("/dev/full")),
    "/dev/null": MachineFault(_ANY, out=lambda place: Path("/dev/null"), is_mute=True),
    "/proc": MachineFault(_REFUSED, out=lambda place: Path("/proc/run.jsonl")),
    "a name of 300 letters": MachineFault(_REFUSED, out=lambda place: place / ("x" * 300 + ".jsonl")),
    "a name of two lines": MachineFault(out=lambda place: place / "two\nlines.jsonl"),
    "a name that is no UTF-8": MachineFault(_ANY, out=lambda place: place / os.fsdecode(b"\xff\xfe.jsonl")),
    "removed meanwhile": MachineFault(_ANY, meanwhile=changed(Path.unlink)),
    "folder removed meanwhile": MachineFault(
        _ANY,
        out=lambda place: place / "folder" / "run.jsonl",
        meanwhile=changed(lambda path: shutil.rmtree(path.parent)),
        is_mute=True,
    ),
    "written to by another process": MachineFault(_ANY, meanwhile=changed(appended), is_mute=True),
    # disks, each mounted for this run alone
    "a disk of 4 KiB": MachineFault(_REFUSED, wrapper=mounted('mount -t tmpfs -o size=4k none "$1"'), is_mute=True),
    "a disk of 8 KiB": MachineFault(_ANY, wrapper=mounted('mount -t tmpfs -o size=8k none "$1"'), is_mute=True),
    "a disk without inodes": MachineFault(
        _REFUSED, wrapper=mounted('mount -t tmpfs -o nr_inodes=1 none "$1"'), is_mute=True
    ),
    "a disk that is read-only": MachineFault(_REFUSED, wrapper=mounted('mount -t tmpfs -o ro none "$1"'), is_mute=True),
    "/dev/shm read-only": MachineFault(_ANY, wrapper=mounted("mount -t tmpfs -o ro none /dev/shm"), is_mute=True),
    "/dev/shm of 4 KiB": MachineFault(_ANY, wrapper=mounted("mount -t tmpfs -o size=4k none /dev/shm")),
    "/proc missing": MachineFault(_ANY, wrapper=mounted("mount -t tmpfs none /proc")),
    "/sys missing": MachineFault(_ANY, wrapper=mounted("mount -t tmpfs none /sys")),
    # the environment
    "Python without asserts": MachineFault(env={"PYTHONOPTIMIZE": "2"}),
    "Python with every warning": MachineFault(env={"PYTHONWARNINGS": "default"}),
    "Python in ASCII": MachineFault(env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}),
    "a locale that is missing": MachineFault(env={"LC_ALL": "xx_YY.UTF-8"}),
    "memory that is checked": MachineFault(env={"PYTHONMALLOC": "debug"}),
    "a time zone that is missing": MachineFault(env={"TZ": "Nowhere/Nothing"}),
    "a terminal one column wide": MachineFault(env={"COLUMNS": "1", "TERM": "dumb"}),
    "an empty PATH": MachineFault(env={"PATH": ""}),
    "a wrong number of threads": MachineFault(_ANY, env={"OMP_NUM_THREADS": "many", "NUMBA_NUM_THREADS": "1"}),
    "devices that are not there": MachineFault(env={"CUDA_VISIBLE_DEVICES": "nonsense"}),
    "gpubench's own variables": MachineFault(env={"GPUBENCH_RUNNER": "1", "GPUBENCH_CHILD": "x"}),
    # signals
    "SIGINT": MachineFault((130,), meanwhile=signalled(signal.SIGINT)),
    "SIGTERM": MachineFault((143,), meanwhile=signalled(signal.SIGTERM)),
    "SIGHUP": MachineFault((129,), meanwhile=signalled(signal.SIGHUP)),
    "SIGQUIT": MachineFault((-signal.SIGQUIT,), meanwhile=signalled(signal.SIGQUIT)),
    "SIGUSR1": MachineFault((-signal.SIGUSR1,), meanwhile=signalled(signal.SIGUSR1)),
    "SIGALRM": MachineFault((-signal.SIGALRM,), meanwhile=signalled(signal.SIGALRM)),
    "SIGPIPE": MachineFault(meanwhile=signalled(signal.SIGPIPE)),
    "SIGABRT": MachineFault((-signal.SIGABRT,), meanwhile=signalled(signal.SIGABRT)),
    "SIGSEGV": MachineFault((-signal.SIGSEGV,), meanwhile=signalled(signal.SIGSEGV)),
    "SIGWINCH": MachineFault(meanwhile=signalled(signal.SIGWINCH)),
    "stopped for two seconds": MachineFault(meanwhile=stopped),
    "worker killed": MachineFault(_ANY, meanwhile=on_child("worker", [signal.SIGKILL])),
    "worker's keeper killed": MachineFault(_ANY, meanwhile=on_child("worker", [signal.SIGKILL], keeper=True)),
    "worker stopped for a second": MachineFault(meanwhile=on_child("worker", [signal.SIGSTOP, signal.SIGCONT])),
    "sampler killed": MachineFault(meanwhile=on_child("sampler", [signal.SIGKILL])),
    "sampler's keeper killed": MachineFault(meanwhile=on_child("sampler", [signal.SIGKILL], keeper=True)),
    "sampler stopped": MachineFault(meanwhile=on_child("sampler", [signal.SIGSTOP])),
    # the real-time clock
    "a clock before 1970": MachineFault((_USAGE,), env={"CLOCK_SHIFT_S": "-86400"}, wrapper=shifted),
    "a clock of 1970": MachineFault(env={"CLOCK_SHIFT_S": "0"}, wrapper=shifted),
    "a clock of 2106": MachineFault(env={"CLOCK_SHIFT_S": "4300000000"}, wrapper=shifted),
    "a clock that steps back each second": MachineFault(env={"CLOCK_STEP_S": "3600"}, wrapper=shifted),
}
