"""Read from a traced run how its devices spent their time, and their kernels and copies. Pure functions of a run.

`gpubench profile --trace` writes these results in the suite `profile`. A result of the same name without one of these
parts was written by another program and is left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.analysis.phases import SUITE
from gpubench.model import Result, Run

TIMES = ("busy", "kernels", "copies", "overlap", "launch gaps", "waits")  # times of a device in seconds
_COUNTS = ("kernels", "copies", "dropped")


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """One traced device: `seconds` by the names of TIMES, out of `span_s` seconds.

    `counts` are the numbers of kernels, copies and dropped events as texts."""

    device: str
    span_s: float
    seconds: Mapping[str, float]
    counts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TracedWork:
    """One kernel or one kind of copy on one device: its number of calls and their seconds in total.

    `each_s` are the seconds of each call, and `size_bytes` the bytes of all copies; None for a kernel."""

    name: str
    device: str
    calls: float
    total_s: float
    each_s: Sequence[float]
    size_bytes: float | None


def traced_devices(run: Run) -> list[TracedDevice]:
    """Return the traced devices of a run, in the order of the file.

    Devices with missing times or counts are left out."""
    devices = []
    for result in _results(run, "trace"):
        values, notes = _values(result), dict(result.notes)
        span_s = result.window[1] - result.window[0]
        if span_s > 0 and all(map(values.get, TIMES)) and notes.keys() >= set(_COUNTS):
            seconds = {name: values[name][0] for name in TIMES}
            devices.append(TracedDevice(result.devices[0], span_s, seconds, {name: notes[name] for name in _COUNTS}))
    return devices


def traced_work(run: Run) -> list[TracedWork]:
    """Return the traced kernels of a run, then its copies, both in the order of the file.

    A result without its parameter, total, calls or times is left out."""
    work = []
    for result in (*_results(run, "kernel"), *_results(run, "copy")):
        values = _values(result)
        if result.case.params and all(map(values.get, ("total", "each", "calls"))):
            name = f"{result.case.name} {result.case.params[0][1]}"
            size_bytes = values.get("bytes", [None])[0]
            calls, total_s = values["calls"][0], values["total"][0]
            work.append(TracedWork(name, result.devices[0], calls, total_s, values["each"], size_bytes))
    return work


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """The fewest and the most calls of a traced program that would wait if they were forwarded to another machine.

    `fewest` counts its copies to the host, whose result a program needs; `most` counts all launches and copies."""

    device: str
    span_s: float
    fewest: float
    most: float

    def slowdowns(self, round_trip_s: float) -> tuple[float, float]:
        """Return the slowdowns of the program if only the fewest calls wait for a round trip, and if the most do.

        A slowdown is the run time with waiting over that without; `round_trip_s` is in seconds."""
        return (
            forwarding_slowdown(self.fewest, round_trip_s, self.span_s),
            forwarding_slowdown(self.most, round_trip_s, self.span_s),
        )


def forwarding_slowdown(waiting_calls: float, round_trip_s: float, run_s: float) -> float:
    """Return the run time of a program whose calls are forwarded over its run time without forwarding.

    The model is 1 + waiting calls × round trip / run time, both in seconds."""
    return 1.0 + waiting_calls * round_trip_s / run_s


def waiting_calls(run: Run) -> list[WaitingCalls]:
    """Return for each traced device the fewest and the most of its calls that would wait if they were forwarded.

    A device whose numbers of kernels and copies are unknown is left out."""
    to_host = {work.device: work.calls for work in traced_work(run) if work.name == "copy d2h"}
    forwarded = []
    for traced in traced_devices(run):
        counts = [traced.counts[name] for name in ("kernels", "copies")]
        if all(count.isdecimal() for count in counts):
            most = float(sum(map(int, counts)))
            forwarded.append(WaitingCalls(traced.device, traced.span_s, to_host.get(traced.device, 0.0), most))
    return forwarded


def _results(run: Run, name: str) -> Iterator[Result]:
    results = (result for result in run.results if result.status == "ok")
    return (result for result in results if (result.case.suite, result.case.name) == (SUITE, name))


def _values(result: Result) -> dict[str, Sequence[float]]:
    """Return the values of each series that is not empty, by label."""
    return {series.label: series.values for series in result.series if series.values}
