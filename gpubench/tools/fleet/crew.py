"""What a launcher hands to the collector: a board, the nodes that it started, and which of them have ended."""

from __future__ import annotations

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


class Crew(Protocol):
    """The nodes that a launcher started, by rank from 0.

    `world` is their number, 0 where only the nodes themselves know it; `hosts` are their names where the launcher knows
    them.
    `may_queue` is true where the nodes may have to wait for other jobs before they start.
    """

    launcher: str
    board: Board
    world: int
    hosts: tuple[str, ...]
    may_queue: bool

    def pulse(self) -> None:
        """Do what is due: the collector calls this several times per second."""

    def end_of(self, rank: int) -> str:
        """Return why the process of a rank has ended, as far as the launcher knows; empty while it runs."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Names for nodes that are safe as file names, and distinct where several nodes have one host name."""

    names: dict[int, str] = field(default_factory=dict)

    def name(self, rank: int, host: str, others: int) -> str:
        """Return the name of a node; `others` counts the other nodes that have the same host name."""
        if not host:  # it has not reported; it may still say its name
            return f"rank-{rank}"
        if rank not in self.names:
            base = _UNSAFE.sub("-", host).lstrip("-")[:150] or f"rank-{rank}"
            name = f"{base}-{rank}" if others else base
            while name in self.names.values():
                name += "-again"
            self.names[rank] = name
        return self.names[rank]


def read_map(path: Path) -> Racks:
    """Return the racks of a file with lines of a node and its rack; raises UsageError for any other file."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAP_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text") from error
    racks: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and (len(words) != 2 or words[0] in racks):
            raise UsageError(f"{path}:{number}: not a node that is named once and its rack, as in: gpu07 rack2")
        if words:
            racks[words[0]] = words[1]
    return racks


def check_map(racks: Racks, hosts: list[str]) -> None:
    """Raise UsageError where a map of racks names none of the nodes."""
    if racks and hosts and not racks.keys() & set(hosts):
        raise UsageError(f"the map names none of the nodes; a line for one of them is: {hosts[0]} rack1")
