"""Find where the time of a traced device went, from the recorded kernels and copies.

Read the processor time and memory of a program and its children from /proc."""

import ctypes
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.analysis import phases
from gpubench.base.intervals import device_seconds
from gpubench.model import Case, Counter, Measure, Result, Samples, Series
from gpubench.tools.profile.inside import COPY, EVENT, KERNEL

MOST_KERNELS = 40  # the kernels that take the most time have a result each
MOST_VALUES = 1000  # recorded durations of one kernel, evenly picked
MOST_EVENTS = 100_000  # events in the run file for a timeline, the first ones
_COPIES = {1: "h2d", 2: "d2h", 8: "d2d", 9: "h2h", 10: "p2p"}  # CUpti_ActivityMemcpyKind
_NO_ROOFLINE = (
    "one pass over a program gives no operations and no bytes of each kernel: "
    "ncu takes several (docs/profile.md, Kernels on a roofline)"
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of a traced program in order of start, with their times in seconds of CLOCK_MONOTONIC."""

    events: npt.NDArray[Any]
    start: Floats
    end: Floats
    names: tuple[str, ...]
    dropped: int
    reason: str


def read(folder: Path) -> Trace:
    """Return the trace that the program wrote to the folder; without a trace, an empty one with the reason."""
    about_file = folder / "about"
    if not about_file.exists():
        return _empty_trace("the script ended before it was traced")
    about = json.loads(about_file.read_text(encoding="utf-8"))
    if about["reason"]:
        return _empty_trace(about["reason"])
    data = (folder / "events").read_bytes()
    events = np.frombuffer(data[: len(data) // EVENT.itemsize * EVENT.itemsize], EVENT)
    names = tuple(json.loads(line) for line in (folder / "names").read_text(encoding="utf-8").splitlines())
    events = events[(events["start"] > 0) & (events["end"] >= events["start"])]
    events = events[np.argsort(events["start"], kind="stable")]
    reason = "" if len(events) else "no kernel and no copy was recorded"
    start, end = (_monotonic(events[field], about["clocks"]) for field in ("start", "end"))
    if about["unknown"]:
        reason = f"{about['unknown']} buffers of records are of a CUPTI that cupti-python does not know"
    return Trace(events, start, end, tuple(map(readable_name, names)), about["dropped"], reason)


def _empty_trace(reason: str) -> Trace:
    empty = np.empty(0)
    return Trace(np.empty(0, EVENT), empty, empty, (), 0, reason)


def _monotonic(nanoseconds: npt.NDArray[Any], clocks: Sequence[Sequence[int]]) -> Floats:
    """Return times on CUPTI's clock, in ns, as seconds of CLOCK_MONOTONIC; the shape is the same."""
    (their, our), (their_last, our_last) = clocks[0], clocks[-1]
    rate = (our_last - our) / (their_last - their) if their_last - their > 1e9 else 1.0
    since = nanoseconds.astype(np.int64) - their
    return np.asarray((our + since * rate) / 1e9, dtype=np.float64)


def readable_name(name: str) -> str:
    """Return the demangled name of a kernel; `name` itself if it is not mangled or cannot be demangled."""
    if not name.startswith("_Z"):
        return name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except OSError:
        return name
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not address:
        return name
    demangled = ctypes.string_at(address).decode(errors="replace")
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(address)
    return demangled


def brief(name: str) -> str:
    """Return the name of a kernel, up to 80 characters, without types, namespaces and parameters."""
    bare, before = name, ""
    while bare != before:  # from the innermost brackets out
        bare, before = re.sub(r"<[^<>]*>|\([^()]*\)", "", bare), bare
    return (bare.split("::")[-1].split() or [name])[-1][:80]


def results(trace: Trace, devices: Sequence[str], zero: float) -> list[Result]:
    """Return the results of each traced device: where its time went, its longest kernels, and its copies by kind."""
    device_results: list[Result] = []
    for ordinal in np.unique(trace.events["device"]).tolist():
        device = f"cuda:{ordinal}"
        if device in devices:
            device_results += _device_results(trace, trace.events["device"] == ordinal, device, zero)
    return device_results


def _device_results(trace: Trace, on_device: npt.NDArray[np.bool_], device: str, zero: float) -> Iterator[Result]:
    """Yield the results of one device: where its time went, then its longest kernels, then its copies by kind."""
    kernels, copies = on_device & (trace.events["kind"] == KERNEL), on_device & (trace.events["kind"] == COPY)
    start, end = trace.start[on_device], trace.end[on_device]
    seconds = device_seconds(start, end, ~kernels[on_device])
    counts = {"kernels": int(kernels.sum()), "copies": int(copies.sum()), "dropped": trace.dropped}
    notes = [*((name, str(count)) for name, count in counts.items()), ("roofline", f"none: {_NO_ROOFLINE}")]
    window = (float(start.min()) - zero, float(end.max()) - zero)
    series = tuple(Series(name, "s", (value,)) for name, value in seconds.items())
    yield Result(Case(phases.SUITE, "trace"), (device,), "ok", series=series, notes=tuple(notes), window=window)
    for case, indices, full_name in (*_longest_kernels(trace, kernels), *_copy_kinds(trace, copies)):
        yield _event_result(trace, case, indices, full_name, device, zero)


def _longest_kernels(trace: Trace, kernels: npt.NDArray[np.bool_]) -> Iterator[tuple[Case, npt.NDArray[np.intp], str]]:
    places = np.flatnonzero(kernels)
    numbers = trace.events["name"][places]
    totals = np.bincount(numbers, weights=(trace.end - trace.start)[places]) if len(places) else np.empty(0)
    used: set[str] = set()
    for number in np.argsort(-totals)[:MOST_KERNELS].tolist():
        if totals[number] > 0:
            name = _make_unique(brief(trace.names[number]), used)
            yield Case(phases.SUITE, "kernel", (("name", name),)), places[numbers == number], trace.names[number]


def _make_unique(name: str, used: set[str]) -> str:
    """Return `name`, with `#2`, `#3`, … appended if it is in `used`, and add the result to `used`."""
    candidate, number = name, 1
    while candidate in used:
        number += 1
        candidate = f"{name}#{number}"
    used.add(candidate)
    return candidate


def _copy_kinds(trace: Trace, copies: npt.NDArray[np.bool_]) -> Iterator[tuple[Case, npt.NDArray[np.intp], str]]:
    """Yield case, indices of the events, and an empty name for each kind of copy, such as `h2d`."""
    places = np.flatnonzero(copies)
    for kind in np.unique(trace.events["copy"][places]).tolist():
        case = Case(phases.SUITE, "copy", (("kind", _COPIES.get(kind, f"other{kind}")),))
        yield case, places[trace.events["copy"][places] == kind], ""


def _event_result(
    trace: Trace, case: Case, indices: npt.NDArray[np.intp], full_name: str, device: str, zero: float
) -> Result:
    """Return the result of one kernel or one kind of copy: total time, single durations, number of calls, bytes."""
    times = trace.end[indices] - trace.start[indices]
    evenly_picked = np.linspace(0, len(times) - 1, min(len(times), MOST_VALUES)).astype(int)
    size = float(trace.events["bytes"][indices].sum())
    series = (
        Series(
            "total", "s", (float(times.sum()),)
        ),  # the first series is the headline: the program waits for the total
        Series("each", "s", tuple(times[evenly_picked].tolist())),
        Series("calls", "calls", (float(len(times)),)),
        *((Series("bytes", "B", (size,)),) if size else ()),
    )
    window = (float(trace.start[indices].min()) - zero, float(trace.end[indices].max()) - zero)
    notes = (("name", full_name),) if full_name else ()
    return Result(case, (device,), "ok", series=series, notes=notes, window=window)


def events(
    trace: Trace, numbered_results: Sequence[tuple[int, Result]], devices: Sequence[str], zero: float
) -> list[Samples]:
    """Return the first events as samples of each device, for a timeline: duration, stream and number of the result."""
    kernels = {
        dict(result.notes)["name"]: number for number, result in numbered_results if result.case.name == "kernel"
    }
    copies = {result.case.params[0][1]: number for number, result in numbered_results if result.case.name == "copy"}
    of_name = np.asarray([kernels.get(name, np.nan) for name in trace.names] + [np.nan])
    of_copy = np.asarray([copies.get(_COPIES.get(kind, f"other{kind}"), np.nan) for kind in range(256)])
    first = np.arange(min(len(trace.events), MOST_EVENTS))
    samples = []
    for device in devices:
        on_device = first[[f"cuda:{ordinal}" == device for ordinal in trace.events["device"][first].tolist()]]
        if len(on_device):
            part = trace.events[on_device]
            of_event = np.where(part["kind"] == COPY, of_copy[part["copy"]], of_name[part["name"]])
            columns = (
                ("trace.time", _none_for_nan(trace.end[on_device] - trace.start[on_device])),
                ("trace.stream", _none_for_nan(part["stream"].astype(float))),
                ("trace.result", _none_for_nan(of_event)),
            )
            at = tuple((trace.start[on_device] - zero).tolist())
            samples.append(Samples("trace", device, at, columns))
    return samples


def _none_for_nan(values: npt.NDArray[Any]) -> tuple[float | None, ...]:
    return tuple(None if value != value else value for value in values.tolist())


PERIOD_S = 0.25
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SOURCE = "program"
CPU = Counter(
    "program.cpu.busy",
    "core·s",
    "cumulative",
    PERIOD_S,
    "ps -o cputimes of the program and its children",
    Measure.PROGRAM_CPU_TIME,
)
MEMORY = Counter(
    "program.memory", "B", "gauge", PERIOD_S, "ps -o rss of the program and its children", Measure.PROGRAM_MEMORY
)
COUNTERS = (CPU, MEMORY)


class ProcessTree:
    """Reads a process and its descendants; a child whose parent has ended is no longer found."""

    def __init__(self, pid: int, zero: float) -> None:
        self._pid = pid
        self._zero = zero
        self._rows: list[tuple[float, float, float]] = []
        self._highest_cpu_s = 0.0

    def read(self) -> None:
        """Take a sample now. The recorded processor time never falls, even if a child ends that nobody waited for."""
        usages = [usage for pid in _process_and_descendants(self._pid) if (usage := _process_usage(pid))]
        if usages:
            self._highest_cpu_s = max(self._highest_cpu_s, sum(seconds for seconds, _ in usages))
            self._rows.append(
                (time.monotonic() - self._zero, self._highest_cpu_s, float(sum(size for _, size in usages)))
            )

    def take(self) -> list[Samples]:
        """Return the samples since the last call, as one chunk for the host; an empty list if there is none."""
        if not self._rows:
            return []
        at, seconds, sizes = zip(*self._rows, strict=True)
        self._rows = []
        return [Samples(_SOURCE, "host", at, ((CPU.name, seconds), (MEMORY.name, sizes)))]


def _process_and_descendants(pid: int) -> Iterator[int]:
    """Yield the ids of a process and, if the kernel lists children (CONFIG_PROC_CHILDREN), of its descendants."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _process_and_descendants(int(child))
    except OSError:  # the process has ended, or the kernel has no such list
        return


def _process_usage(pid: int) -> tuple[float, int] | None:
    """Return the CPU seconds of a process with the children it waited for, and its resident bytes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) * _TICK_S, int(fields[21]) * _PAGE_BYTES
