"""A message over a link, raw and compressed: the two halves of its pipeline, and how it is timed.

The clock runs from before the first block is begun until the last one is where it has to be: restored, or for a message
that is only written, delivered. Then the whole message is compared, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from gpubench.api.suite import POINT, Bench, Observation, Observed, Stage, Task, Work, expect

from ._blocks import Cut
from ._codecs_host import cores
from ._coders import Decoder, Encoder, RawDecoder, RawEncoder
from ._links import HostBuffers, Link, ThroughHost
from ._message import Message, MessageCodec
from ._pipeline import InFlight, Pipeline, Schedule, Slots, StepChain, slots_of

_SPARE_BYTES = 2**16  # of a block: codecs are not bound to give the same bytes twice

Content = Literal["coded", "raw"]  # what travels
Timed = Literal["sender", "receiver", "both"]  # whose time a message takes; the other half then works before or after
_UNPAID: Mapping[Timed, str] = {"sender": "decompress", "receiver": "compress", "both": ""}
_PAYERS: Mapping[Timed, str] = {"sender": "write", "receiver": "read", "both": "shared"}


@dataclass(frozen=True, slots=True)
class Sender:
    """The sending half of a pipeline: an encoder and the link that it feeds."""

    slots: Slots
    count: int  # of blocks
    link: Link
    encoder: Encoder
    packed: dict[int, Any] = field(default_factory=dict)  # the block of each slot, encoded and not yet sent

    def chain(self) -> StepChain:
        """Return the steps that send a block."""
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
        """Return the seconds to encode every block, all slots in flight; nothing is sent."""
        chain = StepChain(self.slots, (self.encoder.queue, self.encoder.encode), "one thread")
        seconds = pipeline.run(self.count, self.slots.depth, chain)
        self.encoder.check()
        return seconds


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiving half of a pipeline: a link and the decoder that it feeds."""

    slots: Slots
    count: int  # of blocks
    link: Link
    decoder: Decoder
    message: Message
    decoding_waits: bool = False

    def chain(self) -> StepChain:
        """Return the steps that receive a block."""
        return StepChain(self.slots, (self._receive, self._decode), self._schedule(self.link.schedule))

    def _schedule(self, schedule: Schedule) -> Schedule:
        return "a thread per slot" if self.decoding_waits else schedule

    def _receive(self, block: InFlight) -> None:
        self.link.receive(block, self.decoder.room(block))

    def _decode(self, block: InFlight) -> None:
        packed = self.link.copy_in(block, self.decoder.room(block))
        self.decoder.decode(block, packed)

    def checked(self, receive: Callable[[], float]) -> float:
        """Return the seconds of `receive`, which must restore the whole message: its target is spoiled before."""
        self.decoder.reset()
        self.message.spoil()
        seconds = receive()
        self.decoder.check()
        self.message.expect_arrived()
        return seconds

    def decode_all(self, pipeline: Pipeline, blocks: Sequence[Any]) -> float:
        """Return the seconds to restore every block from where it lies ready, all slots in flight."""

        def decode(block: InFlight) -> None:
            self.decoder.decode(block, blocks[block.index])

        chain = StepChain(self.slots, (decode,), self._schedule("one thread"))
        return self.checked(lambda: pipeline.run(self.count, self.slots.depth, chain))


def packed_blocks(encoder: Encoder, slots: Slots, cut: Cut) -> list[Any]:
    """Return a copy of every block as it travels, in order."""
    blocks: list[Any] = []

    def encode(block: InFlight) -> None:
        blocks.append(encoder.encode(block).copy())

    pipeline = Pipeline(1, 1)
    pipeline.run(cut.count, 1, StepChain(slots, (encoder.queue, encode)))
    pipeline.close()
    return blocks


class Coders:
    """The coders of both halves in one process, the threads that they share, and every block as it travels."""

    def __init__(self, bench: Bench, message: Message, codec: MessageCodec, depth: int) -> None:
        self._bench, self.message, self.codec, self.depth = bench, message, codec, depth
        self.pipeline = Pipeline(2, depth)
        self.outgoing, self.incoming = slots_of(bench, depth), slots_of(bench, depth)
        self.encoder, self.decoder = codec.encoder(self.outgoing, message.source), codec.decoder(self.incoming)
        self.blocks = packed_blocks(self.encoder, self.outgoing, message.cut)

    @property
    def places(self) -> dict[Content, list[int]]:
        """Bytes that hold each block: compressed, with a quarter to spare, and raw."""
        spans = map(self.message.cut.span, range(self.message.cut.count))
        compressed = [block.size + block.size // 4 + _SPARE_BYTES for block in self.blocks]
        return {"coded": compressed, "raw": [span.stop - span.start for span in spans]}

    def over_host(self, links: Mapping[Content, Link]) -> Mapping[Content, Link]:
        """Return links of the host as the device's blocks go over them: on a GPU through page-locked buffers."""
        if not self._bench.traits.is_gpu:
            return links
        nbytes = max(self.codec.max_packed_bytes, self.message.cut.block)
        buffers = HostBuffers(self._bench, self.outgoing, self.incoming, nbytes)
        return {content: ThroughHost(link, buffers) for content, link in links.items()}


class Transfer:
    """A message over links that have both their ends in this process: one for compressed blocks, one for raw ones."""

    def __init__(self, coders: Coders, links: Mapping[Content, Link], timed: Timed) -> None:
        """Open both halves; where only reading is timed, write the message now."""
        message, cut = coders.message, coders.message.cut
        self.depth, self._coders, self._timed = coders.depth, coders, timed
        encoders = {"coded": coders.encoder, "raw": RawEncoder(cut, message.source)}
        decoders = {"coded": coders.decoder, "raw": RawDecoder(cut, message.target)}
        waits = coders.codec.decoding_waits
        self._halves = {
            content: (
                Sender(coders.outgoing, cut.count, link, encoders[content]),
                Receiver(coders.incoming, cut.count, link, decoders[content], message, waits),
            )
            for content, link in links.items()
        }
        for sender, _ in self._halves.values() if timed == "receiver" else ():
            sender.link.begin()
            self._run(sender, self.depth, sender.chain())

    def message(self, content: Content, depth: int) -> float:
        """Return the seconds of a message with `depth` blocks in flight; it is compared."""
        sender, receiver = self._halves[content]
        sender.link.begin()
        if self._timed == "both":
            chains = [sender.chain(), receiver.chain()]
            if sender.link.is_joined:
                chains = [StepChain(sender.slots, (*chains[0].steps, *chains[1].steps))]
            return receiver.checked(lambda: self._run(sender, depth, *chains))
        seconds = self._run(sender, depth, sender.chain()) if self._timed == "sender" else 0.0
        received = receiver.checked(lambda: self._coders.pipeline.run(receiver.count, depth, receiver.chain()))
        return seconds or received

    def _run(self, sender: Sender, depth: int, *chains: StepChain) -> float:
        link = sender.link
        seconds = self._coders.pipeline.run(sender.count, depth, *chains, finish=link.finish, stop=link.stop)
        sender.encoder.check()
        return seconds

    def compress(self) -> float:
        """Return the seconds to compress every block; nothing is sent."""
        return self._halves["coded"][0].encode_all(self._coders.pipeline)

    def decompress(self) -> float:
        """Return the seconds to restore every block from where it lies ready."""
        return self._halves["coded"][1].decode_all(self._coders.pipeline, self._coders.blocks)

    def task(self, notes: Mapping[str, str], payers: str = "") -> Task:
        """Return the task; the note `ends` says who pays for encoding and decoding."""
        message = self._coders.message
        told = {**notes, "corpus": message.description, "ends": payers or _PAYERS[self._timed]}
        check = partial(observed, message.cut.total, bytes_of_blocks(self._coders.blocks))
        return Task(stages_of(self, message.cut.total, self._timed), check, close=self.close, notes=told)

    def close(self) -> None:
        """Let go of the links and the threads."""
        self._coders.pipeline.close()
        for sender, _ in self._halves.values():
            sender.link.close()


class RankTransfer:
    """One rank's half of a message between two processes: rank 0 sends, rank 1 receives.

    `meet` waits for the other rank and returns when the clock starts. `share(seconds, rank)` returns
    the seconds of that rank, at both ranks.
    """

    def __init__(
        self,
        halves: Mapping[Content, Sender | Receiver],
        blocks: Sequence[Any],
        meet: Callable[[], float],
        share: Callable[[float, int], float],
    ) -> None:
        self._halves, self._blocks, self._meet, self._share = dict(halves), blocks, meet, share
        self.depth = self._halves["coded"].slots.depth
        self._pipeline = Pipeline(1, self.depth)

    def message(self, content: Content, depth: int) -> float:
        """Return rank 1's seconds of a message with `depth` blocks in flight; rank 1 compares it."""
        half = self._halves[content]
        half.link.begin()

        def run() -> float:
            start = self._meet()
            self._pipeline.run(half.count, depth, half.chain(), stop=half.link.stop)
            return time.perf_counter() - start

        if isinstance(half, Receiver):
            return self._share(half.checked(run), 1)
        seconds = self._share(run(), 1)
        half.encoder.check()
        return seconds

    def compress(self) -> float:
        """Return rank 0's seconds to compress every block."""
        half = self._halves["coded"]
        return self._share(half.encode_all(self._pipeline) if isinstance(half, Sender) else 0.0, 0)

    def decompress(self) -> float:
        """Return rank 1's seconds to restore every block from where it lies ready."""
        half = self._halves["coded"]
        seconds = half.decode_all(self._pipeline, self._blocks) if isinstance(half, Receiver) else 0.0
        return self._share(seconds, 1)

    def close(self) -> None:
        """Let go of the threads, and of the arrays that the coders hold."""
        self._pipeline.close()
        self._halves.clear()


def bytes_of_blocks(blocks: Sequence[Any]) -> int:
    """Return the bytes that travel for a message."""
    return sum(int(block.size) for block in blocks)


class TimedMessage(Protocol):
    """What sends a message and works in either half alone; each call returns its seconds."""

    depth: int

    def message(self, content: Content, depth: int) -> float:
        """Send a whole message with `depth` blocks in flight."""

    def compress(self) -> float:
        """Compress every block."""

    def decompress(self) -> float:
        """Restore every block."""


def stages_of(transfer: TimedMessage, total: int, timed: Timed = "both") -> dict[str, Stage]:
    """Return the stages: overlapped (the headline), staged, raw, and each half alone whose time a message takes."""
    calls: dict[str, Callable[[], float]] = {
        "overlapped": lambda: transfer.message("coded", transfer.depth),
        "staged": lambda: transfer.message("coded", 1),
        "raw": lambda: transfer.message("raw", transfer.depth),
        "compress": transfer.compress,
        "decompress": transfer.decompress,
    }
    return {name: stage_of(call, total) for name, call in calls.items() if name != _UNPAID[timed]}


def stage_of(call: Callable[[], float], total: int) -> Stage:
    """Return a stage that times itself, in uncompressed bytes."""
    return Stage(call, Work(payload=total), "payload", clock="self", effort=POINT)


def observed(total: int, sent_bytes: float) -> Observation:
    """Return the ratio of raw bytes to those that travel, tables included; each message was compared when timed."""
    expect(sent_bytes > 0, "no bytes were sent")
    return {"ratio": Observed(total / sent_bytes, "", "more")}


def host_payers(depth: int) -> str:
    """Return whether each slot of both halves has a core of its own: `apart`, or else `shared`."""
    return "apart" if 2 * depth <= cores() else "shared"
