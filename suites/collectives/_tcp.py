"""Send messages and run collectives between ranks of different nodes over plain TCP connections, in a ring.

Every rank connects to the next one, at the address that this rank offered and with the token that it drew: a
stranger who connects is dropped."""

import contextlib
import hmac
import itertools
import math
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gpubench.api import suite as gb

from ._operations import WORD_BYTES, Collective

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
        self._summable = SummableWords(int(bench.rng.integers(2**62)), bench.world)
        self._sent = np.empty(elements, np.float32)
        self._summable.write(self._sent, bench.rank)
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
