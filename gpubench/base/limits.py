"""Find limits of the operating system that are too low for any measurement, and say how to raise them."""

import errno
import mmap
import os
import resource
import threading

from gpubench.base.errors import UsageError

_FILES = 64  # a run with eight ranks needs two pipes for each, the sampler's, the run file and libraries
_TASKS = 16  # processes and threads besides linear algebra, which starts one thread per core
_MOST_CORES = 64  # OpenBLAS is built for at most this number of threads
_FILES_HINT = "raise the limit with `ulimit -n 1024`"
_MEMORY_HINT = "raise the limit of address space with `ulimit -v`, or that of data with `ulimit -d`"
_TASKS_HINT = "raise the limit with `ulimit -u`, or that of the container (docker run --pids-limit)"


def check() -> None:
    """Raise UsageError if fewer than 64 files, or too few processes and threads, may be open at once.

    The number of processes and threads that is needed is 16, and one more for each of at most 64 usable cores."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FILES:
        raise UsageError(f"only {files} files may be open at once, and {_FILES} are needed; {_FILES_HINT}")
    _check_tasks(_TASKS + min(len(os.sched_getaffinity(0)), _MOST_CORES))


def _check_tasks(count: int) -> None:
    """Start `count` threads at once and end them; raise UsageError if they cannot all be started."""
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(count)]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        problem = f"only {len(started)} of {count} processes and threads could be started"
        raise UsageError(f"{problem}; {_tasks_hint()}") from error
    finally:
        release.set()
        for thread in started:
            thread.join()


def _tasks_hint() -> str:
    """Return how to start more threads: a thread fails with the same error if its stack finds no address space."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    try:
        mmap.mmap(-1, stack if 0 < stack < 2**30 else 2**23).close()
    except OSError:
        return _MEMORY_HINT
    return _TASKS_HINT


def reason(error: BaseException) -> str:
    """Return the limit that `error` shows to be reached, with the remedy, as a clause; empty for any other error.

    It knows the limits of open files, of processes and threads, and of the address space."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open; {_FILES_HINT}"
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return f"no further process can be started; {_tasks_hint()}"
    limited = [resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    if set(limited) != {resource.RLIM_INFINITY} and (code == errno.ENOMEM or isinstance(error, MemoryError)):
        return f"no more memory can be had; {_MEMORY_HINT}"
    return ""
