"""Copy through the host: one rank copies into page-locked memory that both share, the other rank copies out of it.

Chunks overlap: while rank 1 copies one chunk out, rank 0 copies the next one in. Flags in host memory say how far
each rank is."""

import time

from gpubench.api import suite as gb

from .. import _between
from .._copies import ARRAYS
from .._link import ONE_WAY, STAGED, WRITES, link

_SLOTS = 4  # chunks in flight
_LARGEST_CHUNK = 2**24  # takes 0.3 ms on PCIe 5.0, so that the cost of a flag is small beside it
_CHUNKS = 8  # the least number of chunks, if the message is large enough to be divided
_SMALLEST_CHUNK = 2**18
_PATIENCE_S = 5.0
_ASKED, _READY, _TAKEN = "asked", "ready", "taken"

topic = gb.Topic()


@topic.case(ranks=2, devices=_between.devices_of, when=gb.on_gpu, path=_between.paths, size_bytes=_between.sizes)
def staged(bench: gb.Bench, path: str, size_bytes: int) -> gb.Task:
    """Bandwidth of copies through page-locked host memory that both processes share, from request to last byte.

    The rate counts each byte once (payload). `path` is `same` if both processes use one GPU, or `peer` for two."""
    _between.need_shared_gpu(bench)
    bench.need(ARRAYS * size_bytes)
    copies = ChunkCopies(bench, size_bytes)
    tags = {**_between.notes(bench, path), "chunk": f"{copies.chunk} B, {_SLOTS} slots"}
    tags |= link(ONE_WAY, STAGED, WRITES, protocol="one host flag per chunk") if path == "peer" else {}
    return gb.Task.of(
        gb.Stage(
            copies.call,
            gb.Work(payload=size_bytes),
            "payload",
            clock="self",
            effort=gb.POINT,
            outputs=() if bench.rank == 0 else (copies.message,),
            inputs=copies.redraw,
        ),
        check=copies.check,
        close=copies.board.close,
        notes=tags,
        labels=_between.labels(bench, path),
    )


def chunk_of(size_bytes: int) -> int:
    """Return the bytes of a chunk: an eighth of a message of `size_bytes`, at least 256 KiB and at most 16 MiB.

    A message below 256 KiB is one chunk."""
    return min(size_bytes, _LARGEST_CHUNK, max(_SMALLEST_CHUNK, size_bytes // _CHUNKS))


class ChunkCopies:
    """One rank's copies: rank 0 copies each chunk into the next free slot, rank 1 copies the chunk out of the slot.

    The slots, for `chunk` bytes each, lie on `board`. Rank 1 requests each message, of `size_bytes`."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        self._bench = bench
        self._sends = bench.rank == 0
        self.chunk = chunk_of(size_bytes)
        self.board = bench.board(_ASKED, _READY, _TAKEN, room_bytes=_SLOTS * self.chunk, limit_s=_PATIENCE_S)
        self.board.register()
        self._size_bytes = size_bytes
        self._calls = 0
        self._copied = 0  # number of chunks over all calls
        self.message = bench.xp.empty(size_bytes, bench.xp.uint8)
        self._sent = bench.words(size_bytes // 8, bench.seed)
        if self._sends:
            self._sent.fill(self.message)

    def redraw(self) -> None:
        """Send or expect other words; a second call returns to the first ones."""
        self._sent.redraw(*([self.message] if self._sends else []))

    def call(self) -> float:
        """Copy one message and return the seconds from its request to this rank's last chunk; both ranks must call it.

        Raises StalledError if the other rank makes no progress for 5 s."""
        board, chunk, device = self.board, self.chunk, self._bench.device
        other = (1 - self._bench.rank,)
        awaited, done, slots_ahead = (_TAKEN, _READY, _SLOTS) if self._sends else (_READY, _TAKEN, 0)
        self._calls += 1
        if self._sends:
            board.wait_for(_ASKED, self._calls, other)
        start = time.perf_counter()
        if not self._sends:
            board.post(_ASKED, self._calls)
        for place in range(0, self._size_bytes, chunk):
            piece = self.message[place : place + chunk]
            board.wait_for(awaited, self._copied + 1 - slots_ahead, other)
            first = self._copied % _SLOTS * chunk
            slot = board.room[first : first + piece.size]
            device.copy(*((slot, piece) if self._sends else (piece, slot)))
            device.synchronize()
            self._copied += 1
            board.post(done, self._copied)
        return time.perf_counter() - start

    def check(self) -> None:
        """Raise WrongAnswer if a byte that this rank received is not the sender's; rank 0 receives none."""
        if not self._sends:
            _between.expect_pattern(self._bench, self.message, self._sent.seed, "copied through the host")
