"""Check the run file that a node sent; it is stored in the fleet's folder only if the strict reader accepts it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.clean import one_line
from gpubench.base.errors import FileError
from gpubench.base.files import write_whole
from gpubench.model import Run
from gpubench.model.disk import reported
from gpubench.model.fleet import NodeStatus
from gpubench.model.store import read_run
from gpubench.tools.fleet.messages import Ended, Order

_MEASURED = (0, 3)  # exit statuses of `gpubench run`: every case was measured, and a case failed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one turn of a node; `seconds` are measured by the launcher's clock.

    `exit_status` is that of the node's `gpubench run`, if it ended.
    """

    status: NodeStatus
    seconds: float = 0.0
    file: str = ""
    reason: str = ""
    exit_status: int = 0


def answer(data: bytes | None, folder: Path, name: str, asked: Order, uuids: tuple[str, ...], ended: Ended) -> Outcome:
    """Return the outcome of a node's answer; a valid run file of the order is stored in the folder.

    `data` is the run file that the node sent, None without one. `uuids` are those of the GPUs that the node reported. A
    run that ended early leaves a valid partial run file, which is stored too. Raises FileError if the file cannot be
    written.
    """
    status, reason = _status(ended)
    if data is None:
        status = "failed" if status == "answered" else status
        return Outcome(status, reason=reason or "it left no run file", exit_status=ended.exit_status)
    file = f"{name}.jsonl.gz"
    with reported(folder / file):
        incoming = folder / f".{name}.incoming.jsonl.gz"
        write_whole(incoming, data)
        try:
            run = read_run(incoming)
        except FileError as error:
            incoming.unlink()
            return Outcome("refused", reason=f"its run file is refused: {_without(str(error), incoming)}")
        if differences := list(_differences(run, asked, uuids)):
            incoming.unlink()
            return Outcome("refused", reason=f"its run file is not what was asked for: {', '.join(differences)}")
        incoming.replace(folder / file)
    if status == "answered" and not run.complete:
        return Outcome("failed", file=file, reason="its run file ends early; the cases in it are kept")
    return Outcome(status, file=file, reason=reason, exit_status=ended.exit_status)


def _without(message: str, path: Path) -> str:
    return one_line(message.replace(f"{path}: ", "").replace(str(path), "it"))


def _status(ended: Ended) -> tuple[NodeStatus, str]:
    last_line = f": {one_line(ended.words)[:500]}" if ended.words else ""
    if ended.is_timed_out:
        return "timed out", f"it was ended after {ended.seconds:.0f} s, at the time limit{last_line}"
    if ended.exit_status in _MEASURED:
        return "answered", ""
    return "failed", f"its run ended with exit status {ended.exit_status}{last_line}"


def _differences(run: Run, asked: Order, uuids: tuple[str, ...]) -> Iterator[str]:
    """Yield the differences between a run and the order that the node was given."""
    settings = run.manifest.settings
    for setting, measured, expected in (
        ("tier", settings.tier, asked.tier),
        ("filters", settings.filters, asked.filters),
        ("replicates", settings.replicates, asked.replicates),
        ("devices", settings.devices, asked.devices),
    ):
        if measured != expected:
            yield f"{setting} are {measured!r} instead of {expected!r}"
    with contextlib.suppress(KeyError):
        measured_uuids = tuple(_uuid(run, device) for device in settings.devices)
        if uuids and measured_uuids != uuids and settings.devices == asked.devices:
            yield f"it measured {', '.join(measured_uuids)}, but it had reported {', '.join(uuids)}"


def _uuid(run: Run, device_id: str) -> str:
    device = run.manifest.facts.device(device_id)
    return device.uuid or device.pci or device.id
