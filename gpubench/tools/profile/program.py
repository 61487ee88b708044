"""Run a program as a child in gpubench's own process group; it inherits the standard streams.

The terminal sends Ctrl-C to the whole group, so the program receives it directly. gpubench forwards signals that only
gpubench receives. It blocks these signals and reads them with sigtimedwait, so that they interrupt none of its work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.base.errors import GpubenchError

SENT_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
MARK = signal.SIGUSR1  # begins a new part of the program
_WATCHED = {*SENT_ON, MARK, signal.SIGCHLD}
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, which a child would inherit
_FROM_KERNEL = 0x80  # si_code SI_KERNEL (asm-generic/siginfo.h): the terminal's own signals


class NotStarted(GpubenchError):  # noqa: N818 - the program is not started
    """The program cannot be run: exit status 127 if it does not exist, else 126."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: `status` as a shell gives it, 128 + n where signal n killed it.

    `cpu_s` and `memory_bytes`, the largest resident set of one process, include the children that it waited for.
    """

    status: int
    killed_by: str
    begin: float  # CLOCK_MONOTONIC seconds
    end: float
    cpu_s: float
    memory_bytes: int

    @property
    def words(self) -> str:
        """Return `exit status 3` or `killed by SIGSEGV`; empty for exit status 0."""
        if self.killed_by:
            return f"killed by {self.killed_by}"
        return f"exit status {self.status}" if self.status else ""


class Program:
    """A running program. Create it inside `watched`, which blocks the signals that it waits for."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> None:
        """Start the program with the given signal mask. Raises NotStarted if it cannot be run."""
        self.begin = time.monotonic()
        self.marks: list[float] = []
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environment), setsigmask=list(mask), setsigdef=list(_PYTHONS_OWN)
            )
        except OSError as error:
            raise not_started(command[0], error) from error

    def ended(self, seconds: float) -> Ended | None:
        """Wait at most `seconds` for the program to end, and forward signals; return None while it runs."""
        deadline = time.monotonic() + seconds
        while True:
            info = signal.sigtimedwait(_WATCHED, max(deadline - time.monotonic(), 0.0))
            if info is None:
                return self._reaped()
            if info.si_signo == signal.SIGCHLD:
                if result := self._reaped():
                    return result
            else:
                self._take(info.si_signo, info.si_code)

    def _take(self, number: int, code: int) -> None:
        if number == MARK:
            self.marks.append(time.monotonic())
        elif code != _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reaped(self) -> Ended | None:
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        return Ended(
            status=128 - code if code < 0 else code,
            killed_by=signal.Signals(-code).name if code < 0 else "",
            begin=self.begin,
            end=time.monotonic(),
            cpu_s=used.ru_utime + used.ru_stime,
            memory_bytes=used.ru_maxrss * 1024,
        )


@contextlib.contextmanager
def watched() -> Iterator[set[signal.Signals]]:
    """Block the signals that a `Program` waits for, and yield the previous signal mask, which the program gets."""
    previous = signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if SIGCHLD were ignored, the kernel would keep no exit status
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        yield {signal.Signals(number) for number in mask}
    finally:
        while signal.sigtimedwait(_WATCHED, 0.0):  # drop signals for the program that arrived after its end
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, previous)


def check(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise NotStarted if the program does not exist or is not executable."""
    name = command[0]
    places = [name] if "/" in name else [os.path.join(p, name) for p in environment.get("PATH", os.defpath).split(":")]  # noqa: PTH118
    files = [place for place in places if os.path.isfile(place)]  # noqa: PTH113 - as execvp looks for it
    if not files:
        raise not_started(name, FileNotFoundError(errno.ENOENT, "no such program"))
    if not any(os.access(place, os.X_OK) for place in files):
        raise not_started(name, PermissionError(errno.EACCES, "it is not executable"))


def not_started(name: str, error: OSError) -> NotStarted:
    """Return the error for a program that cannot be run, with the exit status of a shell."""
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return NotStarted(f"cannot run {name}: {error.strerror}", 127 if missing else 126)
