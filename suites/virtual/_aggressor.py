"""Run an aggressor: a thread that keeps calls queued on its launch queue, in this process or in another one.

The victim writes to a word in shared memory when the aggressor must run. On a GPU the device itself counts the calls
that have ended, in the same memory, because an aggressor that waited for each launch would not load the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpubench.api import suite as gb

from .._checks import CheckedCall
from ._loads import LaunchQueue

ROOM_BYTES = 2**20 - 2**12
SLOTS = ("command", "state", "done")
_REST, _RUN, _STOP = 0, 1, 2
_STARTING, _READY, _RUNNING, _FAILED = 0, 1, 2, 3
_PATIENCE_S = 30.0  # an aggressor may have to compile its kernels
_POLL_S = 1e-4
_TRIALS = 8
_MOST_AHEAD = 400  # calls, each with the kernel that counts it: the launch queue of a GPU holds about a thousand
_ENDING_S = 10.0


class NeighbourBoard:
    """The command of a victim to its aggressor, the aggressor's state, and how many of its calls have ended.

    `room` is memory for data that the aggressor hands over: uint8, shape (ROOM_BYTES,)."""

    def __init__(self, board: gb.Board) -> None:
        """Use a board with the slots SLOTS, of which each row has one number, the first."""
        self._board, self.room = board, board.room
        self.command, self.state, self.done = map(board.row, SLOTS)
        self.done_address = np.uint64(board.address(SLOTS[-1]))

    @classmethod
    def within(cls, bench: gb.Bench) -> NeighbourBoard:
        """Return a new board for an aggressor in this process."""
        return cls(bench.board(*SLOTS, room_bytes=ROOM_BYTES, limit_s=_PATIENCE_S, is_shared=False))

    @classmethod
    def shared(cls, bench: gb.Bench) -> NeighbourBoard:
        """Return the board of two ranks, which the device of rank 1, the aggressor, reaches; both must call it."""
        if bench.traits.is_gpu and "register" not in bench.traits.features:
            raise gb.Skip(
                "CuPy on ROCm does not register host memory, in which the aggressor's device counts its calls"
            )
        board = bench.board(*SLOTS, room_bytes=ROOM_BYTES, limit_s=_PATIENCE_S)
        if bench.traits.is_gpu and bench.rank:
            board.register()
        return cls(board)

    @property
    def ended(self) -> int:
        """How many calls of the aggressor have ended."""
        return self.done[0]

    def close(self) -> None:
        """Give the memory back; the aggressor must have ended."""
        self.room = None
        self._board.close()

    def run(self) -> None:
        """Tell the aggressor to run, and wait until its queue is filled."""
        self.command[0] = _RUN
        self._await(_RUNNING)

    def rest(self) -> None:
        """Tell the aggressor to rest, and wait until its queue is empty."""
        self.command[0] = _REST
        self._await(_READY)

    def stop(self) -> None:
        self.command[0] = _STOP

    def end(self) -> None:
        """Tell the aggressor to end, and give the memory back."""
        self.stop()
        self.close()

    def wait_until_ready(self) -> None:
        """Wait until the aggressor has started and rests; raises RuntimeError if it has failed, or after 30 s."""
        self._await(_READY)

    def _await(self, state: int) -> None:

        def is_reached() -> bool:
            if self.state[0] == _FAILED:
                raise RuntimeError("the aggressor has failed")
            return self.state[0] == state

        self._board.wait(is_reached)


class Aggressor:
    """A thread that keeps `ahead_s` seconds of calls of `load` on a launch queue while `board` commands it to run."""

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
        kernel, address = bench.kernel("sharing.cu", "done"), self._board.done_address
        return lambda: kernel((1,), (1,), (address, np.uint32(self._issued)))

    def _count_here(self) -> None:
        self._board.done[0] = self._issued

    def task(self) -> gb.Task:
        """Return the idle task of a rank that only runs this aggressor."""

        def end() -> None:
            with contextlib.closing(self._board):
                self.close()

        return gb.Task.idle(end)

    def _call(self) -> None:
        """Make one call on the queue, and have it counted on the board when it has ended."""
        self._load.call()
        self._issued += 1
        self._count()

    def _serve(self) -> None:
        """Follow the commands on the board, to run, to rest or to stop, until the command is to stop."""
        board = self._board
        with contextlib.ExitStack() as on_error:
            on_error.callback(board.state.__setitem__, 0, _FAILED)
            self._queue.enter()
            self._call_s = self._mean_call_s()
            board.state[0] = _READY
            while (command := board.command[0]) != _STOP:
                if command == _RUN:
                    self._run()
                    board.state[0] = _READY
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
        self._fill()
        self._board.state[0] = _RUNNING
        while self._board.command[0] == _RUN:
            if not self._is_queued:
                self._call()
            elif self._depth_s() < self._ahead_s / 2:
                self._fill()
            else:
                time.sleep(self._ahead_s / 8)
        self._queue.wait()

    def _fill(self) -> None:
        """Queue calls until they last for `ahead_s` seconds, 400 calls wait, or the command on the board changes."""
        while self._is_queued and self._depth_s() < self._ahead_s and self._board.command[0] == _RUN:
            if self._issued - self._board.ended >= _MOST_AHEAD:
                return
            self._call()

    def _depth_s(self) -> float:
        return (self._issued - self._board.ended) * self._call_s

    def close(self) -> None:
        """End the thread, and check that all calls have ended and that the last result is right."""
        self._board.stop()
        self._serving.result(_ENDING_S)
        self._thread.shutdown()
        gb.expect(self._board.ended == self._issued, f"{self._board.ended} of {self._issued} calls have ended")
        self._load.check()
