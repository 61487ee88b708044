"""Faulty calls for the study `mutations`: work that is left out, on repeats or always, and results that are wrong."""

import importlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubench.authoring.task import Stage, Task, expect
from gpubench.model import Work

Function = Callable[..., Any]
_CHUNKS = 64
_OVERWRITTEN = -1


def _faulty_from(first, faulty, last=10**9):
    """Return a mutant whose calls `first` to before `last` are faulty; each thread counts its calls from 0."""

    def mutant(original):
        numbers: dict[int, Iterator[int]] = defaultdict(itertools.count)

        def call(*args, **kwargs):
            number = next(numbers[threading.get_ident()])  # ranks are threads
            if first <= number < last:
                return faulty(lambda *a: original(*a, **kwargs), args)
            return original(*args, **kwargs)

        return call

    return mutant


def _idle(_original, _args):
    """Do nothing."""


def always(faulty):
    """Return a mutant whose every call is faulty."""
    return _faulty_from(0, faulty)


def on_repeats(faulty):
    """Return a mutant that is faulty from the fourth call on."""
    return _faulty_from(3, faulty)


def in_mid_run(faulty):
    """Return a mutant that is faulty from the thirteenth call on."""
    return _faulty_from(12, faulty, 10**6)


def every_second(original):
    """Return a mutant whose every second call does nothing."""
    numbers = itertools.count()
    return lambda *args, **kwargs: None if next(numbers) % 2 else original(*args, **kwargs)


def half_count(place):
    """Return a fault: the count in that argument is halved."""

    def faulty(original, args):
        halved = type(args[place])(int(args[place]) // 2)
        return original(*args[:place], halved, *args[place + 1 :])

    return faulty


def half_rows(original, args):
    """Work on the first half of the first array's rows, and of the last array's."""
    array, *middle, parts = args
    return original(array[: len(array) // 2], *middle, parts[: len(parts) // 2])


def then(spoil):
    """Return a fault: the work is done right, and then `spoil` damages its arguments."""

    def faulty(original, args):
        result = original(*args)
        spoil(args)
        return result

    return faulty


def _change_element(place, index):
    """Return a fault that changes one element, at `index`, of the array in argument `place`."""

    def spoil(args):
        array = args[place].reshape(-1)
        array[index] = array[index] * 2 + 1

    return spoil


@dataclass(frozen=True, slots=True)
class HostMutation:
    """A mutant of one function that a case of a suite calls; `module` and `holder` say where the function is."""

    suite: str
    case: str
    name: str
    module: str
    holder: str
    function: str
    mutant: Callable[[Function], Function]
    world: int = 1

    def place(self):
        """Return the object, or the dictionary, that holds the function."""
        owner: Any = importlib.import_module(f"gpubench.suites.{self.module}")
        for part in filter(None, self.holder.split(".")):
            owner = getattr(owner, part)
        return owner, self.function


def _stream(case, kernel, name, mutant):
    """Return a mutation of a kernel of the suite bandwidth."""
    return HostMutation("bandwidth", case, name, "_host", "KERNELS", kernel, mutant)


def _blas(case, name, mutant):
    """Return a mutation of the matrix product of the suite gemm."""

    def of_out(original):
        mutated = mutant(lambda a, b, out: original(a, b, out=out))
        return lambda a, b, out: mutated(a, b, out)

    return HostMutation("gemm", case, name, "gemm._host", "np", "matmul", of_out)


def _trip(name, method, mutant):
    """Return a mutation of a round trip of the suite compression."""
    return HostMutation("compression", "roundtrip", name, "compression._roundtrip", "HostRoundTrip", method, mutant)


def _collective(case, name, method, mutant):
    """Return a mutation of a collective of two ranks."""
    return HostMutation("collectives", case, name, "collectives._cases", "HostRank", method, mutant, 2)


def _one_copy_only(original):
    """Multiply by the first matrix only; a call with one of its copies does nothing."""
    addresses: list[int] = []

    def call(a, b, out):
        addresses.append(a.ctypes.data)
        return original(a, b, out=out) if a.ctypes.data == addresses[0] else None

    return call


def _unless_overwritten(original):
    """Multiply only where the output was overwritten with NaN."""
    return lambda a, b, out: original(a, b, out=out) if np.isnan(out.reshape(-1)[-1]) else None


def _half_product(original, args):
    a, b, out = args
    return original(a[: len(a) // 2], b, out[: len(a) // 2])


def _half_sum(original, args):
    a, b, out = args
    return original(a[..., : a.shape[-1] // 2], b[: len(b) // 2], out)


def _half_chunks(original, args):
    """Restore the first half of the chunks; what the others were stays."""
    (trip,) = args
    before, compressed = trip.restored, trip.compressed
    original(trip)
    trip.restored = [*trip.restored[: len(before) // 2], *before[len(before) // 2 :]]
    trip.compressed = compressed


def earlier_answer(place):
    """Return a mutant that leaves its first answer, in the array of that argument, instead of working again."""

    def mutant(original):
        kept: list[Any] = []

        def call(*args):
            if not kept:
                original(*args)
                kept.append(args[place].copy())
            args[place][...] = kept[0]

        return call

    return mutant


def _earlier_words(original):
    """Meet the other ranks, but leave the words of the first call."""

    def call(rank):
        original(rank)
        rank.received[:] = vars(rank).setdefault("kept", rank.received.copy())

    return call


def _earlier_chunks(original):
    """Restore the chunks of the first call."""

    def call(trip):
        original(trip)
        trip.restored = vars(trip).setdefault("kept", trip.restored)

    return call


def _answers_by_passes(original):
    """Leave the right answer without passing over the data, once it is known for that number of passes."""
    kept: dict[int, Any] = {}

    def call(rows, passes, parts):
        if passes not in kept:
            original(rows, passes, parts)
            kept[passes] = parts.copy()
        parts[:] = kept[passes]

    return call


def _without_barrier(original, args):
    """Count a step without waiting for the other ranks."""
    del original
    args[0]._steps += 1


def _only_own(original, args):
    """Meet the other ranks, but receive only half of the words."""
    (rank,) = args
    before = rank.received.copy()
    original(rank)
    half = len(before) // 2
    rank.received[half:] = before[half:]


HOST_MUTATIONS = (
    _stream("copy", "copy", "half of the elements, always", always(half_count(2))),
    _stream("copy", "copy", "half of the elements on repeats", on_repeats(half_count(2))),
    _stream("copy", "copy", "nothing on repeats", on_repeats(_idle)),
    _stream("copy", "copy", "nothing in mid-run", in_mid_run(_idle)),
    _stream("copy", "copy", "every second call does nothing", every_second),
    _stream("copy", "copy", "one wrong element", always(then(_change_element(0, 12345)))),
    _stream("copy", "copy", "one wrong element in mid-run", in_mid_run(then(_change_element(0, 12345)))),
    _stream("scale", "scale", "half of the elements on repeats", on_repeats(half_count(2))),
    _stream("add", "add", "nothing on repeats", on_repeats(_idle)),
    _stream("triad", "triad", "half of the elements on repeats", on_repeats(half_count(3))),
    _stream("triad", "triad", "one wrong element in mid-run", in_mid_run(then(_change_element(0, 4321)))),
    _stream("write", "write", "nothing on repeats", on_repeats(_idle)),
    _stream("read", "read", "half of the words on repeats", on_repeats(half_count(1))),
    _stream("read", "read", "nothing on repeats", on_repeats(_idle)),
    _stream("dot", "dot", "half of the elements on repeats", on_repeats(half_count(2))),
    _stream("dot", "dot", "nothing in mid-run", in_mid_run(_idle)),
    HostMutation(
        "bandwidth",
        "working_set[kernel=read",
        "half of the passes",
        "bandwidth._host",
        "",
        "_read",
        always(half_count(1)),
    ),
    HostMutation(
        "bandwidth",
        "working_set[kernel=read",
        "half of the parts on repeats",
        "bandwidth._host",
        "",
        "_read",
        on_repeats(half_rows),
    ),
    HostMutation(
        "bandwidth",
        "strided[access=read",
        "half of the parts on repeats",
        "bandwidth._host",
        "_READS",
        "strided",
        on_repeats(half_count(1)),
    ),
    HostMutation(
        "bandwidth",
        "random[access=read",
        "nothing on repeats",
        "bandwidth._host",
        "_READS",
        "random",
        on_repeats(_idle),
    ),
    HostMutation(
        "bandwidth",
        "working_set[kernel=read",
        "passes are left out",
        "bandwidth._host",
        "",
        "_read",
        _answers_by_passes,
    ),
    _stream("copy", "copy", "an earlier answer", earlier_answer(0)),
    _stream("triad", "triad", "an earlier answer", earlier_answer(0)),
    _stream("read", "read", "an earlier answer", earlier_answer(2)),
    _blas("square[dtype=float32", "an earlier answer", earlier_answer(2)),
    _blas("square[dtype=float32", "one wrong element of C", always(then(_change_element(2, 30000)))),
    _blas("square[dtype=float32", "one wrong element of C on repeats", on_repeats(then(_change_element(2, 30000)))),
    _blas("square[dtype=float64", "one wrong element of C", always(then(_change_element(2, 777)))),
    _blas("square[dtype=float32", "half of the rows on repeats", on_repeats(_half_product)),
    _blas("square[dtype=float64", "half of each sum", always(_half_sum)),
    _blas("square[dtype=float32", "nothing on repeats", on_repeats(_idle)),
    _blas("square[dtype=float32", "nothing unless C was overwritten", _unless_overwritten),
    _blas("square[dtype=float64", "nothing in mid-run", in_mid_run(_idle)),
    _blas("gemv", "nothing on all copies but one", _one_copy_only),
    _blas("gemv", "half of the rows on repeats", on_repeats(_half_product)),
    _trip("half of the chunks on repeats", "restore", on_repeats(_half_chunks)),
    _trip("nothing is compressed on repeats", "compress", on_repeats(_idle)),
    _trip("nothing is restored in mid-run", "restore", in_mid_run(_idle)),
    _trip("an earlier answer", "restore", _earlier_chunks),
    _collective("all_reduce", "an earlier answer", "call", _earlier_words),
    _collective("all_reduce", "half of the words on repeats", "call", on_repeats(_only_own)),
    _collective("all_gather", "nothing on repeats", "call", on_repeats(_idle)),
    _collective("all_reduce", "no barrier", "meet", always(_without_barrier)),
)


class ClockworkOutputs:
    """Outputs of a call of arithmetic time: chunks that the call writes and the check compares."""

    def __init__(self, device, fault):
        self._device = device
        self._fault = fault
        self.chunks = np.full(_CHUNKS, _OVERWRITTEN)
        self._numbers = itertools.count()
        self._first = 0

    def redraw(self):
        """Put the other one of two inputs in place."""
        self._first = 1000 - self._first

    def call(self, copy=0, passes=1):
        """Write the chunks, as far as the fault lets it, in a number of passes."""
        number = next(self._numbers)
        written, seconds = CLOCKWORK_FAULTS[self._fault](number, copy, self.chunks)
        first = 0 if self._fault == "an earlier answer" and number > _LONG_AGO else self._first
        self.chunks[written] = first + np.arange(_CHUNKS)[written]
        if "wrong" in self._fault and len(written) == _CHUNKS - 1:
            self.chunks[_CHUNKS - 1] = 0
        self._device.spend(seconds * (1 if self._fault == "the last pass of many alone" else passes))

    def check(self):
        """Compare every chunk."""
        wrong = int(np.count_nonzero(self.chunks != self._first + np.arange(_CHUNKS)))
        expect(wrong == 0, f"{wrong} of {_CHUNKS} chunks are wrong")


_ALL, _NONE = range(_CHUNKS), range(0)
_SECONDS = 1e-3
_LONG_AGO = 5  # after this number of calls a call counts as a repeat
_MIDDLE = range(40, 100)


def _written_if(condition, chunks=_NONE, share=0.01):
    """Return the chunks that are written and the seconds: all, or where the condition holds only some."""
    return (list(chunks), share * _SECONDS) if condition else (list(_ALL), _SECONDS)


CLOCKWORK_FAULTS: dict[str, Callable[[int, int, Any], tuple[list[int], float]]] = {
    "nothing is written": lambda _n, _copy, _out: _written_if(True),
    "one chunk is wrong": lambda _n, _copy, _out: _written_if(True, range(_CHUNKS - 1), 1.0),
    "half of the chunks": lambda _n, _copy, _out: _written_if(True, range(_CHUNKS // 2), 0.5),
    "nothing on repeats": lambda n, _copy, _out: _written_if(n > _LONG_AGO),
    "half of the chunks on repeats": lambda n, _copy, _out: _written_if(n > _LONG_AGO, range(_CHUNKS // 2), 0.5),
    "all but one chunk on repeats, wrong": lambda n, _copy, _out: _written_if(n > _LONG_AGO, range(_CHUNKS - 1), 1.0),
    "nothing from the middle of the run on": lambda n, _copy, _out: _written_if(n > _MIDDLE.start),
    "half of the chunks from the middle on": lambda n, _copy, _out: _written_if(
        n > _MIDDLE.start, range(_CHUNKS // 2), 0.5
    ),
    "nothing for sixty calls in mid-run": lambda n, _copy, _out: _written_if(n in _MIDDLE),
    "a wrong chunk for sixty calls in mid-run": lambda n, _copy, _out: _written_if(
        n in _MIDDLE, range(_CHUNKS - 1), 1.0
    ),
    "nothing unless overwritten": lambda _n, _copy, out: _written_if(out[0] != _OVERWRITTEN),
    "half the time unless overwritten": lambda _n, _copy, out: _written_if(out[0] != _OVERWRITTEN, _ALL, 0.5),
    "every second call does nothing": lambda n, _copy, _out: _written_if(n % 2 == 1),
    "every tenth call does nothing": lambda n, _copy, _out: _written_if(n % 10 == 9),
    "nothing from call 120 on": lambda n, _copy, _out: _written_if(n >= 120),
    "a fifth less time unless overwritten": lambda _n, _copy, out: _written_if(out[0] != _OVERWRITTEN, _ALL, 0.8),
    "an earlier answer": lambda n, _copy, _out: _written_if(n > _LONG_AGO, _ALL),
    "rotation: nothing on all copies but one": lambda _n, copy, _out: _written_if(copy > 0),
    "rotation: nothing on one copy": lambda _n, copy, _out: _written_if(copy == 2),
    "the last pass of many alone": lambda _n, _copy, _out: _written_if(True, _ALL, 0.1),
}


def clockwork_task(device, fault):
    """Return a task of one stage with that fault."""
    outputs = ClockworkOutputs(device, fault)
    copies = tuple((lambda copy=copy: outputs.call(copy)) for copy in range(4)) if fault.startswith("rotation") else ()
    modes: tuple[Any, ...] = () if copies else ("hot",)
    stage = Stage(
        outputs.call,
        Work(items=1),
        "item",
        modes=modes,
        rotation=copies,
        outputs=(outputs.chunks,),
        inputs=outputs.redraw,
        doubled=partial(outputs.call, passes=2),
    )
    return Task.of(stage, check=outputs.check)
