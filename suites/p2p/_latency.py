"""Measure accesses to a peer's memory, one after another."""

from functools import partial

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, expect_pattern, fill_pattern
from ._peers import device_axis, device_names, peer_axis, two_devices

WORD_BYTES = 8
_LINE_BYTES = 128
_RING_BYTES = 2**23  # a ring of remote loads: larger than the first cache, smaller than the peer's last-level cache
_STEPS = 4096

topic = gb.Topic(
    views=[gb.View("matrix", "Peer memory latency", ("latency",), x="peer", y="device", by=("of",))],
)


@topic.case(devices=two_devices, when=gb.on_gpu, device=device_axis, peer=peer_axis, of=("load", "atomic", "copy"))
def latency(bench: gb.Bench, device: str, peer: str, of: str) -> gb.Task:
    """Seconds of one access of `device` to a peer's memory, one after another.

    `of` is `load` (of a random cache line), `atomic` (additions to one counter) or `copy` (of 8 bytes)."""
    del device, peer
    if of == "copy":
        return _small_copies(bench)
    return _loads(bench) if of == "load" else _atomics(bench)


class PeerWord:
    """A word of 8 bytes in the peer's memory, and the copy of this word into this device's memory."""

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        self._near = bench.xp.zeros(WORD_BYTES, bench.xp.uint8)
        self._far = bench.device.peer_memory(bench.devices[1], WORD_BYTES)
        self._sent = fill_pattern(bench, self._far, bench.seed + 1)
        self.redraw = partial(self._sent.redraw, self._far)

    def copy(self) -> None:
        """Queue one copy of the word."""
        self._bench.device.copy(self._near, self._far)

    def poison(self) -> None:
        """Overwrite the copied word."""
        self._near.fill(POISON)

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if the copied word differs from the peer's; return no observations."""
        expect_pattern(self._bench, self._near, self._sent.seed, "copied from the peer")
        return {}


class PeerRing:
    """A random single cycle over lines of the peer's memory; each walk starts where the previous one ended.

    The caller adds the loads of each walk to `walked`."""

    note = f"{_RING_BYTES >> 20} MiB of the peer's memory, in its cache"

    def __init__(self, bench: gb.Bench) -> None:
        self._bench = bench
        words_of_line = _LINE_BYTES // WORD_BYTES
        self._nodes = _RING_BYTES // _LINE_BYTES
        self._far = bench.device.peer_memory(bench.devices[1], _RING_BYTES)
        self._base = int(self._far.data.ptr)
        self._order = bench.rng.permutation(self._nodes)
        self._ring = np.zeros(self._nodes * words_of_line, np.uint64)
        self._ring[self._order * words_of_line] = self._base + np.roll(self._order, -1).astype(np.uint64) * _LINE_BYTES
        self._image = bench.xp.asarray(self._ring).view(bench.xp.uint8)
        bench.device.copy(self._far, self._image)
        self.state = bench.xp.asarray(np.array([self._base + int(self._order[0]) * _LINE_BYTES, 0, 0], np.uint64))
        self.walked = 0

    def check(self) -> gb.Observation:
        """Raise WrongAnswer unless the walk stands at the line of its order and the ring is unchanged.

        Returns no observations."""
        device = self._bench.device
        place = (int(device.to_host(self.state)[0]) - self._base) // _LINE_BYTES
        expected = int(self._order[self.walked % self._nodes])
        gb.expect(place == expected, f"after {self.walked} loads the walk is at line {place}, not {expected}")
        device.copy(self._image, self._far)  # this also keeps the peer's memory allocated while the kernel reads it
        gb.expect(bool((device.to_host(self._image).view(np.uint64) == self._ring).all()), "the ring has changed")
        return {}


def _small_copies(bench: gb.Bench) -> gb.Task:
    word = PeerWord(bench)
    stage = gb.Stage(word.copy, gb.Work(items=1, payload=WORD_BYTES), "item", effort=gb.POINT, inputs=word.redraw)
    return gb.Task.of(stage, check=word.check, poison=word.poison, notes={"devices": device_names(bench)})


def _loads(bench: gb.Bench) -> gb.Task:
    """Return the task of dependent loads round a ring in the peer's memory, in seconds per load."""
    ring = PeerRing(bench)
    kernel = bench.kernel("remote.cu", "remote_loads")

    def call() -> None:
        kernel((1,), (1,), (np.uint64(_STEPS), ring.state))
        ring.walked += _STEPS

    notes = {"devices": device_names(bench), "ring": ring.note}
    return gb.Task.of(gb.Stage(call, gb.Work(items=_STEPS), "item", effort=gb.POINT), check=ring.check, notes=notes)


def _atomics(bench: gb.Bench) -> gb.Task:
    """Return the task of dependent atomic additions to one counter in the peer's memory, in seconds per addition."""
    xp = bench.xp
    far = bench.device.peer_memory(bench.devices[1], _LINE_BYTES)
    bench.device.copy(far, xp.zeros(_LINE_BYTES, xp.uint8))
    state = xp.zeros(1, xp.uint64)
    kernel = bench.kernel("remote.cu", "remote_adds")
    added = 0

    def call() -> None:
        nonlocal added
        kernel((1,), (1,), (far, np.uint64(_STEPS), np.uint32(0), state))
        added += _STEPS

    def check() -> gb.Observation:
        """Raise WrongAnswer unless the counter has the number of additions, modulo 2^32."""
        near = xp.empty(_LINE_BYTES, xp.uint8)
        bench.device.copy(near, far)
        count = int(bench.device.to_host(near[:4].view(xp.uint32))[0])
        gb.expect(count == added % 2**32, f"the counter is {count} after {added} additions")
        return {}

    notes = {"devices": device_names(bench)}
    return gb.Task.of(gb.Stage(call, gb.Work(items=_STEPS), "item", effort=gb.POINT), check=check, notes=notes)
