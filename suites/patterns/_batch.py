"""Measure small messages that are sent in batches: how many arrive per second, and how long a whole batch takes.

With k messages in a batch, the time of a batch is about α + k/β: the rate k/t rises and levels off, and the latency
t rises without end."""

import statistics
import time
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, Params, devices_of, on_own_core
from .._checks import flipping

_MESSAGE_BYTES = 64
_ROUNDS = 16  # batches per sample
_SOCKET = "socket"
_SENDER = 0
_PATIENCE_S = 5.0

topic = gb.Topic(
    views=[
        gb.View(
            "transfer", "Batch latency by number of messages", ("batch",), "messages", by=("path",), series="latency"
        ),
        gb.View("curve", "Message throughput by batch", ("batch",), "messages", by=("path",), log_x=True, log_y=True),
    ],
)


def _paths(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_SOCKET,)
    return ("h2d", "peer") if target.device.peers else ("h2d",)


def _ranks(params: Params) -> int:
    return 2 if params["path"] == _SOCKET else 1


@topic.case(
    ranks=_ranks,
    devices=devices_of,
    path=_paths,
    messages=gb.points((1, 32, 1024), smoke=(32,), full=gb.powers_of_two(0, 10)),  # sendmsg(2) takes 1024 buffers
)
def batch(bench: gb.Bench, path: str, messages: int) -> gb.Task:
    """Messages of 64 bytes, packed and sent in one batch: messages per second, and the latency of the whole batch."""
    sender = (SocketBatch if path == _SOCKET else DeviceBatch)(bench, path, messages)
    latency_s = 0.0

    def seconds() -> list[float]:
        """Return the sender's seconds of 16 batches, and keep their median as the latency; every rank must call it."""
        nonlocal latency_s
        with on_own_core(bench):
            own_seconds = [sender.send() for _ in range(_ROUNDS)]
        batch_s: list[float] = bench.exchange(own_seconds)[_SENDER]
        latency_s = statistics.median(batch_s)
        return batch_s

    stage = gb.Stage(
        seconds,
        gb.Work(items=messages, payload=messages * _MESSAGE_BYTES),
        "items",
        clock="self",
        item="message",
        probe=lambda: {"latency": gb.Observed(latency_s, "s")},
        effort=gb.POINT,
        inputs=sender.redraw,
    )
    notes = {"message": f"{_MESSAGE_BYTES} B", **sender.notes}
    return gb.Task.of(stage, check=sender.check, poison=sender.poison, close=sender.close, notes=notes)


def _drawn(bench: gb.Bench, messages: int) -> Any:
    """Return random messages: uint8, shape (messages, 64)."""
    return bench.rng.integers(256, size=(messages, _MESSAGE_BYTES), dtype=np.uint8)


class SocketBatch:
    """One of two processes: rank 0 sends `messages` messages by one system call, and rank 1 acknowledges the batch."""

    def __init__(self, bench: gb.Bench, path: str, messages: int) -> None:
        self._is_sender = bench.rank == _SENDER
        (self._socket,) = bench.sockets()
        self._socket.settimeout(_PATIENCE_S)
        self._expected = _drawn(bench, messages)
        self._messages, self.redraw = [message.data for message in self._expected], flipping(self._expected)
        self._received = np.zeros(messages * _MESSAGE_BYTES, np.uint8)
        self.notes = {"sent": f"{path}: one sendmsg(2) per batch, acknowledged by one byte"}

    def send(self) -> float:
        """Send one batch (rank 0) or receive and acknowledge it (rank 1), and return the seconds."""
        start = time.perf_counter()
        if self._is_sender:
            sent = self._socket.sendmsg(self._messages)
            if sent < self._received.size:  # the socket accepts only a part if its buffer is full
                self._socket.sendall(self._expected.reshape(-1)[sent:].data)
            gb.expect(self._socket.recv(1) == b"x", "the receiver did not acknowledge the batch")
        else:
            rest = self._received.data
            while rest:
                count = self._socket.recv_into(rest)
                gb.expect(count > 0, "the sender closed the connection")
                rest = rest[count:]
            self._socket.sendall(b"x")
        return time.perf_counter() - start

    def poison(self) -> None:
        """Overwrite the received messages."""
        self._received.fill(POISON)

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if a message that this rank received differs from the one sent."""
        if not self._is_sender:
            _expect_messages(self._received, self._expected)
        return {}

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class DeviceBatch:
    """A batch of `messages` messages for a GPU, which crosses in one copy.

    If `path` is `h2d`, the host packs the messages into page-locked memory before each copy."""

    def __init__(self, bench: gb.Bench, path: str, messages: int) -> None:
        self._device, self._xp = bench.device, bench.xp
        self._expected = _drawn(bench, messages)
        self._messages = list(self._expected)
        self._packed = bench.device.pinned(self._expected.size)
        self._near = bench.xp.zeros(self._expected.size, np.uint8)
        self._far = bench.device.peer_memory(bench.devices[1], self._expected.size) if path == "peer" else None
        self._poison = bench.xp.full(self._expected.size, POISON, np.uint8)
        self._pack()
        bench.device.copy(self._near, self._packed)
        bench.device.synchronize()
        self.redraw = flipping(self._expected, *([self._near] if path == "peer" else []))
        packed = "packed by the host into page-locked memory, and one copy"
        self.notes = {"sent": "one copy of messages that lie side by side" if path == "peer" else packed}

    def _pack(self) -> None:
        np.concatenate(self._messages, out=self._packed)

    def send(self) -> float:
        """Send one batch and wait for the device; return the seconds. For `h2d` they include the packing."""
        start = time.perf_counter()
        if self._far is None:
            self._pack()
            self._device.copy(self._near, self._packed)
        else:
            self._device.copy(self._far, self._near)
        self._device.synchronize()
        return time.perf_counter() - start

    def poison(self) -> None:
        """Overwrite the received messages."""
        self._device.copy(self._near if self._far is None else self._far, self._poison)
        self._device.synchronize()

    def check(self) -> gb.Observation:
        """Raise WrongAnswer if a message that arrived differs from the one sent."""
        arrived = self._near
        if self._far is not None:
            arrived = self._xp.empty_like(self._near)
            self._device.copy(arrived, self._far)
        _expect_messages(self._device.to_host(arrived), self._expected)
        return {}

    def close(self) -> None:
        """Wait until nothing uses the page-locked memory."""
        self._device.synchronize()


def _expect_messages(received: Any, expected: Any) -> None:
    """Raise WrongAnswer if a message in `received` differs from the row of `expected` with its number."""
    wrong = int((received.reshape(expected.shape) != expected).any(axis=1).sum())
    gb.expect(wrong == 0, f"{wrong} of {len(expected)} messages differ from those sent")
