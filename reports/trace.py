"""Write the cases of a run and its counters over time as a Chrome trace, for Perfetto and chrome://tracing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

_MICROSECONDS = 1e6  # the unit of a trace's times
_TRACED = ("trace.time", "trace.stream", "trace.result")  # the columns of a traced program's kernels and copies


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Writes a process for each device, with a thread for each suite and every counter over time."""

    summary: str = "cases and counters over time as a Chrome trace, for Perfetto"

    def render(self, run: gb.Run) -> str:
        """Return the trace as JSON, one event per line."""
        about = {"gpubench": run.manifest.gpubench, "started": run.manifest.started}
        events = ",\n".join(_events(run))
        return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{events}\n]}}\n'


def _events(run: gb.Run) -> Iterator[str]:
    summary = gb.Summary(run)
    timed = [result for result in run.results if result.window[1] > result.window[0] and result.devices]
    tracks = summary.counters.tracks
    places = dict.fromkeys([result.devices for result in timed] + [(track.device,) for track in tracks])
    processes = {place: number for number, place in enumerate(places, 1)}
    for event in _case_events(summary, timed, processes):
        yield json.dumps(event, ensure_ascii=False, allow_nan=False)
    yield from _traced_kernels(run, processes)
    for track in tracks:
        yield from _counter_events(track, processes[(track.device,)])


def _traced_kernels(run: gb.Run, processes: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    """Yield the events of the kernels and copies of a traced program as JSON text, with a thread for each stream."""
    names = [result.case.id.rpartition("=")[2].rstrip("]") for result in run.results]
    for samples in run.samples:
        columns = dict(samples.columns)
        if samples.collector != "trace" or not columns.keys() >= set(_TRACED) or (samples.device,) not in processes:
            continue
        pid = processes[(samples.device,)]
        rows = list(zip(samples.at, *(columns[name] for name in _TRACED), strict=True))
        for stream in dict.fromkeys(stream for _, _, stream, _ in rows):
            yield json.dumps(
                _name_event("thread_name", f"stream {stream or 0:.0f}", pid=pid, tid=_stream_thread(stream))
            )
        for at, took, stream, number in rows:
            name = names[int(number)] if number is not None and 0 <= number < len(names) else "another"
            event = {"ph": "X", "name": name, "pid": pid, "tid": _stream_thread(stream)}
            yield json.dumps({**event, "ts": at * _MICROSECONDS, "dur": (took or 0.0) * _MICROSECONDS})


def _stream_thread(number: float | None) -> int:
    """Return the thread number of a stream, above the numbers of suites; None counts as stream 0."""
    return 1000 + int(number or 0)


def _case_events(
    summary: gb.Summary, timed: Sequence[gb.Result], processes: Mapping[tuple[str, ...], int]
) -> Iterator[dict[str, Any]]:
    """Yield the events that name processes and threads, then an event for each result in `timed`."""
    suites = {suite: number for number, suite in enumerate(dict.fromkeys(result.case.suite for result in timed), 1)}
    for place, number in processes.items():
        yield _name_event("process_name", _title(summary, place), pid=number)
    for place, suite in dict.fromkeys((result.devices, result.case.suite) for result in timed):
        yield _name_event("thread_name", suite, pid=processes[place], tid=suites[suite])
    for result in timed:
        yield _case_event(summary, result, processes[result.devices], suites[result.case.suite])


def _title(summary: gb.Summary, place: Sequence[str]) -> str:
    names = dict.fromkeys(summary.device(device_id).name for device_id in place)
    return f"{'+'.join(place)}: {', '.join(names)}"


def _name_event(metadata: str, name: str, **ids: int) -> dict[str, Any]:
    """Return the event that gives a process or a thread its name; `metadata` is `process_name` or `thread_name`."""
    return {"ph": "M", "name": metadata, **ids, "args": {"name": name}}


def _case_event(summary: gb.Summary, result: gb.Result, pid: int, tid: int) -> dict[str, Any]:
    """Return the event of a case; times are in microseconds, and a case that is ok has its median as text."""
    begin, end = result.window
    series = gb.headline(result)
    args = {"status": result.status, "cause": result.cause, "replicate": result.replicate}
    if series and result.status == "ok":
        args |= {"series": series.label, "median": summary.figure(result, series).text}
    return {
        "ph": "X",
        "name": result.case.id,
        "cat": result.case.suite,
        "pid": pid,
        "tid": tid,
        "ts": begin * _MICROSECONDS,
        "dur": (end - begin) * _MICROSECONDS,
        "args": args,
    }


def _counter_events(track: gb.Track, pid: int) -> Iterator[str]:
    """Yield an event for each reading of a counter as JSON text; `pid` is the process number of its device."""
    name, unit = (json.dumps(text, ensure_ascii=False) for text in (track.counter.name, track.counter.unit or "value"))
    head = f'{{"ph": "C", "name": {name}, "pid": {pid}, "ts": '
    for moment, value in zip((track.at * _MICROSECONDS).tolist(), track.values.tolist(), strict=True):
        yield f'{head}{moment!r}, "args": {{{unit}: {value!r}}}}}'


report: gb.Report = TraceReport()
