"""Measure between nodes: collectives of all ranks, and messages between two ranks, by TCP on the host and NCCL on GPUs.

There are such cases only where several machines measure together: `gpubench fleet pairs` starts them."""

import contextlib
import hmac
import itertools
import math
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from .._between import Params, fitting, ranks_of
from ._nccl import NcclRank
from ._operations import COLLECTIVES, MESSAGE, WORD_BYTES, Collective

_TOKEN_BYTES = 32
# limit without any progress; it is below the ten seconds after which the runner reports a rank that hangs
_PATIENCE_S = 8.0
_STRANGER_S = 1.0  # limit for an unknown connection to show the token
_CONNECTING_S = 20.0
# up to this size a message fits the buffers of both sockets, so that sending it needs no thread
_TOGETHER_BYTES = 2**16
_MOST_DRAWN = 22  # words drawn for all ranks together, as a power of two
_LEAST_BLOCK, _MOST_BLOCK = 8, 16  # words of a block, as powers of two
_EXACT_BITS = 24  # significand bits of a float32


class Ring:
    """The connections of a rank with the next and the previous rank; every rank must create it.

    `seconds` is the time to make the connections. Raises PeerDied if a rank does not connect."""

    def __init__(self, bench: gb.Bench) -> None:
        self._world = bench.world
        self._next, self._before = (bench.rank + 1) % bench.world, (bench.rank - 1) % bench.world
        start = time.perf_counter()
        with socket.create_server((bench.node_host, 0), family=_family(bench.node_host)) as listener:
            token = secrets.token_bytes(_TOKEN_BYTES)
            offers = bench.exchange((*listener.getsockname()[:2], token))
            host, port, peer_token = offers[self._next]
            try:
                self.onward = socket.create_connection((host, port), _PATIENCE_S)
                self.onward.sendall(peer_token)
                self.back = _accept(listener, token)
            except OSError as error:
                raise gb.PeerDied(self._next) from error
        for connection in (self.onward, self.back):
            connection.settimeout(_PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = ThreadPoolExecutor(1)
        self.seconds = time.perf_counter() - start

    def send(self, content: memoryview) -> None:
        """Send `content` to the next rank; raises PeerDied if there is no progress within 8 s."""
        with self._raise_if_dead(self._next):
            self.onward.sendall(content)

    def receive(self, into: memoryview) -> None:
        """Fill `into` with bytes from the previous rank; raises PeerDied if there is no progress within 8 s."""
        with self._raise_if_dead(self._before):
            _receive_all(self.back, into)

    def turn(self, content: memoryview, into: memoryview) -> None:
        """Send `content` to the next rank while `into` is filled by the previous one; every rank must call it.

        Raises PeerDied if there is no progress within 8 s."""
        if len(content) <= _TOGETHER_BYTES:
            self.send(content)
            self.receive(into)
            return
        sending = self._sender.submit(self.send, content)
        self.receive(into)
        sending.result()

    def answer(self, content: memoryview) -> None:
        """Send `content` back to the previous rank; raises PeerDied if there is no progress within 8 s."""
        with self._raise_if_dead(self._before):
            self.back.sendall(content)

    def await_answer(self, into: memoryview) -> None:
        """Fill `into` with bytes that the next rank sends back; raises PeerDied if there is no progress within 8 s."""
        with self._raise_if_dead(self._next):
            _receive_all(self.onward, into)

    def meet(self) -> None:
        """Wait until every rank has called this, by bytes that pass round the ring; raises PeerDied."""
        byte, into = memoryview(b"x"), memoryview(bytearray(1))
        for _ in range(self._world - 1):
            self.turn(byte, into)

    def close(self) -> None:
        """Close the connections."""
        self.onward.close()
        self.back.close()
        self._sender.shutdown()

    @contextlib.contextmanager
    def _raise_if_dead(self, rank: int) -> Iterator[None]:
        """Turn an OSError inside of the `with` block into PeerDied of the rank `rank`."""
        try:
            yield
        except OSError as error:
            raise gb.PeerDied(rank) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _accept(listener: socket.socket, token: bytes) -> socket.socket:
    """Return the first connection to `listener` that sends the token; other connections are closed."""
    deadline = time.monotonic() + _CONNECTING_S
    while (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(left_s)
        connection, _ = listener.accept()
        connection.settimeout(_STRANGER_S)
        received = memoryview(bytearray(_TOKEN_BYTES))
        with contextlib.suppress(OSError):
            _receive_all(connection, received)
            if hmac.compare_digest(received, token):
                return connection
        connection.close()
    raise TimeoutError("no rank connected")


def _receive_all(connection: socket.socket, into: memoryview) -> None:
    """Receive bytes until `into` is full; raises ConnectionResetError if the peer closes the connection before."""
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionResetError("the other rank closed the connection")
        into = into[count:]


class SummableWords:
    """The words that ranks send: whole numbers in float32 whose sum over all `world` ranks is exact.

    The sum over ranks is known without going through the words rank by rank."""

    def __init__(self, seed: int, world: int) -> None:
        doublings = math.ceil(math.log2(world))
        bits = _EXACT_BITS - 1 - doublings  # half of the range is for the block, half for the number of the repetition
        self._modulus: int = 2 ** max(bits, 1)
        self._block: int = 2 ** max(_LEAST_BLOCK, min(_MOST_BLOCK, _MOST_DRAWN - doublings))
        drawn = (np.random.default_rng([seed, rank]).integers(self._modulus, size=self._block) for rank in range(world))
        self._blocks = np.array(list(drawn), np.float32)

    def write(self, into: npt.NDArray[np.float32], rank: int) -> None:
        """Fill `into` with the words of the rank `rank`, from its first word on."""
        for first in range(0, into.size, self._block):
            part = into[first : first + self._block]
            np.add(self._blocks[rank, : part.size], self._number(first), out=part)

    def mistakes(self, received: npt.NDArray[np.float32], first: int, low: int, high: int) -> int:
        """Return how many words of `received` differ from the sum of the sent words of the ranks low, …, high − 1.

        `first` is the index of the first received word in the array that was sent: the start of a block."""
        total, wrong = self._blocks[low:high].sum(axis=0), 0
        for offset in range(0, received.size, self._block):
            part = received[offset : offset + self._block]
            expected = total[: part.size] + np.float32((high - low) * self._number(first + offset))
            wrong += int(np.count_nonzero(part != expected))
        return wrong

    def _number(self, first: int) -> int:
        return int(first // self._block % self._modulus)


class TcpRank:
    """One rank of the collective `operation` of `size_bytes` over TCP: its arrays, connections, call and check.

    `operation` is `send_recv`, `all_reduce` or `message`."""

    notes: ClassVar[dict[str, str]] = {
        "algorithm": "ring of TCP connections, TCP_NODELAY; all-reduce by reduce-scatter and all-gather"
    }

    def __init__(self, bench: gb.Bench, operation: Collective, size_bytes: int) -> None:
        bench.need(4 * size_bytes)
        self._operation, self._world, self._rank = operation, bench.world, bench.rank
        elements = size_bytes // WORD_BYTES
        self._seed = int(bench.rng.integers(2**62))
        self._sent = np.empty(elements, np.float32)
        self.redraw()
        self.received = np.empty(elements, np.float32)
        bounds = [elements * part // bench.world for part in range(bench.world + 1)]
        self._parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self._arriving = np.empty(-(-elements // bench.world), np.float32)
        self._ring = Ring(bench)
        calls = {"send_recv": self._send_recv, "all_reduce": self._all_reduce, "message": self._message}
        self.call, self.meet, self.close = calls[operation.name], self._ring.meet, self._ring.close
        start = time.perf_counter()
        self.call()
        self.setup_s = self._ring.seconds + time.perf_counter() - start

    def redraw(self) -> None:
        """Put the words of the other seed of two in place."""
        self._seed ^= 1
        self._summable = SummableWords(self._seed, self._world)
        self._summable.write(self._sent, self._rank)

    def _send_recv(self) -> None:
        self._ring.turn(_raw(self._sent), _raw(self.received))

    def _message(self) -> None:
        """Rank 0: send the array to rank 1 and wait until it is back. Rank 1: receive the array and send it back."""
        if self._rank == 0:
            self._ring.send(_raw(self._sent))
            self._ring.await_answer(_raw(self.received))
        else:
            self._ring.receive(_raw(self.received))
            self._ring.answer(_raw(self.received))

    def _all_reduce(self) -> None:
        """Add up one part of the array at each step round the ring, then pass the sums on; every rank must call it."""
        world, rank, received = self._world, self._rank, self.received
        np.copyto(received, self._sent)
        for step in range(world - 1):
            sent_part, received_part = (self._parts[(rank - step - back) % world] for back in (0, 1))
            arriving = self._arriving[: received_part.stop - received_part.start]
            self._ring.turn(_raw(received[sent_part]), _raw(arriving))
            received[received_part] += arriving
        for step in range(world - 1):
            sent_part, received_part = (self._parts[(rank + 1 - step - back) % world] for back in (0, 1))
            self._ring.turn(_raw(received[sent_part]), _raw(received[received_part]))

    def check(self) -> None:
        """Raise WrongAnswer if a received word differs from the sum of the words that the ranks sent."""
        for segment in self._operation.segments(self.received.size, self._world, self._rank):
            part = self.received[segment.offset : segment.offset + segment.count]
            wrong = self._summable.mistakes(part, segment.first, segment.low, segment.high)
            gb.expect(wrong == 0, f"{wrong} of {segment.count} received words are wrong on rank {self._rank}")


def _raw(array: npt.NDArray[np.float32]) -> memoryview:
    return array.view(np.uint8).data


_TCP, _NCCL, _RCCL = "tcp", "nccl", "rccl"
_SMALLEST, _LARGEST, _HOST_LARGEST = 3, 30, 28  # message sizes as powers of two
_QUICK = (2**_SMALLEST, 2**20, 2**28)
# round trips per sample on a GPU, for messages of up to this size: an event resolves 0.5 µs
_BATCH, _BATCH_BYTES = 20, 2**16

topic = gb.Topic(
    views=[
        gb.View(
            "curve",
            "Collective bus bandwidth between nodes",
            ("across",),
            "size_bytes",
            by=("by", "of", "operation"),
            series="hot",
            log_x=True,
        ),
        gb.View("transfer", "Message time between two nodes by size", ("message",), "size_bytes", by=("by",)),
    ],
)


def _is_spread(target: gb.Target) -> bool:
    return target.nodes > 1


def _is_pair(target: gb.Target) -> bool:
    return target.nodes == 2


def _nodes(target: gb.Target) -> tuple[int, ...]:
    return (target.nodes,)


def _spread(params: Params) -> int:
    return int(params["nodes"])


def _ranks_per_node(params: Params) -> int:
    return 1 if params["by"] == _TCP else ranks_of(params) // _spread(params)


def _transports(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_TCP,)
    return (_RCCL if target.device.id.startswith("rocm") else _NCCL,)


def _rank_counts(target: gb.Target) -> Any:
    """Return the axis of numbers of ranks: one rank per node."""
    per_node = (1,) if target.is_host else tuple(dict.fromkeys((1, 1 + len(target.device.peers))))
    counts = tuple(target.nodes * count for count in per_node)
    return gb.points(counts, smoke=counts[:1])


def _sizes(target: gb.Target) -> Any:
    full = gb.powers_of_two(_SMALLEST, _HOST_LARGEST if target.is_host else _LARGEST)
    return gb.points(fitting(target, _QUICK), smoke=(2**20,), full=fitting(target, full))


def _message_sizes(target: gb.Target) -> Any:
    quick = (*gb.powers_of_two(_SMALLEST, 27, 4), 2**_LARGEST)
    return gb.points(
        fitting(target, quick), smoke=(2**20,), full=fitting(target, gb.powers_of_two(_SMALLEST, _LARGEST))
    )


def _rank(bench: gb.Bench, by: str, operation: Collective, size_bytes: int) -> TcpRank | NcclRank:
    return (TcpRank if by == _TCP else NcclRank)(bench, operation, size_bytes)


@topic.case(
    ranks=ranks_of,
    devices=_ranks_per_node,
    spread=_spread,
    when=_is_spread,
    by=_transports,
    nodes=_nodes,
    of=_rank_counts,
    operation=("send_recv", "all_reduce"),
    size_bytes=_sizes,
)
def across(bench: gb.Bench, by: str, nodes: int, of: int, operation: str, size_bytes: int) -> gb.Task:
    """Bus bandwidth of a collective of arrays of `size_bytes` over `of` ranks on several nodes.

    `operation` is `send_recv`, in which all ranks send their array to the next rank, or `all_reduce`, in which they add
    up all arrays. `by` is the library, or plain TCP. The series `algbw` is the size of the array over the time."""
    collective = COLLECTIVES[operation]
    rank = _rank(bench, by, collective, size_bytes)

    def check() -> gb.Observation:
        rank.check()
        return {} if rank.setup_s is None else {"setup": gb.Observed(rank.setup_s, "s")}

    work = gb.Work(payload=round(size_bytes * collective.factor(of)), items=1)
    also = {"algbw": gb.Work(payload=size_bytes, items=1)}
    rest: dict[str, Any] = {"effort": gb.POINT, "outputs": (rank.received,), "inputs": rank.redraw}
    stage = gb.Stage(rank.call, work, "payload", lead=rank.meet, also=also, **rest)
    notes = {"nodes": str(nodes), "counts": collective.counts, **rank.notes}
    return gb.Task.of(stage, check=check, close=rank.close, notes=notes)


@topic.case(
    ranks=_spread,
    devices=lambda _: 1,
    spread=_spread,
    when=_is_pair,
    by=_transports,
    nodes=_nodes,
    size_bytes=_message_sizes,
)
def message(bench: gb.Bench, by: str, nodes: int, size_bytes: int) -> gb.Task:
    """Bandwidth of a message of `size_bytes` to a rank of another node, timed as half of a round trip: payload.

    `by` is the library, or plain TCP."""
    rank = _rank(bench, by, MESSAGE, size_bytes)
    calls = _BATCH if bench.traits.is_gpu and size_bytes <= _BATCH_BYTES else 1

    def seconds() -> float:
        """Time one batch of round trips, and return half of the seconds per round trip that rank 0 measured.

        Only rank 0 sees the whole round trip; both ranks must call this."""
        (trips,) = bench.device.time(rank.call, calls, "hot", gated=False).device
        first: float = bench.exchange(trips / 2)[0]
        return first

    work = gb.Work(payload=size_bytes, items=1)
    rest: dict[str, Any] = {"effort": gb.POINT, "outputs": (rank.received,), "inputs": rank.redraw}
    stage = gb.Stage(seconds, work, "payload", clock="self", lead=rank.meet, **rest)
    notes = {"nodes": str(nodes), "counts": MESSAGE.counts, **rank.notes}
    return gb.Task.of(stage, check=rank.check, close=rank.close, notes=notes)
