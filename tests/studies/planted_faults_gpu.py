"""Plant faults that need real streams and kernels, on a GPU, and count in how many runs the engine sees each.

It needs gpubench with CuPy, this folder, and nothing else of a checkout; `paper` tries the list without a GPU, where
nothing is a stream and the counts mean nothing::

    python3 -P tests/studies/planted_faults_gpu.py [--part streams|kernels|general|all] [--runs 20] [--seconds 200]
                                                   [--only WORDS|OTHERS] [--device cuda:0|paper]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # python -P leaves it out

import _planted_kernels
from _planted import MUTATIONS, TWINS, Case, Mutation, closed_form, planted

from gpubench import plugins, stats
from gpubench.authoring.bench import Bench
from gpubench.authoring.effort import POINT, Effort
from gpubench.base.errors import Skip, SuiteError, Untrustworthy, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.measuring.worker import open_watches

PASSED = "passed"
THREADS, COUNT, PASSES = 256, 2**21, 512  # on an H200 a call takes about 0.1 ms, nearly all for its passes
SOURCE = """
typedef unsigned int u32;
typedef unsigned long long u64;
#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define ALL_THREADS ((u64)gridDim.x * blockDim.x)
__device__ __forceinline__ u32 mapped(u32 v, u32 passes) {
    u32 x = 0;
    for (u32 p = 0; p < passes; ++p) {
        x = 5 * x + v;
        asm volatile("" : "+r"(x));
    }
    return x;
}
// Elements first, first + step, … below stop; each result is written `shift` places on, if there is room.
extern "C" __global__ void map(u32* out, const u32* in, u64 first, u64 stop, u64 step, u64 shift, u64 room,
                               u32 passes) {
    for (u64 i = first + step * THREAD; i < stop; i += step * ALL_THREADS)
        if (i + shift < room) out[i + shift] = mapped(in[i], passes);
}
extern "C" __global__ void scale(u32* out, const u32* in, u64 n, u32 factor) {
    for (u64 i = THREAD; i < n; i += ALL_THREADS) out[i] = in[i] * factor;
}
// `kind`: 0 if the word at `place` has its answer, all return; 1 a thread returns if its own word is not poisoned;
// 2 a thread returns when `cycles` of the clock have passed since it began.
extern "C" __global__ void map_unless(u32* out, const u32* in, u64 n, u32 passes, u32 kind, u64 place, u32 factor,
                                      u64 cycles) {
    const u64 start = clock64();
    if (kind == 0 && out[place] == in[place] * factor) return;
    for (u64 i = THREAD; i < n; i += ALL_THREADS) {
        if (kind == 1 && out[i] != 0xffffffffu) continue;
        if (kind == 2 && clock64() - start > cycles) return;
        out[i] = mapped(in[i], passes);
    }
}
"""


@functools.cache
def kernels(device: Any) -> tuple[Any, ...]:
    return tuple(device.kernel(SOURCE, name, {}) for name in ("map", "scale", "map_unless"))


class GpuMachine:
    """Maps words by a kernel on the device's stream, or the stream that is current."""

    def __init__(self, device: Any, rng: np.random.Generator, count: int = COUNT, passes: int = PASSES) -> None:
        self.device, self.rng, self.count, self.passes, self.xp = device, rng, count, passes, device.xp
        self.blocks = 8 * max(1, device.device.units)
        self.map_kernel, self.scale_kernel, self.unless_kernel = kernels(device)
        self.mode = ""
        self._time, device.time = device.time, self._noted

    def _noted(self, call: Any, calls: int, mode: str = "hot", *args: Any, **options: Any) -> Any:
        self.mode = mode
        try:
            return self._time(call, calls, mode, *args, **options)
        finally:
            self.mode = ""

    def close(self) -> None:
        self.device.time = self._time

    @property
    def is_capturing(self) -> bool:
        return bool(self.xp.cuda.runtime.streamIsCapturing(self.device.stream))

    def array(self) -> Any:
        return self.xp.asarray(self.rng.integers(2**32, size=self.count, dtype=np.uint32))

    def spend(self, share: float) -> None:
        """Do nothing: idle calls need their own time here."""

    def map(
        self,
        out: Any,
        source: Any,
        part: slice = slice(None),
        passes: int = 0,
        shift: int = 0,
        threads: int = THREADS,
    ) -> None:
        numbers = (np.uint64(number) for number in (*part.indices(source.size), shift, out.size))
        args = (out, source, *numbers, np.uint32(passes or self.passes))
        self.map_kernel((self.blocks,), (threads,), args)

    def scale(self, out: Any, source: Any, passes: int) -> None:
        self.scale_kernel((self.blocks,), (THREADS,), (out, source, np.uint64(source.size), closed_form(passes)))

    def copy(self, out: Any, source: Any, stream: Any = None) -> None:
        queue = self.device.stream if stream is None else stream.ptr
        self.xp.cuda.runtime.memcpyAsync(out.data.ptr, source.data.ptr, source.nbytes, 3, queue)

    def map_unless(self, out: Any, source: Any, kind: int, place: int = 0, cycles: int = 0) -> None:
        factor = closed_form(self.passes)
        numbers = np.uint64(source.size), np.uint32(self.passes), np.uint32(kind), np.uint64(place), factor
        self.unless_kernel((self.blocks,), (THREADS,), (out, source, *numbers, np.uint64(cycles)))

    def map_unless_right(self, out: Any, source: Any, place: int) -> None:
        self.map_unless(out, source, 0, place)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Launch on another stream inside of the `with` block."""
        before = self.xp.cuda.get_current_stream()
        stream.use()
        try:
            yield
        finally:
            before.use()

    def new_stream(self) -> Any:
        return self.xp.cuda.Stream(non_blocking=True)

    @property
    def own(self) -> Any:
        return self.xp.cuda.get_current_stream()


STREAMS: dict[str, tuple[str, Mutation]] = {}


def stream_mutation(change: Mutation) -> Mutation:
    STREAMS[change.__name__.replace("_", " ")] = "streams", change
    return change


def half(case: Case) -> tuple[slice, slice]:
    return slice(0, case.machine.count // 2), slice(case.machine.count // 2, None)


@stream_mutation
def a_side_stream_is_not_waited_for(case: Case) -> None:
    side = case.machine.new_stream()

    def call() -> None:
        with case.machine.on(side):
            case.map()

    case.call = call


@stream_mutation
def half_of_the_work_is_on_a_side_stream(case: Case) -> None:
    side, (first, second) = case.machine.new_stream(), half(case)

    def call() -> None:
        case.machine.map(case.out, case.source, first)
        with case.machine.on(side):
            case.machine.map(case.out, case.source, second)

    case.call = call


@stream_mutation
def the_null_stream_does_the_work(case: Case) -> None:
    def call() -> None:
        with case.machine.on(case.machine.xp.cuda.Stream.null):
            case.map()

    case.call = call


@stream_mutation
def the_event_is_recorded_before_the_work(case: Case) -> None:
    machine, side = case.machine, case.machine.new_stream()

    def call() -> None:
        side.wait_event(machine.own.record())
        event = side.record()
        with machine.on(side):
            case.map()
        machine.own.wait_event(event)

    case.call = call


@stream_mutation
def the_side_stream_begins_before_the_call(case: Case) -> None:
    machine, side = case.machine, case.machine.new_stream()

    def call() -> None:
        with machine.on(side):
            case.map()
        machine.own.wait_event(side.record())

    case.call = call


@stream_mutation
def the_host_waits_for_a_side_stream(case: Case) -> None:
    side = case.machine.new_stream()

    def call() -> None:
        with case.machine.on(side):
            case.map()
        side.synchronize()

    case.call = call


@stream_mutation
def a_thread_launches_a_little_later(case: Case) -> None:
    machine, threads = case.machine, []
    own = machine.own

    def launch() -> None:
        time.sleep(1e-3)
        with machine.on(own):
            case.map()

    def call() -> None:
        while len(threads) > 4:
            threads.pop(0).join()
        threads.append(threading.Thread(target=launch))
        threads[-1].start()

    case.call = call
    case.undone.append(lambda: [thread.join() for thread in threads] and None)


@stream_mutation
def the_host_computes_and_the_device_copies(case: Case) -> None:
    machine, staging = case.machine, case.machine.device.pinned(4 * case.machine.count).view(np.uint32)
    kept: dict[str, Any] = {"version": -1}

    def call() -> None:
        if kept["version"] != case.version:  # the input is brought to the host once
            kept.update(version=case.version, source=machine.device.to_host(case.source))
        np.multiply(kept["source"], closed_form(machine.passes), out=staging)
        machine.device.copy(case.out, staging)

    case.call = call


@stream_mutation
def a_staging_buffer_holds_an_earlier_answer(case: Case) -> None:
    machine = case.machine
    case.map()
    staging = machine.device.to_host(case.out)
    case.call = lambda: machine.device.copy(case.out, staging)


@stream_mutation
def half_of_the_answer_comes_from_a_staging_buffer(case: Case) -> None:
    machine, (first, second) = case.machine, half(case)
    case.map()
    staging = machine.device.to_host(case.out[second])

    def call() -> None:
        machine.map(case.out, case.source, first)
        machine.device.copy(case.out[second], staging)

    case.call = call


@stream_mutation
def the_grid_is_one_block_short(case: Case) -> None:
    machine = case.machine
    covered = machine.blocks * THREADS * (machine.count // (machine.blocks * THREADS))
    case.call = lambda: machine.map(case.out, case.source, slice(0, covered - THREADS))


@stream_mutation
def a_launch_fails_and_its_error_is_dropped(case: Case) -> None:
    def call() -> None:
        with contextlib.suppress(Exception):
            case.machine.map(case.out, case.source, threads=2048)

    case.call = call


@stream_mutation
def a_late_launch_fails_and_its_error_is_dropped(case: Case) -> None:
    first, numbers = int(case.rng.integers(20, 400)), iter(range(10**9))

    def call() -> None:
        with contextlib.suppress(Exception):
            case.machine.map(case.out, case.source, threads=THREADS if next(numbers) < first else 2048)

    case.call = call


@stream_mutation
def a_thread_skips_words_that_are_not_poisoned(case: Case) -> None:
    case.call = lambda: case.machine.map_unless(case.out, case.source, 1)


@stream_mutation
def threads_stop_after_a_number_of_cycles(case: Case) -> None:
    case.call = lambda: case.machine.map_unless(case.out, case.source, 2, cycles=20_000)


@stream_mutation
def idle_while_an_event_of_the_last_call_is_not_done(case: Case) -> None:
    machine, events = case.machine, []

    def call() -> None:
        if not events or events[0].done:
            case.map()
        events[:] = [machine.own.record()]

    case.call = call


@stream_mutation
def a_graph_of_an_earlier_call_is_launched(case: Case) -> None:
    machine, kept = case.machine, []
    stale = case.source.copy()

    def call() -> None:
        if not kept and not machine.mode:
            machine.map(case.out, stale)
            machine.own.begin_capture()
            machine.map(case.out, stale)
            kept.append(machine.own.end_capture())
            case.map()
        elif kept:
            kept[0].launch(machine.own)
        else:
            case.map()

    case.call = call


@stream_mutation
def a_graph_without_its_second_kernel_is_launched(case: Case) -> None:
    machine, kept, (first, second) = case.machine, [], half(case)

    def call() -> None:
        if kept:
            kept[0].launch(machine.own)
            return
        machine.map(case.out, case.source, first)
        machine.map(case.out, case.source, second)
        if not machine.mode:
            machine.own.begin_capture()
            machine.map(case.out, case.source, first)
            kept.append(machine.own.end_capture())

    case.call = call


@stream_mutation
def a_graph_mode_drops_the_side_branch(case: Case) -> None:
    machine, (first, second) = case.machine, half(case)
    case.modes = ("graph",)

    def call() -> None:
        machine.map(case.out, case.source, first)
        if not machine.is_capturing:
            machine.map(case.out, case.source, second)

    case.call = call


@stream_mutation
def the_answer_is_overwritten_beside_by_an_old_one(case: Case) -> None:
    machine, side, (first, _) = case.machine, case.machine.new_stream(), half(case)
    case.map()
    kept = case.out[first].copy()
    case.call = lambda: (case.map(), machine.copy(case.out[first], kept, side))


@stream_mutation
def a_host_function_of_the_stream_does_the_rest(case: Case) -> None:
    machine, side, (first, second) = case.machine, case.machine.new_stream(), half(case)

    def rest(_: Any = None) -> None:
        with machine.on(side):
            machine.map(case.out, case.source, second)

    threads: list[threading.Thread] = []

    def call() -> None:
        machine.map(case.out, case.source, first)
        threads.append(threading.Thread(target=rest))
        threads[-1].start()
        if len(threads) > 16:
            threads.pop(0).join()

    case.call = call
    case.undone.append(lambda: [thread.join() for thread in threads] and None)


# Of the general list, what behaves otherwise where calls are queued.
ON_STREAMS = (
    "every second call is idle",
    "every third call is idle",
    "every tenth call is idle",
    "a tenth of the calls is idle by chance",
    "idle from some call on",
    "idle after a time",
    "idle for a while now and then",
    "idle when called again at once",
    "idle while one word of the output is right",
    "idle while the input is the one before",
    "the first call of a batch does the work of all",
    "the answer of every input is kept",
    "the answer is kept while the input is the same",
    "an earlier answer is copied",
    "the answer of the call before is copied",
    "the lead does the work",
    "a thread of the host does the work",
    "a graph leaves out every second call",
    "a graph leaves out all but its first call",
    "a graph leaves out writes that a later call overwrites",
    "the flush before a cold call is missing",
    "a rotation has one buffer",
    "all passes become one",
    "further passes are dropped",
    "the device counts half of the seconds",
)


def outcome(measure: Callable[[], Any]) -> tuple[str, float]:
    """Return the cause by which the engine sees a fault, or PASSED, and the median of the headline in seconds."""
    try:
        measured = measure()
    except WrongAnswer:
        return "wrong-answer", 0.0
    except Untrustworthy as finding:
        return finding.cause, 0.0
    except SuiteError:
        return "suite", 0.0
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:60], 0.0
    return "unchecked" if "unchecked" in measured.labels else PASSED, stats.median(measured.series[0].values)


class Runner:
    """Measures the faults on one open device, with its watches, until the time is over."""

    def __init__(self, device: Any, watches: Any, effort: Effort, machine: Callable[..., Any]) -> None:
        self.device, self.watches, self.effort, self.machine = device, watches, effort, machine

    def engine(self, seed: int, tier: Any = "quick") -> Engine:
        return Engine(self.device, POLICIES[tier], watches=self.watches, rng=np.random.default_rng([seed, 1]))

    def case(
        self, name: str, mutations: dict[str, tuple[str, Mutation]], seed: int, is_twin: bool
    ) -> tuple[str, float]:
        rng = np.random.default_rng(seed)
        machine = self.machine(self.device, rng)
        try:
            with planted(name, Case(machine, rng, self.effort), mutations, is_twin) as case:
                seen = outcome(lambda: self.engine(seed).measure(case.task()))
        finally:
            machine.close()
        self.device.elsewhere()
        return seen

    def kernel(self, fault: Any, kind: type[Bench], seed: int, is_twin: bool) -> tuple[str, float]:
        def measure() -> Any:
            return self.engine(seed, "smoke").measure(_planted_kernels.task_of(kind, self.device, fault, seed, is_twin))

        try:
            return outcome(measure)
        except Skip:
            return "skipped", 0.0


def tables(runner: Runner, part: str, kind: type[Bench]) -> Iterator[tuple[str, str, Callable[[int, bool], Any]]]:
    """Yield the name and the kind of each fault, and the function that runs it or its twin with a seed."""

    def of(name: str, mutations: dict[str, tuple[str, Mutation]]) -> Callable[[int, bool], Any]:
        return lambda seed, is_twin: runner.case(name, mutations, seed, is_twin)

    if part in ("streams", "all"):
        for name in STREAMS:
            yield name, "streams", of(name, STREAMS)
        for name in ON_STREAMS:
            yield name, MUTATIONS[name][0], of(name, MUTATIONS)
    if part in ("general", "all"):
        for name in MUTATIONS:
            if name not in ON_STREAMS:
                yield name, MUTATIONS[name][0], of(name, MUTATIONS)
    if part in ("kernels", "all") and kind is Bench:
        for name, fault in _planted_kernels.faults().items():
            yield name, "kernel", lambda seed, is_twin, fault=fault: runner.kernel(fault, kind, seed, is_twin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("streams", "kernels", "general", "all"), default="streams")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="")
    chosen = parser.parse_args()
    begin = time.monotonic()
    if chosen.device == "paper":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from _planted_paper import PaperBench, PaperMachine, paper_device

        runner, kind = Runner(paper_device(), (), POINT, PaperMachine), PaperBench
    else:
        backend = plugins.load("backends", "cupy")
        found = [device for device in backend.devices() if chosen.device in ("", device.id)]
        runner, kind = Runner(backend.open(found[0]), open_watches(found[0]), POINT, GpuMachine), Bench
    sys.stdout.write(f"{runner.device.device.name}; {chosen.runs} runs of each fault\n")
    shares, twins, left = {}, {}, []
    for name, group, run in tables(runner, chosen.part, kind):
        if not any(part in name for part in chosen.only.split("|")):
            continue
        if time.monotonic() - begin > chosen.seconds:
            left.append(name)
            continue
        start = time.monotonic()
        outcomes = [run(seed, False) for seed in range(chosen.runs)]
        twin = name.partition(":")[0] if group == "kernel" else name if name in TWINS else "healthy"
        if twin not in twins:
            twins[twin] = [run(seed, True) for seed in range(chosen.runs)]
            causes = Counter(cause for cause, _ in twins[twin])
            seconds = stats.median([seconds for _, seconds in twins[twin]])
            sys.stdout.write(f"  healthy {twin}: {dict(causes)}, {seconds:.3g} s\n")
        causes = Counter(cause for cause, _ in outcomes)
        shares[name] = 1 - causes[PASSED] / chosen.runs
        missed = [seconds for cause, seconds in outcomes if cause == PASSED]
        by = ", ".join(f"{cause} {count}" for cause, count in causes.most_common() if cause != PASSED)
        time_text = f"; unseen at {stats.median(missed):.3g} s" if missed else ""
        took = f"{time.monotonic() - start:.1f} s"
        sys.stdout.write(
            f"{name:<62}{group:<10}{chosen.runs - causes[PASSED]:>3}/{chosen.runs}  {by}{time_text} ({took})\n"
        )
        sys.stdout.flush()
    always = sum(share >= 0.95 for share in shares.values())
    never = [name for name, share in shares.items() if share == 0]
    sys.stdout.write(f"{len(shares)} faults; {always} seen in 19 of 20 runs; never: {', '.join(never) or 'none'}\n")
    if left:
        sys.stdout.write(f"the time was over before {len(left)} faults: {', '.join(left)}\n")


if __name__ == "__main__":
    main()
