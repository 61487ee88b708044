"""Mutations of a task that maps words, for any device: each is a small function that changes an honest `Case`.

The list was written without a look at the engine's own list (`mutations.py`). The arrays are one-dimensional, and all
work on them goes through the machine, so that work that is left out also saves time: arithmetic time on the clockwork
device, and real time on the host and on a GPU."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.authoring.task import Stage, Task, expect, nothing
from gpubench.model import Work
from gpubench.plugins.backend import OpenDevice

PASSES = 8
SECONDS = 1e-4  # of a call on the clockwork device
BLOCK = 16  # elements of a block: what one thread block of a small kernel writes
PAGE = 1024  # elements of a page of 4 KiB


@dataclass
class NumpyMachine:
    """Maps words by NumPy: on the host device in real time, and on the clockwork device in arithmetic time."""

    device: OpenDevice
    rng: np.random.Generator
    count: int = 2**12
    streams: Any = None

    def array(self) -> Any:
        return self.device.xp.asarray(self.rng.integers(2**32, size=self.count, dtype=np.uint32))

    def spend(self, share: float) -> None:
        """Let the time of a share of a whole call pass: on the clockwork device alone, the host needs it by itself."""
        if hasattr(self.device, "spend"):
            self.device.spend(SECONDS * max(share, 0.01) * (1 + 0.01 * self.rng.standard_normal()))

    def map(
        self, out: Any, source: Any, part: slice = slice(None), passes: int = PASSES, shift: int = 0, **_: Any
    ) -> None:
        """Write x = 5·x + source, repeated `passes` times from 0, for the elements of `part`, `shift` places on."""
        read = source[part]
        x = np.zeros_like(read)
        for _ in range(passes):
            x *= np.uint32(5)
            x += read
        target = out[shift:][part]
        target[...] = x[: target.size]
        self.spend(read.size / self.count * passes / PASSES)

    def scale(self, out: Any, source: Any, factor: int) -> None:
        """Write source · factor: what is left of a map whose passes a compiler joins into one."""
        np.multiply(source, np.uint32(factor), out=out)
        self.spend(1 / PASSES)

    def copy(self, out: Any, source: Any) -> None:
        out[...] = source
        self.spend(1 / PASSES)

    def look(self, array: Any, index: int) -> int:
        """Return one element."""
        return int(array[index])

    def __post_init__(self) -> None:
        """Note in which mode the device times calls; between them it is empty."""
        time_calls, self.mode = self.device.time, ""

        def noted(call: Any, calls: int, mode: str = "hot", *args: Any, **options: Any) -> Any:
            self.mode = mode
            try:
                return time_calls(call, calls, mode, *args, **options)
            finally:
                self.mode = ""

        self.device.time = noted

    def is_capturing(self) -> bool:
        return self.mode == "graph"

    def is_timed(self) -> bool:
        return bool(self.mode)


def expected(source: Any, passes: int = PASSES) -> Any:
    """Return the answer of a map, by its closed form, on the host."""
    return source * np.uint32((5**passes - 1) // 4 % 2**32)


@dataclass
class Case:
    """An honest task on one machine; a mutation replaces some of its parts."""

    machine: Any
    rng: np.random.Generator
    modes: tuple[Any, ...] = ("hot",)
    clock: Any = "device"
    poison: Callable[[], None] = nothing
    lead: Callable[[], object] = nothing
    probe: Callable[[], Any] | None = None
    rotation: tuple[Callable[[], object], ...] = ()
    undone: list[Callable[[], None]] = field(default_factory=list)  # called behind the case
    close: Callable[[], None] = nothing

    def __post_init__(self) -> None:
        machine = self.machine
        self.source = machine.array()
        self.out = machine.array()
        self.outputs: tuple[Any, ...] = (self.out,)
        self.call: Callable[[], object] = self.map
        self.inputs: Callable[[], object] | None = self.redraw
        self.doubled: Callable[[], object] | None = lambda: self.machine.map(self.out, self.source, passes=2 * PASSES)
        self.check: Callable[[], Any] = self.compare
        self.work = Work(moved=8.0 * machine.count, flops=2.0 * PASSES * machine.count)

    def map(self) -> None:
        self.machine.map(self.out, self.source)

    def redraw(self) -> None:
        """Put an input in place that no call has seen: the words times a random odd number."""
        self.source *= np.uint32(int(self.rng.integers(2**31)) * 2 + 1)

    def compare(self) -> None:
        to_host = self.machine.device.to_host
        wrong = int(np.count_nonzero(to_host(self.out) != expected(to_host(self.source))))
        expect(wrong == 0, f"{wrong} words are wrong")

    def only(self, part: slice, **options: Any) -> Callable[[], None]:
        """Return a call that maps only the elements of `part`."""
        return lambda: self.machine.map(self.out, self.source, part, **options)

    def task(self) -> Task:
        stage = Stage(
            self.call,
            self.work,
            "moved",
            modes=self.modes,
            clock=self.clock,
            lead=self.lead,
            probe=self.probe,
            rotation=self.rotation,
            outputs=self.outputs,
            inputs=self.inputs,
            doubled=self.doubled,
        )
        return Task.of(stage, check=self.check, poison=self.poison, close=self.close)


Mutation = Callable[[Case], None]
MUTATIONS: dict[str, tuple[str, Mutation]] = {}  # name → kind and function


def mutation(kind: str) -> Callable[[Mutation], Mutation]:
    """Add a function to the list, under its name with spaces."""

    def add(change: Mutation) -> Mutation:
        MUTATIONS[change.__name__.strip("_").replace("_", " ")] = kind, change
        return change

    return add


def idle_if(case: Case, is_idle: Callable[[int], bool]) -> None:
    """Leave out the calls of these numbers."""
    work, numbers = case.call, itertools.count()
    case.call = lambda: case.machine.spend(0.01) if is_idle(next(numbers)) else work()


# Calls that are idle.


@mutation("idle")
def every_second_call_is_idle(case: Case) -> None:
    idle_if(case, lambda number: number % 2 == 1)


@mutation("idle")
def every_third_call_is_idle(case: Case) -> None:
    idle_if(case, lambda number: number % 3 == 2)


@mutation("idle")
def every_tenth_call_is_idle(case: Case) -> None:
    idle_if(case, lambda number: number % 10 == 9)


@mutation("idle")
def one_call_of_eight_works(case: Case) -> None:
    idle_if(case, lambda number: number % 8 > 0)


@mutation("idle")
def half_of_the_calls_are_idle_by_chance(case: Case) -> None:
    idle_if(case, lambda _: bool(case.rng.random() < 0.5))


@mutation("idle")
def a_tenth_of_the_calls_is_idle_by_chance(case: Case) -> None:
    idle_if(case, lambda _: bool(case.rng.random() < 0.1))


@mutation("idle")
def idle_from_some_call_on(case: Case) -> None:
    first = int(case.rng.integers(20, 400))
    idle_if(case, lambda number: number >= first)


@mutation("idle")
def idle_after_the_first_tenth_of_a_second(case: Case) -> None:
    now, begin = case.machine.device.now, []

    def is_idle(_: int) -> bool:
        begin.append(now())
        del begin[1:-1]
        return begin[-1] - begin[0] > 0.1

    idle_if(case, is_idle)


@mutation("idle")
def idle_for_a_while_now_and_then(case: Case) -> None:
    length = int(case.rng.integers(50, 150))
    idle_if(case, lambda number: number // length % 3 == 2)


@mutation("idle")
def idle_when_called_again_at_once(case: Case) -> None:
    now, last = case.machine.device.now, [-1.0]
    work = case.call

    def call() -> None:
        is_again = now() - last[0] < 5e-6
        case.machine.spend(0.01) if is_again else work()
        last[0] = now()

    case.call = call


@mutation("idle")
def idle_while_one_word_of_the_output_is_right(case: Case) -> None:
    place = int(case.rng.integers(case.machine.count))
    work, device = case.call, case.machine.device

    def call() -> None:
        known = int(device.to_host(case.source[place : place + 1])[0]) * ((5**PASSES - 1) // 4) % 2**32
        if case.machine.look(case.out, place) != known:
            work()
        else:
            case.machine.spend(0.01)

    case.call = call


@mutation("idle")
def idle_while_the_input_is_the_one_before(case: Case) -> None:
    work, before = case.call, [-1]

    def call() -> None:
        word = case.machine.look(case.source, 0)
        if word != before[0]:
            work()
        else:
            case.machine.spend(0.01)
        before[0] = word

    case.call = call


@mutation("idle")
def the_first_call_of_a_batch_does_the_work_of_all(case: Case) -> None:
    work, is_begun = case.call, [True]

    def lead() -> None:
        is_begun[0] = True

    def call() -> None:
        if is_begun[0] or not case.machine.is_timed():
            work()
        else:
            case.machine.spend(0.01)
        is_begun[0] = False

    case.lead, case.call = lead, call


# Parts that are left out or misplaced.


@mutation("part")
def half_of_the_grid(case: Case) -> None:
    case.call = case.only(slice(0, case.machine.count // 2))


@mutation("part")
def the_halves_in_turn(case: Case) -> None:
    half = case.machine.count // 2
    halves = itertools.cycle((case.only(slice(0, half)), case.only(slice(half, None))))
    case.call = lambda: next(halves)()


@mutation("part")
def the_last_block_is_missing(case: Case) -> None:
    case.call = case.only(slice(0, case.machine.count - BLOCK))


@mutation("part")
def the_last_element_is_missing(case: Case) -> None:
    case.call = case.only(slice(0, case.machine.count - 1))


@mutation("part")
def the_first_element_is_missing(case: Case) -> None:
    case.call = case.only(slice(1, None))


@mutation("part")
def a_random_page_is_missing_in_each_call(case: Case) -> None:
    def call() -> None:
        page = int(case.rng.integers(case.machine.count // PAGE)) * PAGE
        case.machine.map(case.out, case.source, slice(0, page))
        case.machine.map(case.out, case.source, slice(page + PAGE, None))

    case.call = call


@mutation("part")
def one_page_is_missing_from_some_call_on(case: Case) -> None:
    page = int(case.rng.integers(case.machine.count // PAGE)) * PAGE
    first, numbers, work = int(case.rng.integers(20, 400)), itertools.count(), case.call

    def call() -> None:
        if next(numbers) < first:
            work()
            return
        case.machine.map(case.out, case.source, slice(0, page))
        case.machine.map(case.out, case.source, slice(page + PAGE, None))

    case.call = call


@mutation("part")
def every_second_element(case: Case) -> None:
    case.call = case.only(slice(0, None, 2))


@mutation("part")
def every_element_one_place_on(case: Case) -> None:
    case.call = case.only(slice(None), shift=1)


@mutation("part")
def two_pages_are_exchanged(case: Case) -> None:
    def call() -> None:
        case.machine.map(case.out, case.source, slice(2 * PAGE, None))
        case.machine.map(case.out[PAGE : 2 * PAGE], case.source[:PAGE])
        case.machine.map(case.out[:PAGE], case.source[PAGE : 2 * PAGE])

    case.call = call


@mutation("part")
def the_first_half_twice(case: Case) -> None:
    half = case.machine.count // 2

    def call() -> None:
        case.machine.map(case.out, case.source, slice(0, half))
        case.machine.map(case.out, case.source, slice(0, half))

    case.call = call


@mutation("part")
def one_block_for_all_blocks(case: Case) -> None:
    def call() -> None:
        case.machine.map(case.out, case.source, slice(0, PAGE))
        for page in range(PAGE, case.machine.count, PAGE):
            case.machine.copy(case.out[page : page + PAGE], case.out[:PAGE])

    case.call = call


@mutation("part")
def in_place_on_the_input(case: Case) -> None:
    case.out = case.source  # the outputs are still the array that was declared
    case.call = lambda: case.machine.map(case.source, case.source)


@mutation("part")
def output_and_input_are_one_array(case: Case) -> None:
    case.out = case.source
    case.outputs = (case.source,)


# Answers that are not of this call.


@mutation("stale")
def writes_go_to_another_buffer(case: Case) -> None:
    case.map()
    other = case.machine.array()
    case.call = lambda: case.machine.map(other, case.source)


@mutation("stale")
def every_second_write_goes_to_another_buffer(case: Case) -> None:
    turns = itertools.cycle((case.out, case.machine.array()))
    case.call = lambda: case.machine.map(next(turns), case.source)


@mutation("stale")
def an_earlier_answer_is_copied(case: Case) -> None:
    case.map()
    kept = case.out.copy()
    case.call = lambda: case.machine.copy(case.out, kept)


@mutation("stale")
def the_answer_of_the_call_before_is_copied(case: Case) -> None:
    fresh = case.machine.array()

    def call() -> None:
        case.machine.copy(case.out, fresh)
        case.machine.map(fresh, case.source)

    case.call = call


@mutation("stale")
def work_is_put_off_to_the_next_call(case: Case) -> None:
    waiting: list[Callable[[], None]] = []

    def call() -> None:
        for work in waiting:
            work()
        waiting[:] = [case.map]

    case.call = call


@mutation("stale")
def the_answer_is_kept_while_the_input_is_the_same(case: Case) -> None:
    kept: list[Any] = [-1, None]

    def call() -> None:
        word = case.machine.look(case.source, 0)
        if word != kept[0]:
            case.map()
            kept[:] = [word, case.out.copy()]
        else:
            case.machine.copy(case.out, kept[1])

    case.call = call


@mutation("stale")
def the_answer_of_every_input_is_kept(case: Case) -> None:
    kept: dict[int, Any] = {}

    def call() -> None:
        word = case.machine.look(case.source, 0)
        if word not in kept:
            case.map()
            kept[word] = case.out.copy()
        else:
            case.machine.copy(case.out, kept[word])

    case.call = call


@mutation("stale")
def the_inputs_never_change(case: Case) -> None:
    case.inputs = nothing
    case.the_answer = None
    the_answer_is_kept_while_the_input_is_the_same(case)


@mutation("stale")
def all_inputs_are_zero_and_zeros_are_not_read(case: Case) -> None:
    case.source[...] = 0
    case.call = lambda: (case.out.fill(0), case.machine.spend(1 / PASSES))
    case.doubled = None


@mutation("stale")
def equal_blocks_are_computed_once(case: Case) -> None:
    for page in range(PAGE, case.machine.count, PAGE):
        case.source[page : page + PAGE] = case.source[:PAGE]
    one_block_for_all_blocks(case)
    case.doubled = None


# Work at another time or place.


@mutation("elsewhere")
def the_check_does_the_work(case: Case) -> None:
    compare = case.check
    case.call = lambda: case.machine.spend(0.01)
    case.check = lambda: (case.map(), compare())[1]


@mutation("elsewhere")
def the_poisoning_does_the_work(case: Case) -> None:
    case.call = lambda: case.machine.spend(0.01)
    case.poison = case.map


@mutation("elsewhere")
def the_lead_does_the_work(case: Case) -> None:
    is_done = [False]

    def lead() -> None:
        case.map()
        is_done[0] = True

    def call() -> None:
        if is_done[0]:
            case.machine.spend(0.01)
        else:
            case.map()

    case.lead, case.call = lead, call


@mutation("elsewhere")
def the_change_of_inputs_does_the_work(case: Case) -> None:
    case.map()
    prepared = case.out.copy()

    def inputs() -> None:
        case.redraw()
        case.machine.map(prepared, case.source)

    case.inputs, case.call = inputs, lambda: case.machine.copy(case.out, prepared)


@mutation("elsewhere")
def the_probe_does_the_work(case: Case) -> None:
    work, numbers = case.call, itertools.count()
    case.call = lambda: work() if next(numbers) < 2 else case.machine.spend(0.01)
    case.probe = lambda: (case.map(), {})[1]


@mutation("elsewhere")
def a_thread_of_the_host_does_the_work(case: Case) -> None:
    threads: list[threading.Thread] = []

    def call() -> None:
        if len(threads) > 8:  # as a queue of some length
            threads.pop(0).join()
        threads.append(threading.Thread(target=case.map))
        threads[-1].start()

    case.call = call
    case.close = lambda: [thread.join() for thread in threads][:0] and None


# Modes: `is_capturing` is true while a graph is captured, and `pace` is what caches save.


@mutation("mode")
def a_graph_leaves_out_every_second_call(case: Case) -> None:
    case.modes = ("graph",)
    work, numbers = case.call, itertools.count()

    def call() -> None:
        if case.machine.is_capturing() and next(numbers) % 2:
            case.machine.spend(0.01)
        else:
            work()

    case.call = call


@mutation("mode")
def a_graph_leaves_out_all_but_its_first_call(case: Case) -> None:
    case.modes = ("graph",)
    work, is_in_graph = case.call, [False]

    def call() -> None:
        is_first, is_in_graph[0] = not is_in_graph[0], case.machine.is_capturing()
        if is_in_graph[0] and not is_first:
            case.machine.spend(0.01)
        else:
            work()

    case.call = call


@mutation("mode")
def a_graph_leaves_out_writes_that_a_later_call_overwrites(case: Case) -> None:
    case.modes = ("graph",)
    work, device, time_calls, left = case.call, case.machine.device, case.machine.device.time, [0]

    def time_graph(call: Any, calls: int, *args: Any, **options: Any) -> Any:
        left[0] = calls
        return time_calls(call, calls, *args, **options)

    def call() -> None:
        left[0] -= 1
        work() if left[0] <= 0 else None  # a graph without these nodes

    device.time, case.call = time_graph, call
    case.undone.append(lambda: delattr(device, "time"))


@mutation("mode")
def the_flush_before_a_cold_call_is_missing(case: Case) -> None:
    case.modes = ("cold",)
    device = case.machine.device
    device.flush = nothing
    case.undone.append(lambda: delattr(device, "flush"))


@mutation("mode")
def a_rotation_has_one_buffer(case: Case) -> None:
    case.modes, case.rotation = (), (case.call, lambda: case.map(), lambda: case.map())


# Passes.


@mutation("passes")
def all_passes_become_one(case: Case) -> None:
    def scaled(passes: int) -> Callable[[], None]:
        return lambda: case.machine.scale(case.out, case.source, (5**passes - 1) // 4 % 2**32)

    case.call, case.doubled = scaled(PASSES), scaled(2 * PASSES)


@mutation("passes")
def half_of_the_passes_become_one(case: Case) -> None:
    def half(passes: int) -> Callable[[], None]:
        def call() -> None:
            case.machine.map(case.out, case.source, passes=passes // 2)
            case.machine.scale(case.out, case.source, (5**passes - 1) // 4 % 2**32)

        return call

    case.call, case.doubled = half(PASSES), half(2 * PASSES)


@mutation("passes")
def the_last_pass_is_missing(case: Case) -> None:
    case.call = case.only(slice(None), passes=PASSES - 1)


@mutation("passes")
def passes_beyond_the_first_eight_are_dropped(case: Case) -> None:
    case.doubled = case.call


# Checks that do not check.


@mutation("check")
def the_output_is_compared_with_itself(case: Case) -> None:
    case.call = case.only(slice(0, case.machine.count // 2))
    case.check = lambda: expect(bool((case.out == case.out.copy()).all()), "words are wrong")


@mutation("check")
def the_check_looks_at_the_first_block_alone(case: Case) -> None:
    case.call = case.only(slice(0, case.machine.count // 2))
    to_host = case.machine.device.to_host

    def check() -> None:
        expect(bool((to_host(case.out[:BLOCK]) == expected(to_host(case.source[:BLOCK]))).all()), "words are wrong")

    case.check = check


@mutation("check")
def a_copy_of_the_output_is_poisoned(case: Case) -> None:
    case.outputs = (case.out.copy(),)
    idle_from_some_call_on(case)


@mutation("check")
def the_outputs_are_not_declared(case: Case) -> None:
    case.outputs, case.doubled = (), None
    idle_from_some_call_on(case)


@mutation("check")
def neither_outputs_nor_inputs_are_declared(case: Case) -> None:
    case.outputs, case.inputs, case.doubled = (), None, None
    idle_from_some_call_on(case)


@mutation("check")
def half_of_the_output_is_declared_and_written(case: Case) -> None:
    half = case.machine.count // 2
    case.map()
    case.outputs, case.call = (case.out[:half],), case.only(slice(0, half))


@mutation("check")
def the_check_returns_without_raising(case: Case) -> None:
    compare = case.check
    every_second_call_is_idle(case)

    def check() -> None:
        with contextlib.suppress(Exception):
            compare()

    case.check = check


@mutation("check")
def there_is_no_check(case: Case) -> None:
    case.check = dict
    half_of_the_grid(case)


# Declared work and clocks.


@mutation("clock")
def a_call_that_times_itself_stops_its_clock_before_the_work(case: Case) -> None:
    now = case.machine.device.now

    def call() -> float:
        begin = now()
        case.machine.spend(0.01)
        seconds = now() - begin
        case.map()
        return seconds

    case.clock, case.call = "self", call


@mutation("clock")
def a_call_that_times_itself_reports_half(case: Case) -> None:
    now = case.machine.device.now

    def call() -> float:
        begin = now()
        case.map()
        return (now() - begin) / 2

    case.clock, case.call = "self", call


@mutation("clock")
def a_call_that_times_itself_reports_a_constant(case: Case) -> None:
    case.clock, case.call = "self", lambda: (case.map(), SECONDS / 3)[1]


@mutation("clock")
def the_device_counts_half_of_the_seconds(case: Case) -> None:
    device, time_calls = case.machine.device, case.machine.device.time

    def half(*args: Any, **options: Any) -> Any:
        timing = time_calls(*args, **options)
        return type(timing)(tuple(value / 2 for value in timing.device), timing.host / 2)

    device.time = half
    case.undone.append(lambda: delattr(device, "time"))


@mutation("clock")
def the_functions_of_time_run_at_half_speed(case: Case) -> None:
    kept = time.perf_counter, time.perf_counter_ns
    time.perf_counter, time.perf_counter_ns = lambda: kept[0]() / 2, lambda: kept[1]() // 2

    def undo() -> None:
        time.perf_counter, time.perf_counter_ns = kept

    case.clock = "host"
    case.undone.append(undo)


@contextlib.contextmanager
def planted(name: str, case: Case) -> Iterator[Case]:
    """Change a case by the mutation of that name (`healthy` is none), and undo what it did to the device."""
    try:
        if name != "healthy":
            MUTATIONS[name][1](case)
        yield case
    finally:
        for undo in case.undone:
            undo()


# A figure that stays true is no fault; and what the host's processor cannot show.
HARMLESS = {"the functions of time run at half speed"}
CLOCKWORK_ONLY = {"a graph leaves out every second call", "a graph leaves out all but its first call"} | {
    "a graph leaves out writes that a later call overwrites",
    "the flush before a cold call is missing",
    "a rotation has one buffer",
}
