"""Private modules of plugins, for tests of one part: `suite_module("compression", "_send")`."""

import importlib
from importlib.metadata import entry_points
from types import ModuleType

from gpubench import plugins


def suite_module(suite: str, name: str) -> ModuleType:
    """Return a private module of a suite."""
    return importlib.import_module(f"{plugins.load('suites', suite).package}.{name}")


def suite_modules(suite: str, *names: str) -> list[ModuleType]:
    """Return several private modules of a suite."""
    return [suite_module(suite, name) for name in names]


def shared_modules(*names: str) -> list[ModuleType]:
    """Return modules that several suites share, such as `_matrix.data`."""
    return [room_module("suites", name) for name in names]


def room_module(room: plugins.Room, name: str) -> ModuleType:
    """Return a module of a room, such as `nvml` of the collectors or `_models` beside the suites."""
    (entry,) = entry_points(group=f"gpubench.{room}", name="builtin")
    return importlib.import_module(f"{entry.value}.{name}")
