"""Run a program as a child in gpubench's own process group; it inherits the standard streams.

The terminal sends Ctrl-C to the whole group, so the program receives it directly. gpubench forwards signals that only
gpubench receives. It blocks these signals and reads them with sigtimedwait, so that they interrupt none of its work."""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.base.errors import GpubenchError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
MARK = signal.SIGUSR1  # begins a new part of the program
_WATCHED = {*FORWARDED, MARK, signal.SIGCHLD}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, which a child would inherit
_FROM_KERNEL = 0x80  # si_code SI_KERNEL (asm-generic/siginfo.h): the terminal's own signals


class CannotRun(GpubenchError):  # noqa: N818 - the program is not started
    """The program cannot be run: exit status 127 if it does not exist, else 126."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended: `status` as a shell gives it, 128 + n if the signal `killed_by` ended it."""

    status: int
    killed_by: str
    begin: float
    end: float
    cpu_s: float
    memory_bytes: int

    @property
    def failure(self) -> str:
        """Return `exit status 3` or `killed by SIGSEGV`; empty for exit status 0."""
        if self.killed_by:
            return f"killed by {self.killed_by}"
        return f"exit status {self.status}" if self.status else ""


class Program:
    """A running program; create it inside `watching_signals`. `marks` are the times of the mark signal."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> None:
        """Start a program whose signal mask is `mask`. Raises CannotRun if the program cannot be run."""
        self.begin = time.monotonic()
        self.marks: list[float] = []
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environment), setsigmask=list(mask), setsigdef=list(_IGNORED_BY_PYTHON)
            )
        except OSError as error:
            raise cannot_run(command[0], error) from error

    def wait(self, seconds: float) -> ProgramEnd | None:
        """Wait at most `seconds` for the program to end, forwarding signals; return how it ended, None if it runs."""
        deadline = time.monotonic() + seconds
        while True:
            info = signal.sigtimedwait(_WATCHED, max(deadline - time.monotonic(), 0.0))
            if info is None:
                return self._reap()
            if info.si_signo == signal.SIGCHLD:
                if result := self._reap():
                    return result
            else:
                self._handle_signal(info.si_signo, info.si_code)

    def _handle_signal(self, number: int, code: int) -> None:
        """Record a mark if `number` is the mark signal; forward any other signal to the program."""
        if number == MARK:
            self.marks.append(time.monotonic())
        elif code != _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reap(self) -> ProgramEnd | None:
        """Return how the program ended, None if it still runs; do not wait."""
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        return ProgramEnd(
            status=128 - code if code < 0 else code,
            killed_by=signal.Signals(-code).name if code < 0 else "",
            begin=self.begin,
            end=time.monotonic(),
            cpu_s=used.ru_utime + used.ru_stime,
            memory_bytes=used.ru_maxrss * 1024,
        )


@contextlib.contextmanager
def watching_signals() -> Iterator[set[signal.Signals]]:
    """Block the signals that `Program.wait` reads, and yield the previous signal mask, which the program gets."""
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


def check_executable(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise CannotRun if the program of a command does not exist or is not executable."""
    name = command[0]
    folders = [""] if "/" in name else environment.get("PATH", os.defpath).split(":")
    candidates = [os.path.join(folder, name) for folder in folders]  # noqa: PTH118 - as execvp looks for it
    files = [candidate for candidate in candidates if os.path.isfile(candidate)]  # noqa: PTH113
    if not files:
        raise cannot_run(name, FileNotFoundError(errno.ENOENT, "no such program"))
    if not any(os.access(candidate, os.X_OK) for candidate in files):
        raise cannot_run(name, PermissionError(errno.EACCES, "it is not executable"))


def cannot_run(name: str, error: OSError) -> CannotRun:
    """Return the error for the program `name`, with a shell's exit status: 127 if it is missing, else 126."""
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return CannotRun(f"cannot run {name}: {error.strerror}", 127 if missing else 126)
