"""Entry points → objects. One entry point a room names a package; each public module in it is a plugin.

Listing names imports nothing; a broken plugin fails only its own load.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

from gpubench import DISTRIBUTION
from gpubench.base.errors import GpubenchError, Missing, UsageError

T = TypeVar("T")

Room = Literal["suites", "collectors", "reports", "backends", "gates", "publications", "importers"]
_ATTRIBUTE: dict[Room, str] = {
    "suites": "suite",
    "collectors": "collector",
    "reports": "report",
    "backends": "backend",
    "gates": "gate",
    "publications": "publication",
    "importers": "importer",
}


class BrokenPlugin(GpubenchError):  # noqa: N818 - the thing is broken
    """A plugin that could not be loaded; the cause is chained."""

    exit_status = 2


def names(room: Room) -> tuple[str, ...]:
    """The names of a room's plugins, sorted; imports none of them."""
    return tuple(sorted(_modules(room)))


def load(room: Room, name: str) -> Any:
    """The plugin object of that name; UsageError with a did-you-mean, BrokenPlugin where it fails."""
    modules = _modules(room)
    if name not in modules:
        raise unknown(room.removesuffix("s"), name, modules)
    return _loaded(modules[name], _ATTRIBUTE[room], f"plugin {name} ({modules[name]})")


def is_file(word: str) -> bool:
    """Whether a word is the path of a plugin, not a plugin's name: `./gather.py`, `suites/gather.py`, `./gather/`."""
    return word.endswith(".py") or os.sep in word


def called(path: str | Path) -> str:
    """The name of the plugin at a path: the file's without its ending, or the folder's."""
    return Path(path).name.removesuffix(".py")


def load_file(room: Room, path: Path) -> Any:
    """The plugin object of a file, or folder, that no entry point names.

    The folder that it lies in becomes a package of its own (`from ._shared import …` works, and so do data files
    beside it) and the last place that other modules are looked for in (`import mine`), in this process and in each
    worker. UsageError where there is none, BrokenPlugin where it fails.
    """
    package = _package(path.resolve().parent)
    if not re.fullmatch(r"[A-Za-z_][\w-]*", called(path)):
        raise UsageError(f"{path}: a suite is called by its file's name: letters, digits, _ and -")
    if not path.exists():
        raise UsageError(f"{path}: there is no such file")
    return _loaded(f"{package}.{called(path)}", _ATTRIBUTE[room], str(path))


def _package(folder: Path) -> str:
    """The name of the package that a folder is, made when it is first asked for."""
    name = f"gpubench_files_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        loader = SourceFileLoader(name, str(folder / "__init__.py"))  # never run: it says where data files are
        spec = ModuleSpec(name, loader, origin=str(folder), is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return name


def _loaded(module: str, attribute: str, what: str) -> Any:
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a plugin's load: third-party code may raise anything, or leave
        words = f"{type(error).__name__}: {error}{_place(error)}"
        raise BrokenPlugin(f"{what} does not load: {words}") from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise BrokenPlugin(f"{what} does not load: it has no `{attribute}`") from error


def _place(error: BaseException) -> str:
    """Where in the plugin it was raised: ` (gather.py, line 12)`; nothing where that is unknown or already said."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen")]
    inner = [frame for frame in ours if Path(frame.filename).parent != Path(importlib.__file__).parent]
    if not inner or isinstance(error, SyntaxError):
        return ""
    return f" ({Path(inner[-1].filename).name}, line {inner[-1].lineno})"


def asked(name: str, ask: Callable[[], T]) -> T:
    """What a collector's or a backend's library answers; Missing, with its words, for whatever it raises."""
    try:
        return ask()
    except Missing:
        raise
    except (Exception, SystemExit) as error:  # a vendor probe: bindings raise anything, and some end the process
        raise Missing(f"{name}: {type(error).__name__}: {error}", f"reinstall it, or tell {DISTRIBUTION}") from error


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error that says what there is instead, nearest first where something is near."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(choices) or 'none'}"
    return UsageError(f"no {kind} {name!r}; {hint}")


def _modules(room: Room) -> dict[str, str]:
    found: dict[str, str] = {}
    points = entry_points(group=f"gpubench.{room}")
    for point in sorted(points, key=lambda point: not point.value.startswith("gpubench.")):  # none can shadow ours
        for folder in _folders(point.value):
            for module in pkgutil.iter_modules([folder]):
                if not module.name.startswith("_"):
                    found.setdefault(module.name, f"{point.value}.{module.name}")
    return found


def _folders(package: str) -> Sequence[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # left behind by a distribution that is gone; the others still load
        return []
    return list(spec.submodule_search_locations or ()) if spec else []
