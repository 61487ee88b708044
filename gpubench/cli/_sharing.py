"""Anonymise everything that leaves this machine, and write files atomically."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from gpubench.analysis.trend import Trend
    from gpubench.judging.fleet import FleetJudgement
    from gpubench.model import Manifest, Run
    from gpubench.tools.fleet.watching import ComponentHistory

Value = TypeVar("Value")
NoRedact = Annotated[
    bool,
    typer.Option(
        "--no-redact",
        help="Do not anonymise: keep host and user names, device UUIDs, PCI ids, serial numbers, addresses, paths, "
        "environment variables and the command line.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]


def shareable(runs: list[Run], no_redact: bool, others: Sequence[Manifest] = ()) -> list[Run]:
    """Return the runs with pseudonyms, by one salt, for names and ids of people, hosts and devices.

    A text of one run can name the machine of another run, so the names in all runs and in the manifests `others` are
    replaced in each run. With `no_redact`, the runs are returned unchanged, and a warning is printed."""
    from gpubench.tools import identity
    from gpubench.tools.redact import redacted

    if no_redact:
        _warn_not_redacted()
        return runs
    salt, names = _salt(), identity.names()
    manifests = (*(run.manifest for run in runs), *others)
    return [redacted(run, salt, names, manifests) for run in runs]


def shareable_manifests(manifests: list[Manifest], no_redact: bool) -> list[Manifest]:
    """Return the manifests anonymised as `shareable` does; with `no_redact`, unchanged and with a warning."""
    from gpubench.model import Run

    return [run.manifest for run in shareable([Run(manifest) for manifest in manifests], no_redact)]


def anonymised_value(value: Value, manifests: Sequence[Manifest], no_redact: bool) -> Value:
    """Return `value` without the names of people, hosts and devices that the manifests contain.

    `value` is any tuple or dataclass of texts that was made from the runs of the manifests, such as a judgement. With
    `no_redact` it is returned unchanged."""
    from gpubench.tools import identity
    from gpubench.tools.redact import without_names

    return value if no_redact else without_names(value, manifests, _salt(), identity.names())


def shareable_value(value: Value, manifests: Sequence[Manifest], no_redact: bool) -> Value:
    """Return the value as `anonymised_value` does, and print a warning if it is not anonymised."""
    if no_redact:
        _warn_not_redacted()
    return anonymised_value(value, manifests, no_redact)


def is_ci() -> bool:
    """Return whether a CI system runs this process, by its environment variables; others can read the log then.

    Most systems set CI, but Azure and Jenkins do not."""
    variables = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "JENKINS_URL")
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in variables)


def for_terminal(value: Value) -> Value:
    """Return `value`, a text or a value with texts, without names of people and machines in a CI, else unchanged."""
    return anonymised_value(value, (), no_redact=False) if is_ci() else value


def shareable_trends(trends: Sequence[Trend], no_redact: bool) -> Sequence[Trend]:
    """Return the trends without names of hosts and folders; with `no_redact`, unchanged and with a warning."""
    from gpubench.analysis.trend import anonymised_trend
    from gpubench.tools import identity
    from gpubench.tools.redact import home_users, without_names

    if no_redact:
        _warn_not_redacted()
        return trends
    hosts = {moment.source.host for trend in trends for moment in trend.moments}
    labels = {host.partition(".")[0] for host in hosts}
    names = (*identity.names(), *hosts, *labels, *home_users(tuple(trends)))
    return without_names(tuple(map(anonymised_trend, trends)), (), _salt(), names)


def shareable_fleet(judgement: FleetJudgement, no_redact: bool) -> FleetJudgement:
    """Return a fleet's judgement with numbered nodes and racks; with `no_redact`, unchanged and with a warning."""
    from gpubench.tools import identity
    from gpubench.tools.fleet.sharing import anonymised

    if no_redact:
        _warn_not_redacted()
        return judgement
    return anonymised(judgement, _salt(), identity.names())


def shareable_histories(histories: list[ComponentHistory], no_redact: bool) -> list[ComponentHistory]:
    """Return the histories of components without names of nodes; with `no_redact`, unchanged and with a warning."""
    from gpubench.tools import identity
    from gpubench.tools.redact import without_names

    if no_redact:
        _warn_not_redacted()
        return histories
    nodes = {history.place.node for history in histories}
    labels = {node.partition(".")[0] for node in nodes}
    return list(without_names(tuple(histories), (), _salt(), (*identity.names(), *nodes, *labels)))


def _warn_not_redacted() -> None:
    """Print on standard error that the output is not anonymised and what it contains."""
    from gpubench.cli import _print

    message = (
        "not anonymised: it contains host and user names, UUIDs, PCI ids, serials, addresses, paths and the command"
    )
    _print.err().print(_print.plain(message, "yellow"), soft_wrap=True)


def _salt() -> bytes:
    """Return the user's salt for pseudonyms, 32 bytes."""
    from gpubench.tools import identity

    return _read_salt(identity.salt_file())


@functools.cache
def _read_salt(path: Path) -> bytes:
    """Return the salt in the file `path`, 32 bytes; the file is made if it does not exist."""
    import secrets

    from gpubench.base.errors import FileError
    from gpubench.cli import _print
    from gpubench.tools import identity

    try:
        return identity.salt(path)
    except FileError as error:
        message = (
            f"{error}. This command uses a temporary salt: its pseudonyms differ from those in files shared before"
        )
        _print.err().print(_print.plain(message, "yellow"), soft_wrap=True)
        return secrets.token_bytes(32)


def check_target(out: Path, force: bool, *sources: Path) -> None:
    """Check that the output file `out` may be written.

    Raises UsageError if `out` is one of the `sources`, the files that are read, or if it exists and `force` is not set.
    """
    from gpubench.base.errors import UsageError

    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise UsageError(f"{out} is the run file that is read; choose another output file")
    if out.exists() and not force:
        raise UsageError(f"{out} exists; --force replaces it")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents unless they exist. Raises UsageError if they cannot be made."""
    from gpubench.base.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another place") from error


def write(out: Path, content: str | bytes) -> None:
    """Write `content` to the file `out` completely or not at all, text as UTF-8.

    Raises UsageError if it cannot be written."""
    from gpubench.base.errors import UsageError
    from gpubench.base.files import write_whole

    try:
        write_whole(out, content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another place") from error
