"""Open or create the database file, and report each of SQLite's errors in one line."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self, TypeVar

from annotated_types import Interval
from pydantic import AllowInfNan, StringConstraints, TypeAdapter, ValidationError

from gpubench.base.errors import FileError
from gpubench.base.files import refuse_special
from gpubench.model.disk import as_file_errors

Row = TypeVar("Row")
Key = Annotated[int, Interval(ge=0, lt=2**63)]
Finite = Annotated[float, AllowInfNan(False)]
Moment = Annotated[float, Interval(ge=-6e10, le=253_402_300_799.0)]  # seconds since 1970 of the years 69 to 9999
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
WAIT_S = 20.0  # longest wait for other writers: each records a run within milliseconds
_APPLICATION = 0x67707562  # "gpub", at byte 68 of the file (sqlite.org/fileformat.html)
_VERSION = 1
_MOUNTS = Path("/proc/mounts")
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p", "fuse", "virtiofs")
_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, path TEXT NOT NULL, at REAL NOT NULL, ahead_s REAL NOT NULL,
    host TEXT NOT NULL, versions TEXT NOT NULL, results INTEGER NOT NULL
);
CREATE TABLE fingerprints (id TEXT PRIMARY KEY, pairs TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, case_id TEXT NOT NULL, version INTEGER NOT NULL, tier TEXT NOT NULL, series TEXT NOT NULL,
    unit TEXT NOT NULL, better TEXT NOT NULL, devices TEXT NOT NULL, fingerprint TEXT NOT NULL,
    headline INTEGER NOT NULL, UNIQUE (case_id, version, tier, series, unit, better, devices, fingerprint)
);
CREATE TABLE points (
    line INTEGER NOT NULL, at REAL NOT NULL, run INTEGER NOT NULL, replicate INTEGER NOT NULL, low REAL NOT NULL,
    centre REAL NOT NULL, high REAL NOT NULL, noise REAL NOT NULL, samples INTEGER NOT NULL, labels TEXT NOT NULL,
    PRIMARY KEY (line, at, run, replicate)
) WITHOUT ROWID;
CREATE INDEX points_of_run ON points (run);
"""


class Damaged(FileError):  # noqa: N818 - the file is damaged
    """SQLite cannot read the database: `gpubench history rebuild` makes it again from the run files."""


class OpenHistory:
    """A history that is open during the context, or from its creation on; raises FileError and Damaged as `connect`."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._folder = path.absolute().parent
        self._connection = connect(path, create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open the history in the file `path`; with `create`, make it if it does not exist."""
    with as_file_errors(path):
        refuse_special(path)  # SQLite would take a device for an empty file and write to it
        is_missing = not path.exists()
    if is_missing and not create:
        raise FileError(f"there is no history at {path}; `gpubench history import FOLDER` makes one of run files")
    with reported(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(_uri(path, create), timeout=WAIT_S, isolation_level=None, uri=True)
        undo.callback(connection.close)
        _check_database(connection, path, create)
        undo.pop_all()
    return connection


def _uri(path: Path, create: bool) -> str:
    """Return the URI with which SQLite opens the file `path`, and creates it with `create`."""
    read_only = path.exists() and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    return f"{path.absolute().as_uri()}?{'immutable=1' if read_only else 'mode=rwc' if create else 'mode=rw'}"


def _check_database(connection: sqlite3.Connection, path: Path, create: bool) -> None:
    """Raise FileError if the database is no history of this version; with `create`, make the tables of an empty one."""
    if create and not _pragma(connection, "application_id"):
        _make_tables(connection)
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    if application != _APPLICATION:
        raise FileError(f"{path} is not a history of gpubench; name another file")
    if version != _VERSION:
        raise FileError(f"{path} has version {version}, but this gpubench reads version {_VERSION}; use the newer one")
    if create:
        _set_journal_mode(connection, path)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database; do nothing if another process has just created them."""
    with transaction(connection):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        for statement in filter(str.strip, _TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _set_journal_mode(connection: sqlite3.Connection, path: Path) -> None:
    """Use a write-ahead log, or on a network file system a rollback journal; do nothing if the file is in use."""
    mode = "DELETE" if is_on_network(path) else "WAL"
    with contextlib.suppress(sqlite3.OperationalError):  # another process has it open: a later start sets the mode
        connection.execute(f"PRAGMA journal_mode = {mode}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the whole number that SQLite's `PRAGMA name` gives."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the context together, or none if it raises; other writers wait until it ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:  # whatever is raised, nothing half-written stays
        if connection.in_transaction:  # the error of a damaged file may have ended the transaction
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn an error of SQLite in the context into a FileError or Damaged: one line with the file and the next step."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            reason = f"another process has kept it locked for {WAIT_S:g} s; try again when that process has ended"
            raise FileError(f"{path}: {reason}") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise FileError(f"{path}: {error}; check the folder, or set GPUBENCH_HISTORY to another file") from error
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            raise
        raise damaged(path) from error  # the statements are constants, so the file is at fault
    except UnicodeEncodeError as error:
        raise FileError(f"{path}: {error.object!r} cannot be stored, because it is no UTF-8; rename it") from error
    except UnicodeDecodeError as error:  # SQLite's error message quotes bytes of the damaged file
        raise damaged(path) from error


def damaged(path: Path) -> Damaged:
    """Return the error for a history whose content is not what gpubench wrote."""
    return Damaged(f"{path}: damaged; `gpubench history rebuild` makes it anew from the run files")


def checked(types: TypeAdapter[Row], row: object, path: Path) -> Row:
    """Return a row of the history after a check of its types and ranges. Raises Damaged if one is wrong."""
    try:
        return types.validate_python(row, strict=True)
    except ValidationError as error:
        raise damaged(path) from error


def is_on_network(path: Path, mounts: str | None = None) -> bool:
    """Return whether the folder of a file is on a network file system, by the file system's type (nfs, lustre, …)."""
    if mounts is None:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace") if _MOUNTS.exists() else ""
    folder = str(path.absolute().parent.resolve())
    longest_mount = ("", "")
    for line in mounts.splitlines():
        _, mount_point, file_system, *_ = line.split(" ")
        mount_point = mount_point.replace("\\040", " ")
        inside = folder == mount_point or folder.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(longest_mount[0]):
            longest_mount = (mount_point, file_system)
    return longest_mount[1].startswith(_NETWORK)
