"""Predict what forwarding costs whole programs, from their calls, and measure it."""

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpubench.api import suite as gb

from .._checks import expect_equal, in_turn
from ._calls import DELAYS, ForwardClient, LocalClient, is_measured, opened

ELEMENT_BYTES = 8
_REPEATS = 3  # runs of which a prediction takes the median
_QUEUED, _COPIES = 64, 8  # calls, and long copies, in a row of which the mean is the time of one
_BLOCK_ELEMENTS, _MOST_BLOCKS = 1024, 528  # elements per block of a kernel; blocks of the longest kernels
_ANSWERED_DELAY_US = 20  # at which each launch too is answered

topic = gb.Topic(
    views=[
        gb.View("curve", "Slowdown of forwarded programs by delay", ("program",), "delay_us", by=("program", "mode")),
    ]
)


class ProgramCall(NamedTuple):
    """A call of a program, by its name in `_wire`, on the first `elements` elements of its memory."""

    name: str
    elements: int = 0


_WAIT = ProgramCall("SYNCHRONIZE")
_up, _run, _down = (partial(ProgramCall, name) for name in ("TO_DEVICE", "LAUNCH", "TO_HOST"))
# The calls that such programs make; their kernels take as long as the elements that they add to.
PROGRAMS: Mapping[str, Sequence[ProgramCall]] = {
    "products": [_up(2**21), *[_run(2**22)] * 64, _WAIT, _down(2**21)],  # few long kernels between copies of 16 MiB
    "small": [*[_run(2**10)] * 1000, _WAIT, _down(2**10)],  # many short kernels in a row
    "copies": [_up(2**19), _run(2**19), _WAIT, _down(2**19)] * 16,  # 4 MiB each way around each kernel
    "reductions": [_run(2**18), _WAIT, _down(1)] * 100,  # the host reads a number after each kernel
    "decode": [_up(8), *[_run(2**18)] * 30, _WAIT, _down(1)] * 32,  # a step: 30 kernels, then the host reads a token
}


class ForwardCosts(NamedTuple):
    """The seconds of forwarded calls without a delay, and of the kernels of a program."""

    call_s: Mapping[str, float]  # of an answered call, by its name; of a copy of one element
    posted_s: float  # of a launch that is not answered
    byte_s: Mapping[str, float]  # of each further byte of a copy, by its name
    kernel_s: Mapping[int, float]  # by the number of elements

    def predicted_s(self, calls: Sequence[ProgramCall], is_posted: bool, delay_s: float) -> float:
        """Return the seconds of a program by two clocks: the host waits for answers, the device for launches."""
        host_s = device_s = 0.0
        for name, elements in calls:
            if name == "LAUNCH" and is_posted:
                host_s += self.posted_s
            else:
                host_s += self.call_s[name] + self.byte_s.get(name, 0.0) * ELEMENT_BYTES * elements
                host_s = (max(host_s, device_s) if name == "SYNCHRONIZE" else host_s) + delay_s
            if name == "LAUNCH":
                device_s = max(device_s, host_s) + self.kernel_s[elements]
        return host_s


def measured_costs(remote: ForwardClient, local: ForwardClient, calls: Sequence[ProgramCall]) -> ForwardCosts:
    """Measure the costs of all calls of a program, in separate memory."""
    wire, most = remote.wire, max(elements for _, elements in calls)
    host, places = (
        np.zeros(ELEMENT_BYTES * most, np.uint8),
        {end: end.allocate(ELEMENT_BYTES * most) for end in (remote, local)},
    )

    def seconds(end: ForwardClient, name: str, elements: int = 1, count: int = 1, is_posted: bool = False) -> float:
        """Return the seconds of one of `count` calls in a row."""
        call = ProgramCall(name, elements)
        messages = np.repeat(message_rows(end, [call], places[end], is_posted), count, 0)
        messages[:, wire.DELAY_NS], messages[-1, wire.ANSWERED] = 0, 1
        last = end.messages(wire.SYNCHRONIZE)
        times = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            end.make(messages, host)
            if end is local:
                end.make(last)
            times.append((time.perf_counter() - begin) / count)
            end.make(last)
        return statistics.median(times)

    copies = {"TO_DEVICE", "TO_HOST"} & {name for name, _ in calls}
    one = {name: seconds(remote, name, count=_QUEUED) for name in {name for name, _ in calls}}
    byte_s = {
        name: (seconds(remote, name, most, _COPIES) - one[name]) / (ELEMENT_BYTES * (most - 1)) for name in copies
    }
    kernels = {elements: seconds(local, "LAUNCH", elements, _QUEUED) for name, elements in calls if name == "LAUNCH"}
    return ForwardCosts(one, seconds(remote, "LAUNCH", count=4 * _QUEUED, is_posted=True), byte_s, kernels)


def message_rows(client: ForwardClient, calls: Sequence[ProgramCall], place: int, is_posted: bool) -> Any:
    """Return the messages of a program whose memory is at `place`; only its launches can be posted."""
    wire, rows = client.wire, list[Any]()
    for name, elements in calls:
        blocks = min(_MOST_BLOCKS, -(-elements // _BLOCK_ELEMENTS))
        arguments = {"LAUNCH": (place, elements, 1, blocks), "SYNCHRONIZE": ()}
        rows.append(client.messages(getattr(wire, name), *arguments.get(name, (place, ELEMENT_BYTES * elements))))
        rows[-1][:, wire.ANSWERED] = name != "LAUNCH" or not is_posted
    return np.concatenate(rows)


class ProgramRuns:
    """Runs of a program in separate memory with known contents: a kernel adds one to each of its elements."""

    def __init__(self, bench: gb.Bench, client: ForwardClient, calls: Sequence[ProgramCall], is_posted: bool) -> None:
        """Draw the contents of host memory, of which copies move the first bytes, and of as much device memory."""
        self._client, self._calls, self._size = client, calls, max(elements for _, elements in calls)
        self._start = bench.rng.integers(2**63, size=self._size, dtype=np.uint64)
        self._host = bench.device.pinned(self._start.nbytes)
        self._host[:] = self._start.view(np.uint8)
        self._place = client.allocate(self._start.nbytes)
        client.move(True, self._place, self._host)
        self._messages = message_rows(client, calls, self._place, is_posted)
        self._edges = sorted({elements for _, elements in calls} | {self._size})
        self._added = {place: np.zeros(len(self._edges), np.uint64) for place in ("host", "device")}

    def seconds(self) -> float:
        """Return the seconds of one run, whose effects are then expected in both memories."""
        begin = time.perf_counter()
        self._client.make(self._messages, self._host)
        elapsed = time.perf_counter() - begin
        host, device = self._added.values()
        for name, elements in self._calls:
            parts = self._edges.index(elements) + 1 if elements else 0
            if name == "LAUNCH":
                device[:parts] += np.uint64(1)
            elif name == "TO_DEVICE":
                device[:parts] = host[:parts]
            elif name == "TO_HOST":
                host[:parts] = device[:parts]
        return elapsed

    def median_s(self) -> float:
        return statistics.median(self.seconds() for _ in range(_REPEATS))

    def check(self) -> None:
        """Raise WrongAnswer unless every element of both memories has what all runs have added."""
        device, widths = np.zeros_like(self._host), np.diff([0, *self._edges])
        self._client.move(False, self._place, device)
        for place, memory in (("host", self._host), ("device", device)):
            expected = self._start + np.repeat(self._added[place], widths)
            expect_equal(memory.view(np.uint64), expected, f"elements of the program's {place} memory")


@topic.case(
    ranks=2,
    program=gb.points(("decode",), full=tuple(PROGRAMS)),
    mode=gb.points(("posted",), full=("wait", "posted")),
    delay_us=DELAYS,
    where=lambda _, params: params["mode"] == "posted" or params["delay_us"] == _ANSWERED_DELAY_US,
    when=is_measured,
)
def program(bench: gb.Bench, program: str, mode: str, delay_us: int) -> gb.Task:
    """Seconds of a whole program whose calls are forwarded over TCP, and a prediction from its list of calls.

    The programs make the calls of a chain of products, of many small kernels, of copies around each kernel, of
    reductions that the host reads, and of decoding; their kernels add to elements. `slowdown` is relative to the same
    calls in this process. `predicted` follows two clocks through the calls, with the costs of single calls without a
    delay; `error` is its distance from `slowdown`."""
    calls = PROGRAMS[program]
    bench.need(4 * ELEMENT_BYTES * max(elements for _, elements in calls))
    remote, serving = opened(bench, "tcp", delay_us)
    if serving is not None:
        return serving
    local, is_posted = LocalClient(bench), mode == "posted"
    forwarded, native = (ProgramRuns(bench, client, calls, is_posted) for client in (remote, local))
    costs = measured_costs(remote, local, calls)

    def check() -> gb.Observation:
        native_s, measured_s, delay_s = native.median_s(), forwarded.median_s(), 1e-6 * delay_us
        predicted_s = costs.predicted_s(calls, is_posted, delay_s)
        for runs in (forwarded, native):
            runs.check()
        return {
            "native": gb.Observed(native_s, "s"),
            "slowdown": gb.Observed(measured_s / native_s),
            "predicted": gb.Observed(predicted_s / native_s),
            "error": gb.Observed(abs(predicted_s / measured_s - 1)),
        }

    stage = gb.Stage(forwarded.seconds, gb.Work(items=1), "item", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=check, close=in_turn(remote.close, local.close))
