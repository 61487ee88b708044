"""Mutations of a task that maps words, for any device: each is a small function that changes an honest `Case`.

The list was written without a look at the engine's own list (`mutations.py`). The arrays are one-dimensional, and all
work on them goes through the machine, so that work that is left out also saves time: arithmetic time on the clockwork
device, and real time on the host and on a GPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.authoring.effort import TIER, Effort
from gpubench.authoring.task import Stage, Task, expect, nothing
from gpubench.model import Work
from gpubench.plugins.backend import OpenDevice

SECONDS = 1e-4  # of a call on the clockwork device
IDLE = 0.01  # the share of a whole call's time that an idle call takes
BLOCK, PAGE = 16, 1024  # elements that a small block writes, and of a page of 4 KiB


@dataclass
class NumpyMachine:
    """Maps words by NumPy: on the host device in real time, and on the clockwork device in arithmetic time."""

    device: OpenDevice
    rng: np.random.Generator
    count: int = 2**12
    passes: int = 8
    mode: str = ""  # in which the device times calls; empty between them

    def __post_init__(self) -> None:
        time_calls = self.device.time

        def noted(call: Any, calls: int, mode: str = "hot", *args: Any, **options: Any) -> Any:
            self.mode = mode
            try:
                return time_calls(call, calls, mode, *args, **options)
            finally:
                self.mode = ""

        self.device.time = noted

    @property
    def is_capturing(self) -> bool:
        return self.mode == "graph"

    def array(self) -> Any:
        return self.rng.integers(2**32, size=self.count, dtype=np.uint32)

    def spend(self, share: float) -> None:
        """Let a share of the time of a whole call pass; the host needs its time by itself."""
        if hasattr(self.device, "spend"):
            self.device.spend(SECONDS * max(share, IDLE) * (1 + 0.01 * self.rng.standard_normal()))

    def map(self, out: Any, source: Any, part: slice = slice(None), passes: int = 0, shift: int = 0) -> None:
        """Write x = 5·x + source, repeated `passes` times from 0, for the elements of `part`, `shift` places on."""
        passes, read = passes or self.passes, source[part]
        x = np.zeros_like(read)
        for _ in range(passes):
            x *= np.uint32(5)
            x += read
        target = out[shift:][part]
        target[...] = x[: target.size]
        self.spend(read.size / self.count * passes / self.passes)

    def scale(self, out: Any, source: Any, passes: int) -> None:
        """Write the answer of a map by its closed form, as a compiler might join its passes."""
        np.multiply(source, closed_form(passes), out=out)
        self.spend(1 / self.passes)

    def copy(self, out: Any, source: Any) -> None:
        out[...] = source
        self.spend(1 / self.passes)

    def map_unless_right(self, out: Any, source: Any, place: int) -> None:
        """Map, unless the element at `place` already has its answer."""
        if (out[place : place + 1] == source[place : place + 1] * closed_form(self.passes)).all():
            self.spend(IDLE)
        else:
            self.map(out, source)


def closed_form(passes: int) -> np.uint32:
    """Return the factor by which a map of so many passes multiplies."""
    return np.uint32((5**passes - 1) // 4 % 2**32)


@dataclass
class Case:
    """An honest task on one machine; a mutation replaces some of its parts."""

    machine: Any
    rng: np.random.Generator
    effort: Effort = TIER
    modes: tuple[Any, ...] = ("hot",)
    clock: Any = "device"
    poison: Callable[[], None] = nothing
    lead: Callable[[], object] = nothing
    probe: Callable[[], Any] | None = None
    rotation: tuple[Callable[[], object], ...] = ()
    buffers: tuple[Any, ...] = ()
    undone: list[Callable[[], None]] = field(default_factory=list)  # called behind the case
    version: int = 0  # of the input

    def __post_init__(self) -> None:
        machine = self.machine
        self.source, self.out = machine.array(), machine.array()
        self.outputs: tuple[Any, ...] = (self.out,)
        self.call: Callable[[], object] = self.map
        self.inputs: Callable[[], object] | None = self.redraw
        self.doubled: Callable[[], object] | None = lambda: machine.map(
            self.out, self.source, passes=2 * machine.passes
        )
        self.check: Callable[[], Any] = self.compare
        self.work = Work(moved=8.0 * machine.count, flops=2.0 * machine.passes * machine.count)

    def map(self) -> None:
        self.machine.map(self.out, self.source)

    def idle(self) -> None:
        self.machine.spend(IDLE)

    def redraw(self) -> None:
        """Put an input in place that no call has seen: the words times a random odd number."""
        self.source *= np.uint32(int(self.rng.integers(2**31)) * 2 + 1)
        self.version += 1

    def compare(self, part: slice = slice(None)) -> None:
        out, source = (self.machine.device.to_host(array[part]) for array in (self.out, self.source))
        wrong = int(np.count_nonzero(out != source * closed_form(self.machine.passes)))
        expect(wrong == 0, f"{wrong} words are wrong")

    def only(self, *parts: slice, **options: Any) -> None:
        """Map only the elements of these parts."""

        def call() -> None:
            for part in parts:
                self.machine.map(self.out, self.source, part, **options)

        self.call = call

    def idle_if(self, is_idle: Callable[[int], bool]) -> None:
        """Leave out the calls of these numbers."""
        work, numbers = self.call, itertools.count()
        self.call = lambda: self.idle() if is_idle(next(numbers)) else work()

    def task(self) -> Task:
        names = ["modes", "clock", "lead", "probe", "rotation", "buffers", "outputs", "inputs", "doubled", "effort"]
        stage = Stage(self.call, self.work, "moved", **{name: getattr(self, name) for name in names})
        return Task.of(stage, check=self.check, poison=self.poison)


Mutation = Callable[[Case], object]
MUTATIONS: dict[str, tuple[str, Mutation]] = {}  # name → kind and function


def mutation(kind: str) -> Callable[[Mutation], Mutation]:
    """Add a function to the list, under its name with spaces."""

    def add(change: Mutation) -> Mutation:
        MUTATIONS[change.__name__.replace("_", " ")] = kind, change
        return change

    return add


def late_call(case: Case) -> int:
    """Draw the number of a call in the midst of a series."""
    return int(case.rng.integers(20, 400))


def random_page(case: Case) -> int:
    return int(case.rng.integers(case.machine.count // PAGE)) * PAGE


def since_first(case: Case) -> Callable[[], float]:
    """Return a function that returns the seconds since its first call."""
    now, begin = case.machine.device.now, []

    def seconds() -> float:
        begin.append(now())
        del begin[1:-1]
        return float(begin[-1] - begin[0])

    return seconds


def idle_by_chance(share: float) -> Mutation:
    return lambda case: case.idle_if(lambda _: bool(case.rng.random() < share))


def idle_from_a_call_on(case: Case) -> None:
    first = late_call(case)
    case.idle_if(lambda number: number >= first)


def idle_after_a_time(case: Case) -> None:
    seconds, limit = since_first(case), 0.1 if case.effort is TIER else 0.02
    case.idle_if(lambda _: seconds() > limit)


def idle_in_bursts(case: Case) -> None:
    length = int(case.rng.integers(50, 150))
    case.idle_if(lambda number: number // length % 3 == 2)


MUTATIONS |= {
    name: ("idle", change)
    for name, change in {
        "every second call is idle": lambda case: case.idle_if(lambda number: number % 2 == 1),
        "every third call is idle": lambda case: case.idle_if(lambda number: number % 3 == 2),
        "every tenth call is idle": lambda case: case.idle_if(lambda number: number % 10 == 9),
        "one call of eight works": lambda case: case.idle_if(lambda number: number % 8 > 0),
        "half of the calls are idle by chance": idle_by_chance(0.5),
        "a tenth of the calls is idle by chance": idle_by_chance(0.1),
        "idle from some call on": idle_from_a_call_on,
        "idle after a time": idle_after_a_time,
        "idle for a while now and then": idle_in_bursts,
    }.items()
}


@mutation("idle")
def idle_when_called_again_at_once(case: Case) -> None:
    now, last, work = case.machine.device.now, [-1.0], case.call
    pause = 5e-6 if case.effort is TIER else 2e-5

    def call() -> None:
        case.idle() if now() - last[0] < pause else work()
        last[0] = now()

    case.call = call


@mutation("idle")
def idle_while_one_word_of_the_output_is_right(case: Case) -> None:
    place = int(case.rng.integers(case.machine.count))
    case.call = lambda: case.machine.map_unless_right(case.out, case.source, place)


@mutation("idle")
def idle_while_the_input_is_the_one_before(case: Case) -> None:
    before = [-1]

    def call() -> None:
        case.idle() if before[0] == case.version else case.map()
        before[0] = case.version

    case.call = call


@mutation("idle")
def the_first_call_of_a_batch_does_the_work_of_all(case: Case) -> None:
    is_begun = [True]

    def call() -> None:
        case.map() if is_begun[0] or not case.machine.mode else case.idle()
        is_begun[0] = False

    case.call, case.lead = call, lambda: is_begun.__setitem__(0, True)


# Parts that are left out or misplaced: the parts of `count` elements that a call works on.
PARTS: dict[str, Callable[[int], tuple[slice, ...]]] = {
    "half of the grid": lambda count: (slice(0, count // 2),),
    "the last block is missing": lambda count: (slice(0, count - BLOCK),),
    "the last element is missing": lambda count: (slice(0, count - 1),),
    "the first element is missing": lambda _: (slice(1, None),),
    "every second element": lambda _: (slice(0, None, 2),),
    "the first half twice": lambda count: (slice(0, count // 2),) * 2,
}


def keep_parts(parts: Callable[[int], tuple[slice, ...]]) -> Mutation:
    return lambda case: case.only(*parts(case.machine.count))


MUTATIONS |= {name: ("part", keep_parts(parts)) for name, parts in PARTS.items()}
MUTATIONS["every element one place on"] = "part", lambda case: case.only(slice(None), shift=1)


@mutation("part")
def the_halves_in_turn(case: Case) -> None:
    half = case.machine.count // 2
    halves = itertools.cycle((slice(0, half), slice(half, None)))
    case.call = lambda: case.machine.map(case.out, case.source, next(halves))


def without_page(case: Case, page: int) -> None:
    case.machine.map(case.out, case.source, slice(0, page))
    case.machine.map(case.out, case.source, slice(page + PAGE, None))


@mutation("part")
def a_random_page_is_missing_in_each_call(case: Case) -> None:
    case.call = lambda: without_page(case, random_page(case))


@mutation("part")
def one_page_is_missing_from_some_call_on(case: Case) -> None:
    page, first, numbers = random_page(case), late_call(case), itertools.count()
    case.call = lambda: case.map() if next(numbers) < first else without_page(case, page)


@mutation("part")
def two_pages_are_exchanged(case: Case) -> None:
    def call() -> None:
        case.machine.map(case.out, case.source, slice(2 * PAGE, None))
        case.machine.map(case.out[PAGE : 2 * PAGE], case.source[:PAGE])
        case.machine.map(case.out[:PAGE], case.source[PAGE : 2 * PAGE])

    case.call = call


@mutation("part")
def one_page_for_all_pages(case: Case) -> None:
    def call() -> None:
        case.machine.map(case.out, case.source, slice(0, PAGE))
        for page in range(PAGE, min(case.machine.count, 64 * PAGE), PAGE):
            case.out[page : page + PAGE] = case.out[:PAGE]
        case.machine.spend(1 / case.machine.passes)

    case.call = call


@mutation("part")
def in_place_on_the_input(case: Case) -> None:
    case.out = case.source  # the outputs are still the array that was declared
    case.call = lambda: case.machine.map(case.source, case.source)


@mutation("part")
def output_and_input_are_one_array(case: Case) -> None:
    case.out, case.outputs = case.source, (case.source,)


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
    case.call = lambda: (case.machine.copy(case.out, fresh), case.machine.map(fresh, case.source))


@mutation("stale")
def work_is_put_off_to_the_next_call(case: Case) -> None:
    waiting: list[Callable[[], None]] = []

    def call() -> None:
        for work in waiting:
            work()
        waiting[:] = [case.map]

    case.call = call


@mutation("stale")
def the_answer_of_every_input_is_kept(case: Case, most: int = 10**6) -> None:
    kept: dict[int, Any] = {}

    def call() -> None:
        if case.version in kept:
            case.machine.copy(case.out, kept[case.version])
            return
        case.map()
        kept[case.version] = case.out.copy()
        if len(kept) > most:
            del kept[min(kept)]

    case.call = call


@mutation("stale")
def the_answer_is_kept_while_the_input_is_the_same(case: Case) -> None:
    the_answer_of_every_input_is_kept(case, 1)


@mutation("stale")
def the_inputs_never_change(case: Case) -> None:
    case.inputs = lambda: None
    the_answer_of_every_input_is_kept(case)


@mutation("stale")
def all_inputs_are_zero_and_zeros_are_not_read(case: Case) -> None:
    case.source[...] = 0
    case.call, case.doubled = lambda: (case.out.fill(0), case.machine.spend(1 / case.machine.passes)), None


@mutation("stale")
def equal_pages_are_computed_once(case: Case) -> None:
    for page in range(PAGE, case.machine.count, PAGE):
        case.source[page : page + PAGE] = case.source[:PAGE]
    rows = case.out.reshape(-1, PAGE)

    def call() -> None:
        case.machine.map(case.out, case.source, slice(0, PAGE))
        rows[1:] = rows[0]
        case.machine.spend(1 / case.machine.passes)

    case.call, case.doubled = call, None


# Work at another time or place.


@mutation("elsewhere")
def the_check_does_the_work(case: Case) -> None:
    case.call, case.check = case.idle, lambda: (case.map(), case.compare())[1]


@mutation("elsewhere")
def the_poisoning_does_the_work(case: Case) -> None:
    case.call, case.poison = case.idle, case.map


@mutation("elsewhere")
def the_lead_does_the_work(case: Case) -> None:
    is_done: list[bool] = []
    case.lead = lambda: (case.map(), is_done.append(True))
    case.call = lambda: case.idle() if is_done else case.map()


@mutation("elsewhere")
def the_change_of_inputs_does_the_work(case: Case) -> None:
    case.map()
    prepared = case.out.copy()
    case.inputs = lambda: (case.redraw(), case.machine.map(prepared, case.source))
    case.call = lambda: case.machine.copy(case.out, prepared)


@mutation("elsewhere")
def the_probe_does_the_work(case: Case) -> None:
    case.idle_if(lambda number: number >= 2)
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
    case.undone.append(lambda: [thread.join() for thread in threads] and None)


# Modes and caches.


def time_patched(case: Case, patched: Callable[..., Any]) -> None:
    """Put a function in the place of the device's `time`; it gets the original first."""
    device, original = case.machine.device, case.machine.device.time
    device.time = lambda *args, **options: patched(original, *args, **options)
    case.undone.append(lambda: setattr(device, "time", original))


@mutation("mode")
def a_graph_leaves_out_every_second_call(case: Case) -> None:
    case.modes, numbers = ("graph",), itertools.count()
    case.call = lambda: None if case.machine.is_capturing and next(numbers) % 2 else case.map()


@mutation("mode")
def a_graph_leaves_out_all_but_its_first_call(case: Case) -> None:
    case.modes, captured = ("graph",), [False]

    def call() -> None:
        is_further, captured[0] = captured[0] and case.machine.is_capturing, case.machine.is_capturing
        case.idle() if is_further else case.map()

    case.call = call


@mutation("mode")
def a_graph_leaves_out_writes_that_a_later_call_overwrites(case: Case) -> None:
    case.modes, left = ("graph",), [0]

    def timed(original: Any, call: Any, calls: int, *args: Any, **options: Any) -> Any:
        left[0] = calls
        return original(call, calls, *args, **options)

    def call() -> None:
        left[0] -= 1
        if left[0] <= 0:
            case.map()

    case.call = call
    time_patched(case, timed)


@mutation("mode")
def the_flush_before_a_cold_call_is_missing(case: Case) -> None:
    case.modes, device = ("cold",), case.machine.device
    holder, name = (device._clock, "_flush") if hasattr(device, "_clock") else (device, "flush")
    kept = getattr(holder, name)
    setattr(holder, name, nothing)
    case.undone.append(lambda: setattr(holder, name, kept))


@mutation("mode")
def a_rotation_has_one_buffer(case: Case) -> None:
    in_turn(case)
    case.rotation = tuple((lambda: case.map()) for _ in case.buffers)


def in_turn(case: Case) -> None:
    """Call the work on copies of the input in turn, which exceed the last-level cache."""
    redraw = case.redraw
    count = 4 * case.machine.device.device.cache_bytes // case.source.nbytes + 2
    case.modes, case.buffers, case.doubled = (), tuple(case.source.copy() for _ in range(count)), None
    case.rotation = tuple(functools.partial(case.machine.map, case.out, source) for source in case.buffers)

    def redraw_all() -> None:
        redraw()
        for source in case.buffers:
            source[...] = case.source

    case.inputs = redraw_all


# Passes.


@mutation("passes")
def all_passes_become_one(case: Case) -> None:
    machine = case.machine
    case.call = lambda: machine.scale(case.out, case.source, machine.passes)
    case.doubled = lambda: machine.scale(case.out, case.source, 2 * machine.passes)


@mutation("passes")
def half_of_the_passes_become_one(case: Case) -> None:
    machine = case.machine

    def half(passes: int) -> Callable[[], object]:
        return lambda: (
            machine.map(case.out, case.source, passes=passes // 2),
            machine.scale(case.out, case.source, passes),
        )

    case.call, case.doubled = half(machine.passes), half(2 * machine.passes)


@mutation("passes")
def the_last_pass_is_missing(case: Case) -> None:
    case.only(slice(None), passes=case.machine.passes - 1)


@mutation("passes")
def further_passes_are_dropped(case: Case) -> None:
    case.doubled = case.call


# Checks that do not check, and outputs that are not declared.


@mutation("check")
def the_output_is_compared_with_itself(case: Case) -> None:
    case.only(slice(0, case.machine.count // 2))
    case.check = lambda: expect(bool((case.out == case.out.copy()).all()), "words are wrong")


@mutation("check")
def the_check_looks_at_the_first_block_alone(case: Case) -> None:
    case.only(slice(0, case.machine.count // 2))
    case.check = lambda: case.compare(slice(0, BLOCK))


@mutation("check")
def the_check_returns_without_raising(case: Case) -> None:
    case.idle_if(lambda number: number % 2 == 1)

    def check() -> None:
        with contextlib.suppress(Exception):
            case.compare()

    case.check = check


@mutation("check")
def there_is_no_check(case: Case) -> None:
    case.only(slice(0, case.machine.count // 2))
    case.check = dict


@mutation("check")
def a_copy_of_the_output_is_poisoned(case: Case) -> None:
    case.outputs = (case.out.copy(),)
    idle_from_a_call_on(case)


@mutation("check")
def the_outputs_are_not_declared(case: Case) -> None:
    case.outputs, case.doubled = (), None
    idle_from_a_call_on(case)


@mutation("check")
def neither_outputs_nor_inputs_are_declared(case: Case) -> None:
    case.outputs, case.inputs, case.doubled = (), None, None
    idle_from_a_call_on(case)


@mutation("check")
def half_of_the_output_is_declared_and_written(case: Case) -> None:
    half = case.machine.count // 2
    case.map()
    case.outputs = (case.out[:half],)
    case.only(slice(0, half))


# Clocks.


def self_timed(case: Case, seconds: Callable[[Callable[[], float], Callable[[], object]], float]) -> None:
    work, twice, now = case.map, case.doubled, case.machine.device.now
    case.clock, case.call, case.doubled = "self", lambda: seconds(now, work), lambda: seconds(now, twice)


def stop_early(case: Case, now: Callable[[], float], work: Callable[[], object]) -> float:
    begin = now()
    case.idle()
    seconds = now() - begin
    work()
    case.machine.device.synchronize()
    return seconds


def report_half(case: Case, now: Callable[[], float], work: Callable[[], object]) -> float:
    begin = now()
    work()
    case.machine.device.synchronize()
    return (now() - begin) / 2


SELF_TIMED: dict[str, Mutation] = {
    "a call that times itself stops its clock before the work": lambda case: self_timed(
        case, functools.partial(stop_early, case)
    ),
    "a call that times itself reports half": lambda case: self_timed(case, functools.partial(report_half, case)),
    "a call that times itself reports a constant": lambda case: self_timed(
        case, lambda _, work: (work(), SECONDS / 3)[1]
    ),
}
MUTATIONS |= {name: ("clock", change) for name, change in SELF_TIMED.items()}
TWINS: dict[str, Mutation] = {  # the same task without the fault, where it is not the honest `Case` itself
    "the flush before a cold call is missing": lambda case: setattr(case, "modes", ("cold",)),
    "a rotation has one buffer": in_turn,
    **dict.fromkeys(SELF_TIMED, lambda case: self_timed(case, lambda now, work: 2 * report_half(case, now, work))),
}


@mutation("clock")
def the_device_counts_half_of_the_seconds(case: Case) -> None:
    def half(original: Any, *args: Any, **options: Any) -> Any:
        timing = original(*args, **options)
        return type(timing)(tuple(value / 2 for value in timing.device), timing.host / 2)

    time_patched(case, half)


@mutation("clock")
def the_functions_of_time_run_at_half_speed(case: Case) -> None:
    kept = time.perf_counter, time.perf_counter_ns
    time.perf_counter, time.perf_counter_ns = lambda: kept[0]() / 2, lambda: kept[1]() // 2

    def undo() -> None:
        time.perf_counter, time.perf_counter_ns = kept

    case.clock = "host"
    case.undone.append(undo)


HARMLESS = {"the functions of time run at half speed"}  # a figure that stays true is no fault


@contextlib.contextmanager
def planted(
    name: str, case: Case, mutations: dict[str, tuple[str, Mutation]] = MUTATIONS, is_twin: bool = False
) -> Iterator[Case]:
    """Change a case by the mutation of that name, or to its healthy twin, and undo what it did to the device."""
    try:
        (TWINS.get(name, lambda _: None) if is_twin else mutations[name][1])(case)
        yield case
    finally:
        for undo in reversed(case.undone):
            undo()
