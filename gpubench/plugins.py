"""Entry points → objects. One entry point a room names a package; each public module in it is a plugin.

Listing names imports nothing; a broken plugin fails only its own load.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from gpubench import DISTRIBUTION
from gpubench.errors import GpubenchError, Missing, UsageError

T = TypeVar("T")

Room = Literal["suites", "collectors", "reports", "backends", "gates", "publications"]
_ATTRIBUTE: dict[Room, str] = {
    "suites": "suite",
    "collectors": "collector",
    "reports": "report",
    "backends": "backend",
    "gates": "gate",
    "publications": "publication",
}


class BrokenPlugin(GpubenchError):  # noqa: N818 - the thing is broken
    """A plugin that could not be loaded; the cause is chained."""


def names(room: Room) -> tuple[str, ...]:
    """The names of a room's plugins, sorted; imports none of them."""
    return tuple(sorted(_modules(room)))


def load(room: Room, name: str) -> Any:
    """The plugin object of that name; UsageError with a did-you-mean, BrokenPlugin where it fails."""
    modules = _modules(room)
    if name not in modules:
        raise unknown(room.removesuffix("s"), name, modules)
    try:
        return getattr(importlib.import_module(modules[name]), _ATTRIBUTE[room])
    except Exception as error:  # a plugin's load: third-party code may raise anything
        raise BrokenPlugin(f"plugin {name} ({modules[name]}) does not load: {type(error).__name__}: {error}") from error


def asked(name: str, ask: Callable[[], T]) -> T:
    """What a collector's or a backend's library answers; Missing, with its words, for whatever it raises."""
    try:
        return ask()
    except Missing:
        raise
    except Exception as error:  # a vendor probe: bindings raise KeyError, AttributeError, anything
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
