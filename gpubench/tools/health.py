"""Read the health of a run's devices before and after it, write it into the run file, and refuse sick devices.

Return the user's names and salt, without which nobody can test whether a pseudonym belongs to a UUID or a host."""

import getpass
import gzip
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from gpubench.analysis.trust import HEALTH_SOURCE, STATE_SOURCE
from gpubench.base.errors import DeviceError, FileError
from gpubench.measuring import health
from gpubench.measuring.examination import PATIENCE_S, Examination, examine
from gpubench.measuring.health import Health
from gpubench.measuring.plan import Plan
from gpubench.measuring.progress import Observer, ProgressEvent
from gpubench.measuring.recording import Recording
from gpubench.model import Device, Remark
from gpubench.model.record import decode

Tell = Callable[[str], None]
_LEAST_S = 10.0  # between two readings
_DOCTOR = "`gpubench doctor` says what to do"


def silent(message: str) -> None:
    """Ignore a message: the default for a run without a user to inform."""
    del message


class RunHealth(AbstractContextManager["RunHealth"]):
    """Reads the health of a run's devices before and after it and writes remarks on it into the run file.

    Use it as a context, and create it before the sampling process: both processes then start at the same time."""

    def __init__(self, devices: Sequence[Device], tell: Tell = silent, patience_s: float = PATIENCE_S) -> None:
        self._examination = Examination(devices, patience_s)
        self._tell = tell
        self._before: tuple[Health, ...] = ()
        self._written: set[health.HealthFinding] = set()
        self._read_at = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._examination.__exit__(*error)

    def begin(self, recording: Recording) -> None:
        """Read the health before the first case, write it into the run file, and call `tell` with each warning."""
        self._before = self._examination.read()
        _write_remarks(recording, self._before)
        for message in warnings(self._before):
            self._tell(message)

    def end(self, recording: Recording) -> None:
        """Read the health, and write the errors that appeared during the run and are not yet in the run file."""
        risen = [health.risen(*pair) for pair in zip(self._before, self._examination.read(), strict=True)]
        findings = [
            replace(one, findings=tuple(finding for finding in one.findings if finding not in self._written))
            for one in risen
        ]
        _write_remarks(recording, findings)
        self._written.update(finding for one in findings for finding in one.findings)
        self._read_at = time.monotonic()

    def by_pass(self, recording: Recording, watch: Observer) -> Observer:
        """Return an observer that reads the health at the end of a pass, at most every ten seconds, and calls `watch`.

        A pass is a replicate of the run."""
        latest = 0

        def observe(event: ProgressEvent) -> None:
            """Read the health if a replicate begins, and pass the event on."""
            nonlocal latest
            if event.job.replicate != latest and time.monotonic() - self._read_at >= _LEAST_S:
                latest = event.job.replicate
                self.end(recording)
            watch(event)

        return observe


def _write_remarks(recording: Recording, healths: Sequence[Health]) -> None:
    at = time.monotonic() - recording.started_at
    for device in healths:
        for severity, source in (("sick", HEALTH_SOURCE), ("warning", STATE_SOURCE)):
            for finding in device.findings:
                if finding.severity == severity:
                    recording.remark(Remark(at, "event", source, device.device, finding.text))
        if device.unavailable:
            recording.remark(Remark(at, "absent", HEALTH_SOURCE, device.device, f"unavailable: {device.unavailable}"))


def warnings(healths: Sequence[Health]) -> list[str]:
    """Return a line for each device that is sick or has a warning, and for each whose health cannot be read.

    A line about findings lists them, and names the command that says what to do."""
    lines = []
    for device in healths:
        for severity, state in (("sick", "is sick"), ("warning", "has a warning")):
            if texts := [finding.text for finding in device.findings if finding.severity == severity]:
                lines.append(f"{device.device} {state}: {'; '.join(texts)}; {_DOCTOR}")
        if not device.findings:
            lines.append(f"the health of {device.device} is unavailable: {device.unavailable}")
    return lines


def refuse_sick(plan: Plan) -> None:
    """Raise DeviceError (exit status 6) if a device that a case of the plan uses is sick now."""
    healths = examine(measured_devices(plan))
    reasons = [
        f"{device.device} is sick ({'; '.join(finding.text for finding in device.of('sick'))})"
        for device in healths
        if device.of("sick")
    ]
    if reasons:
        raise DeviceError(f"{'; '.join(reasons)}. Nothing was measured: a gate does not judge a sick device; {_DOCTOR}")


def refuse_recorded(paths: Sequence[Path]) -> None:
    """Raise DeviceError (exit status 6) if one of these run files records that a device was sick or became sick."""
    for path in paths:
        if reasons := list(dict.fromkeys(f"{remark.device}: {remark.words}" for remark in _sick_remarks(path))):
            message = f"{path} was measured on a sick device ({'; '.join(reasons)})"
            raise DeviceError(f"{message}. A gate does not judge it; {_DOCTOR}")


def _sick_remarks(path: Path) -> Iterator[Remark]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for line in file:
                if line.startswith(b'{"kind":"remark"') and HEALTH_SOURCE.encode() in line:
                    remark = decode(line)
                    if isinstance(remark, Remark) and (remark.source, remark.state) == (HEALTH_SOURCE, "event"):
                        yield remark
        except EOFError:  # a gzip file of a run that was interrupted
            return


def measured_devices(plan: Plan) -> list[Device]:
    """Return the devices that the cases of this plan use, each once."""
    return list({device.id: device for job in plan.jobs for device in job.devices}.values())


_SALT_BYTES = 32


def names() -> tuple[str, ...]:
    """Return the user's name, the host name and its first label; names that the system does not know are left out."""
    host = socket.gethostname()
    return tuple(name for name in (_user(), host, host.partition(".")[0]) if name)


def _user() -> str:
    """Return the name of the user; empty if the user id has no account, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an account, as in a container
        return ""


def salt_file() -> Path:
    """Return the path of the salt: $XDG_CONFIG_HOME/gpubench/salt, by default in ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home else Path.home() / ".config") / "gpubench" / "salt"


def salt(path: Path | None = None) -> bytes:
    """Return the user's salt, 32 random bytes, which are made at the first use."""
    path = path or salt_file()
    try:
        if not path.exists():
            _make_salt(path)
        digits = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; set XDG_CONFIG_HOME to a folder that can be written") from error
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _SALT_BYTES}}}", digits):
        raise FileError(
            f"{path}: not a salt of gpubench; remove it; runs that you shared before will then have other pseudonyms"
        )
    return bytes.fromhex(digits)


def _make_salt(path: Path) -> None:
    """Make a new salt in `path` and its folder; if another process has just made one, that salt stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".salt.{secrets.token_hex(8)}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w", encoding="ascii") as writing:
            writing.write(secrets.token_hex(_SALT_BYTES) + "\n")
        try:
            os.link(beside, path)
        except FileExistsError:
            return
    finally:
        beside.unlink()
