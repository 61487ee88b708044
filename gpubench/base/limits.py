"""Limits of the operating system that are too low for any measurement, and what raises them."""

from __future__ import annotations

import errno
import os
import resource
import threading

from gpubench.base.errors import UsageError

_FILES = 64  # descriptors of a run with eight ranks: two pipes for each, the sampler's, the run file, libraries
_TASKS = 16  # processes and threads beside those that linear algebra starts, which is one per core
_MOST_CORES = 64  # the threads of OpenBLAS, by its build
_FILES_HINT = "raise the limit with `ulimit -n 1024`"
_TASKS_HINT = "raise the limit with `ulimit -u`, or that of the container (docker run --pids-limit)"


def check() -> None:
    """Raise UsageError where too few files may be open, or too few processes and threads run, to measure anything."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FILES:
        raise UsageError(f"only {files} files may be open at once, and {_FILES} are needed; {_FILES_HINT}")
    _check_tasks(_TASKS + min(len(os.sched_getaffinity(0)), _MOST_CORES))


def _check_tasks(count: int) -> None:
    """Start as many threads at once: the kernel counts threads as it counts processes, for a user and a container."""
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(count)]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        words = f"only {len(started)} of {count} processes and threads could be started"
        raise UsageError(f"{words}; {_TASKS_HINT}") from error
    finally:
        release.set()
        for thread in started:
            thread.join()


def reason(error: BaseException) -> str:
    """Return what to do where an error means that a limit was reached; an empty text for any other error."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open; {_FILES_HINT}"
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return f"no further process can be started; {_TASKS_HINT}"
    return ""
