"""Which runs of this user measure on a device now: one locked file for each run and device.

A lock ends with its process, so that a crash frees the device. Processes of other users and other programs are not seen
here; the collectors' watches see them on a GPU (`shared-device`, `foreign-process`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from gpubench.base.errors import DeviceError, UsageError
from gpubench.model import Device

SHARED_LABEL = "shared-device"
_EXCLUSIVE = b"exclusive"
_NAME = re.compile(r"([\w.-]+)@(\d+)-[0-9a-f]{8}")  # of a claim: the device, the process, and letters drawn by chance


class OtherRun(NamedTuple):
    """Another run that measures on a device: its process, and whether it wants the device for itself."""

    device: str
    pid: int
    is_exclusive: bool


class Claims(AbstractContextManager["Claims"]):
    """The claims of this run on its devices, and those of other runs. Leaving it frees the devices.

    Raises DeviceError where another run is there and one of both is exclusive, UsageError where an exclusive run has no
    place for its claims. `problem` says why claims are unavailable to any other run.
    """

    def __init__(self, devices: Sequence[Device], exclusive: bool = False) -> None:
        self.problem = ""
        self._folder: Path | None = None
        self._keys = {device.id: _key(device) for device in devices}
        with contextlib.ExitStack() as undo:
            try:
                self._folder = _runtime_folder()
                own = [undo.enter_context(_claimed(self._folder, key, exclusive)) for key in self._keys.values()]
            except OSError as error:
                self.problem = f"{error.filename or 'the folder of locks'}: {error.strerror}"
                own = []
            self._own = {path.name for path in own}
            if exclusive and self.problem:
                raise UsageError(f"--exclusive needs locks: {self.problem}; set XDG_RUNTIME_DIR to a private folder")
            for other in self.others(list(self._keys)):
                if exclusive or other.is_exclusive:
                    raise DeviceError(_refusal(other))
            self._undo = undo.pop_all()

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def others(self, device_ids: Sequence[str]) -> list[OtherRun]:
        """Return the other runs that measure on one of these devices now; takes some 50 µs."""
        if self._folder is None or self.problem:
            return []
        wanted = {self._keys[device_id]: device_id for device_id in device_ids}
        found = []
        for path in self._folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and name[1] in wanted and path.name not in self._own and (content := _locked(path)) is not None:
                found.append(OtherRun(wanted[name[1]], int(name[2]), content == _EXCLUSIVE))
        return found


def warning(others: Sequence[OtherRun]) -> str:
    """Return a line that says where other runs measure; empty where there is none."""
    places = dict.fromkeys(f"{other.device} (process {other.pid})" for other in others)
    if not places:
        return ""
    words = f"another run of gpubench measures on {', '.join(places)}: the runs disturb each other"
    return f"{words}, and the cases get the label {SHARED_LABEL}; --exclusive refuses to start"


def _refusal(other: OtherRun) -> str:
    way = "with --exclusive" if other.is_exclusive else "and --exclusive was asked for"
    words = f"another run of gpubench (process {other.pid}) measures on {other.device} {way}"
    return f"{words}. Nothing was measured; wait until it has ended"


def _key(device: Device) -> str:
    return re.sub(r"[^\w.-]", "_", device.uuid or device.pci or device.id)[:100]


def _runtime_folder() -> Path:
    """Return the private folder of locks, made if needed; OSError where it is not this user's alone."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")  # cron has not set it
    is_own = runtime.is_dir() and runtime.stat().st_uid == os.getuid()  # su may leave the other user's
    shared = Path(f"/tmp/gpubench-{os.getuid()}")  # noqa: S108 - it is used only if it is this user's alone
    folder = runtime / "gpubench" if is_own else shared
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
        raise PermissionError(1, "it is not a folder of this user alone", str(folder))
    return folder


@contextlib.contextmanager
def _claimed(folder: Path, key: str, exclusive: bool) -> Iterator[Path]:
    """Hold a locked file; it has its name only once it is locked, so that nobody takes it for a dead run's."""
    path = folder / f"{key}@{os.getpid()}-{secrets.token_hex(4)}"
    new = folder / f".{path.name}"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, _EXCLUSIVE if exclusive else b"")
        new.rename(path)
        yield path
    finally:
        for name in (new, path):
            name.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> bytes | None:
    """Return what a file says that its run holds locked; None where the run has ended, whose file is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 100)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)
    return None
