"""Store a fleet: the record `fleet.json` next to the nodes' run files, with the request to each node and its outcome.

A folder holds `fleet.json`, one ordinary run file for each node that answered, and in `again/` the run files of the
nodes that were measured a second time. The record is read strictly, as a run file is, because it may come from another
machine."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from annotated_types import MaxLen

from gpubench.base.errors import FileError
from gpubench.base.files import open_to_read
from gpubench.model.disk import as_file_errors
from gpubench.model.limits import Count, Many, Name, Seconds, Text, Word
from gpubench.model.schema import Strict, identified

FLEET_FILE = "fleet.json"
AGAIN = "again"  # the folder of the second measurements
FLEET_SCHEMA: Literal["gpubench.fleet/1"] = "gpubench.fleet/1"
_MOST_BYTES = 2**25  # 100 000 nodes
_MOST_NODES = 10**5
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.jsonl(\.gz)?")

# answered: it sent a valid run file; failed: its run ended with an error; died: the node or its program ended; timed
# out: it did not answer within the time limit; refused: it sent something that is not a run file; missing: it never
# reported.
NodeStatus = Literal["answered", "failed", "died", "timed out", "refused", "missing"]


@dataclass(frozen=True, slots=True)
class FleetNode(Strict):
    """One node: its outcome, the seconds that it took, its rack, and its file in the folder, empty if it left none.

    `reason` is a sentence that explains a status other than `answered`."""

    name: Name
    status: NodeStatus
    seconds: Seconds = 0.0
    file: Name = ""
    reason: Text = ""
    rack: Name = ""


@dataclass(frozen=True, slots=True)
class Remeasured(Strict):
    """A second measurement of a node, which is a suspect, or a healthy node measured as a control of one."""

    node: Name
    role: Literal["suspect", "control"]
    status: NodeStatus
    seconds: Seconds = 0.0
    file: Name = ""
    reason: Text = ""


@dataclass(frozen=True, slots=True)
class Fleet(Strict):
    """The request to a fleet and the outcome of each node; `launcher` started the nodes (ray, slurm, environment).

    `argv` is the command with its arguments, and `again` are the second measurements."""

    nodes: Annotated[Many[FleetNode], MaxLen(_MOST_NODES)]
    launcher: Word = ""
    argv: Many[Text] = ()
    started: Name = ""  # ISO 8601, UTC, by the clock of the launcher
    seconds: Seconds = 0.0
    at_once: Count = 0
    again: Annotated[Many[Remeasured], MaxLen(_MOST_NODES)] = ()
    gpubench: Word = ""
    schema: Literal["gpubench.fleet/1"] = FLEET_SCHEMA


_FLEET = pydantic.TypeAdapter(Fleet)


def is_file_name(name: str) -> bool:
    """Return whether a node's file may have this name: the name of a run file, without folders."""
    return _FILE_NAME.fullmatch(name) is not None


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `fleet.json`."""
    return identified(FLEET_SCHEMA, _FLEET.json_schema())


def encode_fleet(fleet: Fleet) -> bytes:
    """Return the record as JSON."""
    return _FLEET.dump_json(fleet, indent=1) + b"\n"


def read_fleet(folder: Path) -> Fleet:
    """Return the record of a folder. Raises FileError if `fleet.json` is not valid or the folder has no run files.

    A folder without `fleet.json` is a fleet too: each run file in it is the answer of the node after which it is
    named."""
    path = folder / FLEET_FILE
    if not path.exists():
        with as_file_errors(folder):
            names = sorted(path.name for path in folder.iterdir() if is_file_name(path.name))
        if not names:
            raise FileError(f"{folder}: neither {FLEET_FILE} nor a run file (.jsonl, .jsonl.gz) is in it")
        named = ((name.removesuffix(".gz").removesuffix(".jsonl"), name) for name in names)
        return Fleet(tuple(FleetNode(node, "answered", file=name) for node, name in named))
    with as_file_errors(path), os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise FileError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: not the record of a fleet")
    try:
        fleet = _FLEET.validate_json(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise FileError(f"{path}: not the record of a fleet: {where}: {first['msg']}") from error
    for name in [*(node.file for node in fleet.nodes), *(again.file for again in fleet.again)]:
        if name and not is_file_name(name):
            raise FileError(f"{path}: not the record of a fleet: {name!r} is not the name of a run file")
    return fleet
