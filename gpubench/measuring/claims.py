"""Find out which runs of this user measure on a device now: each run holds one locked file for each device.

A lock ends with its process, so that a crash frees the device. Processes of other users and other programs are not seen
here; on a GPU the collectors' watches see them (`shared-device`, `foreign-process`)."""

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
_NAME = re.compile(r"([\w.-]+)@(\d+)-[0-9a-f]{8}")  # the file name of a claim: device, process id, random digits


class OtherRun(NamedTuple):
    """Another run that measures on a device: its process, and whether it demands the device for itself."""

    device: str
    pid: int
    is_exclusive: bool


class Claims(AbstractContextManager["Claims"]):
    """The claims of this run on its devices, which other runs of this user can see.

    Leaving the context frees the devices."""

    def __init__(self, devices: Sequence[Device], exclusive: bool = False) -> None:
        """Claim the devices for this run; if `exclusive`, no other run may measure on any of them."""
        self.problem = ""
        self._folder: Path | None = None
        self._keys = {device.id: _key(device) for device in devices}
        with contextlib.ExitStack() as undo:
            try:
                self._folder = _runtime_folder()
                held_files = [
                    undo.enter_context(_hold_claim(self._folder, key, exclusive)) for key in self._keys.values()
                ]
            except OSError as error:
                self.problem = f"{error.filename or 'the folder of locks'}: {error.strerror}"
                held_files = []
            self._own = {path.name for path in held_files}
            if exclusive and self.problem:
                raise UsageError(f"--exclusive needs locks: {self.problem}; set XDG_RUNTIME_DIR to a private folder")
            for rival in self.others(list(self._keys)):
                if exclusive or rival.is_exclusive:
                    raise DeviceError(_refusal(rival))
            self._undo = undo.pop_all()

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def others(self, device_ids: Sequence[str]) -> list[OtherRun]:
        """Return the other runs of this user that measure on any of these devices now.

        This run must have all of these devices. The list is empty if `problem` has a text."""
        if self._folder is None or self.problem:
            return []
        wanted = {self._keys[device_id]: device_id for device_id in device_ids}
        runs = []
        for path in self._folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and name[1] in wanted and path.name not in self._own and (content := _read_claim(path)) is not None:
                runs.append(OtherRun(wanted[name[1]], int(name[2]), content == _EXCLUSIVE))
        return runs


def warning(others: Sequence[OtherRun]) -> str:
    """Return one line that says on which devices other runs measure; empty if `others` is empty."""
    places = dict.fromkeys(f"{run.device} (process {run.pid})" for run in others)
    if not places:
        return ""
    message = f"another run of gpubench measures on {', '.join(places)}: the runs disturb each other"
    return f"{message}, and the cases get the label {SHARED_LABEL}; --exclusive refuses to start"


def _refusal(run: OtherRun) -> str:
    mode = "with --exclusive" if run.is_exclusive else "and this run has --exclusive"
    message = f"another run of gpubench (process {run.pid}) measures on {run.device} {mode}"
    return f"{message}. Nothing was measured; wait until it has ended"


def _key(device: Device) -> str:
    return re.sub(r"[^\w.-]", "_", device.uuid or device.pci or device.id)[:100]


def _runtime_folder() -> Path:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")  # cron does not set XDG_RUNTIME_DIR
    is_own = runtime.is_dir() and runtime.stat().st_uid == os.getuid()  # after su it may be another user's
    shared = Path(f"/tmp/gpubench-{os.getuid()}")  # noqa: S108 - it is used only if it is this user's alone
    folder = runtime / "gpubench" if is_own else shared
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(1, "it is not a folder of this user alone", str(folder))
    return folder


@contextlib.contextmanager
def _hold_claim(folder: Path, key: str, exclusive: bool) -> Iterator[Path]:
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


def _read_claim(path: Path) -> bytes | None:
    """Return the content of a claim, `exclusive` or empty, if its run still holds the lock; else None."""
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
