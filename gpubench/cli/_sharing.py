"""What leaves this machine: a run made fit to be shared, and files written whole or not at all."""

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
    from gpubench.judging.fleet_watch import ComponentHistory
    from gpubench.model import Manifest, Run

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
    """The runs without what says whose they are, in the same salt; with `no_redact` as they are, and a word on it.

    A text of one run can name the machine of another: the names of all the runs, and of those with the manifests
    `others`, are hidden in each.
    """
    from gpubench.tools import identity
    from gpubench.tools.redact import redacted

    if no_redact:
        _say_not_redacted()
        return runs
    salt, names = _salt(), identity.names()
    known = (*(run.manifest for run in runs), *others)
    return [redacted(run, salt, names, known) for run in runs]


def shareable_manifests(manifests: list[Manifest], no_redact: bool) -> list[Manifest]:
    """The same of manifests alone."""
    from gpubench.model import Run

    return [run.manifest for run in shareable([Run(manifest) for manifest in manifests], no_redact)]


def nameless(value: Value, manifests: Sequence[Manifest], no_redact: bool) -> Value:
    """What was made of the runs of these manifests, its texts without names; with `no_redact` as it is."""
    from gpubench.tools import identity
    from gpubench.tools.redact import without_names

    return value if no_redact else without_names(value, manifests, _salt(), identity.names())


def shareable_value(value: Value, manifests: Sequence[Manifest], no_redact: bool) -> Value:
    """The same, with a word on it where it is left as it is."""
    if no_redact:
        _say_not_redacted()
    return nameless(value, manifests, no_redact)


def is_ci() -> bool:
    """Whether a CI runs this, whose logs others read: GitHub, GitLab and most others set CI, Azure and Jenkins not."""
    variables = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "JENKINS_URL")
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in variables)


def for_log(value: Value) -> Value:
    """A message, or a value with messages in it, without names where a CI keeps it; elsewhere as it is."""
    return nameless(value, (), no_redact=False) if is_ci() else value


def shareable_trends(trends: Sequence[Trend], no_redact: bool) -> Sequence[Trend]:
    """The trends without the names of hosts and folders, and with none in their texts; with `no_redact` as they are."""
    from gpubench.analysis.trend import nameless as placeless
    from gpubench.tools import identity
    from gpubench.tools.redact import people, without_names

    if no_redact:
        _say_not_redacted()
        return trends
    hosts = {moment.source.host for trend in trends for moment in trend.moments}
    labels = {host.partition(".")[0] for host in hosts}
    names = (*identity.names(), *hosts, *labels, *people(tuple(trends)))
    return without_names(tuple(map(placeless, trends)), (), _salt(), names)


def shareable_fleet(judgement: FleetJudgement, no_redact: bool) -> FleetJudgement:
    """The judgement of a fleet with numbered nodes and racks and no name in its texts; with `no_redact` as it is."""
    from gpubench.tools import identity
    from gpubench.tools.fleet.sharing import anonymised

    if no_redact:
        _say_not_redacted()
        return judgement
    return anonymised(judgement, _salt(), identity.names())


def shareable_histories(histories: list[ComponentHistory], no_redact: bool) -> list[ComponentHistory]:
    """The histories of a fleet's components without the names of nodes; with `no_redact` as they are."""
    from gpubench.tools import identity
    from gpubench.tools.redact import without_names

    if no_redact:
        _say_not_redacted()
        return histories
    nodes = {history.place.node for history in histories}
    labels = {node.partition(".")[0] for node in nodes}
    return list(without_names(tuple(histories), (), _salt(), (*identity.names(), *nodes, *labels)))


def _say_not_redacted() -> None:
    from gpubench.cli import _print

    words = "not anonymised: host and user names, UUIDs, PCI ids, serials, addresses, paths and the command are in it"
    _print.err().print(_print.plain(words, "yellow"), soft_wrap=True)


def _salt() -> bytes:
    """The user's salt, or where none can be kept one for this command only."""
    from gpubench.tools import identity

    return _salt_in(identity.salt_file())


@functools.cache
def _salt_in(path: Path) -> bytes:
    """The salt of a file of salts: one for the whole command, where it cannot be kept too."""
    import secrets

    from gpubench.base.errors import FileError
    from gpubench.cli import _print
    from gpubench.tools import identity

    try:
        return identity.salt(path)
    except FileError as error:
        words = f"{error}. A salt for this time only is used: what is shared now joins with nothing shared before"
        _print.err().print(_print.plain(words, "yellow"), soft_wrap=True)
        return secrets.token_bytes(32)


def check_target(out: Path, force: bool, *sources: Path) -> None:
    """Raise UsageError where `out` is one of the files that are read, or exists and is not to be replaced."""
    from gpubench.base.errors import UsageError

    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise UsageError(f"{out} is the run file that is read; choose another output file")
    if out.exists() and not force:
        raise UsageError(f"{out} exists; --force replaces it")


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it exists; raises UsageError where it cannot be made."""
    from gpubench.base.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another place") from error


def write(out: Path, content: str | bytes) -> None:
    """Write a file whole, or not at all; raises UsageError where it cannot be written."""
    from gpubench.base.errors import UsageError
    from gpubench.base.files import write_whole

    try:
        write_whole(out, content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another place") from error
