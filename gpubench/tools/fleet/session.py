"""Measure a fleet into a folder; its record `fleet.json` is written whenever the outcome of a node changes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from gpubench import __version__
from gpubench.base.errors import CannotJudge, DeviceError, UsageError
from gpubench.base.files import write_whole
from gpubench.model.disk import as_file_errors
from gpubench.model.fleet import AGAIN, FLEET_FILE, Fleet, FleetNode, Remeasured, encode_fleet, is_file_name
from gpubench.tools.fleet.board import NodeOrder
from gpubench.tools.fleet.collect import NodeCoordinator, NodeOutcome, Patience, Racks, WatchNodes
from gpubench.tools.fleet.launchers import FleetLaunch

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

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._coordinator.end(wait=kind is None)


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
