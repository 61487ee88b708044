"""Keep the figures of all runs by case in the history, an SQLite database beside the run files.

The run files are the record and the database is an index of them: `rebuild` restores it. Any number of processes may
write at once."""

from gpubench.tools.history.database import Damaged
from gpubench.tools.history.places import FILE, FOLDER, VARIABLE, default_place, place_of
from gpubench.tools.history.reading import History, StoredLine
from gpubench.tools.history.recording import (
    HistoryRecorder,
    RecordedFile,
    open_for_rebuild,
    record_files,
    record_measured_run,
    refill,
    run_files,
)

__all__ = [
    "FILE",
    "FOLDER",
    "VARIABLE",
    "Damaged",
    "History",
    "HistoryRecorder",
    "RecordedFile",
    "StoredLine",
    "default_place",
    "open_for_rebuild",
    "place_of",
    "record_files",
    "record_measured_run",
    "refill",
    "run_files",
]
