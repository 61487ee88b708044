"""A message over a link, raw and compressed: staged, overlapped, and its parts alone; every message is checked.

The clock runs from before the first block is taken up until the last one is where it has to be: restored, or for
what is only written, delivered. Then it stops, and the whole message is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from gpubench.api.suite import POINT, Bench, Observation, Observed, Stage, Task, Work, expect

from . import _codecs_device, _codecs_host
from ._codecs_nvcomp import uploaded
from ._corpora import source_of
from ._ends import (
    Decoder,
    Encoder,
    GpuDecoder,
    GpuEncoder,
    HostDecoder,
    HostEncoder,
    PlainDecoder,
    PlainEncoder,
    bytes_of,
)
from ._lanes import Crew, Cut, Lanes, Side, lanes_of, threads_of
from ._ways import Copy, HostLink, Loopback, Way, shore_of

Kind = Literal["write", "read", "both", "fused"]
_ENDS: Mapping[Kind, str] = {"write": "write", "read": "read", "both": "shared", "fused": "shared"}
_MEMORIES = 6  # times the message: source, target, what a comparison takes, what is stored, rooms
_RESERVE = 2**28
_SPARE_BYTES = 2**16  # of a block: codecs are not bound to give the same bytes twice


@dataclass(frozen=True, slots=True)
class Passage:
    """An encoder, a way and a decoder: what a block goes through, raw or compressed."""

    encoder: Encoder
    way: Way
    decoder: Decoder
    taken: dict[int, Any] = field(default_factory=dict)  # by lane, the block that is next to be handed over

    def take(self, lane: int, index: int) -> None:
        """The first half up to where the block is handed over."""
        self.taken[lane] = self.encoder.encode(lane, index)
        self.way.take(lane, index, self.taken[lane])

    def write(self, lane: int, index: int) -> None:
        """The rest of it."""
        self.way.deliver(lane, index, self.taken.pop(lane))

    def meet(self, lane: int, index: int) -> None:
        """The second half up to where the block has come."""
        self.way.meet(lane, index, self.decoder.room(lane, index))

    def read(self, lane: int, index: int) -> None:
        """The rest of it."""
        self.decoder.decode(lane, index, self.way.fetch(lane, index, self.decoder.room(lane, index)))

    def both(self, lane: int, index: int) -> None:
        """Both, one after the other."""
        self.encoder.begin(lane, index)
        for step in (self.take, self.write, self.meet, self.read):
            step(lane, index)

    def writing(self, lanes: Lanes) -> Side:
        """The first half as a side."""
        return Side(lanes, self.write, self.encoder.begin, self.take, threads_of(lanes, self.way.threads))

    def reading(self, lanes: Lanes, decoder_waits: bool) -> Side:
        """The second half as a side."""
        return Side(lanes, self.read, take=self.meet, threads=threads_of(lanes, self.way.threads, decoder_waits))


@dataclass(frozen=True, slots=True)
class Data:
    """What is sent: the source and the target of it on the device, how it is cut, what it is."""

    source: Any
    target: Any
    cut: Cut
    dtype: str
    words: str


def data_of(bench: Bench, corpus: str, size_bytes: int, block_bytes: int, chunk_bytes: int, source: Any = None) -> Data:
    """The corpus on the device, in memory of its own or in what is given; Skip where it does not fit."""
    found, total = source_of(bench, corpus, size_bytes)
    bench.need(_MEMORIES * total + _RESERVE)
    if bench.traits.is_gpu:
        made = uploaded(bench, found, total)
        if source is not None:
            bench.device.copy(source[:total], made)
            made = source[:total]
    else:
        made = np.empty(total, np.uint8) if source is None else source[:total]
        found.fill(made)
    target = bench.xp.empty(total, bench.xp.uint8)
    return Data(made, target, Cut(total, block_bytes, chunk_bytes), found.dtype, found.description)


class Codec:
    """A codec of the device with ends for a message: of nvCOMP's or hipCOMP's on a GPU, else of the host's."""

    def __init__(self, bench: Bench, name: str, data: Data) -> None:
        self._bench, self.name, self._data = bench, name, data
        self._device = _codecs_device.open_codec(bench, name, data.dtype) if bench.traits.is_gpu else None
        self._host = None if bench.traits.is_gpu else _codecs_host.open_codec(name)
        chosen = self._device or self._host
        assert chosen is not None
        self.words = chosen.description
        self.waits = self._device is not None and self._device.waits  # decoding waits for its stream by itself
        self.most_packed = data.cut.most_packed(chosen.max_compressed_bytes(data.cut.chunk))

    def of(self, data: Data) -> Codec:
        """The same codec for other data of the same kind."""
        return Codec(self._bench, self.name, data)

    def encoder(self, lanes: Lanes, packed: Any = ()) -> Any:
        """What compresses the source; into `packed`, an array a lane, where that is given."""
        cut, source = self._data.cut, self._data.source
        if self._device:
            return GpuEncoder(self._bench, self._device, cut, source, lanes, packed)
        assert self._host is not None
        return HostEncoder(self._host, cut, source, lanes, packed)

    def decoder(self, lanes: Lanes) -> Any:
        """What restores it into the target."""
        data = self._data
        if self._device:
            return GpuDecoder(self._bench, self._device, data.cut, data.source, data.target, lanes)
        assert self._host is not None
        return HostDecoder(self._host, data.cut, data.source, data.target, lanes)


class Crossing:
    """A message's passages over one link, with the lanes that both ends work in."""

    def __init__(self, bench: Bench, kind: Kind, data: Data, codec: Codec, flight: int) -> None:
        self._bench, self._kind, self._data, self.flight = bench, kind, data, flight
        self.crew = Crew(2, flight)
        self.outgoing, self.incoming = lanes_of(bench, flight), lanes_of(bench, flight)
        self._encoder, self._decoder = codec.encoder(self.outgoing), codec.decoder(self.incoming)
        self._decoder_waits = codec.waits
        self._stored: list[Any] = []
        self._passages: dict[str, Passage] = {}
        self.crew.run(data.cut.count, 1, Side(self.outgoing, self._store, self._encoder.begin))

    @property
    def rooms(self) -> tuple[list[int], list[int]]:
        """Bytes to hold each block as it travels: compressed, with a quarter to spare, and raw."""
        blocks = range(self._data.cut.count)
        raw = [span.stop - span.start for span in map(self._data.cut.span, blocks)]
        return [packed.size + packed.size // 4 + _SPARE_BYTES for packed in self._stored], raw

    def over(self, coded: Way, raw: Way) -> None:
        """Take these ways; what is only read is written now."""
        data = self._data
        plain = (
            PlainEncoder(data.cut, data.source),
            PlainDecoder(bytes_of(self._bench), data.cut, data.source, data.target),
        )
        self._passages = {
            "coded": Passage(self._encoder, coded, self._decoder),
            "raw": Passage(plain[0], raw, plain[1]),
        }
        for passage in self._passages.values() if self._kind == "read" else ():
            self._write(passage, self.flight)

    def _store(self, lane: int, index: int) -> None:
        self._stored.append(self._encoder.encode(lane, index).copy())

    @property
    def ratio(self) -> float:
        """Raw bytes over those that travel."""
        return self._data.cut.total / sum(int(packed.size) for packed in self._stored)

    def message(self, name: str, flight: int) -> float:
        """Seconds of a whole message."""
        passage = self._passages[name]
        if self._kind == "write":
            seconds = self._write(passage, flight)
            self._read(passage, flight)
        elif self._kind == "read":
            seconds = self._read(passage, flight)
        else:
            seconds = self._run(passage, flight, *self._both(passage))
        return seconds

    def _both(self, passage: Passage) -> tuple[Side, ...]:
        if self._kind == "fused":
            return (Side(self.outgoing, passage.both),)
        return (passage.writing(self.outgoing), passage.reading(self.incoming, self._decoder_waits))

    def _write(self, passage: Passage, flight: int) -> float:
        passage.way.begin()
        side = passage.writing(self.outgoing)
        seconds = self.crew.run(self._data.cut.count, flight, side, finish=passage.way.finish, stop=passage.way.stop)
        self._check_encoder()
        return seconds

    def _read(self, passage: Passage, flight: int) -> float:
        if self._kind == "read":
            passage.way.begin()
        side = passage.reading(self.incoming, self._decoder_waits)
        return self._checked(passage.decoder, lambda: self.crew.run(self._data.cut.count, flight, side))

    def _run(self, passage: Passage, flight: int, *sides: Side) -> float:
        passage.way.begin()
        way, count = passage.way, self._data.cut.count
        found = self._checked(
            passage.decoder, lambda: self.crew.run(count, flight, *sides, finish=way.finish, stop=way.stop)
        )
        self._check_encoder()
        return found

    def _checked(self, decoder: Decoder, run: Callable[[], float]) -> float:
        """The seconds of a run that must restore the whole message, which was spoilt before."""
        decoder.poison()
        self._bench.device.synchronize()
        seconds = run()
        decoder.check()
        return seconds

    def _check_encoder(self) -> None:
        if isinstance(self._encoder, GpuEncoder):
            self._encoder.check()

    def compress(self) -> float:
        """Seconds to compress every block, as many in flight; nothing travels."""
        side = Side(self.outgoing, self._encoder.encode, self._encoder.begin, threads=threads_of(self.outgoing, "one"))
        seconds = self.crew.run(self._data.cut.count, self.flight, side)
        self._check_encoder()
        return seconds

    def decompress(self) -> float:
        """Seconds to restore every block from where it lies ready."""

        def decode(lane: int, index: int) -> None:
            self._decoder.decode(lane, index, self._stored[index])

        side = Side(self.incoming, decode, threads=threads_of(self.incoming, "one", self._decoder_waits))
        return self._checked(self._decoder, lambda: self.crew.run(self._data.cut.count, self.flight, side))

    def close(self) -> None:
        """Let go of ways and threads."""
        self.crew.close()
        for passage in self._passages.values():
            passage.way.close()


class End(Protocol):
    """What sends a message, raw or coded, and works at either end alone; each call gives its seconds."""

    flight: int

    def message(self, name: str, flight: int) -> float:
        """A whole message, `raw` or `coded`, with so many blocks in flight."""

    def compress(self) -> float:
        """Every block compressed."""

    def decompress(self) -> float:
        """Every block restored."""


def stages_of(end: End, total: int, unpaid: str = "") -> dict[str, Stage]:
    """Overlapped, the headline, then staged, raw, and each end alone but the one that nobody pays."""
    calls: dict[str, Callable[[], float]] = {
        "overlapped": lambda: end.message("coded", end.flight),
        "staged": lambda: end.message("coded", 1),
        "raw": lambda: end.message("raw", end.flight),
        "compress": end.compress,
        "decompress": end.decompress,
    }
    return {name: stage_of(call, total) for name, call in calls.items() if name != unpaid}


def task_of(crossing: Crossing, kind: Kind, data: Data, notes: Mapping[str, str], ends: str = "") -> Task:
    """The task of a crossing."""
    unpaid = {"write": "decompress", "read": "compress"}.get(kind, "")
    return Task(
        stages_of(crossing, data.cut.total, unpaid),
        check=lambda: observed(crossing.ratio),
        close=crossing.close,
        notes={**notes, "corpus": data.words, "ends": ends or _ENDS[kind]},
    )


def stage_of(call: Callable[[], float], total: int) -> Stage:
    """A stage that times itself, in uncompressed bytes."""
    return Stage(call, Work(payload=total), "payload", clock="self", effort=POINT)


def observed(ratio: float) -> Observation:
    """The ratio of what travels, tables included: every message was checked when it was timed."""
    expect(ratio > 0, "nothing travelled")
    return {"ratio": Observed(ratio, "", "more")}


def send(bench: Bench, link: str, data: Data, codec: Codec, flight: int) -> Task:
    """A message over a link that one process has both ends of."""
    kind: Kind = {"d2h": "write", "h2d": "read", "socket": "both", "copy": "fused"}[link]  # type: ignore[assignment]
    crossing = Crossing(bench, kind, data, codec, flight)
    block = data.cut.block
    ends = ""
    if link == "copy":
        crossing.over(Copy(flight), Copy(flight))
    elif link == "socket":
        shore = shore_of(bench, crossing.outgoing, crossing.incoming, max(codec.most_packed, block))
        crossing.over(Loopback(shore, flight), Loopback(shore, flight))
        ends = "" if bench.traits.is_gpu else ends_on_host(flight)
    else:
        crossing.over(*(HostLink(bench, rooms) for rooms in crossing.rooms))
    return task_of(crossing, kind, data, {"codec": codec.words, "link": _WORDS[link]}, ends)


def ends_on_host(flight: int) -> str:
    """Whether each lane of both ends has a core of its own."""
    return "apart" if 2 * flight <= _codecs_host.cores() else "shared"


_WORDS = {
    "d2h": "page-locked host memory, written by the GPU's copy engines",
    "h2d": "page-locked host memory, read by the GPU's copy engines",
    "socket": "TCP over the loopback interface, both ends in one process",
    "copy": "one copy in host memory",
}
