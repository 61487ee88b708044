"""Define messages, and the codecs that compress them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from . import _codecs_device, _codecs_host
from ._blocks import Cut
from ._codecs_bytes import DeviceBytes, HostBytes, bytes_of
from ._codecs_nvcomp import uploaded
from ._coders import BlockDecoder, BlockEncoder, HostDecoder, HostEncoder
from ._coders_gpu import GpuDecoder, GpuEncoder
from ._corpora import source_of
from ._pipeline import Slots

_CHUNK_BYTES = 2**16
_MEMORIES = 6  # memory as a multiple of the message: source, target, comparison, stored blocks, buffers
_RESERVE_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Message:
    """A message: uint8 arrays on the device for its source and its target, and its division into blocks.

    `bytes` overwrites and compares arrays of the device."""

    source: Any
    target: Any
    cut: Cut
    bytes: HostBytes | DeviceBytes
    dtype: str = "uint8"
    description: str = ""

    def poison(self) -> None:
        """Overwrite every byte of the target with its wrong value, and wait until that is done."""
        self.bytes.invert(self.source, self.target)
        self.bytes.wait()

    def expect_arrived(self) -> None:
        """Raise WrongAnswer unless the target equals the source, bit for bit."""
        self.bytes.expect_same(self.target, self.source)


def message_of(
    bench: gb.Bench, corpus: str, size_bytes: int, block_bytes: int, chunk_bytes: int = _CHUNK_BYTES
) -> Message:
    """Return a message of `size_bytes` of a corpus, in memory of the bench's device.

    It is cut into blocks of `block_bytes` and chunks of `chunk_bytes`. A user's shorter file has fewer bytes."""
    corpus_source, total = source_of(bench, corpus, size_bytes)
    bench.need(_MEMORIES * total + _RESERVE_BYTES)
    if bench.traits.is_gpu:
        source = uploaded(bench, corpus_source, total)
    else:
        source = np.empty(total, np.uint8)
        corpus_source.fill(source)
    target = bench.xp.empty(total, bench.xp.uint8)
    cut = Cut(total, block_bytes, chunk_bytes)
    return Message(source, target, cut, bytes_of(bench), corpus_source.dtype, corpus_source.description)


@dataclass(frozen=True, slots=True)
class MessageCodec:
    """A codec of the device for one message.

    `decoding_waits` says that decoding a block waits for the slot's stream."""

    name: str
    description: str
    decoding_waits: bool
    max_packed_bytes: int
    encoder: Callable[..., BlockEncoder]
    decoder: Callable[[Slots], BlockDecoder]


def codec_of(bench: gb.Bench, name: str, message: Message) -> MessageCodec:
    """Return the codec `name` for a message: a codec of nvCOMP or hipCOMP on a GPU, else one of the host.

    Raises Skip if it is unavailable."""
    cut = message.cut
    if bench.traits.is_gpu:
        device = _codecs_device.open_codec(bench, name, message.dtype)
        return MessageCodec(
            name,
            device.description,
            device.waits,
            cut.max_packed_bytes(device.max_compressed_bytes(cut.chunk)),
            partial(GpuEncoder, bench, device, cut),
            lambda slots: GpuDecoder(bench, device, cut, slots, message.target),
        )
    host = _codecs_host.open_codec(name)
    return MessageCodec(
        name,
        host.description,
        False,
        cut.max_packed_bytes(host.max_compressed_bytes(cut.chunk)),
        lambda slots, source, rooms=(): HostEncoder(host, cut, slots.depth, source, rooms),
        lambda slots: HostDecoder(host, cut, slots.depth, message.target),
    )
