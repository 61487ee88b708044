"""Measure a fleet into a folder; its record `fleet.json` is written whenever the outcome of a node changes.

In each turn, some nodes measure at the same time. Only the launcher's clock decides. A node whose reports stop counts
as dead, and as alive again if they continue before the other nodes end. The strict reader checks the data of a node."""

import contextlib
import fcntl
import io
import itertools
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from gpubench import __version__
from gpubench.base.clean import one_line
from gpubench.base.errors import CannotJudge, DeviceError, FileError, UsageError
from gpubench.base.files import open_to_read, write_whole
from gpubench.measuring.channel import encoded
from gpubench.model import Run
from gpubench.model.disk import as_file_errors
from gpubench.model.fleet import AGAIN, FLEET_FILE, Fleet, FleetNode, NodeStatus, Remeasured, encode_fleet, is_file_name
from gpubench.model.store import read_run
from gpubench.tools.fleet import board as boards
from gpubench.tools.fleet.board import BadValue, BoardGone, MeasurementEnd, NodeOrder, NodeReport
from gpubench.tools.fleet.launchers import DONE, HEARTBEAT_S, FleetLaunch

SILENCE_S = 4.0  # a node without a new report for this time counts as dead, so that it is shown within 5 s
_TICK_S = 0.2
_DISMISSAL_S = 5.0
_OVERTIME_S = 10.0  # time for a node to end a measurement that takes too long, and to report that
_COMPLETED_STATUSES = (0, 3)  # exit statuses of `gpubench run`: every case was measured, and a case failed


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest waits of the launcher for its nodes, and the time between two orders, in s."""

    gather_s: float = 30.0  # for all nodes to be ready, after the first one is found
    report_s: float = 120.0  # for the first report of a node
    stagger_s: float = 0.0  # between the orders to two nodes of a turn


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcome of one turn of a node; `seconds` is the time since its order, by the launcher's clock."""

    status: NodeStatus
    seconds: float = 0.0
    file: str = ""
    reason: str = ""
    exit_status: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """The state of a node for display; `phase` is a line of text, `outcome` is None until the node has one."""

    name: str
    phase: str
    is_measuring: bool
    outcome: NodeOutcome | None


Racks = Mapping[str, str]  # the rack of a node by its name
_MAP_BYTES = 2**24
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
WatchNodes = Callable[[Sequence[NodeView]], None]
OnOutcome = Callable[[int, NodeOutcome], None]  # takes the rank of a node and its outcome
AdaptOrder = Callable[[int, NodeOrder], NodeOrder]  # takes the rank of a node and its order


@dataclass(slots=True)
class TrackedNode:
    """The launcher's knowledge of a node; `changed_at` and `ordered_at` are times in monotonic s."""

    report: NodeReport | None = None
    data: bytes = b""  # the report as it was on the board
    changed_at: float = 0.0  # when the report last changed
    problem: str = ""  # the reason why its report cannot be read
    turn: int = 0  # the number of orders that the node was given in earlier turns
    ordered_at: float | None = None  # when it got the order of the current turn; None before
    devices: tuple[str, ...] | None = None  # None until the GPUs are assigned
    uuids: tuple[str, ...] = ()


class NodeCoordinator:
    """Leads the nodes of one launch: call `gather` once, then any number of `turn`, and `end` at last."""

    def __init__(self, launch: FleetLaunch, racks: Racks, patience: Patience, watch: WatchNodes) -> None:
        self._launch = launch
        self._racks = racks
        self._patience = patience
        self._watch = watch
        self._names: dict[int, str] = {}
        self._ending = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)
        self._rank_by_gpu: dict[tuple[str, str], int] = {}
        self._outcomes: dict[int, NodeOutcome] = {}
        self._began = time.monotonic()
        self._adapt_order: AdaptOrder = lambda _, order: order
        self.nodes: dict[int, TrackedNode] = {}
        self.most_at_once = 0

    def _beat(self) -> None:
        with contextlib.suppress(BoardGone):  # `gather` and `turn` meet the same error
            for beat in itertools.count():
                self._launch.board.put(boards.LAUNCHER, str(beat).encode())
                if self._ending.wait(HEARTBEAT_S):
                    return

    def gather(self) -> None:
        """Wait for all nodes to be ready, at most `gather_s` after the first one is found, and assign the GPUs."""
        self._heartbeat.start()
        begin = time.monotonic()
        while not self.nodes:
            self._launch.poll()
            world = self._launch.world
            if not world and (data := self._launch.board.get(boards.WORLD)):
                world = boards.decode_world(data)
            self.nodes = {rank: TrackedNode(changed_at=time.monotonic()) for rank in range(world)}
            if not self.nodes and (reason := self._launch.reason_of_end(0)):
                raise UsageError(f"no node has started: {reason}")
            if not self._launch.may_queue and time.monotonic() - begin > self._patience.report_s:
                raise UsageError(f"no node has reported within {self._patience.report_s:.0f} s")
            time.sleep(_TICK_S)
        self._began = time.monotonic()
        while time.monotonic() - self._began < self._patience.gather_s and not all(
            (node.report and node.report.is_ready) or node.problem or self._has_ended(rank)
            for rank, node in self.nodes.items()
        ):
            self._launch.poll()
            self._read_reports(self.nodes)
            time.sleep(_TICK_S)
        hosts = [tracked.report.host for tracked in self.nodes.values() if tracked.report]
        if self._racks and hosts and not self._racks.keys() & {*hosts, *map(self.name, self.nodes)}:
            raise UsageError(f"the map names none of the nodes; a line for one of them is: {hosts[0]} rack1")
        self._assign_gpus()

    def ready(self) -> list[int]:
        """Return the ranks of the nodes that can measure: their devices are assigned, and `_reason_unfit` is empty."""
        return [rank for rank, node in self.nodes.items() if node.devices is not None and not self._reason_unfit(node)]

    def turn(
        self,
        ranks: Iterable[int],
        order: NodeOrder,
        folder: Path,
        on_outcome: OnOutcome,
        adapt_order: AdaptOrder = lambda _, order: order,
    ) -> None:
        """Let these nodes measure at the same time into `folder`, and return when each of them has an outcome."""
        self._adapt_order = adapt_order
        pending = sorted(ranks)
        silent: set[int] = set()  # probably dead: the launcher waits for them only while it waits for others
        self._outcomes = {}
        begin = time.monotonic()
        while set(pending) - silent:
            self._launch.poll()
            self._read_reports(pending)
            self._send_orders(pending, order, begin)
            for rank in list(pending):
                outcome = self._find_outcome(rank, order, folder)
                silent.discard(rank)
                if outcome is None:
                    self._outcomes.pop(rank, None)  # the node reports again
                    continue
                if outcome.status == "died" and not self._has_ended(rank):
                    silent.add(rank)
                else:
                    pending.remove(rank)
                if rank not in self._outcomes or self._outcomes[rank].status != outcome.status:
                    self._outcomes[rank] = outcome
                    on_outcome(rank, outcome)
            views = []
            for rank, node in self.nodes.items():
                phase = node.report.phase if node.report else "has sent no report"
                views.append(NodeView(self.name(rank), phase, node.ordered_at is not None, self._outcomes.get(rank)))
            self._watch(views)
            time.sleep(_TICK_S)
        for tracked in self.nodes.values():
            tracked.turn += tracked.ordered_at is not None
            tracked.ordered_at = None

    def keep_answers(self) -> Path | None:
        """Copy the run files that wait on the board into a temporary folder, and return it; None without any."""
        kept: Path | None = None
        for rank, tracked in self.nodes.items():
            with contextlib.suppress(FileError, OSError):
                is_open = tracked.ordered_at is not None and rank not in self._outcomes
                if is_open and (data := self._launch.board.get(boards.run_key(rank, tracked.turn))):
                    kept = kept or Path(tempfile.mkdtemp(prefix=boards.KEPT))
                    write_whole(kept / f"{self.name(rank)}.jsonl.gz", data)
        return kept

    def end(self, wait: bool) -> None:
        """Dismiss all nodes; `wait` gives them up to 5 s to end. Raises BoardGone if the board is removed."""
        self._ending.set()
        if self._heartbeat.ident is not None:
            self._heartbeat.join()
        for rank, tracked in self.nodes.items():
            turn = tracked.turn + (tracked.ordered_at is not None)  # an interrupted turn's number is not used again
            with contextlib.suppress(BadValue):
                self._launch.board.put(boards.order_key(rank, turn), encoded(NodeOrder()))
        deadline = time.monotonic() + _DISMISSAL_S
        while wait and time.monotonic() < deadline:
            oldest = time.monotonic() - SILENCE_S
            reports = [
                node.report
                for rank, node in self.nodes.items()
                if node.report and node.changed_at >= oldest and not self._has_ended(rank)
            ]
            if all(report.phase == DONE for report in reports):
                return
            time.sleep(_TICK_S)
            self._launch.poll()
            self._read_reports(self.nodes)

    def _has_ended(self, rank: int) -> bool:
        report = self.nodes[rank].report
        return bool((report and report.end_reason) or self._launch.reason_of_end(rank))

    def name(self, rank: int) -> str:
        """Return the name of a node, which is unique in the fleet and safe as the name of its run file."""
        host = self.host(rank)
        if not host:  # the node has sent no report; its report may still bring a host name
            return f"rank-{rank}"
        if rank not in self._names:
            base = _UNSAFE.sub("-", host).lstrip("-")[:150] or f"rank-{rank}"
            has_namesakes = any(self.host(node) == host for node in self.nodes if node != rank)
            name = f"{base}-{rank}" if has_namesakes else base
            while name in self._names.values():
                name += "-again"
            self._names[rank] = name
        return self._names[rank]

    def host(self, rank: int) -> str:
        report = self.nodes[rank].report
        return self._launch.hosts[rank] if rank < len(self._launch.hosts) else report.host if report else ""

    def rack(self, rank: int) -> str:
        """Return the rack of a node, from the map of racks or else from the node's report; empty if neither has it."""
        report = self.nodes[rank].report
        reported = report.rack if report else ""
        return self._racks.get(self.host(rank)) or self._racks.get(self.name(rank)) or reported

    def _read_reports(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            tracked = self.nodes[rank]
            try:
                data = self._launch.board.get(boards.report_key(rank))
                if data is None or data == tracked.data:
                    continue
                tracked.data, tracked.changed_at = data, time.monotonic()
                tracked.report = boards.decode(NodeReport, data)
            except BoardGone:
                raise
            except FileError as error:
                tracked.problem = f"it sent a report that cannot be read: {error}"

    def _assign_gpus(self) -> None:
        """Divide each machine's GPUs evenly among the ready nodes that see them; nodes keep what they have."""
        assigned: Counter[int] = Counter()
        unassigned = {rank: node.report for rank, node in self.nodes.items() if node.report and node.devices is None}
        for rank, report in unassigned.items():
            for gpu in report.gpus:
                if (report.machine, gpu.uuid) not in self._rank_by_gpu:
                    candidates = [
                        candidate
                        for candidate, other in unassigned.items()
                        if other.is_ready
                        and other.machine == report.machine
                        and gpu.uuid in (seen.uuid for seen in other.gpus)
                    ]
                    owner = min(candidates, key=lambda candidate: (assigned[candidate], candidate), default=rank)
                    self._rank_by_gpu[report.machine, gpu.uuid] = owner
                    assigned[owner] += 1
        for rank, report in unassigned.items():
            if report.is_ready:
                own_gpus = [gpu for gpu in report.gpus if self._rank_by_gpu[report.machine, gpu.uuid] == rank]
                self.nodes[rank].devices = tuple(gpu.id for gpu in own_gpus)
                self.nodes[rank].uuids = tuple(gpu.uuid for gpu in own_gpus)

    def _send_orders(self, ranks: Sequence[int], order: NodeOrder, begin: float) -> None:
        self._assign_gpus()
        now = time.monotonic()
        for index, rank in enumerate(ranks):
            tracked = self.nodes[rank]
            is_due = now - begin >= index * self._patience.stagger_s
            if tracked.ordered_at is not None or tracked.devices is None or not is_due or self._reason_unfit(tracked):
                continue
            message = encoded(self._adapt_order(rank, replace(order, devices=tracked.devices or ("host",))))
            try:
                self._launch.board.put(boards.order_key(rank, tracked.turn), message)
            except BadValue as error:
                tracked.problem = f"it cannot be given an order: {error}"
            tracked.ordered_at = now
        active = sum(self.nodes[rank].ordered_at is not None and rank not in self._outcomes for rank in ranks)
        self.most_at_once = max(self.most_at_once, active)

    def _reason_unfit(self, tracked: TrackedNode) -> str:
        """Return a clause that says why a node must not measure; empty if it may, or before its GPUs are assigned."""
        report = tracked.report
        if report is None or tracked.devices is None:
            return ""
        if report.version != __version__:
            return f"it has gpubench {report.version}, the launcher {__version__}: install one version on all nodes"
        if report.gpus and not tracked.devices:
            owners = {self._rank_by_gpu[report.machine, gpu.uuid] for gpu in report.gpus}
            return f"every GPU that it sees is measured as {', '.join(map(self.name, sorted(owners)))}"
        if not report.gpus and self._rank_by_gpu:
            return "it sees no GPU, while other nodes have some; run gpubench doctor on that node"
        return ""

    def _find_outcome(self, rank: int, order: NodeOrder, folder: Path) -> NodeOutcome | None:
        tracked = self.nodes[rank]
        now = time.monotonic()
        seconds = now - tracked.ordered_at if tracked.ordered_at is not None else 0.0
        if tracked.problem:
            return NodeOutcome("refused", seconds, reason=tracked.problem)
        report = tracked.report
        if report is None:
            if reason := self._launch.reason_of_end(rank):
                return NodeOutcome("died", reason=f"it ended before it sent a report: {reason}")
            is_late = now - self._began > self._patience.report_s
            reason = f"it sent no report within {self._patience.report_s:.0f} s"
            return NodeOutcome("missing", reason=reason) if is_late else None
        if reason := self._reason_unfit(tracked):
            return NodeOutcome("failed", seconds, reason=reason)
        if report.ended and report.ended.turn == tracked.turn and tracked.ordered_at is not None:
            node_order = self._adapt_order(rank, replace(order, devices=tracked.devices or ("host",)))
            try:
                data = self._launch.board.get(boards.run_key(rank, tracked.turn)) if report.ended.has_file else None
            except BadValue as error:
                return NodeOutcome("refused", seconds, reason=f"its run file cannot be read: {error}")
            gpus = zip(tracked.devices or (), tracked.uuids, strict=True)
            uuids = tuple(uuid for device, uuid in gpus if device in node_order.devices)
            outcome = _check_answer(data, folder, self.name(rank), node_order, uuids, report.ended)
            return replace(outcome, seconds=seconds)
        phase = f"during: {one_line(report.phase)[:200]}"
        if reason := report.end_reason or self._launch.reason_of_end(rank):
            return NodeOutcome("died", seconds, reason=f"it ended {phase}: {reason}")
        if (silent_s := now - tracked.changed_at) > SILENCE_S:
            return NodeOutcome("died", seconds, reason=f"it has sent nothing for {silent_s:.1f} s; it ended {phase}")
        limit_s = order.time_limit_s + _OVERTIME_S
        if seconds > limit_s or (tracked.devices is None and now - self._began > limit_s):
            return NodeOutcome("timed out", seconds, reason=f"no answer within {limit_s:.0f} s; last seen {phase}")
        return None


def read_racks(path: Path) -> Racks:
    """Return the rack of each node by the node's name, from a text file with a node and its rack per line."""
    try:
        with os.fdopen(open_to_read(path), "rb") as file:
            text = file.read(_MAP_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file in UTF-8") from error
    racks: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields and (len(fields) != 2 or fields[0] in racks):
            raise UsageError(f"{path}:{number}: not a node with its rack; write each node once, as in: gpu07 rack2")
        if fields:
            racks[fields[0]] = fields[1]
    return racks


def _check_answer(
    data: bytes | None, folder: Path, name: str, order: NodeOrder, uuids: tuple[str, ...], ended: MeasurementEnd
) -> NodeOutcome:
    """Check the run file that a node sent, store it in `folder` if it is valid, and return the node's outcome."""
    last_line = f": {one_line(ended.last_line)[:500]}" if ended.last_line else ""
    status: NodeStatus = "timed out" if ended.is_timed_out else "failed"
    reason = f"its run ended with exit status {ended.exit_status}{last_line}"
    if ended.is_timed_out:
        reason = f"it was ended after {ended.seconds:.0f} s, at the time limit{last_line}"
    elif ended.exit_status in _COMPLETED_STATUSES:
        status, reason = "answered", ""
    if data is None:
        status = "failed" if status == "answered" else status
        return NodeOutcome(status, reason=reason or f"it left no run file{last_line}", exit_status=ended.exit_status)
    path, incoming = folder / f"{name}.jsonl.gz", folder / f".{name}.incoming.jsonl.gz"
    with as_file_errors(path):
        write_whole(incoming, data)
        try:
            run = read_run(incoming)
            differences = ", ".join(_differences_from_order(run, order, uuids))
            problem = f"differs from the order: {differences}" if differences else ""
        except FileError as error:
            without_path = str(error).replace(f"{incoming}: ", "").replace(str(incoming), "it")
            problem = f"is refused: {one_line(without_path)}"
        if problem:
            incoming.unlink()
            return NodeOutcome("refused", reason=f"its run file {problem}")
        incoming.replace(path)
    if status == "answered" and not run.complete:
        return NodeOutcome("failed", file=path.name, reason="its run file is incomplete; the cases in it are kept")
    return NodeOutcome(status, file=path.name, reason=reason, exit_status=ended.exit_status)


def _differences_from_order(run: Run, order: NodeOrder, uuids: tuple[str, ...]) -> Iterator[str]:
    settings = run.manifest.settings
    for setting, measured, expected in (
        ("tier", settings.tier, order.tier),
        ("filters", settings.filters, order.filters),
        ("replicates", settings.replicates, order.replicates),
        ("devices", settings.devices, order.devices),
    ):
        if measured != expected:
            yield f"{setting} are {measured!r} instead of {expected!r}"
    with contextlib.suppress(KeyError):
        described = [run.manifest.facts.device(device) for device in settings.devices]
        measured_uuids = tuple(device.uuid or device.pci or device.id for device in described)
        if uuids and measured_uuids != uuids and settings.devices == order.devices:
            yield f"it measured {', '.join(measured_uuids)}, but it had reported {', '.join(uuids)}"


PAIRS_FILE, PAIRS = "pairs.json", "pairs"  # the record and the folder of `fleet pairs`
_LOCK = ".lock"
_OF_A_FLEET = (FLEET_FILE, AGAIN, PAIRS_FILE, PAIRS)
Role = Literal["suspect", "control"]
_UNANSWERED = NodeOutcome("missing", reason="the launcher ended before this node had answered")


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """A request to measure a fleet; the coordinator sets the devices of each order, `argv` is for the record."""

    order: NodeOrder
    folder: Path
    argv: tuple[str, ...] = ()
    racks: Racks | None = None
    patience: Patience = field(default_factory=Patience)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make the folder of a fleet, with its parents, and yield it; no other launcher can use it during the context."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _locked_file(path)
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name another folder with --out") from error
    try:
        if held := next((name for name in names if name in _OF_A_FLEET or is_file_name(name)), ""):
            raise UsageError(f"{path} holds another fleet ({held}); name a new folder with --out")
        yield path
    finally:
        (path / _LOCK).unlink(missing_ok=True)
        lock.close()


def _locked_file(folder: Path) -> io.FileIO:
    """Return the locked file of a folder, open as long as it is locked; raises UsageError if another holds it."""
    path = folder / _LOCK
    while True:
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise UsageError(f"{folder}: another fleet uses this folder now; name a new folder with --out") from error
        except OSError:  # the file system has no locks
            return file
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                return file
        file.close()  # the launcher that held the lock has just removed the file


class NodeSession:
    """A measurement of the nodes that `launch` started; leaving its context dismisses them."""

    def __init__(self, launch: FleetLaunch, request: FleetRequest, watch: WatchNodes) -> None:
        self._request = request
        self._coordinator = NodeCoordinator(launch, request.racks or {}, request.patience, watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        kept = self._coordinator.keep_answers() if isinstance(error, FileError) else None  # the disk is full
        with contextlib.suppress(*[BoardGone] * (error is not None)):  # the first error tells more
            self._coordinator.end(wait=error is None)
        if kept:
            raise FileError(f"{error}; run files are kept, not checked: {kept}") from error


class FleetSession(NodeSession):
    """A measurement of every node: enter the context and call `measure`."""

    def __init__(self, launch: FleetLaunch, request: FleetRequest, watch: WatchNodes) -> None:
        super().__init__(launch, request, watch)
        self._begin = time.monotonic()
        self._outcomes: dict[int, NodeOutcome] = {}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.fleet = Fleet((), launch.launcher, request.argv, started, gpubench=__version__)

    @property
    def exit_status(self) -> int:
        """0 if every node answered, 6 if no node has a working device, else 4."""
        outcomes = self._outcomes.values()
        if all(outcome.status == "answered" for outcome in outcomes):
            return 0
        is_unwell = all(outcome.exit_status == DeviceError.exit_status for outcome in outcomes)
        return DeviceError.exit_status if is_unwell else CannotJudge.exit_status

    def measure(self) -> Fleet:
        """Measure every node, write the run files and the record into the requested folder, and return the record."""
        self._coordinator.gather()
        self._write_nodes()

        def record(rank: int, outcome: NodeOutcome) -> None:
            self._outcomes[rank] = outcome
            self._write_nodes()

        self._coordinator.turn(self._coordinator.nodes, self._request.order, self._request.folder, record)
        return self._write_nodes()

    def measure_again(self, roles: Mapping[str, Role], filters: Sequence[str]) -> Fleet:
        """Measure these nodes again, at the same time, in the cases that the filters select, and return the record."""
        ranks = {self._coordinator.name(rank): rank for rank in self._coordinator.nodes}
        folder = self._request.folder / AGAIN
        with as_file_errors(folder):
            folder.mkdir(exist_ok=True)

        def record_again(rank: int, outcome: NodeOutcome) -> None:
            name = self._coordinator.name(rank)
            remeasured = Remeasured(name, roles[name], outcome.status, outcome.seconds, outcome.file, outcome.reason)
            self._write_record(again=(*(earlier for earlier in self.fleet.again if earlier.node != name), remeasured))

        order = replace(self._request.order, filters=tuple(filters))
        self._coordinator.turn([ranks[name] for name in roles], order, folder, record_again)
        return self._write_nodes()

    def _write_nodes(self) -> Fleet:
        nodes = []
        for rank in self._coordinator.nodes:
            outcome = self._outcomes.get(rank, _UNANSWERED)
            name, rack = self._coordinator.name(rank), self._coordinator.rack(rank)
            nodes.append(FleetNode(name, outcome.status, outcome.seconds, outcome.file, outcome.reason, rack))
        return self._write_record(nodes=tuple(nodes), at_once=self._coordinator.most_at_once)

    def _write_record(self, **changed: object) -> Fleet:
        seconds = time.monotonic() - self._begin
        self.fleet = replace(self.fleet, seconds=seconds, **changed)  # type: ignore[arg-type]
        path = self._request.folder / FLEET_FILE
        with as_file_errors(path):
            write_whole(path, encode_fleet(self.fleet))
        return self.fleet
