"""`gpubench redact`: anonymise a run file, or all run files of a folder, for sharing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import FileError, UsageError
from gpubench.cli import _print
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.model import Manifest

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|FOLDER", help="A run file (.jsonl, .jsonl.gz), or a folder of them.", show_default=False
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="The run file to write (.jsonl or .jsonl.gz), or the folder to write if a folder is redacted.",
    ),
]


def redact(run: Source, out: Out, force: sharing.Force = False) -> None:
    """Write an anonymised copy of a run file, or of all run files in a folder. Every number is kept."""
    if run.is_dir():
        _redact_folder(run, out, force)
    else:
        _redact_file(run, out, force)


def _redact_file(run: Path, out: Path, force: bool, others: tuple[Manifest, ...] = ()) -> None:
    """Write an anonymised copy of the run file `run` to `out`."""
    from gpubench.model import store

    sharing.check_target(out, force, run)
    shared = sharing.shareable(store.read_run(run), manifests=others)
    sharing.write(out, store.encode_run(shared, packed=out.suffix == ".gz"))


def _redact_folder(folder: Path, out: Path, force: bool) -> None:
    """Write anonymised copies of all run files in `folder` and below to the folder `out`, under anonymised names."""
    from gpubench.tools import history
    from gpubench.tools.sharing import FileNames

    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{out} is inside the folder that is redacted; name a folder outside of it")
    manifests, unreadable = {}, 0
    for path in history.run_files([folder]):
        try:
            manifests[path] = _manifest(path)
        except FileError as error:
            _print.say(f"left out: {error}", "yellow")
            unreadable += 1
    all_manifests = tuple(manifests.values())
    for path in manifests:
        target = out.joinpath(
            *sharing.shareable(FileNames(path.relative_to(folder).parts), manifests=all_manifests).names
        )
        sharing.make_folder(target.parent)
        _redact_file(path, target, force, all_manifests)
    _print.say(f"{len(manifests)} run files redacted in {out}")
    if unreadable:
        raise FileError(f"{unreadable} files of {folder} cannot be read as run files; they were left out")


def _manifest(path: Path) -> Manifest:
    """Return the manifest of the run file `path`. Raises FileError unless the whole file can be read."""
    from gpubench.model import store

    manifest = store.scan(path, lambda _: None).manifest
    assert manifest is not None  # `store.scan` raises FileError without one
    return manifest
