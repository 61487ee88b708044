"""`gpubench redact`: a run file as it may be given to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _sharing as sharing
from gpubench.cli.show import RunFile

Out = Annotated[Path, typer.Option("--out", "-o", help="The run file to write (.jsonl or .jsonl.gz).")]


def redact(run: RunFile, out: Out, force: sharing.Force = False) -> None:
    """Write a run file without what says whose it is and where it was measured; every number stays."""
    from gpubench.model import store

    sharing.check_target(out, force, run)
    (shared,) = sharing.shareable([store.read_run(run)], no_redact=False)
    sharing.write(out, store.content(shared, packed=out.suffix == ".gz"))
