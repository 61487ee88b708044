"""Send 8 bytes between two devices of one process in several ways, and time each message by itself."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gpubench.api import suite as gb

from ._latency import PeerRing, PeerWord

_LOADS = 1024  # loads per sample: a millisecond on an H200
_ROUNDS = 1025  # rounds per sample; the first one waits for the other device and is not timed
_PATIENCE_S = 0.25  # a kernel waits this long for a signal of the other kernel, which is less than a gate holds
_USUAL_HZ = 2e9  # assumed for GPUs whose clock is unknown
_LINE_BYTES = 128
_STATE_BYTES, _TICKS_BYTES = 24, 4 * (_ROUNDS - 1)  # the layout that timed_signals in remote.cu writes
_NANO, _MILLI = 1e-9, 1e-3
_BY_CLOCK = "by the clock of the compute unit, whose rate comes from the device's timer over the whole kernel"


class ControlMessage(Protocol):
    """Messages of 8 bytes that are sent one after another, so that each waits for the one before it."""

    @property
    def items(self) -> int:
        """The number of messages in one measured time."""

    @property
    def notes(self) -> Mapping[str, str]:
        """The notes that name the message and the clock that times it."""

    def send(self) -> None:
        """Queue the messages of one sample on the device's own stream; the caller waits for the device."""

    def seconds(self) -> list[float]:
        """Return the times of the last sample in seconds, each of `items` messages; the device has finished."""

    def poison(self) -> None:
        """Overwrite the outputs."""

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if a message did not arrive."""


class PeerLoads:
    """Dependent loads of random lines of the peer's memory: a request there and 8 bytes back."""

    items = 1
    notes: Mapping[str, str] = {
        "message": "a load of 8 bytes from the peer's memory, request and answer",
        "ring": f"{PeerRing.note} unless the bulk copies displace it",
        "timed": _BY_CLOCK,
    }

    def __init__(self, bench: gb.Bench) -> None:
        self._device = bench.device
        self._ring = PeerRing(bench)
        self._ticks = bench.xp.zeros(_LOADS, bench.xp.uint32)
        self._kernel = bench.kernel("remote.cu", "timed_loads")
        self.check = self._ring.check

    def send(self) -> None:
        """Queue one walk of 1024 loads."""
        self._kernel((1,), (1,), (np.uint32(_LOADS), self._ticks, self._ring.state))
        self._ring.walked += _LOADS

    def seconds(self) -> list[float]:
        """Return the seconds of each load of the last walk."""
        _, cycles, nanoseconds = map(int, self._device.to_host(self._ring.state))
        return _seconds_of(self._device.to_host(self._ticks), cycles, nanoseconds)

    def poison(self) -> None:
        """Overwrite the times. The walk's position is not overwritten, because it is the checked answer."""
        self._ticks.fill(0)


class PeerCopies:
    """Copies of 8 bytes out of the peer's memory by the runtime, each by itself."""

    items = 1
    notes: Mapping[str, str] = {
        "message": "a copy of 8 bytes out of the peer's memory by the runtime, alone",
        "timed": "by the events before and after it, behind the gate",
    }

    def __init__(self, bench: gb.Bench) -> None:
        self._device, self._cuda = bench.device, bench.xp.cuda
        self._word = PeerWord(bench)
        self._begun, self._ended = (bench.xp.cuda.Event() for _ in range(2))
        self.poison, self.check = self._word.poison, self._word.check

    def send(self) -> None:
        """Queue one copy behind the gate, so that the copy does not wait for its launch, and wait for the device."""
        self._device.time(self.queue, 1, "hot")

    def queue(self) -> None:
        """Queue the copy between its two events; the caller holds the gate."""
        self._begun.record()
        self._word.copy()
        self._ended.record()

    def seconds(self) -> list[float]:
        """Return the seconds of the last copy, as the only element."""
        return [float(self._cuda.get_elapsed_time(self._begun, self._ended)) * _MILLI]


class PeerSignals:
    """A ping-pong of two kernels: each writes a word into the other device's memory and watches its own."""

    items = 2  # two items per round: a word there and a word back
    notes: Mapping[str, str] = {
        "message": "a word that a kernel writes into the peer's memory, where another kernel watches for it",
        "counted": "half of a round trip",
        "timed": _BY_CLOCK,
    }

    def __init__(self, bench: gb.Bench) -> None:
        xp = bench.xp
        self._device, self._peer = bench.device, bench.devices[1]
        nbytes = 2 * _LINE_BYTES + _TICKS_BYTES
        self._near = xp.zeros(nbytes, xp.uint8)
        self._far = bench.device.peer_memory(self._peer, nbytes)
        bench.device.copy(self._far, self._near)
        self._kernel = bench.kernel("remote.cu", "timed_signals")
        clock_hz = float(dict(bench.target.device.details).get("clock.sm_hz", _USUAL_HZ))
        self._limit = np.uint64(_PATIENCE_S * clock_hz)
        self._count = 0
        # Loads the kernel on both devices, because a kernel cannot be loaded while the other device waits.
        self._exchange(0)
        bench.device.synchronize()

    def send(self) -> None:
        """Queue one ping-pong of 1025 rounds on both devices."""
        self._exchange(_ROUNDS)

    def _exchange(self, rounds: int) -> None:
        near_side = self._side(self._near, self._far, rounds, serves=True)
        far_side = self._side(self._far, self._near, rounds, serves=False)
        self._device.together(near_side, far_side, peer=self._peer)
        self._count += rounds

    def _side(self, local: Any, remote: Any, rounds: int, *, serves: bool) -> Callable[[], None]:
        """Return the launch of one device's kernel of a ping-pong of `rounds` rounds."""
        state, ticks = local[_LINE_BYTES : _LINE_BYTES + _STATE_BYTES], local[2 * _LINE_BYTES :]
        numbers = (np.uint32(serves), np.uint32(self._count), np.uint32(rounds), self._limit)
        return lambda: self._kernel((1,), (1,), (local, remote, *numbers, ticks, state))

    def seconds(self) -> list[float]:
        """Return the seconds of each round trip of the last ping-pong but the first.

        Raises WrongAnswer if a wait was given up."""
        block = self._device.to_host(self._near)
        gave_up, cycles, nanoseconds = map(int, block[_LINE_BYTES : _LINE_BYTES + _STATE_BYTES].view(np.uint64))
        gb.expect(gave_up == 0, f"round {gave_up} timed out: no signal from the peer within {_PATIENCE_S} s")
        return _seconds_of(block[2 * _LINE_BYTES :].view(np.uint32), cycles, nanoseconds)

    def poison(self) -> None:
        """Overwrite the times. The flags are not overwritten, because they count the rounds for the check."""
        self._near[2 * _LINE_BYTES :].fill(0)

    def check(self) -> gb.Observation:
        """Raise WrongAnswer unless both flags count every round; return no observations."""
        far = self._device.xp.empty_like(self._near)
        self._device.copy(far, self._far)
        flags = [int(self._device.to_host(block)[:4].view(np.uint32)[0]) for block in (self._near, far)]
        gb.expect(flags == [self._count] * 2, f"the flags are {flags} after {self._count} rounds")
        return {}


def _seconds_of(ticks: Any, cycles: int, nanoseconds: int) -> list[float]:
    return [float(tick) for tick in ticks * (nanoseconds * _NANO / cycles)]


MESSAGES: dict[str, Callable[[gb.Bench], ControlMessage]] = {
    "load": PeerLoads,
    "copy": PeerCopies,
    "signal": PeerSignals,
}
