"""Time a message over a link, raw and compressed, and the two halves of its pipeline.

The clock runs from before the first block is begun until the last one is restored or, for a message that is only
written, delivered. Then the whole message is compared, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from gpubench.api import suite as gb

from ._blocks import Cut
from ._codecs_host import cores
from ._coders import BlockDecoder, BlockEncoder, RawDecoder, RawEncoder
from ._links import HostBuffers, Link, ThroughHost
from ._message import Message, MessageCodec
from ._pipeline import InFlight, Pipeline, Schedule, Slots, StepChain, slots_of

_SPARE_BYTES = 2**16  # reserve per block, because codecs need not produce the same number of bytes twice

Content = Literal["coded", "raw"]  # compressed or uncompressed blocks
# the halves that the timed section contains; another half works before or after it
Timed = Literal["sender", "receiver", "both"]
_UNPAID: Mapping[Timed, str] = {"sender": "decompress", "receiver": "compress", "both": ""}
_PAYERS: Mapping[Timed, str] = {"sender": "write", "receiver": "read", "both": "shared"}


@dataclass(frozen=True, slots=True)
class Sender:
    """The sending half of a pipeline: an encoder and the link to which it gives packed blocks."""

    slots: Slots
    count: int  # number of blocks
    link: Link
    encoder: BlockEncoder
    packed: dict[int, Any] = field(default_factory=dict)  # by slot, the block that is encoded and not yet sent

    def chain(self) -> StepChain:
        """Return the chain of steps that send a block: queue, encode, send."""
        return StepChain(self.slots, (self._queue, self._encode, self._send), self.link.schedule)

    def _queue(self, block: InFlight) -> None:
        self.link.reserve(block)
        self.encoder.queue(block)

    def _encode(self, block: InFlight) -> None:
        self.packed[block.slot] = self.encoder.encode(block)
        self.link.copy_out(block, self.packed[block.slot])

    def _send(self, block: InFlight) -> None:
        self.link.send(block, self.packed.pop(block.slot))

    def encode_all(self, pipeline: Pipeline) -> float:
        """Encode every block, with all slots in flight, and return the seconds; nothing is sent.

        Raises WrongAnswer if a block could not be encoded."""
        chain = StepChain(self.slots, (self.encoder.queue, self.encoder.encode), "one thread")
        seconds = pipeline.run(self.count, self.slots.depth, chain)
        self.encoder.check()
        return seconds


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiving half of a pipeline: a link and the decoder that it gives packed blocks to.

    `decoding_waits` says that decoding a block waits for the slot's stream: then each slot has a thread."""

    slots: Slots
    count: int  # number of blocks
    link: Link
    decoder: BlockDecoder
    message: Message
    decoding_waits: bool = False

    def chain(self) -> StepChain:
        """Return the chain of steps that receive a block: receive, decode."""
        return StepChain(self.slots, (self._receive, self._decode), self._schedule(self.link.schedule))

    def _schedule(self, schedule: Schedule) -> Schedule:
        return "a thread per slot" if self.decoding_waits else schedule

    def _receive(self, block: InFlight) -> None:
        self.link.receive(block, self.decoder.room(block))

    def _decode(self, block: InFlight) -> None:
        packed = self.link.copy_in(block, self.decoder.room(block))
        self.decoder.decode(block, packed)

    def time_checked(self, receive: Callable[[], float]) -> float:
        """Overwrite the target, call `receive`, compare the whole message, and return the result of `receive`.

        `receive` restores the message and returns the seconds that it took."""
        self.decoder.reset()
        self.message.poison()
        seconds = receive()
        self.decoder.check()
        self.message.expect_arrived()
        return seconds

    def decode_all(self, pipeline: Pipeline, blocks: Sequence[Any]) -> float:
        """Restore every block, with all slots in flight, compare the whole message, and return the seconds.

        `blocks` holds the packed blocks of the message, in order, on the device."""

        def decode(block: InFlight) -> None:
            self.decoder.decode(block, blocks[block.index])

        chain = StepChain(self.slots, (decode,), self._schedule("one thread"))
        return self.time_checked(lambda: pipeline.run(self.count, self.slots.depth, chain))


def packed_blocks(encoder: BlockEncoder, slots: Slots, cut: Cut) -> list[Any]:
    """Encode every block of a message, one at a time, and return a copy of each packed block: uint8, on the device.

    The copies are in the order of the blocks."""
    blocks: list[Any] = []

    def encode(block: InFlight) -> None:
        blocks.append(encoder.encode(block).copy())

    pipeline = Pipeline(1, 1)
    pipeline.run(cut.count, 1, StepChain(slots, (encoder.queue, encode)))
    pipeline.close()
    return blocks


class Halves(NamedTuple):
    """The halves of one pipeline; a half is None if another process has it."""

    sender: Sender | None
    receiver: Receiver | None


class Coders:
    """The encoder and the decoder of a message in one process, and a copy of every packed block (`blocks`)."""

    def __init__(self, bench: gb.Bench, message: Message, codec: MessageCodec, depth: int) -> None:
        """Make the encoder and the decoder on the bench's device, and encode the message once."""
        self._bench, self.message, self.codec, self.depth = bench, message, codec, depth
        self.outgoing, self.incoming = slots_of(bench, depth), slots_of(bench, depth)
        self.encoder, self.decoder = codec.encoder(self.outgoing, message.source), codec.decoder(self.incoming)
        self.blocks = packed_blocks(self.encoder, self.outgoing, message.cut)

    @property
    def places(self) -> dict[Content, list[int]]:
        """The bytes of memory that hold each block, in order: compressed, with a quarter to spare, and raw."""
        spans = map(self.message.cut.span, range(self.message.cut.count))
        compressed = [block.size + block.size // 4 + _SPARE_BYTES for block in self.blocks]
        return {"coded": compressed, "raw": [span.stop - span.start for span in spans]}

    def over_host(self, links: Mapping[Content, Link]) -> Mapping[Content, Link]:
        """Return links of the host for the device's blocks; on a GPU these pass through page-locked buffers."""
        if not self._bench.traits.is_gpu:
            return links
        nbytes = max(self.codec.max_packed_bytes, self.message.cut.block)
        buffers = HostBuffers(self._bench, self.outgoing, self.incoming, nbytes)
        return {content: ThroughHost(link, buffers) for content, link in links.items()}

    def over(self, links: Mapping[Content, Link], timed: Timed = "both") -> Transfer:
        """Return the transfer of the message over `links`, one link for compressed and one for raw blocks.

        Both ends of a link are in this process. `timed` says which halves the time of a message includes."""
        message, cut, waits = self.message, self.message.cut, self.codec.decoding_waits
        encoders = {"coded": self.encoder, "raw": RawEncoder(cut, message.source)}
        decoders = {"coded": self.decoder, "raw": RawDecoder(cut, message.target)}
        halves = {
            content: Halves(
                Sender(self.outgoing, cut.count, link, encoders[content]),
                Receiver(self.incoming, cut.count, link, decoders[content], message, waits),
            )
            for content, link in links.items()
        }
        return Transfer(halves, self.depth, self.blocks, timed)


class Transfer:
    """A message over a link, raw and compressed, or this process's half of it.

    `depth` is the most blocks in flight, and `timed` says which halves the time of a message includes."""

    def __init__(
        self,
        halves: Mapping[Content, Halves],
        depth: int,
        blocks: Sequence[Any],
        timed: Timed = "both",
        meet: Callable[[], float] = time.perf_counter,
        share: Callable[[float, int], float] = lambda seconds, _: seconds,
    ) -> None:
        """Start the threads; if only receiving is timed, send the message now."""
        self._halves, self.depth, self._blocks, self.timed = dict(halves), depth, blocks, timed
        self._meet, self._share = meet, share
        self._pipeline = Pipeline(2, depth)
        for sender, _ in self._halves.values() if timed == "receiver" else ():
            if sender:
                sender.link.begin()
                self._run(depth, sender)

    def message(self, content: Content, depth: int) -> float:
        """Send a message with `depth` blocks in flight, and return the seconds of the halves that are timed.

        `content` is `coded` for compressed blocks, or `raw`. Every rank must call it."""
        sender, receiver = self._halves[content]
        halves = [half for half in (sender, receiver) if half]
        halves[0].link.begin()
        if sender and receiver and self.timed != "both":
            sent = self._run(depth, sender) if self.timed == "sender" else 0.0
            received = receiver.time_checked(partial(self._run, depth, receiver))
            seconds = sent if self.timed == "sender" else received
        else:
            run = partial(self._run, depth, *halves)
            seconds = self._share(receiver.time_checked(run) if receiver else run(), 1)
        if sender:
            sender.encoder.check()
        return seconds

    def _run(self, depth: int, *halves: Sender | Receiver) -> float:
        """Run `halves`, one or both halves of a pipeline, at the same time."""
        link, chains = halves[0].link, [half.chain() for half in halves]
        if link.is_joined:
            chains = [StepChain(halves[0].slots, tuple(step for chain in chains for step in chain.steps))]
        start = self._meet()
        self._pipeline.run(halves[0].count, depth, *chains, finish=link.finish, stop=link.stop)
        return time.perf_counter() - start

    def compress(self) -> float:
        """Compress every block without sending it, and return the sender's seconds; every rank must call it."""
        sender, _ = self._halves["coded"]
        return self._share(sender.encode_all(self._pipeline) if sender else 0.0, 0)

    def decompress(self) -> float:
        """Restore every block, all of which lie ready, and return the receiver's seconds; every rank must call it."""
        _, receiver = self._halves["coded"]
        return self._share(receiver.decode_all(self._pipeline, self._blocks) if receiver else 0.0, 1)

    def close(self) -> None:
        """End the threads, close the links, and drop the arrays of the coders."""
        self._pipeline.close()
        for sender, receiver in self._halves.values():
            if half := sender or receiver:
                half.link.close()
        self._halves.clear()


def bytes_of_blocks(blocks: Sequence[Any]) -> int:
    """Return the number of bytes of all packed blocks together, which travel for a message."""
    return sum(int(block.size) for block in blocks)


class TimedMessage(Protocol):
    """An object that sends a message, and can run either half alone; each call returns its seconds."""

    depth: int

    def message(self, content: Content, depth: int) -> float:
        """Send a whole message with `depth` blocks in flight."""

    def compress(self) -> float:
        """Compress every block."""

    def decompress(self) -> float:
        """Restore every block."""


def stages_of(transfer: TimedMessage, total: int, timed: Timed = "both") -> dict[str, gb.Stage]:
    """Return the stages of a message of `total` bytes: overlapped (the headline), staged, raw, and each half alone.

    The half that is not in `timed` has no stage: `compress` for the sender, `decompress` for the receiver."""
    calls: dict[str, Callable[[], float]] = {
        "overlapped": lambda: transfer.message("coded", transfer.depth),
        "staged": lambda: transfer.message("coded", 1),
        "raw": lambda: transfer.message("raw", transfer.depth),
        "compress": transfer.compress,
        "decompress": transfer.decompress,
    }
    unpaid = _UNPAID[timed]
    return {name: stage_of(call, total, name != "compress") for name, call in calls.items() if name != unpaid}


def stage_of(call: Callable[[], float], total: int, checked: bool = True) -> gb.Stage:
    """Return a stage whose `call` times itself and returns seconds.

    Its rate is in uncompressed bytes, `total` per call. `checked` says that each call compares its output."""
    return gb.Stage(call, gb.Work(payload=total), "payload", clock="self", effort=gb.POINT, checked=checked)


def task_of(coders: Coders, transfer: Transfer, link: str, payers: str = "") -> gb.Task:
    """Return the task of a message within this process; `link` is the description of the link for the notes.

    `payers` is the note `ends`, which says which sides are charged for encoding and decoding; if empty, it follows
    from the halves that are timed."""
    message, codec = coders.message, coders.codec.description
    notes = {"codec": codec, "link": link, "corpus": message.description, "ends": payers or _PAYERS[transfer.timed]}
    stages = stages_of(transfer, message.cut.total, transfer.timed)
    check = partial(observed, message.cut.total, bytes_of_blocks(coders.blocks))
    return gb.Task(stages, check, close=transfer.close, notes=notes)


def observed(total: int, sent_bytes: float) -> gb.Observation:
    """Return the observation `ratio`: `total` uncompressed bytes over `sent_bytes`, which include the tables of blocks.

    Raises WrongAnswer if no bytes were sent."""
    gb.expect(sent_bytes > 0, "no bytes were sent")
    return {"ratio": gb.Observed(total / sent_bytes, "", "more")}


def host_payers(depth: int) -> str:
    """Return `apart` if each slot of both halves has a core for itself, else `shared`."""
    return "apart" if 2 * depth <= cores() else "shared"
