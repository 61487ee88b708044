"""Count the processes on a device, as the collector of its vendor lists them."""

import contextlib
from functools import partial

from gpubench import plugins
from gpubench.base.errors import GpubenchError
from gpubench.model import Device
from gpubench.plugins.collector import Collector, ListsProcesses


def processes_on(device: Device) -> int | None:
    """Return the number of processes that use a device, or None if no collector on this machine can list them."""
    for name in plugins.names("collectors"):
        with contextlib.suppress(GpubenchError):  # a collector or its library is unavailable
            collector: Collector = plugins.load("collectors", name)
            if isinstance(collector, ListsProcesses) and plugins.call_library(name, partial(collector.accepts, device)):
                source = plugins.call_library(name, partial(collector.processes, [device]))
                with contextlib.closing(source):
                    return len(plugins.call_library(name, partial(source.read, device)))
    return None
