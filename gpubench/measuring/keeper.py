"""Keep the processes of a child together: a keeper stands above each child and ends all that the child ever started.

A process that forks twice or starts its own session leaves its parent's tree, so that killing a process group misses
it. Linux hands such an orphan to the nearest ancestor that is a child subreaper (prctl(2)); the keeper is one."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

RUNNER = "GPUBENCH_RUNNER"  # in the environment of a child: the id of the gpubench process that started it
CHILD = "GPUBENCH_CHILD"  # in the environment of a child: a random mark that each process started by it inherits
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36  # linux/prctl.h
_GRACE_S = 2.0  # seconds for killed processes to end; a process that a driver holds is left behind
_TICK_S = 0.002
_ENDED = (b"Z", b"X")  # states in /proc: a process that was not reaped, and one that is being removed
_HEARD = {signal.SIGCHLD, signal.SIGTERM}


def keep(descriptor: int) -> None:
    """Fork, and return in the child; the parent becomes the keeper, which supervises the child and never returns.

    `descriptor` is the child's end of the channel; the keeper closes its copy."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    keeper = os.getpid()
    if os.getppid() != int(os.environ[RUNNER]):  # the runner ended before the kernel was asked to signal its end
        os._exit(1)
    child = os.fork()
    if child:
        _supervise(child, descriptor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the child can then see processes that a case left behind
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def _supervise(child: int, descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for copied in (descriptor, 1, 2):  # only the child holds the pipes, so that they close when it ends
        os.dup2(nowhere, copied)
    status: int | None = None
    while status is None and signal.sigwait(_HEARD) == signal.SIGCHLD:
        status = _reap(child)
    end_descendants(os.getpid())
    _end_with(status)


def _reap(child: int) -> int | None:
    """Reap every process that has ended; return the wait status of `child` if it is one of them, else None."""
    child_status: int | None = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                child_status = status
    return child_status


def _end_with(status: int | None) -> None:
    """End this process as the wait status `status` says, by exit status or by signal; None means by SIGKILL."""
    if status is not None and os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = signal.SIGKILL if status is None else signal.Signals(os.WTERMSIG(status))
    _prctl(_PR_SET_DUMPABLE, 0)  # the child has written its core file; a limit of 0 stops no handler of core files
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(1)


def end_descendants(root: int) -> None:
    """Kill every process below the process id `root`, again until none is left, for at most two seconds.

    If `root` is this process, its own children are also reaped."""
    is_own = root == os.getpid()
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        alive = descendants(root)
        if is_own:
            _reap(0)
            alive |= _children()  # read last, so that a process that keeps forking is killed at once
        if not alive and not (is_own and has_children()):
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK_S)


def end_marked(mark: str) -> None:
    """Kill every process whose environment has this mark in GPUBENCH_CHILD, for at most two seconds.

    Such processes remain if the keeper of the child that started them was killed."""
    wanted = f"{CHILD}={mark}".encode()
    deadline = time.monotonic() + _GRACE_S
    is_any_left = True
    while is_any_left and time.monotonic() < deadline:
        is_any_left = False
        for entry in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - names are enough
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
                    is_any_left = True


def has_children() -> bool:
    """Return whether this process has a child that runs or was not reaped; this takes one system call, 1 µs."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_descendants(expected: Collection[int]) -> bool:
    """Return whether a process without one of the `expected` process ids runs anywhere below this one."""
    if not has_children():
        return False
    children = _children().difference(expected)
    if any(map(_is_running, children)):
        return True
    new = _children().difference(expected, children)  # children of a process that forked and ended meanwhile
    return bool(new) or bool(descendants(os.getpid()).difference(expected))


def _is_running(pid: int) -> bool:
    """Return whether a child process runs; True also if it no longer exists, because it may have left descendants."""
    try:
        return _state_and_parent(pid)[0] not in _ENDED
    except OSError:
        return True


def _children() -> set[int]:
    """Return the ids of this process's children; empty where the kernel lists none (CONFIG_PROC_CHILDREN)."""
    pids: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, file.read_bytes().split()))
    return pids


def _state_and_parent(pid: int | str) -> tuple[bytes, int]:
    # State and parent follow the name, which is in parentheses and may hold any character.
    state, parent = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[:2]
    return state, int(parent)


def descendants(root: int) -> set[int]:
    """Return the ids of all processes below the process id `root` that have not ended."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = _state_and_parent(entry)
                if state not in _ENDED:
                    children.setdefault(parent, []).append(int(entry))
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids.update(below)
        waiting += below
    return pids


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
