"""Turn entry points into plugins: an entry point names a package, and each public module in the package is a plugin.

Listing names imports nothing; a broken plugin fails only when it is loaded itself."""

import ast
import difflib
import functools
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
from gpubench.base.errors import GpubenchError, Unavailable, UsageError

T = TypeVar("T")

Room = Literal["suites", "collectors", "reports", "backends", "gates", "publications", "importers"]
_OF_FILES = "gpubench_files_"  # the names of packages for folders of plugins without an entry point begin with it
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
    """A plugin could not be loaded; the cause is chained."""

    exit_status = 2


def names(room: Room) -> tuple[str, ...]:
    """Return the sorted names of all plugins of the kind `room` (`suites`), without importing them."""
    return tuple(sorted(_modules(room)))


def load(room: Room, name: str) -> Any:
    """Return the plugin `name` of the kind `room`: the object `suite`, `collector`, `report`, … in its module.

    Raises UsageError with the most similar name if there is no such plugin, and BrokenPlugin if it cannot be loaded."""
    modules = _modules(room)
    if name not in modules:
        raise unknown(room.removesuffix("s"), name, modules)
    return _load_attribute(modules[name], _ATTRIBUTE[room], f"plugin {name} ({modules[name]})")


def summary(room: Room, name: str) -> str:
    """Return the summary of the plugin `name` of the kind `room`: the first text in the call that makes the plugin.

    The plugin is imported only if its source has no such text (`suite = Suite("what it measures")`). Raises like
    `load`."""
    modules = _modules(room)
    spec = importlib.util.find_spec(modules[name]) if name in modules else None
    source = Path(spec.origin).read_bytes() if spec and spec.origin else b""
    return _first_text(source, _ATTRIBUTE[room]) or str(load(room, name).summary)


def _first_text(source: bytes, attribute: str) -> str:
    """Return the text that is the first argument of the call in `attribute = call("text", …)`; empty if none is."""
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(args=[ast.Constant(str(text)), *_])) if name == attribute:
                return text
    return ""


def is_file(word: str) -> bool:
    """Return whether a word is the path of a plugin instead of a name: whether it ends in .py or contains a /."""
    return word.endswith(".py") or os.sep in word


def plugin_name(path: str | Path) -> str:
    """Return the name of the plugin at a path: the name of the file without its suffix, or of the folder."""
    return Path(path).name.removesuffix(".py")


def load_file(room: Room, path: Path) -> Any:
    """Return the plugin of the kind `room` in the file or folder `path`, which no entry point names.

    The plugin is the object `suite`, `collector`, `report`, … in that file, or in the `__init__.py` of that folder. The
    folder that contains `path` becomes a separate package (`from ._shared import …` works, and so do data files in it),
    and is searched last for other modules (`import mine`), in this process and in each worker. Raises UsageError if
    `path` does not exist or its name has other characters than letters, digits, _ and -, and BrokenPlugin if the module
    does not load or lacks the object."""
    package = make_package(path.resolve().parent)
    if not re.fullmatch(r"[A-Za-z_][\w-]*", plugin_name(path)):
        raise UsageError(f"{path}: a suite is named after its file: use letters, digits, _ and -")
    if not path.exists():
        raise UsageError(f"{path}: there is no such file")
    return _load_attribute(f"{package}.{plugin_name(path)}", _ATTRIBUTE[room], str(path))


def folder_of_files(module: str) -> str:
    """Return the folder of a module that `load_file` has loaded, and an empty text for any other module."""
    package = module.partition(".")[0]
    return str(sys.modules[package].__path__[0]) if package.startswith(_OF_FILES) else ""


def make_package(folder: Path) -> str:
    """Return the name of the package for a folder of plugins without an entry point.

    On first use, the package is made, and the folder becomes the last one that is searched for modules."""
    name = f"{_OF_FILES}{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        loader = SourceFileLoader(name, str(folder / "__init__.py"))  # it is never run and only locates data files
        spec = ModuleSpec(name, loader, origin=str(folder), is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return name


def _load_attribute(module: str, attribute: str, description: str) -> Any:
    """Return the attribute `attribute` of the module with the dotted name `module`.

    Raises BrokenPlugin, whose message starts with `description`, if the module does not load or does not have the
    attribute."""
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # third-party code may raise anything, or exit, while it is loaded
        problem = f"{type(error).__name__}: {error}{_place_text(error)}"
        raise BrokenPlugin(f"{description} does not load: {problem}") from error
    try:
        return getattr(loaded, attribute)
    except AttributeError as error:
        raise BrokenPlugin(f"{description} does not load: it has no `{attribute}`") from error


def _place_text(error: BaseException) -> str:
    """Return the line of the plugin that raised `error`, as ` (gather.py, line 12)`.

    The text is empty if no line of the plugin is known, and for a SyntaxError, whose message has the line."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen")]
    inner = [frame for frame in ours if Path(frame.filename).parent != Path(importlib.__file__).parent]
    if not inner or isinstance(error, SyntaxError):
        return ""
    return f" ({Path(inner[-1].filename).name}, line {inner[-1].lineno})"


def call_library(name: str, function: Callable[[], T]) -> T:
    """Return what `function` returns, which calls the library of a collector or a backend.

    Raises Unavailable for any error of the library and for an exit; the message begins with `name`, the plugin's name.
    """
    try:
        return function()
    except Unavailable:
        raise
    except (Exception, SystemExit) as error:  # vendor bindings may raise anything, and some exit
        raise Unavailable(
            f"{name}: {type(error).__name__}: {error}", f"reinstall it, or report this to {DISTRIBUTION}"
        ) from error


def unknown(kind: str, name: str, available: Iterable[str]) -> UsageError:
    """Return, without raising it, a UsageError for an unknown name, with the most similar available one, or all.

    `kind` is the noun for the thing in the message, such as `suite`."""
    choices = sorted(available)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = (
        f"did you mean {near[0]}?" if near else f"choose from {', '.join(choices)}" if choices else "none is installed"
    )
    return UsageError(f"no {kind} {name!r}; {hint}")


def _modules(room: Room) -> dict[str, str]:
    """Return the dotted name of the module of each plugin of the kind `room`, by the name of the plugin.

    If two plugins have one name, gpubench's own counts. Modules whose names begin with _ are no plugins."""
    modules: dict[str, str] = {}
    for package in _packages(room, tuple(sys.path)):
        for folder in _package_folders(package):
            for module in pkgutil.iter_modules([folder]):
                if not module.name.startswith("_"):
                    modules.setdefault(module.name, f"{package}.{module.name}")
    return modules


@functools.cache
def _packages(room: Room, _path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages of a room, gpubench's first: no plugin replaces one of gpubench.

    The search reads a file of each distribution on `_path`, so it is done once for each path."""
    points = entry_points(group=f"gpubench.{room}")
    return tuple(sorted((point.value for point in points), key=lambda value: not value.startswith("gpubench.")))


def _package_folders(package: str) -> Sequence[str]:
    """Return the folders of the package with the dotted name `package`; empty if it does not exist."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # a removed distribution left its entry point behind; the others still load
        return []
    return list(spec.submodule_search_locations or ()) if spec else []
