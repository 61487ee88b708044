"""Measure snapshots of a state: the cost of saving one, the work that a death loses, and whether resumed work is right.

Rank 1 works and saves its state every few steps, and is killed in a step or in the middle of a save. Rank 0
continues from the last whole snapshot. Its result is compared, bit by bit, with uninterrupted work."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gpubench.api import suite as gb

from .._between import POISON, need_shared_gpu
from .._checks import flipping
from ._failure import DIED, die, expect_death, once

_WORKER, _HEIR = 1, 0
_EVERY, _STEPS = 8, 28  # steps between two snapshots, and steps of the whole work
_DEATHS = {"step": 21, "save": 24}  # the step after which the worker dies
_SLOTS = 2  # snapshots that are kept: one is complete while the other is written
_TRIES = 5
_BUFFERS = 7
SAVED = "saved"  # the slot of the number of steps in a rank's last complete snapshot
_DECAY = np.float32(0.999)

topic = gb.Topic(
    views=[
        gb.View("bars", "Time to resume from a snapshot", ("snapshot",), by=("medium", "amid"), series="resume.self"),
        gb.View("bars", "Snapshot bandwidth", ("snapshot",), by=("medium",)),
        gb.View("interval", "Steps between snapshots by size", ("snapshot",), "size_bytes", "step"),
    ],
)


def _sizes(target: gb.Target) -> Any:
    if target.is_host:
        return gb.points((2**23,), full=(2**21, 2**23, 2**25))
    return gb.points((2**26,), smoke=(2**22,), full=(2**26, 2**28, 2**30))


@topic.case(
    when=gb.beyond_quick,
    ranks=2,
    medium=gb.points(("memory",), full=("memory", "file")),
    amid=gb.points(("save",), full=tuple(_DEATHS)),
    size_bytes=_sizes,
)
def snapshot(bench: gb.Bench, medium: str, amid: str, size_bytes: int) -> gb.Task:
    """Save the state of a device in host memory that outlives the process, or in a file: payload.

    `resume` is the time to load the last complete snapshot after a death. `lost` counts the steps that had to be
    repeated, and `step` is the time of a step."""
    need_shared_gpu(bench)
    bench.need(_BUFFERS * size_bytes)
    board = bench.board(SAVED, DIED, room_bytes=_SLOTS * size_bytes, has_beats=True)
    state = State(bench, size_bytes)
    folder = bench.exchange(tempfile.mkdtemp(prefix="gpubench-") if medium == "file" and bench.rank == _HEIR else "")
    store = Snapshots(bench, board, state, Path(folder[_HEIR]) if medium == "file" else None)
    if bench.rank == _WORKER:
        _work_until_death(board, state, store, amid)
    return ResumingRank(bench, board, state, store).task(size_bytes)


class State:
    """An array (float32) that every step changes completely, so that its bits depend on all earlier steps."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        rng = np.random.default_rng(bench.seed)
        block = rng.random(2**16, dtype=np.float32)
        count = size_bytes // block.itemsize
        self._base = bench.xp.asarray(np.resize(block, count))
        self.array = bench.xp.empty(count, bench.xp.float32)
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        """Return to the state before the first step."""
        self.array[:] = self._base
        self.steps = 0

    def step(self) -> None:
        """Advance the state by one step."""
        self.array *= _DECAY
        self.array += self._base * np.float32(self.steps % 7 - 2)
        self.steps += 1


class Snapshots:
    """Snapshots of `state` in the host memory of `board`, and also in files if `folder` is not None."""

    def __init__(self, bench: gb.Bench, board: gb.Board, state: State, folder: Path | None) -> None:
        self._device, self._board, self._state, self._folder = bench.device, board, state, folder
        self._nbytes = int(state.array.nbytes)
        if "register" in bench.traits.features:
            board.register()

    def slot(self, number: int) -> Any:
        """Return the memory of snapshot number `number`, float32: even numbers have one slot, odd ones the other."""
        start = number % _SLOTS * self._nbytes
        return self._board.room[start : start + self._nbytes].view(np.float32)

    def save(self) -> None:
        """Save the state as snapshot number steps // 8, and announce it on the board when it is complete."""
        number = self._state.steps // _EVERY
        slot = self.slot(number)
        self._device.copy(slot, self._state.array)
        self._device.synchronize()
        if self._folder:
            _write(self._folder / f"{number % _SLOTS}", slot)
        self._board.post(SAVED, self._state.steps)

    def save_half(self) -> None:
        """Write half of the next snapshot and do not announce it, as an interrupted save does."""
        slot = self.slot(self._state.steps // _EVERY)
        half = slot.size // 2
        self._device.copy(slot[:half], self._state.array[:half])
        self._device.synchronize()
        if self._folder:
            (self._folder / f"{self._state.steps // _EVERY % _SLOTS}.part").write_bytes(slot[:half])

    def resume(self, rank: int) -> None:
        """Load the last complete snapshot that rank `rank` announced into the state."""
        steps = self._board.read(rank, SAVED)
        slot = self.slot(steps // _EVERY)
        if self._folder:
            slot[:] = np.fromfile(self._folder / f"{steps // _EVERY % _SLOTS}", np.float32)
        self._device.copy(self._state.array, slot)
        self._device.synchronize()
        self._state.steps = steps

    def expect_saved(self) -> None:
        """Raise WrongAnswer if the last snapshot, in a file or else in memory, differs from the state."""
        number = self._state.steps // _EVERY
        state = self._state.array
        saved = state.copy()  # a copy on the device, because an error's frames would keep the shared memory mapped
        file = np.fromfile(self._folder / f"{number % _SLOTS}", np.float32) if self._folder else None
        self._device.copy(saved, self.slot(number) if file is None else file)
        self._device.synchronize()
        wrong = int((saved.view(np.uint32) != state.view(np.uint32)).sum())
        gb.expect(wrong == 0, f"{wrong} of {saved.size} words of the snapshot differ from the state")

    def poison(self) -> None:
        """Overwrite the snapshot of the present state, in memory and in its file."""
        number = self._state.steps // _EVERY
        self.slot(number).view(np.uint8).fill(POISON)
        if self._folder:
            (self._folder / f"{number % _SLOTS}").write_bytes(self.slot(number))

    def close(self) -> None:
        """Remove the files."""
        if self._folder:
            shutil.rmtree(self._folder)


def _write(path: Path, array: Any) -> None:
    """Write `array` to the file `path`, which after a crash has the old or the new content (fsync(2), rename(2))."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(array)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _work_until_death(board: gb.Board, state: State, store: Snapshots, amid: str) -> NoReturn:
    """Make steps and save snapshots until the step of `amid` (a key of _DEATHS), and kill this process by SIGKILL."""
    while state.steps < _DEATHS[amid]:
        state.step()
        if state.steps % _EVERY == 0 and state.steps < _DEATHS[amid]:
            store.save()
    if amid == "save":
        store.save_half()
    die(board)


class ResumingRank:
    """The rank that resumes the work of the dead rank from its last snapshot.

    Creating it works without interruption for comparison, waits for the death, resumes, and finishes the work."""

    def __init__(self, bench: gb.Bench, board: gb.Board, state: State, store: Snapshots) -> None:
        self._bench, self._board, self._state, self._store = bench, board, state, store
        for _ in range(_STEPS):
            state.step()
        self._uninterrupted = state.array.copy()
        self._await_death()
        state.begin()
        self._resume_s = self._seconds(lambda: store.resume(_WORKER))
        self._resumed_at = state.steps
        while state.steps < _STEPS:
            state.step()
        self._finished = state.array.copy()
        self._step_s = statistics.median(self._seconds(state.step) for _ in range(_TRIES))

    def _await_death(self) -> None:
        """Wait until the other rank has died."""
        try:
            self._board.wait(lambda: False)
        except gb.RankLostError as lost:
            expect_death(self._bench, lost.rank)

    def _seconds(self, call: Callable[[], None]) -> float:
        """Return the seconds of `call`, including the wait for the device."""
        start = time.perf_counter()
        call()
        self._bench.device.synchronize()
        return time.perf_counter() - start

    def _check(self) -> gb.Observation:
        """Check the last snapshot and the resumed work, and return the measured costs."""
        self._store.expect_saved()
        wrong = int((self._finished.view(np.uint32) != self._uninterrupted.view(np.uint32)).sum())
        gb.expect(wrong == 0, f"{wrong} of {self._finished.size} words differ from work that was not interrupted")
        amid = str(self._bench.case.param("amid"))
        lost = gb.Observed(_DEATHS[amid] - self._resumed_at, "steps")
        return {"step": gb.Observed(self._step_s, "s"), "lost": lost}

    def _close(self) -> None:
        self._store.close()
        self._board.close()

    def task(self, size_bytes: int) -> gb.Task:
        """Return the task: a stage that saves `size_bytes`, and a stage that reports the seconds of resuming."""
        save = gb.Stage(
            self._store.save,
            gb.Work(payload=size_bytes),
            "payload",
            clock="host",
            max_calls=1,
            effort=gb.POINT,
            inputs=flipping(self._state.array),
        )
        notes = {"snapshots": f"every {_EVERY} steps, {_SLOTS} kept"}
        return gb.Task({"": save, "resume": once(self._resume_s)}, self._check, self._store.poison, self._close, notes)
