"""Cases that crash, hang, lie or lose a rank, and some that do none of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpubench.api.suite import Bench, DeviceError, Observation, PeerDied, Skip, Stage, Suite, Task, Work, WrongAnswer

suite = Suite("what goes wrong, on purpose")


def nothing() -> None:
    """Do nothing."""


def fine() -> Observation:
    """Return no observations and raise nothing."""
    return {}


def task(call=nothing) -> Task:
    """Return a task of one call that may go wrong."""
    return Task.of(Stage(call, Work(items=1), "item"), check=fine)


@suite.case()
def good(bench: Bench) -> Task:
    """Nothing goes wrong."""
    return task()


@suite.case()
def crash(bench: Bench) -> Task:
    """The process dies."""
    sys.stderr.write("about to die\n")
    return task(lambda: os.kill(os.getpid(), signal.SIGSEGV))


@suite.case()
def hang(bench: Bench) -> Task:
    """The call never ends, and a grandchild would outlive it."""
    subprocess.Popen(["sleep", "300.123"])
    return task(lambda: time.sleep(300))


@suite.case()
def silent(bench: Bench) -> Task:
    """Both standard streams are closed for good, as a library might do to silence itself."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return task(lambda: time.sleep(0.01))


@suite.case()
def late(bench: Bench) -> Task:
    """The process dies half a second after the case has ended."""
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGSEGV)).start()
    return task()


@suite.case()
def slow(bench: Bench) -> Task:
    """The case lasts long enough for the delayed death of the case before it."""
    return task(lambda: time.sleep(0.3))


@suite.case()
def leave(bench: Bench) -> Task:
    """The process ends by itself."""
    os._exit(7)


@suite.case()
def noisy(bench: Bench) -> Task:
    """The case prints more than a pipe holds."""
    sys.stdout.write("x" * 2_000_000)
    sys.stdout.flush()
    return task()


@suite.case()
def bug(bench: Bench) -> Task:
    """The suite has a bug."""
    raise ZeroDivisionError("a bug in the suite")


@suite.case()
def gone(bench: Bench) -> Task:
    """The device is unreachable."""
    raise DeviceError(f"{bench.device.device.id} is lost")


@suite.case()
def wrong(bench: Bench) -> Task:
    """The device's answer is wrong."""

    def check() -> Observation:
        raise WrongAnswer("1 + 1 came out as 3")

    return Task.of(Stage(nothing, Work(items=1), "item"), check=check)


@suite.case()
def nan(bench: Bench) -> Task:
    """An observed value is no number."""
    return Task.of(Stage(nothing, Work(items=1), "item"), check=lambda: {"error": math.nan})


@suite.case()
def unable(bench: Bench) -> Task:
    """The device does not support the case."""
    raise Skip("needs a time machine")


@suite.case()
def backwards(bench: Bench) -> Task:
    """A self-timed call whose clock runs backwards."""
    return Task.of(Stage(lambda: -1e-3, Work(items=1), "item", clock="self"), check=fine)


@suite.case(ranks=2)
def pair(bench: Bench) -> Task:
    """Two ranks measure in lockstep."""
    met = bench.exchange(bench.rank)
    if met != [0, 1]:
        raise WrongAnswer(f"the ranks met as {met}")
    return task()


@suite.case(ranks=2)
def lost(bench: Bench) -> Task:
    """Rank 1 is killed, and rank 0 does not expect it."""
    if bench.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    bench.barrier()
    return task()


@suite.case(ranks=2)
def mourned(bench: Bench) -> Task:
    """Rank 1 is killed, and rank 0 measures the time until it is notified."""
    if bench.rank == 1:
        bench.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    bench.barrier()
    start = time.perf_counter()
    try:
        bench.barrier()
    except PeerDied as event:
        seconds, rank = time.perf_counter() - start, float(event.rank)
        return Task.of(Stage(lambda: seconds, Work(items=1), "item", clock="self"), check=lambda: {"rank": rank})
    raise WrongAnswer("rank 1 is still there")


@suite.case(ranks=2)
def declined(bench: Bench) -> Task:
    """One rank alone finds that the case cannot run."""
    if bench.rank == 1:
        raise Skip("rank 1 has no room")
    bench.barrier()
    return task()


@suite.case(ranks=2)
def watched(bench: Bench) -> Task:
    """Rank 0 checks the outputs of rank 1 slowly; rank 1 has no check and must not continue meanwhile."""
    folder = tempfile.mkdtemp() if bench.rank == 1 else ""
    place = Path(bench.exchange(folder)[1]) / "calls"
    calls = 0

    def call() -> float:
        nonlocal calls
        calls += 1
        if bench.rank == 1:
            place.write_text(str(calls))
        return 1e-3

    def check() -> Observation:
        if bench.rank == 0:
            time.sleep(0.1)
            count = int(place.read_text())
            if count != calls:
                raise WrongAnswer(f"rank 1 has called {count} times, rank 0 {calls} times")
        return {}

    def close() -> None:
        if folder:
            shutil.rmtree(folder)

    return Task.of(Stage(call, Work(items=1), "item", clock="self"), check=check, release=close)


@suite.case(ranks=3)
def uneven(bench: Bench) -> Task:
    """Only rank 1 works; the other ranks wait."""
    return task() if bench.rank == 1 else Task.idle()


def on_a_gpu(bench: Bench, source: str) -> Task:
    """Return a kernel of one thread as a task; skip the case on the host."""
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU")
    kernel = bench.device.kernel(source, "kernel", {})
    return task(lambda: kernel((1,), (1,), ()))


@suite.case()
def illegal(bench: Bench) -> Task:
    """The kernel writes where it must not: the process's context is lost."""
    return on_a_gpu(bench, 'extern "C" __global__ void kernel() { *(volatile int*)16 = 1; }')


@suite.case()
def asserting(bench: Bench) -> Task:
    """An assertion in the kernel fails."""
    declared = 'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);'
    failing = '__assertfail("1 + 1 == 3", "arithmetic.cu", 1, "kernel", 1);'
    return on_a_gpu(bench, f'{declared}\nextern "C" __global__ void kernel() {{ {failing} }}')


@suite.case()
def exhausting(bench: Bench) -> Task:
    """The case takes memory until the device has none left."""
    if not bench.traits.is_gpu:
        raise Skip("needs a GPU")
    kept = []
    while True:
        kept.append(bench.xp.empty(2**28, bench.xp.uint8))


@suite.case()
def endless(bench: Bench) -> Task:
    """The kernel spins for longer than its time limit (its own bound is a minute)."""
    spin = "long long start = clock64(); while (clock64() - start < 120000000000LL) {}"
    return on_a_gpu(bench, f'extern "C" __global__ void kernel() {{ {spin} }}')


def on_clockwork(bench: Bench, **program: object) -> Task:
    """Return a kernel of the clockwork device as a task; skip the case elsewhere."""
    if bench.traits.vendor != "clockwork":
        raise Skip("needs the clockwork device")
    kernel = bench.device.kernel(json.dumps(program), "kernel", {})
    return task(lambda: kernel((1,), (1,), ()))


@suite.case()
def ticking(bench: Bench) -> Task:
    """A kernel that takes exactly a millisecond."""
    return on_clockwork(bench, seconds=1e-3)


@suite.case()
def stuck(bench: Bench) -> Task:
    """A kernel that never ends."""
    return on_clockwork(bench, seconds=1e-3, hangs=True)
