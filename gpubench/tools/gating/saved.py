"""Find the file or the folder that an argument of `--baseline` names, without reading run files.

It imports little, so that a mistyped name is refused at once."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from gpubench.base.errors import FileError

FOLDER = "gpubench-baselines"  # the folder of the saved baselines, in the working directory
LAST = re.compile(r"last:([1-9]\d{0,5})")


def names() -> list[str]:
    """Return the names of the baselines that are saved in the working directory, sorted."""
    folder = Path(FOLDER)
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def needs_cases(arguments: Iterable[str]) -> bool:
    """Return whether one of the arguments of `--baseline` is `last:N`, whose run files depend on the cases."""
    return any(LAST.fullmatch(argument) for argument in arguments)


def check(arguments: Iterable[str]) -> None:
    """Raise FileError if an argument of `--baseline` is neither `last:N`, a file, a folder, nor a saved name."""
    for argument in arguments:
        if not needs_cases([argument]):
            place(argument)


def place(argument: str) -> Path:
    """Return the file or folder that an argument of `--baseline` names; raises FileError if there is none."""
    for path in (Path(argument), Path(FOLDER) / argument):
        if path.exists():
            return path
    saved = names()
    near = difflib.get_close_matches(argument, saved, n=1)
    hint = f"did you mean {near[0]}?" if near else f"saved are {', '.join(saved)}" if saved else "none is saved here"
    raise FileError(f"no baseline {argument!r}: neither a file, a folder nor a name saved in {FOLDER}; {hint}")
