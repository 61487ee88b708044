"""Define what a launcher gives to the coordinator: a board, the nodes that it started, and which of them have ended."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpubench.base.errors import UsageError
from gpubench.tools.fleet.board import Board

Racks = Mapping[str, str]  # the rack of a node by its name
_MAP_BYTES = 2**24
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class FleetLaunch(Protocol):
    """The nodes that a launcher started, by rank from 0, and the board through which they communicate.

    `launcher` is the launcher's name (ray, slurm, environment)."""

    launcher: str
    board: Board
    world: int
    hosts: tuple[str, ...]
    may_queue: bool

    def poll(self) -> None:
        """Do the launcher's periodic work; the coordinator calls this several times per second."""

    def reason_of_end(self, rank: int) -> str:
        """Return why the process of a rank has ended; empty while it runs or if the launcher does not know."""


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Gives nodes names that are safe as file names, and distinct even if several nodes have the same host name."""

    names: dict[int, str] = field(default_factory=dict)

    def name(self, rank: int, host: str, others: int) -> str:
        """Return the name of the node of a rank: its host name in safe characters, made distinct if needed.

        The rank is appended if `others`, the number of other nodes with the same host name, is not 0."""
        if not host:  # the node has sent no report; its report may still bring a host name
            return f"rank-{rank}"
        if rank not in self.names:
            base = _UNSAFE.sub("-", host).lstrip("-")[:150] or f"rank-{rank}"
            name = f"{base}-{rank}" if others else base
            while name in self.names.values():
                name += "-again"
            self.names[rank] = name
        return self.names[rank]


def read_racks(path: Path) -> Racks:
    """Return the rack of each node by the node's name, from a text file with a node and its rack per line.

    Text after `#` is a comment."""
    try:
        with path.open("rb") as file:
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


def check_racks(racks: Racks, hosts: list[str]) -> None:
    """Raise UsageError if `racks` is not empty and names none of `hosts`, the host names and node names."""
    if racks and hosts and not racks.keys() & set(hosts):
        raise UsageError(f"the map names none of the nodes; a line for one of them is: {hosts[0]} rack1")
