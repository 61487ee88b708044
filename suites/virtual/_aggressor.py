"""Run an aggressor: a thread that keeps calls queued on its launch queue, in this process or in another one.

The victim writes to a word in shared memory when the aggressor must run. On a GPU the device itself counts the calls
that have ended, in the same memory, because an aggressor that waited for each launch would not load the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._between import shared_host_memory
from .._checks import CheckedCall
from ._loads import LaunchQueue

ROOM_BYTES = 2**20  # bytes of the board: its words, followed by the data that an aggressor hands over
_COMMAND, _STATE, _DONE = 0, 16, 32  # indices of 32-bit words on separate cache lines
HEADER_BYTES = 4096
_REST, _RUN, _STOP = 0, 1, 2
_STARTING, _READY, _RUNNING, _FAILED = 0, 1, 2, 3
_PATIENCE_S = 30.0  # an aggressor may have to compile its kernels
_POLL_S = 1e-4
_TRIALS = 8
_MOST_AHEAD = 400  # calls, each with the kernel that counts it: the launch queue of a GPU holds about a thousand
_ENDING_S = 10.0


class NeighbourBoard:
    """Words that a victim and its aggressor share: the command, the state, and how many calls have ended.

    `room` is the memory of the board, uint8 of shape (ROOM_BYTES,), which starts with the words."""

    def __init__(self, room: Any) -> None:
        self.room = room  # uint8, shape (ROOM_BYTES,)
        self.words: Any = room[:HEADER_BYTES].view(np.uint32)

    @classmethod
    def within(cls, bench: gb.Bench) -> NeighbourBoard:
        """Return a new board for an aggressor in this process; on a GPU it lies in page-locked memory."""
        room = bench.device.pinned(ROOM_BYTES) if bench.traits.is_gpu else np.zeros(ROOM_BYTES, np.uint8)
        room[:] = 0
        return cls(room)

    @property
    def ended(self) -> int:
        """How many calls of the aggressor have ended."""
        return int(self.words[_DONE])

    def run(self) -> None:
        """Tell the aggressor to run, and wait until its queue is filled.

        Raises RuntimeError if the aggressor has failed, or after 30 s."""
        self.words[_COMMAND] = _RUN
        self._await(_RUNNING)

    def rest(self) -> None:
        """Tell the aggressor to rest, and wait until its queue is empty.

        Raises RuntimeError if the aggressor has failed, or after 30 s."""
        self.words[_COMMAND] = _REST
        self._await(_READY)

    def stop(self) -> None:
        """Tell the aggressor to end."""
        self.words[_COMMAND] = _STOP

    def wait_until_ready(self) -> None:
        """Wait until the aggressor has started and rests.

        Raises RuntimeError if the aggressor has failed, or after 30 s."""
        self._await(_READY)

    def _await(self, state: int) -> None:
        """Wait until the aggressor's state is `state`, a value of the state word such as _READY."""
        deadline = time.monotonic() + _PATIENCE_S
        while (current := int(self.words[_STATE])) != state:
            if current == _FAILED:
                raise RuntimeError("the aggressor has failed")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the aggressor did not react to a command within {_PATIENCE_S:g} s")
            time.sleep(_POLL_S)


class Aggressor:
    """A thread that keeps `ahead_s` seconds of calls of `load` on the launch queue `queue`.

    It does so while `board` commands it to run."""

    def __init__(
        self,
        bench: gb.Bench,
        load: CheckedCall,
        queue: LaunchQueue,
        board: NeighbourBoard,
        is_queued: bool,
        ahead_s: float,
    ) -> None:
        self._load, self._queue, self._board, self._ahead_s = load, queue, board, ahead_s
        self._is_queued, self._issued, self._call_s = is_queued, 0, 0.0
        self._count = self._counting(bench) if is_queued else self._count_here
        self._thread = ThreadPoolExecutor(1)
        self._serving = self._thread.submit(self._serve)

    def _counting(self, bench: gb.Bench) -> Callable[[], None]:
        """Return the call that queues a kernel behind a call: it writes how many calls have ended to the board."""
        kernel, address = bench.kernel("sharing.cu", "done"), self._board.words[_DONE:].ctypes.data
        return lambda: kernel((1,), (1,), (np.uint64(address), np.uint32(self._issued)))

    def _count_here(self) -> None:
        self._board.words[_DONE] = self._issued

    def _call(self) -> None:
        """Make one call on the queue, and have it counted on the board when it has ended."""
        self._load.call()
        self._issued += 1
        self._count()

    def _serve(self) -> None:
        """Follow the commands on the board, to run, to rest or to stop, until the command is to stop."""
        fields = self._board.words
        with contextlib.ExitStack() as on_error:
            on_error.callback(fields.__setitem__, _STATE, _FAILED)
            self._queue.enter()
            self._call_s = self._mean_call_s()
            fields[_STATE] = _READY
            while (command := int(fields[_COMMAND])) != _STOP:
                if command == _RUN:
                    self._run()
                    fields[_STATE] = _READY
                time.sleep(_POLL_S)
            on_error.pop_all()

    def _mean_call_s(self) -> float:
        """Return the mean seconds of 8 calls, after a first call that may load and allocate."""
        self._call()
        self._queue.wait()
        begin = time.perf_counter()
        for _ in range(_TRIALS):
            self._call()
        self._queue.wait()
        return (time.perf_counter() - begin) / _TRIALS

    def _run(self) -> None:
        """Keep between `ahead_s` / 2 and `ahead_s` seconds of calls queued while the board commands it."""
        fields = self._board.words
        self._fill()
        fields[_STATE] = _RUNNING
        while int(fields[_COMMAND]) == _RUN:
            if not self._is_queued:
                self._call()
            elif self._depth_s() < self._ahead_s / 2:
                self._fill()
            else:
                time.sleep(self._ahead_s / 8)
        self._queue.wait()

    def _fill(self) -> None:
        """Queue calls until they last for `ahead_s` seconds, 400 calls wait, or the command on the board changes."""
        while self._is_queued and self._is_shallow() and int(self._board.words[_COMMAND]) == _RUN:
            self._call()

    def _is_shallow(self) -> bool:
        return self._depth_s() < self._ahead_s and self._issued - self._board.ended < _MOST_AHEAD

    def _depth_s(self) -> float:
        return (self._issued - self._board.ended) * self._call_s

    def close(self) -> None:
        """End the thread, and check that all calls have ended and that the last result is right.

        Raises the error that ended the thread, TimeoutError after 10 s, and WrongAnswer."""
        self._board.stop()
        self._serving.result(_ENDING_S)
        self._thread.shutdown()
        gb.expect(self._board.ended == self._issued, f"{self._board.ended} of {self._issued} calls have ended")
        self._load.check()


class SharedBoard:
    """A board in memory that two ranks share; both ranks must create it at the same time.

    The GPU of rank 1, the aggressor, reaches the memory too. Raises Skip if the device cannot register host memory."""

    def __init__(self, bench: gb.Bench) -> None:
        if bench.traits.is_gpu and "register" not in bench.traits.features:
            raise gb.Skip(
                "CuPy on ROCm does not register host memory, in which the aggressor's device counts its calls"
            )
        self._memory = shared_host_memory(bench, ROOM_BYTES)
        self._unregister = bench.device.register(self._memory.array) if bench.traits.is_gpu and bench.rank else None
        self.board = NeighbourBoard(self._memory.array)

    def close(self) -> None:
        """Unmap the memory; the aggressor must have ended, and `board` must not be used any more."""
        self.board.room = self.board.words = None  # the memory is unmapped with the last array that refers to it
        if self._unregister is not None:
            self._unregister()
        self._memory.close()
