"""The exit for everything that others may read: it is anonymised here, and files are written whole."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gpubench.base.errors import FileError, UsageError
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.base import files
    from gpubench.tools import health, rendering
    from gpubench.tools import sharing as rules

Value = TypeVar("Value")
NoRedact = Annotated[
    bool,
    typer.Option(
        "--no-redact",
        help="Leave nothing out: keep messages of libraries, the command line, paths, labels, names of hosts and users,"
        " device UUIDs, PCI ids, serial numbers and addresses.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]


def shareable(
    value: Value, no_redact: bool = False, manifests: Sequence[model.Manifest] = (), is_told: bool = True
) -> Value:
    """Return `value`, a dataclass or a tuple of them, as others may read it: by the allow-list of docs/sharing.md.

    `manifests` are of the runs from which the value was made, or that its texts may name."""
    if not no_redact:
        return rules.shared(value, _read_salt(health.salt_file()), health.names(), manifests)
    if is_told:
        _print.warn(
            "not anonymised: it contains messages, the command, paths, labels, host and user names, UUIDs and serials"
        )
    return value


def print_json(run: model.Run) -> None:
    """Print a run as one JSON document, anonymised, on standard output."""
    typer.echo(rendering.report("json").render(shareable(run)), nl=False)


def is_ci() -> bool:
    """Return whether a CI system, whose log others can read, runs this process; Azure and Jenkins do not set CI."""
    variables = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "JENKINS_URL")
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in variables)


def for_terminal(value: Value) -> Value:
    """Return `value`, a text or a value with texts, as others may read it in a CI, else unchanged."""
    return shareable(value) if is_ci() else value


def say(message: str) -> None:
    """Print one line on standard error as others may read it in a CI."""
    _print.say(for_terminal(message))


@functools.cache
def _read_salt(path: Path) -> bytes:
    """Return the salt in the file `path`, 32 bytes; the file is made if it does not exist."""
    try:
        return health.salt(path)
    except FileError as error:
        _print.warn(
            f"{error}. This command uses a temporary salt: its pseudonyms differ from those in files shared before"
        )
        return os.urandom(32)


def check_target(out: Path, force: bool, *sources: Path) -> None:
    """Raise UsageError if `out` is one of the `sources`, which are read, or if it exists and `force` is not set."""
    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise UsageError(f"{out} is the run file that is read; choose another output file")
    if out.exists() and not force:
        raise UsageError(f"{out} exists; --force replaces it")


def run_name(path: Path) -> str:
    """Return the name of a run file without its suffix."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def write(out: Path, content: str | bytes, is_told: bool = False) -> None:
    """Write `content` to the file `out` completely or not at all, text as UTF-8; raises UsageError if that fails.

    If `is_told`, a line on standard error names the file."""
    try:
        files.write_whole(out, content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another place") from error
    if is_told:
        _print.say(f"written: {out}")
