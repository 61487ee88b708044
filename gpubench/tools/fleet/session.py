"""Measure a fleet into a folder; its record `fleet.json` is written whenever the outcome of a node changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gpubench import __version__
from gpubench.base.errors import CannotJudge, DeviceError, FileError, UsageError
from gpubench.base.files import write_whole
from gpubench.model.disk import reported
from gpubench.model.fleet import AGAIN, FLEET_FILE, Fleet, FleetNode, Remeasured, encode_fleet, is_file_name
from gpubench.tools.fleet.answers import Outcome
from gpubench.tools.fleet.collect import Collector, Patience, Watch
from gpubench.tools.fleet.crew import Crew, Racks
from gpubench.tools.fleet.messages import Order

Role = Literal["suspect", "control"]
_WAITING = Outcome("missing", reason="the launcher ended before this node had answered")


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """A fleet's measurement: the order for each node, the folder for its files, racks by node, and how to wait."""

    order: Order
    folder: Path
    argv: tuple[str, ...] = ()
    racks: Racks | None = None
    patience: Patience = field(default_factory=Patience)


def new_folder(path: Path) -> Path:
    """Make and return the folder of a fleet. Raises UsageError if it cannot be made, or holds a fleet or run files."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name another folder with --out") from error
    if held := next((name for name in names if name in (FLEET_FILE, AGAIN) or is_file_name(name)), ""):
        raise UsageError(f"{path} holds another fleet ({held}); name a new folder with --out")
    return path


class FleetSession:
    """A fleet that is being measured; the context dismisses its nodes at the end."""

    def __init__(self, crew: Crew, request: FleetRequest, watch: Watch) -> None:
        self._request = request
        self._collector = Collector(crew, request.racks or {}, request.patience, watch)
        self._begin = time.monotonic()
        self._first: dict[int, Outcome] = {}
        self.fleet = Fleet(
            nodes=(),
            launcher=crew.launcher,
            argv=request.argv,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            gpubench=__version__,
        )

    def __enter__(self) -> FleetSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._collector.end(wait=kind is None)

    @property
    def exit_status(self) -> int:
        """Return 0 if every node answered, 6 if no node has a working device, else 4."""
        outcomes = self._first.values()
        if all(outcome.status == "answered" for outcome in outcomes):
            return 0
        is_unwell = all(outcome.exit_status == DeviceError.exit_status for outcome in outcomes)
        return DeviceError.exit_status if is_unwell else CannotJudge.exit_status

    def measure(self) -> Fleet:
        """Measure every node and return the fleet.

        Raises UsageError if no node reports, BoardGone if the board is removed, and FileError if a file cannot be
        written.
        """
        self._collector.gather()
        self._write()
        self._collector.turn(self._collector.nodes, self._request.order, self._request.folder, self._settled)
        return self._write()

    def again(self, roles: Mapping[str, Role], filters: Sequence[str]) -> Fleet:
        """Measure these nodes again, at the same time, with only the cases that the filters select.

        Their run files go to the folder `again`, and their outcomes to `fleet.json`. Every node must have answered
        before. A node has one second measurement: a later one replaces it. Raises BoardGone if the board is removed,
        and FileError if a file cannot be written.
        """
        ranks = {self._collector.name(rank): rank for rank in self._collector.nodes}
        folder = self._request.folder / AGAIN
        with reported(folder):
            folder.mkdir(exist_ok=True)

        def settled(rank: int, outcome: Outcome) -> None:
            name = self._collector.name(rank)
            remeasured = Remeasured(name, roles[name], outcome.status, outcome.seconds, outcome.file, outcome.reason)
            self._put(again=(*(earlier for earlier in self.fleet.again if earlier.node != name), remeasured))

        order = replace(self._request.order, filters=tuple(filters))
        self._collector.turn([ranks[name] for name in roles], order, folder, settled)
        return self._write()

    def _settled(self, rank: int, outcome: Outcome) -> None:
        self._first[rank] = outcome
        self._write()

    def _write(self) -> Fleet:
        return self._put(nodes=tuple(self._nodes()), at_once=self._collector.most_at_once)

    def _nodes(self) -> Iterable[FleetNode]:
        for rank in self._collector.nodes:
            outcome = self._first.get(rank, _WAITING)
            name, rack = self._collector.name(rank), self._collector.rack(rank)
            yield FleetNode(name, outcome.status, outcome.seconds, outcome.file, outcome.reason, rack)

    def _put(self, **changed: object) -> Fleet:
        seconds = time.monotonic() - self._begin
        self.fleet = replace(self.fleet, seconds=seconds, **changed)  # type: ignore[arg-type]
        path = self._request.folder / FLEET_FILE
        try:
            write_whole(path, encode_fleet(self.fleet))
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from error
        return self.fleet
