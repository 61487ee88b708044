"""Return the names of this user and machine, and the salt that makes this user's pseudonyms unique.

The salt is a random number in the user's configuration folder. It is made at its first use and never shared: without it
nobody can test whether a pseudonym belongs to a UUID or a host name."""

import getpass
import os
import secrets
import socket
from pathlib import Path

from gpubench.base.errors import FileError

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
    """Return the user's salt, 32 random bytes, which are made at the first use.

    `path` is the file with the salt as 64 hexadecimal digits; None stands for `salt_file()`."""
    path = path or salt_file()
    try:
        if not path.exists():
            _make_salt(path)
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; set XDG_CONFIG_HOME to a folder that can be written") from error
    except ValueError as error:
        raise FileError(
            f"{path}: not a salt of gpubench; remove it; runs that you shared before will then have other pseudonyms"
        ) from error
    if len(key) != _SALT_BYTES:
        raise FileError(
            f"{path}: not a salt of gpubench; remove it; runs that you shared before will then have other pseudonyms"
        )
    return key


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
