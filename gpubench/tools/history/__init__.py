"""Keep the figures of all runs by case in the history, an SQLite database beside the run files.

The run files are the record and the database is an index of them: `recording.refill` restores it. Any number of
processes may write at once."""

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "gpubench-runs"  # where `run` writes without --out
FILE = "history.sqlite"
VARIABLE = "GPUBENCH_HISTORY"  # a file for every run, or `off`
_OFF = "off"


def place_of(run_file: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the history that records a new run file, or None; GPUBENCH_HISTORY names it or is `off`."""
    named = environment.get(VARIABLE, "")
    if named:
        return None if named == _OFF else Path(named)
    beside = run_file.absolute().parent / FILE
    return beside if beside.parent.name == FOLDER or beside.exists() else None


def default_place(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history that commands read if the user names none; it need not exist."""
    named = environment.get(VARIABLE, "")
    return Path(named) if named not in ("", _OFF) else Path(FOLDER) / FILE
