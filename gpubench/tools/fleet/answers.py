"""Take what a node sent as its run file: it gets its place in the fleet's folder once the strict reader took it."""

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
    """What became of a node in one turn, after how many seconds of the launcher's clock.

    `exit_status` is that of its `gpubench run`, if this ended.
    """

    status: NodeStatus
    seconds: float = 0.0
    file: str = ""
    reason: str = ""
    exit_status: int = 0


def answer(data: bytes | None, folder: Path, name: str, asked: Order, uuids: tuple[str, ...], ended: Ended) -> Outcome:
    """Return what a node answered; a run file that is what was asked for lies in the folder then.

    `uuids` are those of the GPUs that the node reported. A run that ended early leaves a valid partial run file, which
    is kept too.
    """
    status, reason = _status(ended)
    if data is None:
        status = "failed" if status == "answered" else status
        return Outcome(status, reason=reason or "it left no run file", exit_status=ended.exit_status)
    file = f"{name}.jsonl.gz"
    with reported(folder / file):
        beside = folder / f".{name}.incoming.jsonl.gz"
        write_whole(beside, data)
        try:
            run = read_run(beside)
        except FileError as error:
            beside.unlink()
            return Outcome("refused", reason=f"its run file is refused: {_without(str(error), beside)}")
        if differences := list(_differences(run, asked, uuids)):
            beside.unlink()
            return Outcome("refused", reason=f"its run file is not what was asked for: {', '.join(differences)}")
        beside.replace(folder / file)
    if status == "answered" and not run.complete:
        return Outcome("failed", file=file, reason="its run file ends early; the cases in it are kept")
    return Outcome(status, file=file, reason=reason, exit_status=ended.exit_status)


def _without(words: str, path: Path) -> str:
    return one_line(words.replace(f"{path}: ", "").replace(str(path), "it"))


def _status(ended: Ended) -> tuple[NodeStatus, str]:
    words = f": {one_line(ended.words)[:500]}" if ended.words else ""
    if ended.is_timed_out:
        return "timed out", f"it was ended after {ended.seconds:.0f} s, at the time limit{words}"
    if ended.exit_status in _MEASURED:
        return "answered", ""
    return "failed", f"its run ended with exit status {ended.exit_status}{words}"


def _differences(run: Run, asked: Order, uuids: tuple[str, ...]) -> Iterator[str]:
    """Yield in which ways a run is not the one that a node was asked for."""
    settings = run.manifest.settings
    for what, told, wanted in (
        ("tier", settings.tier, asked.tier),
        ("filters", settings.filters, asked.filters),
        ("replicates", settings.replicates, asked.replicates),
        ("devices", settings.devices, asked.devices),
    ):
        if told != wanted:
            yield f"{what} are {told!r} instead of {wanted!r}"
    with contextlib.suppress(KeyError):
        found = tuple(_uuid(run, device) for device in settings.devices)
        if uuids and found != uuids and settings.devices == asked.devices:
            yield f"it measured {', '.join(found)}, and reported {', '.join(uuids)}"


def _uuid(run: Run, device_id: str) -> str:
    device = run.manifest.facts.device(device_id)
    return device.uuid or device.pci or device.id
