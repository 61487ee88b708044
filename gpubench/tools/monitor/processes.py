"""List the processes on each device in a child process, because a driver may crash or hang the caller."""

import contextlib
import faulthandler
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from gpubench import plugins
from gpubench.base import clean, units
from gpubench.base.errors import GpubenchError, Unavailable
from gpubench.measuring.channel import Child, to_parent
from gpubench.model import Device
from gpubench.plugins.collector import Collector, DeviceProcess, ListsProcesses, ProcessSource

PERIOD_S = 2.0  # between two lists: to read one takes a driver some 20 µs, and /proc a millisecond for each process
HEADINGS = ("process", "device", "memory", "user", "command")


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """The cells below `HEADINGS` of all processes on the devices, sorted by memory, the most first."""

    rows: tuple[tuple[str, ...], ...]


def listed(devices: Iterable[Device]) -> Generator[list[dict[str, str]], None, None]:
    """Yield the newest rows of the processes on GPUs, by heading; none before the first and after the child's end."""
    rows: list[dict[str, str]] = []
    if gpus := tuple(device for device in devices if device.backend != "host"):
        child = Child("gpubench.tools.monitor.processes", (ProcessTable,))
        try:
            child.channel.send(gpus)
            while True:
                child.drain()
                for table in child.channel.arrived():
                    rows = [dict(zip(HEADINGS, cells, strict=True)) for cells in table.rows]
                yield rows
        except (EOFError, OSError):
            rows = []
        finally:
            child.kill()
    while True:
        yield rows


def main() -> None:
    """Send the processes on the devices, which are the first message, until the parent closes the channel."""
    faulthandler.enable()
    channel = to_parent(sys.argv[1])
    sources = list(_open_sources(channel.recv()))
    while True:
        processes: list[tuple[Device, DeviceProcess]] = []
        for name, source, device in sources:
            with contextlib.suppress(Unavailable):
                processes += [(device, process) for process in plugins.call_library(name, partial(source.read, device))]
        processes.sort(key=lambda pair: -(pair[1].memory_bytes or 0.0))
        channel.send(ProcessTable(tuple(_cells(device, process) for device, process in processes)))
        if channel.poll(PERIOD_S):
            return


def processes_on(device: Device) -> int | None:
    """Return the number of processes that use a device, or None if no collector on this machine can list them."""
    for name, source, _ in _open_sources([device]):
        with contextlib.suppress(GpubenchError), contextlib.closing(source):
            return len(plugins.call_library(name, partial(source.read, device)))
    return None


def _open_sources(devices: Sequence[Device]) -> Iterator[tuple[str, ProcessSource, Device]]:
    for name in plugins.names("collectors"):
        with contextlib.suppress(Unavailable, plugins.BrokenPlugin):
            collector: Collector = plugins.load("collectors", name)
            if isinstance(collector, ListsProcesses):
                call = partial(plugins.call_library, name)
                if accepted := [device for device in devices if call(partial(collector.accepts, device))]:
                    source: ProcessSource = call(partial(collector.processes, accepted))
                    yield from ((name, source, device) for device in accepted)


def _cells(device: Device, process: DeviceProcess) -> tuple[str, ...]:
    user, command = "unknown", "unknown: in another container"
    memory = "unknown" if process.memory_bytes is None else units.round_size(process.memory_bytes)
    with contextlib.suppress(psutil.Error):  # /proc does not show it
        running = psutil.Process(process.pid)
        command = clean.one_line(" ".join(running.cmdline()) or running.name())
        user = clean.one_line(running.username())[:16]
    return str(process.pid), device.id, memory, user, command
