"""Who shares: the names of this user and machine, and the salt by which only this user's runs join.

The salt is a random number in the user's configuration folder, made at its first use and never shared: without
it nobody can try out whether a pseudonym is that of a UUID or a host name they know.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from pathlib import Path

from gpubench.base.errors import FileError

_SALT_BYTES = 32


def names() -> tuple[str, ...]:
    """What this user and this machine are called, as far as the system knows it."""
    host = socket.gethostname()
    return tuple(name for name in (_user(), host, host.partition(".")[0]) if name)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without an account, as in a container
        return ""


def salt_file() -> Path:
    """Where the salt is: $XDG_CONFIG_HOME/gpubench/salt, by default under ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home else Path.home() / ".config") / "gpubench" / "salt"


def salt(path: Path | None = None) -> bytes:
    """The user's salt, made where there is none yet; raises FileError where it can be neither read nor made."""
    path = path or salt_file()
    try:
        if not path.exists():
            _make(path)
        found = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; set XDG_CONFIG_HOME to a folder that can be written") from error
    except ValueError as error:
        raise FileError(f"{path}: not a salt of gpubench; remove it, and runs shared before join no more") from error
    if len(found) != _SALT_BYTES:
        raise FileError(f"{path}: not a salt of gpubench; remove it, and runs shared before join no more")
    return found


def _make(path: Path) -> None:
    """Write the salt beside its place and link it there: whole at once, and of two makers one wins."""
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
