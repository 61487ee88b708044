"""Exchange short messages and run files between a launcher and its nodes through a board that stores bytes by key.

A board is a folder that all nodes share, or a Ray actor. gpubench opens no port for it. A node is not trusted: its
messages are JSON of limited size with a strict schema. They contain durations and counts but no times of day, because
the clocks of nodes can differ by hours."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import pydantic
from annotated_types import MaxLen

from gpubench.base.errors import FileError
from gpubench.base.files import write_whole
from gpubench.measuring.channel import BadMessage, decoded
from gpubench.model.limits import Count, Many, Seconds, Word
from gpubench.model.run import Tier
from gpubench.model.schema import Strict

MOST_BYTES = 2**28  # largest value: a node's compressed run file; a day of eight devices takes a third of this
_KEY = re.compile(r"[a-z][a-z0-9]{0,30}(\.[a-z0-9]{1,40}){0,3}")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_NOW = (errno.ENOENT, errno.ESTALE)  # missing so far; replaced by another node during the read (NFS)
KEPT = "gpubench-fleet-kept-"  # begins the name of a temporary folder with run files that could not be delivered
FOLDER = ".board"  # the board's folder in the folder of the fleet
Brief = Annotated[str, MaxLen(2000)]
_MESSAGE_BYTES = 2**20
LAUNCHER = "launcher"  # the key of the launcher's heartbeat
WORLD = "world"  # the key of the number of nodes
MOST_NODES = 10**5
Message = TypeVar("Message")


class BoardGone(FileError):  # noqa: N818 - an event: the launcher does not wait for this node any more
    """The board was removed, or does not belong to this user alone; a member that uses it ends."""


class BadValue(FileError):  # noqa: N818 - an event: the node that should have written the value is refused
    """A value of a board is not one that a fleet of this user wrote: a link, a pipe, a folder, or too large."""


class Board(Protocol):
    """A store of bytes by key that the launcher and its nodes share; a later value of a key replaces an earlier one."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key. Raises BoardGone once the board is removed, and BadValue if the key is blocked."""

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none yet; raises as `put`, and BadValue if no fleet wrote it."""


def check_entry(key: str, value: bytes = b"") -> None:
    """Raise ValueError if `key` is malformed, or if `value` is larger than MOST_BYTES."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a key of a board: {key!r}")
    if len(value) > MOST_BYTES:
        raise ValueError(f"{len(value)} bytes for {key}: a board takes up to {MOST_BYTES}")


class FolderBoard:
    """A board in a folder that belongs to this user alone; links and other users' folders and files are refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key atomically; raises BadValue if something other than a file has its name."""
        check_entry(key, value)
        _check_private(self.folder)
        path = self.folder / key
        try:
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise BadValue(f"{key} on the board is not a file")  # writing into a pipe would wait for a reader
            write_whole(path, value)
        except OSError as error:
            raise BoardGone(f"{self.folder}: {error.strerror}") from error

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; raises BadValue if it is not a file of this user, unreadable or too large."""
        check_entry(key)
        _check_private(self.folder)
        try:
            with os.fdopen(os.open(self.folder / key, _READ), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                    raise BadValue(f"{key} on the board is not a file of this user")
                if status.st_size > MOST_BYTES:
                    raise BadValue(f"{key} on the board has {status.st_size} bytes, more than {MOST_BYTES >> 20} MiB")
                return file.read(MOST_BYTES)
        except OSError as error:
            if error.errno in _NOT_NOW:
                return None
            raise BadValue(f"{key} on the board cannot be read: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the board and its content; members that still use it end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another job's board may be beside it
            self.folder.parent.rmdir()


def private_folder(path: Path) -> Path:
    """Make the folder `path` in an existing folder if there is none, and return it."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    _check_private(path)
    return path


def _check_private(folder: Path) -> None:
    """Raise BoardGone unless the folder exists, this user owns it, and no other user may write to it."""
    try:
        status = folder.lstat()
    except OSError as error:
        raise BoardGone(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise BoardGone(f"{folder}: not a folder that belongs to you alone; remove it, or choose another folder")


def new_board(folder: Path) -> FolderBoard:
    """Make an empty board in the folder of a fleet, under a random name in FOLDER, and return it."""
    return FolderBoard(private_folder(private_folder(folder / FOLDER) / secrets.token_hex(16)))


@dataclass(frozen=True, slots=True)
class SeenGpu(Strict):
    """A GPU that a node sees: the id by which it is measured there, and its UUID."""

    id: Word
    uuid: Brief


@dataclass(frozen=True, slots=True)
class MeasurementEnd(Strict):
    """How the measurement of a turn ended; `last_line` is the last line that it printed to standard error."""

    turn: Count
    exit_status: int  # 128 + n if signal n ended it
    seconds: Seconds
    last_line: Brief = ""
    is_timed_out: bool = False
    has_file: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport(Strict):
    """The report that a node writes about once per second; `beat` increases while the node lives."""

    beat: Count
    version: Word
    world: Annotated[int, pydantic.Field(ge=1, le=MOST_NODES)]
    host: Annotated[str, MaxLen(255)]
    machine: Annotated[str, MaxLen(100)]  # the id of the running kernel, which all nodes on one machine share
    rack: Brief = ""
    address: Brief = ""  # other nodes reach this node by it
    gpus: Annotated[Many[SeenGpu], MaxLen(1000)] = ()
    is_ready: bool = False
    phase: Brief = "started"
    ended: MeasurementEnd | None = None
    end_reason: Brief = ""


@dataclass(frozen=True, slots=True)
class PairPlace(Strict):
    """The place of a node in a group that measures together: its number, the group's size, the address, the secret."""

    rank: Count
    size: Count
    address: Brief  # HOST:PORT of the node with number 0
    secret: Annotated[str, MaxLen(100)]


@dataclass(frozen=True, slots=True)
class NodeOrder(Strict):
    """The order to a node for one turn, as arguments of `gpubench run`; an order without suites dismisses the node."""

    suites: Many[Brief] = ()
    devices: Many[Word] = ()
    tier: Tier = "quick"
    filters: Many[Brief] = ()
    replicates: Annotated[int, pydantic.Field(ge=1, le=1000)] = 1
    time_limit_s: Seconds = 600.0
    place: PairPlace | None = None

    def arguments(self, out: str) -> list[str]:
        """Return the arguments with which `gpubench` measures this order; none of its texts can become an option."""
        devices = [f"--device={value}" for value in self.devices or ("all",)]
        filters = [f"--filter={value}" for value in self.filters]
        options = [f"--tier={self.tier}", f"--replicates={self.replicates}", f"--out={out}"]
        return ["run", *devices, *filters, *options, "--", *self.suites]


def decode(kind: type[Message], data: bytes) -> Message:
    """Return the message of class `kind` that `channel.encoded` has encoded. Raises FileError for any other bytes."""
    if len(data) > _MESSAGE_BYTES:
        raise FileError(f"a message of {len(data)} bytes is larger than {_MESSAGE_BYTES} bytes")
    try:
        return decoded(data, {kind.__name__.encode(): kind})
    except BadMessage as error:
        raise FileError(str(error)) from error


def decode_world(data: bytes) -> int:
    """Return the number of nodes from the value of the key WORLD."""
    if data.isdigit() and len(data) <= 6 and 1 <= int(data) <= MOST_NODES:
        return int(data)
    raise FileError(f"not a number of nodes: {data[:20]!r}")


def report_key(rank: int) -> str:
    return f"report.{rank}"


def order_key(rank: int, turn: int) -> str:
    return f"order.{rank}.{turn}"


def run_key(rank: int, turn: int) -> str:
    """Return the key of the run file that a node measured in a turn."""
    return f"run.{rank}.{turn}"
