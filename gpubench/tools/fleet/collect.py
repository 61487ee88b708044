"""Give each node of a fleet its orders, watch whether it lives, and take its run file.

Only the launcher's clock decides. A node whose reports stop counts as dead; it counts as alive again if they continue
before the other nodes have finished. Data of a node is untrusted until the strict reader accepts it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubench import __version__
from gpubench.base.clean import one_line
from gpubench.base.errors import FileError, UsageError
from gpubench.tools.fleet import messages
from gpubench.tools.fleet.answers import Outcome, answer
from gpubench.tools.fleet.board import Board, BoardGone
from gpubench.tools.fleet.crew import Crew, Racks, Seats, check_map
from gpubench.tools.fleet.member import BEAT_S, DONE
from gpubench.tools.fleet.messages import Order, Report

STILL_S = 4.0  # a node without a new report for this time counts as dead, so that it is shown within 5 s
_TICK_S = 0.2
_PARTING_S = 5.0
_OVERTIME_S = 10.0  # time for a node to end a measurement that takes too long, and to report that


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the launcher waits, in s: for all nodes before the first order, for a first report, between orders."""

    gather_s: float = 30.0
    report_s: float = 120.0
    stagger_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """The state of a node for display; `outcome` is None while the launcher waits for the node."""

    name: str
    phase: str
    is_measuring: bool
    outcome: Outcome | None


Watch = Callable[[Sequence[NodeView]], None]
Settled = Callable[[int, Outcome], None]
Fitted = Callable[[int, Order], Order]


def unchanged(rank: int, order: Order) -> Order:
    """Return the order, which is the same for every node."""
    del rank
    return order


@dataclass(slots=True)
class Tracked:
    """A node as the launcher knows it: its last report, when that came, and the GPUs that it has to measure."""

    report: Report | None = None
    data: bytes = b""
    changed_at: float = 0.0
    problem: str = ""  # the reason why its report cannot be read
    turn: int = 0  # the number of orders that it was given before
    ordered_at: float | None = None  # in this turn
    devices: tuple[str, ...] | None = None  # None until they are dealt
    uuids: tuple[str, ...] = ()


class Sign:
    """Sends the launcher's heartbeat to the nodes, also while the launcher reads files or judges them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        """Start the heartbeat, about once per second."""
        self._thread.start()

    def _beat(self) -> None:
        with contextlib.suppress(BoardGone):  # the collector meets the same error
            for beat in itertools.count():
                self._board.put(messages.LAUNCHER, str(beat).encode())
                if self._ending.wait(BEAT_S):
                    return

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()


class Collector:
    """Leads the nodes of one crew through any number of turns; `end` dismisses them."""

    def __init__(self, crew: Crew, racks: Racks, patience: Patience, watch: Watch) -> None:
        self._crew = crew
        self._racks = racks
        self._patience = patience
        self._watch = watch
        self._seats = Seats()
        self._sign = Sign(crew.board)
        self._taken: dict[tuple[str, str], int] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._began = time.monotonic()
        self._fitted: Fitted = unchanged
        self.nodes: dict[int, Tracked] = {}
        self.most_at_once = 0

    def gather(self) -> None:
        """Wait until all nodes are ready, at most `gather_s` after the first one, and deal the GPUs.

        Raises UsageError if no node reports or the map of racks names none of them, BoardGone if the board is removed,
        and FileError if the number of nodes cannot be read.
        """
        self._sign.start()
        begin = time.monotonic()
        while not self.nodes:
            self._crew.pulse()
            self._find_nodes()
            if not self.nodes and (reason := self._crew.end_of(0)):
                raise UsageError(f"no node has started: {reason}")
            if not self._crew.may_queue and time.monotonic() - begin > self._patience.report_s:
                raise UsageError(f"no node has reported within {self._patience.report_s:.0f} s")
            time.sleep(_TICK_S)
        self._began = time.monotonic()
        while time.monotonic() - self._began < self._patience.gather_s and not all(map(self._is_settled, self.nodes)):
            self._crew.pulse()
            self._look(self.nodes)
            time.sleep(_TICK_S)
        hosts = [tracked.report.host for tracked in self.nodes.values() if tracked.report]
        check_map(self._racks, [*hosts, *map(self.name, self.nodes)])
        self._deal()

    def _find_nodes(self) -> None:
        """Learn the number of nodes, from the launcher or else from the first node that reports."""
        world = self._crew.world
        if not world and (data := self._crew.board.get(messages.WORLD)):
            world = messages.decode_world(data)
        now = time.monotonic()
        self.nodes = {rank: Tracked(changed_at=now) for rank in range(world)}

    def _is_settled(self, rank: int) -> bool:
        tracked = self.nodes[rank]
        is_ready = tracked.report is not None and tracked.report.is_ready
        return is_ready or bool(tracked.problem) or self._is_over(rank)

    def ready(self) -> list[int]:
        """Return the nodes that can measure."""
        return [rank for rank, node in self.nodes.items() if node.devices is not None and not self._unfit(node)]

    def turn(
        self, ranks: Iterable[int], order: Order, folder: Path, settled: Settled, fitted: Fitted = unchanged
    ) -> None:
        """Let these nodes measure at the same time, and call `settled` whenever the outcome of a node changes.

        `folder` receives the run files. `fitted` returns the order of a node from its rank and the order with its
        devices. Raises BoardGone if the board is removed, and FileError if a run file cannot be written.
        """
        self._fitted = fitted
        pending = sorted(ranks)
        silent: set[int] = set()  # probably dead: the launcher waits for them only while it waits for others
        self._outcomes = {}
        begin = time.monotonic()
        while set(pending) - silent:
            self._crew.pulse()
            self._look(pending)
            self._give(pending, order, begin)
            for rank in list(pending):
                outcome = self._outcome(rank, order, folder)
                silent.discard(rank)
                if outcome is None:
                    self._outcomes.pop(rank, None)  # the node reports again
                    continue
                if outcome.status == "died" and not self._is_over(rank):
                    silent.add(rank)
                else:
                    pending.remove(rank)
                if rank not in self._outcomes or self._outcomes[rank].status != outcome.status:
                    self._outcomes[rank] = outcome
                    settled(rank, outcome)
            self._show()
            time.sleep(_TICK_S)
        for tracked in self.nodes.values():
            tracked.turn += tracked.ordered_at is not None
            tracked.ordered_at = None

    def end(self, wait: bool) -> None:
        """Dismiss the nodes; with `wait`, give those that live 5 s to end. Raises BoardGone if the board is removed."""
        self._sign.stop()
        for rank, tracked in self.nodes.items():
            turn = tracked.turn + (tracked.ordered_at is not None)  # after an interrupted turn, the next one
            self._crew.board.put(messages.order_key(rank, turn), messages.encode(Order()))
        deadline = time.monotonic() + _PARTING_S
        while wait and any(map(self._stays, self.nodes)) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            self._crew.pulse()
            self._look(self.nodes)

    def _stays(self, rank: int) -> bool:
        """Return whether a node still lives and has not yet read that it is dismissed."""
        report = self.nodes[rank].report
        is_still = time.monotonic() - self.nodes[rank].changed_at > STILL_S
        return report is not None and report.phase != DONE and not is_still and not self._is_over(rank)

    def _is_over(self, rank: int) -> bool:
        """Return whether the process of a node is known to have ended."""
        report = self.nodes[rank].report
        return bool((report and report.left) or self._crew.end_of(rank))

    def name(self, rank: int) -> str:
        """Return the name of a node, which is also the name of its run file."""
        host = self.host(rank)
        namesakes = sum(self.host(node) == host for node in self.nodes if node != rank)
        return self._seats.name(rank, host, namesakes if host else 0)

    def host(self, rank: int) -> str:
        """Return the host name of a node, from the launcher or else from its report; empty if neither has it."""
        report = self.nodes[rank].report
        return self._crew.hosts[rank] if rank < len(self._crew.hosts) else report.host if report else ""

    def rack(self, rank: int) -> str:
        """Return the rack of a node from the map of racks, or else from its report."""
        report = self.nodes[rank].report
        reported = report.rack if report else ""
        return self._racks.get(self.host(rank)) or self._racks.get(self.name(rank)) or reported

    def outcome(self, rank: int) -> Outcome | None:
        """Return the outcome of a node in this turn, None while the launcher waits for it."""
        return self._outcomes.get(rank)

    def _look(self, ranks: Iterable[int]) -> None:
        """Read the reports of these nodes."""
        for rank in ranks:
            tracked = self.nodes[rank]
            data = self._crew.board.get(messages.report_key(rank))
            if data is None or data == tracked.data:
                continue
            tracked.data, tracked.changed_at = data, time.monotonic()
            try:
                tracked.report = messages.decode(Report, data)
            except FileError as error:
                tracked.problem = f"it sent a report that cannot be read: {error}"

    def _deal(self) -> None:
        """Assign each GPU to one node: nodes on one machine that see the same GPUs share them."""
        dealt: Counter[int] = Counter()
        for rank, tracked in self.nodes.items():
            for gpu in tracked.report.gpus if tracked.report and tracked.devices is None else ():
                assert tracked.report is not None
                key = (tracked.report.machine, gpu.uuid)
                if key not in self._taken:
                    candidates = [candidate for candidate in self.nodes if self._sees(candidate, key)]
                    self._taken[key] = min(
                        candidates, key=lambda candidate: (dealt[candidate], candidate), default=rank
                    )
                    dealt[self._taken[key]] += 1
        for rank, tracked in self.nodes.items():
            if tracked.report and tracked.report.is_ready and tracked.devices is None:
                machine = tracked.report.machine
                own = [gpu for gpu in tracked.report.gpus if self._taken[machine, gpu.uuid] == rank]
                tracked.devices, tracked.uuids = tuple(gpu.id for gpu in own), tuple(gpu.uuid for gpu in own)

    def _sees(self, rank: int, key: tuple[str, str]) -> bool:
        tracked = self.nodes[rank]
        return (
            tracked.devices is None
            and tracked.report is not None
            and tracked.report.is_ready
            and tracked.report.machine == key[0]
            and any(gpu.uuid == key[1] for gpu in tracked.report.gpus)
        )

    def _give(self, ranks: Sequence[int], order: Order, begin: float) -> None:
        """Give their orders to the nodes that are ready, `stagger_s` apart."""
        self._deal()
        now = time.monotonic()
        for place, rank in enumerate(ranks):
            tracked = self.nodes[rank]
            is_due = now - begin >= place * self._patience.stagger_s
            if tracked.ordered_at is None and tracked.devices is not None and is_due and not self._unfit(tracked):
                message = messages.encode(self._order(rank, order))
                self._crew.board.put(messages.order_key(rank, tracked.turn), message)
                tracked.ordered_at = now
        active = sum(self.nodes[rank].ordered_at is not None and rank not in self._outcomes for rank in ranks)
        self.most_at_once = max(self.most_at_once, active)

    def _order(self, rank: int, order: Order) -> Order:
        return self._fitted(rank, replace(order, devices=self.nodes[rank].devices or ("host",)))

    def _unfit(self, tracked: Tracked) -> str:
        """Return why a node that reports must not measure; empty if it may."""
        report = tracked.report
        if report is None or tracked.devices is None:
            return ""
        if report.version != __version__:
            return f"it has gpubench {report.version}, the launcher {__version__}: install one version on all nodes"
        if report.gpus and not tracked.devices:
            owners = {self._taken[report.machine, gpu.uuid] for gpu in report.gpus}
            return f"every GPU that it sees is measured as {', '.join(map(self.name, sorted(owners)))}"
        if not report.gpus and self._taken:
            return "it sees no GPU, while other nodes have some; run gpubench doctor on that node"
        return ""

    def _outcome(self, rank: int, order: Order, folder: Path) -> Outcome | None:
        """Return the outcome of a node in this turn, None while it may still answer."""
        tracked = self.nodes[rank]
        now = time.monotonic()
        seconds = now - tracked.ordered_at if tracked.ordered_at is not None else 0.0
        if tracked.problem:
            return Outcome("refused", seconds, reason=tracked.problem)
        report = tracked.report
        if report is None:
            return self._without_report(rank, now)
        if reason := self._unfit(tracked):
            return Outcome("failed", seconds, reason=reason)
        if report.ended and report.ended.turn == tracked.turn and tracked.ordered_at is not None:
            asked = self._order(rank, order)
            data = self._crew.board.get(messages.run_key(rank, tracked.turn)) if report.ended.has_file else None
            gpus = zip(tracked.devices or (), tracked.uuids, strict=True)
            uuids = tuple(uuid for device, uuid in gpus if device in asked.devices)
            return replace(answer(data, folder, self.name(rank), asked, uuids, report.ended), seconds=seconds)
        if reason := report.left or self._crew.end_of(rank):
            return Outcome("died", seconds, reason=f"it ended {_where(report)}: {reason}")
        if (still_s := now - tracked.changed_at) > STILL_S:
            return Outcome("died", seconds, reason=f"no sign of it for {still_s:.1f} s; it ended {_where(report)}")
        limit_s = order.time_limit_s + _OVERTIME_S
        if seconds > limit_s or (tracked.devices is None and now - self._began > limit_s):
            return Outcome("timed out", seconds, reason=f"no answer within {limit_s:.0f} s; last seen {_where(report)}")
        return None

    def _without_report(self, rank: int, now: float) -> Outcome | None:
        if reason := self._crew.end_of(rank):
            return Outcome("died", reason=f"it ended before it reported: {reason}")
        if now - self._began > self._patience.report_s:
            return Outcome("missing", reason=f"it did not report within {self._patience.report_s:.0f} s")
        return None

    def _show(self) -> None:
        views = []
        for rank, tracked in self.nodes.items():
            outcome = self._outcomes.get(rank)
            views.append(NodeView(self.name(rank), self._phase(rank), tracked.ordered_at is not None, outcome))
        self._watch(views)

    def _phase(self, rank: int) -> str:
        tracked = self.nodes[rank]
        return tracked.report.phase if tracked.report else "has not reported"


def _where(report: Report) -> str:
    return f"during: {one_line(report.phase)[:200]}"
