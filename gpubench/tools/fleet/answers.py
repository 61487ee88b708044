"""Check the run file that a node sent, and store it in the fleet's folder only if the strict reader accepts it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.clean import one_line
from gpubench.base.errors import FileError
from gpubench.base.files import write_whole
from gpubench.model import Run
from gpubench.model.disk import as_file_errors
from gpubench.model.fleet import NodeStatus
from gpubench.model.store import read_run
from gpubench.tools.fleet.messages import MeasurementEnd, NodeOrder

_COMPLETED_STATUSES = (0, 3)  # exit statuses of `gpubench run`: every case was measured, and a case failed


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcome of one turn of a node: its status, its run file, and the reason for a status other than `answered`.

    `seconds` is the time since the node got its order, by the launcher's clock."""

    status: NodeStatus
    seconds: float = 0.0
    file: str = ""
    reason: str = ""
    exit_status: int = 0


def check_answer(
    data: bytes | None, folder: Path, name: str, order: NodeOrder, uuids: tuple[str, ...], ended: MeasurementEnd
) -> NodeOutcome:
    """Check the run file that a node sent, store it in `folder` if it is valid, and return the node's outcome.

    `order` is the order that the node was given, and `ended` its report on the measurement."""
    status, reason = _status_and_reason(ended)
    if data is None:
        status = "failed" if status == "answered" else status
        last_line = f": {one_line(ended.last_line)[:500]}" if ended.last_line else ""
        return NodeOutcome(status, reason=reason or f"it left no run file{last_line}", exit_status=ended.exit_status)
    file = f"{name}.jsonl.gz"
    with as_file_errors(folder / file):
        incoming = folder / f".{name}.incoming.jsonl.gz"
        write_whole(incoming, data)
        try:
            run = read_run(incoming)
        except FileError as error:
            incoming.unlink()
            return NodeOutcome("refused", reason=f"its run file is refused: {_without_path(str(error), incoming)}")
        if differences := list(_differences_from_order(run, order, uuids)):
            incoming.unlink()
            return NodeOutcome("refused", reason=f"its run file differs from the order: {', '.join(differences)}")
        incoming.replace(folder / file)
    if status == "answered" and not run.complete:
        return NodeOutcome("failed", file=file, reason="its run file is incomplete; the cases in it are kept")
    return NodeOutcome(status, file=file, reason=reason, exit_status=ended.exit_status)


def _without_path(message: str, path: Path) -> str:
    """Return an error message as one line that does not name the temporary file `path`."""
    return one_line(message.replace(f"{path}: ", "").replace(str(path), "it"))


def _status_and_reason(ended: MeasurementEnd) -> tuple[NodeStatus, str]:
    last_line = f": {one_line(ended.last_line)[:500]}" if ended.last_line else ""
    if ended.is_timed_out:
        return "timed out", f"it was ended after {ended.seconds:.0f} s, at the time limit{last_line}"
    if ended.exit_status in _COMPLETED_STATUSES:
        return "answered", ""
    return "failed", f"its run ended with exit status {ended.exit_status}{last_line}"


def _differences_from_order(run: Run, order: NodeOrder, uuids: tuple[str, ...]) -> Iterator[str]:
    """Yield a clause for each setting of a run that differs from the order that the node was given."""
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
        measured_uuids = tuple(_device_identity(run, device) for device in settings.devices)
        if uuids and measured_uuids != uuids and settings.devices == order.devices:
            yield f"it measured {', '.join(measured_uuids)}, but it had reported {', '.join(uuids)}"


def _device_identity(run: Run, device_id: str) -> str:
    """Return the UUID of a device of a run; without a UUID its PCI id, and without a PCI id its device id."""
    device = run.manifest.facts.device(device_id)
    return device.uuid or device.pci or device.id
