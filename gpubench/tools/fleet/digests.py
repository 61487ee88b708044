"""Read the run file of each node of a fleet once, into a digest, with one process per core."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from gpubench.analysis.digest import DigestBuilder, NodeDigest
from gpubench.base.errors import FileError
from gpubench.judging.fleet_rule import SecondMeasurement
from gpubench.model import store
from gpubench.model.fleet import AGAIN, Fleet, FleetNode, Remeasured, read_fleet
from gpubench.tools.gating.readings import garbage_collection_off

_MANY_BYTES = 16 * 2**20  # below this total size, starting processes takes longer than they save


class _ReadDigest(NamedTuple):
    """The digest of a run file, or None with the reason why the file was refused."""

    digest: NodeDigest | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReadFleet:
    """A fleet with the digests of its nodes; a node whose file was refused has the status `refused` in `fleet`.

    `digests` are those of the nodes with a valid run file, and `again` are the second measurements."""

    fleet: Fleet
    digests: tuple[NodeDigest, ...]
    again: tuple[SecondMeasurement, ...]
    files: dict[str, Path]
    seconds: float
    notes: tuple[str, ...] = ()  # names that several nodes have


def read(folder: Path) -> ReadFleet:
    """Read the fleet in `folder`: its record, and a digest of each run file of a node that answered.

    An invalid run file affects its node alone. Raises FileError if the folder holds no fleet."""
    start = time.monotonic()
    fleet = read_fleet(folder)
    first = [node for node in _first_by_name(fleet.nodes) if node.file and node.status == "answered"]
    second = [entry for entry in fleet.again if entry.file and entry.status == "answered"]
    paths = [*(folder / node.file for node in first), *(folder / AGAIN / entry.file for entry in second)]
    answers = _read_digests(paths, [*(node.name for node in first), *(entry.node for entry in second)])
    digests, reasons = [], {}
    for node, answer in zip(first, answers, strict=False):
        if answer.digest:
            digests.append(answer.digest)
        else:
            reasons[node.name] = answer.reason
    again = [_second_measurement(entry, answer) for entry, answer in zip(second, answers[len(first) :], strict=True)]
    nodes = tuple(_with_refusal(node, reasons) for node in _first_by_name(fleet.nodes))
    files = {node.name: folder / node.file for node in first if node.name not in reasons}
    read_again = tuple(entry for entry in again if entry)
    counts = Counter(node.name for node in fleet.nodes)
    kept = {node.name: node.file or node.status for node in nodes}
    notes = tuple(
        f"{count} nodes have the name {name}; only one of them counts ({kept[name]})"
        for name, count in counts.items()
        if count > 1
    )
    return ReadFleet(replace(fleet, nodes=nodes), tuple(digests), read_again, files, time.monotonic() - start, notes)


def _first_by_name(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Return one entry per name of a node: the first that answered, or the first of all if none answered."""
    by_name: dict[str, FleetNode] = {}
    for node in nodes:
        earlier = by_name.get(node.name)
        if earlier is None or (earlier.status != "answered" and node.status == "answered"):
            by_name[node.name] = node
    return list(by_name.values())


def _with_refusal(node: FleetNode, reasons: dict[str, str]) -> FleetNode:
    """Return the entry of a node; with the status `refused` if `reasons`, by the node's name, has a reason for it."""
    return replace(node, status="refused", reason=reasons[node.name], file="") if node.name in reasons else node


def _second_measurement(entry: Remeasured, answer: _ReadDigest) -> SecondMeasurement | None:
    """Return the second measurement of a node from `answer`, the content of its run file; None if it was refused."""
    return SecondMeasurement(answer.digest, entry.role == "control") if answer.digest else None


def _read_digests(paths: Sequence[Path], names: Sequence[str]) -> list[_ReadDigest]:
    """Return the digest of each file in the order of `paths`; `names` has the name of the node for each file."""
    cores = min(len(os.sched_getaffinity(0)), len(paths))
    size_bytes = sum(path.stat().st_size for path in paths if path.exists())
    if cores < 2 or size_bytes < _MANY_BYTES:
        return [_read_digest(path, name) for path, name in zip(paths, names, strict=True)]
    with garbage_collection_off(), ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_read_digest, paths, names, chunksize=max(1, len(paths) // (8 * cores))))


def _read_digest(path: Path, name: str) -> _ReadDigest:
    """Return the digest of the run file of the node `name`, or the reason why the file is invalid."""
    builder = DigestBuilder()
    try:
        with garbage_collection_off():
            scan = store.scan(path, builder.add)
    except FileError as error:
        return _ReadDigest(None, str(error).removeprefix(f"{path}: "))
    return _ReadDigest(builder.digest(name, scan.complete))
