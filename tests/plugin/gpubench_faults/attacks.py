"""Cases that attack their worker and gpubench on purpose: each must cost itself alone. the study `faults` runs them."""

from __future__ import annotations

import builtins
import ctypes
import json
import locale
import math
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Observation, Stage, Suite, Task, Work

suite = Suite("attacks on the run, on purpose")
LETTERS = 8000


def nothing() -> None:
    """Do nothing."""


def fine() -> Observation:
    """Return no observations and raise nothing."""
    return {}


def task(call: Callable[[], object] = nothing, **fields: Any) -> Task:
    """Return a task of one call that may go wrong."""
    return Task.of(Stage(call, Work(items=1), "item"), **{"check": fine, **fields})


def raising(error: BaseException) -> Task:
    """Return a task whose call raises this error."""

    def call() -> None:
        raise error

    return task(call)


class MuteError(Exception):
    """An error without a message."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Unlike(BaseException):
    """An exception that does not derive from Exception."""


def recursion() -> None:
    """Call itself for ever."""
    recursion()


def kill(number: int) -> Callable[[], object]:
    """Return a call that sends a signal to its own process."""
    return lambda: os.kill(os.getpid(), number)


def channel() -> int:
    """Return the descriptor of this worker's channel to gpubench."""
    return int(sys.argv[1])


def send(frame: bytes) -> None:
    """Send bytes in a frame."""
    os.write(channel(), struct.pack(">Q", len(frame)) + frame)


def forged(**fields: Any) -> bytes:
    """Return the message of a result that was never measured."""
    return b"RankResult\n" + json.dumps({"status": "ok", **fields}).encode()


class Executed:
    """An object whose pickle runs a command in the process that reads it."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ.get('GPUBENCH_FAULTS_MARK', '/dev/null')}",)


def endless() -> None:
    """Send the beginning of a large frame, and then more and more."""
    os.write(channel(), struct.pack(">Q", 2**24))
    while True:
        os.write(channel(), bytes(2**16))


def phases() -> None:
    """Report new phases of long duration for ever."""
    frame = b'Phase\n{"name":"x","limit_s":1e300,"basis":"y"}'
    while True:
        send(frame)


def values(count: int) -> bytes:
    """Return the message of a series of `count` values of two characters each."""
    series = b'[{"name":"x","unit":"","values":[' + b"0," * (count - 1) + b"0]}]"
    return b'RankResult\n{"status":"ok","series":' + series + b"}"


def close_channel() -> None:
    """Close the channel and keep running."""
    os.close(channel())
    time.sleep(300)


def sleeper(**how: Any) -> None:
    """Start a process that outlives its case."""
    subprocess.Popen(["sleep", "300.321"], **how)


def double_fork() -> None:
    """Leave a detached grandchild in its own session with closed descriptors."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execv("/bin/sleep", ["sleep", "300.321"])
        os._exit(0)


def chain() -> None:
    """Leave a process that forks and ends again and again, so that its number changes all the time."""
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            time.sleep(0.002)
        os._exit(0)


def many_forks() -> None:
    """Leave fifty processes."""
    for _ in range(50):
        sleeper(start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_keeper() -> None:
    """End the process that keeps this one."""
    sleeper(start_new_session=True)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)


def fork_and_end() -> None:
    """End, while a child holds every descriptor."""
    if os.fork() == 0:
        time.sleep(300)
    os._exit(5)


def flood() -> None:
    """Print for ever from a second process, and for a second from this one."""
    subprocess.Popen(["yes", "flood"])
    end = time.monotonic() + 1
    while time.monotonic() < end:
        sys.stdout.write("x" * 10**6)


def eat() -> None:
    """Take more memory than this process may have."""
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    kept = []
    while True:
        kept.append(np.ones(2**22))


def background(run: Callable[[], object], seconds: float = 0.0) -> None:
    """Run a function in a thread after `seconds`."""

    def later() -> None:
        time.sleep(seconds)
        run()

    threading.Thread(target=later, daemon=True).start()


def handlers() -> None:
    """Ignore every signal that can be ignored."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)


def patched() -> None:
    """Replace functions of Python that all code uses."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("patched")

    builtins.len = broken
    json.dumps = broken


def lost_folder() -> None:
    """Change into a folder and remove it."""
    folder = Path(f"/tmp/gpubench-lost-{os.getpid()}")
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


def hang() -> None:
    """Never return."""
    time.sleep(300)


def spin() -> None:
    """Never return and never release the interpreter's lock."""
    ctypes.PyDLL(None).pause()


ATTACKS: dict[str, Callable[[], Task]] = {
    # values and types
    "result of 32 MB": lambda: task(notes={f"note {n}": "\U0001f600" * LETTERS for n in range(1000)}),
    "100 000 observed values": lambda: task(check=lambda: {f"v{n}": 1.0 for n in range(100_000)}),
    "note that is no text": lambda: task(notes={"x": object()}),
    "note of 100 MB": lambda: task(notes={"x": "x" * 10**8}),
    "observed NaN": lambda: task(check=lambda: {"x": math.nan}),
    "observed text": lambda: task(check=lambda: {"x": "1.0"}),
    "time of -1 s": lambda: Task.of(Stage(lambda: -1.0, Work(items=1), "item", clock="self"), check=fine),
    "time of 1e308 s": lambda: Task.of(Stage(lambda: 1e308, Work(items=1), "item", clock="self"), check=fine),
    "no task": lambda: None,  # type: ignore[return-value]
    "label of control characters": lambda: task(labels=("\x1b[2J",)),
    "a million self-timed values": lambda: Task.of(
        Stage(lambda: [1e-3] * 10**6, Work(items=1), "item", clock="self"), check=fine
    ),
    # exceptions
    "KeyboardInterrupt": lambda: raising(KeyboardInterrupt()),
    "SystemExit(0)": lambda: raising(SystemExit(0)),
    "SystemExit(text)": lambda: raising(SystemExit("leaving")),
    "GeneratorExit": lambda: raising(GeneratorExit()),
    "BaseException": lambda: raising(Unlike("unlike any other")),
    "StopIteration": lambda: raising(StopIteration()),
    "MemoryError": lambda: raising(MemoryError()),
    "ExceptionGroup": lambda: raising(ExceptionGroup("several", [ValueError("a"), OSError("b")])),
    "RecursionError": lambda: task(recursion),
    "error without words": lambda: raising(MuteError()),
    "error of 100 MB": lambda: raising(RuntimeError("x" * 10**8)),
    "error of half a surrogate pair": lambda: raising(RuntimeError("\ud800 and \udfff")),
    "error of control characters": lambda: raising(RuntimeError("a\x1b[2J\r\nb\u202e::error::c")),
    # exits and signals
    "os._exit(0)": lambda: task(lambda: os._exit(0)),
    "os._exit(255)": lambda: task(lambda: os._exit(255)),
    "abort": lambda: task(os.abort),
    "SIGSEGV": lambda: task(kill(signal.SIGSEGV)),
    "SIGKILL": lambda: task(kill(signal.SIGKILL)),
    "SIGTERM": lambda: task(kill(signal.SIGTERM)),
    "SIGSTOP": lambda: task(kill(signal.SIGSTOP)),
    "null pointer": lambda: task(lambda: ctypes.string_at(0)),
    # processes
    "child left running": lambda: task(sleeper),
    "child in a session of its own": lambda: task(lambda: sleeper(start_new_session=True)),
    "double fork": lambda: task(double_fork),
    "child without environment": lambda: task(lambda: sleeper(start_new_session=True, env={})),
    "process that forks for ever": lambda: task(chain),
    "fifty processes": lambda: task(many_forks),
    "ended, a child holds the channel": lambda: task(fork_and_end),
    "fork that goes on as the worker": lambda: os.fork() * 0 or task(),
    "keeper killed": lambda: task(kill_keeper),
    # memory and output
    "memory": lambda: task(eat),
    "array of 1 PB": lambda: task(lambda: np.ones(2**47)),
    "output flood": lambda: task(flood),
    # hangs
    "hang in build": lambda: hang() or task(),
    "hang in call": lambda: task(hang),
    "hang in check": lambda: task(check=lambda: hang() or {}),
    "hang in close": lambda: task(close=hang),
    "hang with the interpreter locked": lambda: task(spin),
    # the channel
    "rubbish on the channel": lambda: task(lambda: os.write(channel(), os.urandom(4096))),
    "partial frame": lambda: task(lambda: os.write(channel(), struct.pack(">Q", 100) + b"RankResult") and hang()),
    "absurd length": lambda: task(lambda: os.write(channel(), struct.pack(">Q", 2**62))),
    "endless message": lambda: task(endless),
    "pickle that runs a command": lambda: task(lambda: send(pickle.dumps(Executed()))),
    "pickle in a part": lambda: task(lambda: send(b"RankResult\n" + pickle.dumps(Executed()))),
    "unknown message": lambda: task(lambda: send(b"Order\n{}")),
    "part of wrong types": lambda: task(lambda: send(forged(series="none"))),
    "part with unknown fields": lambda: task(lambda: send(forged(more=1))),
    "part with NaN": lambda: task(lambda: send(forged(window=[math.nan, 0.0]))),
    "part with an impossible status": lambda: task(lambda: send(forged(status="splendid"))),
    "part of no record": lambda: task(lambda: send(forged(labels=["x" * 10**6]))),
    "part of 8 million values": lambda: task(lambda: send(values(2**23 - 100))),
    "part nested a million deep": lambda: task(lambda: send(b"RankResult\n" + b"[" * 10**6)),
    "two parts": lambda: task(lambda: send(forged()) or send(forged())),
    "phases for ever": lambda: task(phases),
    "offer of a case with one rank": lambda: task(lambda: send(b"OfferedValue\n" + bytes(100))),
    "part sent after the case": lambda: background(lambda: send(forged()), 0.3) or task(),
    "channel closed, worker alive": lambda: task(close_channel),
    "all descriptors closed": lambda: task(lambda: os.closerange(0, 256)),
    # the process's state
    "thread left": lambda: threading.Thread(target=hang, daemon=False).start() or task(),
    "thread that raises": lambda: background(recursion) or task(),
    "folder removed": lambda: task(lost_folder),
    "locale changed": lambda: task(lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8")),
    "signals ignored": lambda: task(handlers),
    "environment cleared": lambda: task(os.environ.clear),
    "builtins replaced": lambda: task(patched),
    "no more descriptors": lambda: task(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))),
    "recursion limit of 60": lambda: task(lambda: sys.setrecursionlimit(60)),
    "standard output gone": lambda: task(lambda: setattr(sys, "stdout", None)),
}


@suite.case()
def before(bench: Bench) -> Task:
    """A case without a fault."""
    return task()


@suite.case(what=tuple(ATTACKS))
def attack(bench: Bench, what: str) -> Task:
    """One of the attacks."""
    return ATTACKS[what]()


@suite.case()
def after(bench: Bench) -> Task:
    """A case without a fault, for the worker that comes after an attack."""
    return task()


@suite.case(ranks=2)
def together(bench: Bench) -> Task:
    """A case without a fault that has two ranks."""
    bench.barrier()
    return task()
