"""Private modules of plugins, for tests of one part: `suite_module("compression", "_send")`; devices and benches."""

import importlib
from importlib.metadata import entry_points

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.model import Case, Facts


def suite_module(suite, name):
    return importlib.import_module(f"{plugins.load('suites', suite).package}.{name}")


def suite_modules(suite, *names):
    """Return several private modules of a suite."""
    return [suite_module(suite, name) for name in names]


def shared_modules(*names):
    """Return modules that several suites share, such as `_matrix.data`."""
    return [room_module("suites", name) for name in names]


def room_module(room, name):
    """Return a module of a room, such as `nvml` of the collectors or `_models` beside the suites."""
    (entry,) = entry_points(group=f"gpubench.{room}", name="builtin")
    return importlib.import_module(f"{entry.value}.{name}")


def opened(backend="host"):
    """Return the first device of a backend, open."""
    room = plugins.load("backends", backend)
    return room.open(room.devices()[0])


def bench_on(device, suite, name, /, seed=0, in_tier="quick", **params):
    """Return a bench of a case of the suite on an open device."""
    target = Target(Facts((device.device,)), device.device, in_tier)
    return Bench(device, Case(suite.name, name, tuple(params.items())), target, suite.package, seed)
