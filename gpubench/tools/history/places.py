"""Where a history lies: beside its run files, or where the user says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "gpubench-runs"  # where `run` writes without --out
FILE = "history.sqlite"
VARIABLE = "GPUBENCH_HISTORY"  # a file for every run, or `off`
_OFF = "off"


def place_of(run_file: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The history that a new run file is recorded in; None for none.

    The one that GPUBENCH_HISTORY names, or else `history.sqlite` in the run file's own folder: where it is there,
    and in `gpubench-runs` always.
    """
    named = environment.get(VARIABLE, "")
    if named:
        return None if named == _OFF else Path(named)
    beside = run_file.absolute().parent / FILE
    return beside if beside.parent.name == FOLDER or beside.exists() else None


def default_place(environment: Mapping[str, str] = os.environ) -> Path:
    """The history that commands read where none is named: GPUBENCH_HISTORY's, else that of `gpubench-runs` here."""
    named = environment.get(VARIABLE, "")
    return Path(named) if named not in ("", _OFF) else Path(FOLDER) / FILE
