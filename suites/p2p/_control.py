"""Measure the latency of 8-byte messages while bulk copies use the same link."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gpubench.api import suite as gb

from .._between import Params
from ._messages import MESSAGES, ControlMessage, PeerCopies
from ._peers import BY, device_axis, device_names, peer_axis, two_devices
from ._traffic import BulkTraffic, Stopwatch

_TAIL = 1000  # the number of samples that a 99th percentile needs
_COVER = 3.0  # initial duration of the bulk copies, as a multiple of the time of the messages alone
_MOST_COVER = 2.0**12

_NOTHING, _NONE = "nothing", "none"
_BESIDE = gb.points((_NOTHING, "engine", "bulk"), smoke=BY, full=(_NOTHING, *BY))
_TRAFFIC = gb.points((_NONE, "read"), smoke=("read",), full=(_NONE, "read", "write", "both"))

topic = gb.Topic(
    views=[
        gb.View("bars", "8-byte message latency under bulk copies", ("control",), by=("message",)),
        gb.View("bars", "8-byte message slowdown under bulk copies", ("control",), by=("message",), series="slowdown"),
    ]
)


def _is_point(_: gb.Target, params: Params) -> bool:
    if (params["beside"], params["traffic"]) == ("engine", "both"):
        return False
    return (params["beside"] == _NOTHING) == (params["traffic"] == _NONE)


@topic.case(
    devices=two_devices,
    when=gb.on_gpu,
    where=_is_point,
    device=device_axis,
    peer=peer_axis,
    message=tuple(MESSAGES),
    beside=_BESIDE,
    traffic=_TRAFFIC,
)
def control(bench: gb.Bench, device: str, peer: str, message: str, beside: str, traffic: str) -> gb.Task:
    """Seconds of an 8-byte message while bulk copies use the same link.

    `message` is a `load` or a `copy` from the peer's memory, or a `signal` between two kernels (half of a round trip).
    `beside` is the means of the bulk copies, and `traffic` says whether the device reads its peer's memory in them,
    writes it, or does both at once. With `nothing` and `none` the link is idle. The series `slowdown` is the time of
    the message over its time on an idle link."""
    del device, peer
    if beside == _NOTHING:
        return _alone(bench, MESSAGES[message](bench))
    bulk = BulkTraffic(bench, beside, traffic)
    if (message, beside) == ("copy", "engine"):
        return CopyBehindBulk(bench, PeerCopies(bench), bulk).task()
    return MessagesBesideBulk(bench, MESSAGES[message](bench), bulk).task()


def _alone(bench: gb.Bench, messages: ControlMessage) -> gb.Task:
    """Return the task of `messages` on an idle link."""

    def seconds() -> list[float]:
        messages.send()
        bench.device.synchronize()
        return messages.seconds()

    notes = {"devices": device_names(bench), **messages.notes}
    return gb.Task.of(_stage(messages, seconds), check=messages.check, poison=messages.poison, notes=notes)


def _stage(
    messages: ControlMessage,
    seconds: Callable[[], float | Sequence[float]],
    probe: Callable[[], gb.Observation] | None = None,
) -> gb.Stage:
    """Return the stage of messages that time themselves, with enough samples for a 99th percentile."""
    work, effort = gb.Work(items=messages.items), gb.POINT.with_tail(_TAIL)
    return gb.Stage(seconds, work, "item", clock="self", probe=probe, effort=effort)


class MessagesBesideBulk:
    """Messages that are timed alone and then, in the same call, while bulk copies run from before to after them.

    `task` returns the task of the case."""

    def __init__(self, bench: gb.Bench, messages: ControlMessage, bulk: BulkTraffic) -> None:
        self._device, self._messages, self._bulk = bench.device, messages, bulk
        self._stopwatch = Stopwatch(bench)
        self._free, self._begun, self._ended = (self._stopwatch.event() for _ in range(3))
        self._cover = _COVER
        self._slowdown = math.nan
        self._notes = {"devices": device_names(bench), **messages.notes, "bulk": bulk.note}

    def task(self) -> gb.Task:
        """Return the task; its series `slowdown` is the median time beside the copies over the median alone."""
        stage = _stage(self._messages, self.seconds, self._observed)
        return gb.Task.of(stage, check=self._check, poison=self._poison, notes=self._notes)

    def seconds(self) -> float | list[float]:
        """Send the messages alone and beside the copies, and return the seconds of each message beside the copies.

        Returns NaN if the copies ended before the messages; in the next call the copies then last twice as long."""
        self._stopwatch.start()
        self._messages.send()
        self._free.record()
        self._device.synchronize()
        alone = self._messages.seconds()
        is_beside = self._run_beside()
        beside = self._messages.seconds()
        if not is_beside:
            self._cover = min(2 * self._cover, _MOST_COVER)
            return math.nan
        self._slowdown = float(np.median(beside) / np.median(alone))
        return beside

    def _run_beside(self) -> bool:
        """Send the messages while bulk copies run."""
        self._device.together(self._send, *self._bulk.lasting(self._cover * self._stopwatch.at(self._free)))
        self._device.synchronize()
        return self._bulk.lasted(self._stopwatch, self._begun, self._ended)

    def _send(self) -> None:
        self._begun.record()
        self._messages.send()
        self._ended.record()

    def _observed(self) -> gb.Observation:
        return {"slowdown": gb.Observed(self._slowdown), **self._bulk.rates(self._stopwatch)}

    def _check(self) -> gb.Observation:
        self._bulk.check()
        return self._messages.check()

    def _poison(self) -> None:
        self._bulk.poison()
        self._messages.poison()


class CopyBehindBulk(MessagesBesideBulk):
    """A message that the runtime copies behind one bulk copy of the runtime.

    The gate opens for both at once: the measured time contains the bulk copy and the message."""

    def __init__(self, bench: gb.Bench, messages: PeerCopies, bulk: BulkTraffic) -> None:
        super().__init__(bench, messages, bulk)
        self._queue = messages.queue
        self._notes["order"] = "queued behind one bulk copy; the copy engine keeps the order"

    def _run_beside(self) -> bool:
        self._device.time(lambda: self._device.together(self._queue, *self._bulk.once()), 1, "hot")
        self._device.synchronize()
        return True
