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
class ForwardedWork:
    """What a traced program would send to a device of another machine: bytes, and the calls that would wait.

    `fewest` counts its copies to the host, whose result a program needs; `most` counts all launches and copies."""

    device: str
    span_s: float
    fewest: float
    most: float
    copied_bytes: float  # by all copies between the host and the device

    def slowdowns(self, round_trip_s: float, bytes_per_s: float) -> tuple[float, float]:
        """Return the run time over the time traced if only the fewest calls wait, and if the most do.

        The model is 1 + (waiting calls × round trip + bytes / bandwidth of the link) / time traced."""
        copying_s = self.copied_bytes / bytes_per_s
        fewest, most = ((calls * round_trip_s + copying_s) / self.span_s for calls in (self.fewest, self.most))
        return 1.0 + fewest, 1.0 + most


def forwarded_work(run: Run) -> list[ForwardedWork]:
    """Return for each traced device what would be forwarded; without it a device whose number of calls is unknown."""
    copies = [work for work in traced_work(run) if work.name in ("copy h2d", "copy d2h")]
    forwarded = []
    for traced in traced_devices(run):
        counts = [traced.counts[name] for name in ("kernels", "copies")]
        if all(count.isdecimal() for count in counts):
            own = [work for work in copies if work.device == traced.device]
            to_host = sum(work.calls for work in own if work.name == "copy d2h")
            copied = sum(work.size_bytes or 0.0 for work in own)
            forwarded.append(ForwardedWork(traced.device, traced.span_s, to_host, sum(map(int, counts)), copied))
    return forwarded


def _results(run: Run, name: str) -> Iterator[Result]:
    results = (result for result in run.results if result.status == "ok")
    return (result for result in results if (result.case.suite, result.case.name) == (SUITE, name))


def _values(result: Result) -> dict[str, Sequence[float]]:
    return {series.label: series.values for series in result.series if series.values}
