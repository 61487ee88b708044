"""Measure how soon ranks notice the death of a rank, how soon they continue without it, and at which throughput.

Three ranks push messages round a ring. In one phase of their work the last rank is killed by SIGKILL. The others
find out by its missing heartbeat, unmap its memory, open each other's memory anew and push round the smaller ring."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from gpubench.api import suite as gb

from .._between import (
    POISON,
    Params,
    devices_of,
    expect_pattern,
    fill_pattern,
    labels,
    need_shared_gpu,
    notes,
    open_shared,
    paths,
)

RANKS = 3
_BUFFERS = 4
_ROUNDS = 6
_AMID_S = 0.01  # a running copy is interrupted after this time
DIED = "died"  # the slot of the moment of a rank's death, in nanoseconds of the monotonic clock
PHASES = ("opening", "mapped", "copying", "barrier", "collective")

topic = gb.Topic(
    views=[
        gb.View("bars", "Time until the death of a rank is detected", ("death",), by=("path", "phase")),
        gb.View(
            "bars", "Time to rebuild after the death of a rank", ("death",), by=("path", "phase"), series="rebuild.self"
        ),
    ],
)


def _phases(target: gb.Target) -> Any:
    """Return the points of the axis `phase`, in which a rank dies; the phase `collective` exists on the host only."""
    if target.is_host:
        return gb.points(("collective",), smoke=("mapped",), full=PHASES)
    return gb.points(("mapped",), full=PHASES[:-1])


def _paths(target: gb.Target) -> Any:
    """Return the points of the axis `path`: `peer` where GPUs reach each other, else `same`; in `full` both."""
    both = paths(target)
    reached = both[-1:] if target.device.peers else both[:1]
    return gb.points(reached, full=both)


def _sizes(target: gb.Target) -> Any:
    return gb.points((2**22 if target.is_host else 2**26,), smoke=(2**22,))


def _is_affordable(target: gb.Target, params: Params) -> bool:
    """Return whether to measure a death."""
    del params
    return target.is_host or bool(target.device.peers) or target.tier == "full"


@topic.case(
    when=gb.beyond_quick,
    ranks=RANKS,
    devices=devices_of,
    where=_is_affordable,
    path=_paths,
    phase=_phases,
    size_bytes=_sizes,
)
def death(bench: gb.Bench, path: str, phase: str, size_bytes: int) -> gb.Task:
    """Seconds from the death of a rank until a survivor detects it.

    `rebuild` lasts from the detection to the first verified round of the smaller ring; `staged` is the time to set up
    and verify a round through host memory."""
    need_shared_gpu(bench)
    bench.need(_BUFFERS * size_bytes)
    ring = MessageRing(bench, size_bytes)
    if bench.rank == RANKS - 1:
        _die_in(ring, phase)
    survivor = Survivor(bench, ring, phase)
    survivor.live()
    return survivor.task(notes(bench, path), labels(bench, path))


def die(board: gb.Board) -> NoReturn:
    """Write the time of death to the slot DIED, and kill this process by SIGKILL, without clean-up."""
    board.post(DIED, time.perf_counter_ns())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not end this process")


def once(seconds: float) -> gb.Stage:
    """Return a stage that reports `seconds` once: a death cannot be repeated in the same process."""
    effort = gb.Effort.exactly(1)
    return gb.Stage(lambda: seconds, gb.Work(items=1), "item", clock="self", effort=effort, checked=True)


def expect_death(bench: gb.Bench, rank: int) -> None:
    """Consume the runner's message that rank `rank` has ended; every living rank must call it.

    Raises Untrustworthy if another rank or none has ended: on a busy machine a living rank may be late with its
    heartbeat, which makes the case invalid, not wrong."""
    try:
        bench.exchange(None)
    except gb.PeerDied as event:
        if event.rank != rank:
            reason = f"rank {rank} was late with its heartbeat, and rank {event.rank} has ended"
            raise gb.Untrustworthy("disturbed", reason) from event
    else:
        raise gb.Untrustworthy(
            "disturbed", f"rank {rank} was late with its heartbeat, but it is alive; measure again on an idle machine"
        )


class MessageRing:
    """One rank's message, the memory in which messages of `size_bytes` arrive, and the next rank's mapped memory."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        self.bench, self.size_bytes = bench, size_bytes
        self.board = bench.board(DIED, room_bytes=bench.world * size_bytes, has_beats=True)
        self.source = bench.xp.empty(size_bytes, bench.xp.uint8)
        fill_pattern(bench, self.source, bench.seed + bench.rank)
        self._inbox: gb.SharedBuffer = bench.device.share(size_bytes)
        self._next: gb.SharedBuffer | None = None
        bench.device.synchronize()
        self.handles: list[bytes] = bench.exchange(self._inbox.handle)

    def _neighbour(self, step: int) -> int:
        """Return the rank number of the living member that is `step` places further in the ring (−1: before)."""
        members = self.board.members
        return members[(members.index(self.bench.rank) + step) % len(members)]

    def open(self) -> None:
        """Map the memory of the next member."""
        self._next = open_shared(self.bench, self.handles[self._neighbour(1)], self.size_bytes)

    def unmap(self) -> None:
        """Unmap the memory of the next member."""
        if self._next is not None:
            self._next.close()
            self._next = None

    def push(self) -> None:
        """Copy the message into the memory of the next member."""
        assert self._next is not None
        self.bench.device.copy(self._next.array, self.source)
        self.bench.device.synchronize()

    def round(self) -> None:
        """Push to the next member, and wait until every member has done so."""
        self.push()
        self.board.meet()

    def _slot(self, rank: int) -> Any:
        return self.board.room[rank * self.size_bytes : (rank + 1) * self.size_bytes]

    def stage(self) -> None:
        """Prepare `staged_round`: page-lock the host memory that all ranks share, if the device supports that."""
        if "register" in self.bench.traits.features:
            self.board.register()

    def staged_round(self) -> None:
        """Send to the next member and receive from the previous one through shared host memory."""
        device, board = self.bench.device, self.board
        device.copy(self._slot(self.bench.rank), self.source)
        device.synchronize()
        board.meet()
        device.copy(self._inbox.array, self._slot(self._neighbour(-1)))
        device.synchronize()
        board.meet()

    def verify_round(self, round_once: Callable[[], None]) -> None:
        """Overwrite the inbox, call `round` or `staged_round`, and check what arrived; every member must call it."""
        self._inbox.array.fill(POISON)
        self.bench.device.synchronize()
        self.board.meet()
        round_once()
        self.expect_arrived()
        self.board.meet()

    def expect_arrived(self) -> None:
        """Raise WrongAnswer if the message of the previous member has not arrived, or this rank's own has changed."""
        bench = self.bench
        expect_pattern(bench, self._inbox.array, bench.seed + self._neighbour(-1), "that arrived over the ring")
        expect_pattern(bench, self.source, bench.seed + bench.rank, "of this rank's own message")

    def bytes_per_s(self, round_once: Callable[[], None]) -> float:
        """Return the bytes of all members' messages per second over 6 rounds; every member must call it."""
        self.board.meet()
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            round_once()
        return _ROUNDS * len(self.board.members) * self.size_bytes / (time.perf_counter() - start)

    def add_all(self) -> Any:
        """Return the sum of all members' messages modulo 256, byte by byte; every member must call it."""
        self.bench.device.copy(self._slot(self.bench.rank), self.source)
        self.bench.device.synchronize()
        self.board.meet()
        total = self._slot(self.board.members[0]).copy()
        for rank in self.board.members[1:]:
            total += self._slot(rank)
        self.board.meet()
        return total

    def close(self) -> None:
        """Unmap the memory that other ranks shared, and stop the heartbeat."""
        self.unmap()
        self.board.close()

    def release(self) -> None:
        """Free the memory of this rank."""
        self._inbox.close()


def _die_in(ring: MessageRing, phase: str) -> NoReturn:
    """Take part in the work until the phase of this rank's death, and kill this process by SIGKILL."""
    if phase == "opening":
        ring.board.meet()  # every rank has the handles of all
        die(ring.board)
    ring.open()
    ring.verify_round(ring.round)
    ring.bytes_per_s(ring.round)
    ring.board.meet()
    if phase in ("mapped", "barrier"):
        die(ring.board)
    threading.Timer(_AMID_S, die, (ring.board,)).start()
    while True:
        ring.push() if phase == "copying" else ring.add_all()


class Survivor:
    """A rank that continues after the death: it times the detection, the new ring and the ring through the host."""

    def __init__(self, bench: gb.Bench, ring: MessageRing, phase: str) -> None:
        self._bench, self._ring, self._phase = bench, ring, phase
        self._seconds: dict[str, float] = {}
        self._observed: dict[str, gb.Observed] = {}
        self._refusal = ""

    def live(self) -> None:
        """Work in a ring until a rank dies, and continue in a new ring without it; every survivor must call this."""
        ring = self._ring
        lost = self._until_death()
        ring.unmap()
        self._agree_on(lost.rank)
        ring.open()
        ring.verify_round(ring.round)
        self._seconds["rebuild"] = time.perf_counter() - lost.noticed_s
        self._seconds["detect"] = lost.noticed_s - ring.board.read(lost.rank, DIED) * 1e-9
        self._refusal = self._refusal_of_dead(lost.rank)
        self._observe("after", ring.bytes_per_s(ring.round))
        start = time.perf_counter()
        ring.stage()
        ring.verify_round(ring.staged_round)
        self._seconds["staged"] = time.perf_counter() - start
        self._observe("through host", ring.bytes_per_s(ring.staged_round))

    def _until_death(self) -> gb.RankLostError:
        """Work until a rank dies in the phase of this case, and return the error that reports the death."""
        ring, board = self._ring, self._ring.board
        try:
            if self._phase == "opening":
                board.meet()
                board.wait(lambda: False)
            ring.open()
            ring.verify_round(ring.round)
            self._observe("before", ring.bytes_per_s(ring.round))
            board.meet()
            if self._phase == "mapped":
                board.wait(lambda: False)
            if self._phase == "copying":
                ring.push()
            while self._phase == "collective":
                ring.add_all()
            board.meet()
        except gb.RankLostError as lost:
            return lost.with_traceback(None)  # its frames hold arrays of memory that will be unmapped
        raise AssertionError("no rank has died")

    def _refusal_of_dead(self, rank: int) -> str:
        """Return how the driver refuses to open the memory that the dead rank `rank` shared."""
        try:
            opened = self._bench.device.open_shared(self._ring.handles[rank], self._ring.size_bytes)
        except (RuntimeError, OSError) as error:
            return str(error).partition(":")[0]
        opened.close()
        gb.expect(False, f"the handle of dead rank {rank} can still be opened: its memory is not freed")
        return ""

    def _agree_on(self, rank: int) -> None:
        """Make the ranks that survive the death of rank `rank` the members of the ring; every survivor must call it."""
        bench, board = self._bench, self._ring.board
        expect_death(bench, rank)
        board.regroup(member for member, lives in enumerate(bench.exchange(True)) if lives)
        bench.barrier()  # no rank uses the new rank numbers before all ranks have them

    def _observe(self, name: str, bytes_per_s: float) -> None:
        self._observed[name] = gb.Observed(bytes_per_s, "B/s", "more")

    def _check(self) -> gb.Observation:
        """Check another round of each kind, and return what was measured once."""
        self._ring.verify_round(self._ring.round)
        self._ring.verify_round(self._ring.staged_round)
        return {**self._observed, "oldest heartbeat": gb.Observed(self._ring.board.oldest_beat_s(), "s")}

    def task(self, notes: dict[str, str], labels: tuple[str, ...]) -> gb.Task:
        """Return this rank's task: three stages that report the seconds `detect`, `rebuild` and `staged`, once each."""
        ring = self._ring

        stages = {
            "": once(self._seconds["detect"]),
            "rebuild": once(self._seconds["rebuild"]),
            "staged": once(self._seconds["staged"]),
        }
        tags = {**notes, "ranks": f"{RANKS} before, {RANKS - 1} after", "dead rank's handle": self._refusal}
        return gb.Task(stages, self._check, close=ring.close, release=ring.release, notes=tags, labels=labels)
