"""Tell the processes of this run on a device from the processes of others.

Find out which counters a machine refuses, and why."""

import os
import time
from collections.abc import Callable, Mapping

import psutil

PERIOD_S = 0.05  # a list of processes is an expensive call


def runner() -> int:
    """Return the id of the process that runs the cases; outside a worker, the id of this process's parent."""
    return int(os.environ.get("GPUBENCH_RUNNER") or os.getppid())


class Strangers:
    """Tells our processes (the process `runner`, which started this one, and all that it started) from others.

    In a container a driver may give the host's process ids."""

    def __init__(self, runner: int) -> None:
        """Count the process `runner` and all that it started as ours."""
        self._runner = runner
        self._ours: dict[int, bool] = {}

    def among(self, pids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the process ids in `pids` that are not ours, as far as /proc lists them."""
        return tuple(pid for pid in pids if not self._is_ours(pid))

    def are_seen(self, pids: tuple[int, ...]) -> bool:
        """Return whether one of the processes `pids` certainly belongs to another run or program.

        This holds if `pids` contains this process, so that they are ids of this container, and /proc has a process that
        is not ours."""
        return os.getpid() in pids and any(psutil.pid_exists(pid) for pid in self.among(pids))

    def _is_ours(self, pid: int) -> bool:
        if pid not in self._ours:
            self._ours[pid] = pid == os.getpid() or self._descends(pid)
        return self._ours[pid]

    def _descends(self, pid: int) -> bool:
        """Return whether the process `pid` is the runner or was started by it; False if the process has ended."""
        try:
            ancestry = [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
        except psutil.Error:
            return False
        return self._runner in ancestry


class ForeignProcesses:
    """The processes of others on one device during a case, listed at most every 50 ms.

    `count` is their present number and `baseline` that at the start of the case; None if they are unknown."""

    def __init__(self, read: Callable[[], tuple[int, ...] | None]) -> None:
        """Prepare the count; `read` returns the ids of all processes on the device, or None if they are unknown."""
        self._read = read
        self._strangers = Strangers(runner())
        self.baseline: int | None = None  # their number at the start of the case
        self.count: int | None = None
        self.labels: tuple[str, ...] = ()
        self._due = 0.0

    def begin(self) -> None:
        """Count the processes of others on the device as the baseline.

        The case is labelled `shared-device` if a process certainly belongs to another run or program."""
        self._strangers = Strangers(runner())  # forget the earlier answers, because process ids are reused
        pids = self._read()
        self.count = self.baseline = None if pids is None else len(self._strangers.among(pids))
        self.labels = ("shared-device",) if pids and self._strangers.are_seen(pids) else ()
        self._due = time.monotonic() + PERIOD_S

    def look(self) -> None:
        """Update `count` if 50 ms have passed since the last list; without a baseline, do nothing."""
        now = time.monotonic()
        if self.baseline is not None and now >= self._due:
            pids = self._read()
            self.count = None if pids is None else len(self._strangers.among(pids))
            self._due = now + PERIOD_S


def refusals(
    readers: Mapping[str, Callable[[], object]], errors: type[Exception] | tuple[type[Exception], ...]
) -> dict[str, str]:
    """Call each reader once; return the counters whose reader raises one of `errors`, with the error's text."""
    reasons = {}
    for name, read in readers.items():
        try:
            read()
        except errors as error:
            reasons[name] = str(error) or type(error).__name__
    return reasons
