"""List the processes on each device in a child process, because a driver may crash or hang the caller.

`ProcessList` is the parent's side, `main` the child's."""

import contextlib
import faulthandler
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from gpubench import plugins
from gpubench.base.clean import one_line
from gpubench.base.errors import Unavailable
from gpubench.measuring.process import Child, to_parent
from gpubench.model import Device
from gpubench.plugins.collector import Collector, DeviceProcess, ListsProcesses, ProcessSource

PERIOD_S = 2.0  # between two lists: to read one takes a driver some 20 µs, and /proc a millisecond for each process


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process on a device, given by the device's id; `memory_bytes` is its memory there, None if unknown.

    `user` and `command` are empty if /proc does not show the process, as one from another container."""

    device: str
    pid: int
    memory_bytes: float | None
    user: str
    command: str


@dataclass(frozen=True, slots=True)
class ProcessesAtMoment:
    """All processes on the devices at one moment, sorted by memory with the most first."""

    processes: tuple[RunningProcess, ...]


class ProcessList:
    """Keeps the newest list of the processes on these devices in `newest`, which `update` renews.

    The list is empty at first, without a GPU, and once the child process that reads the list has ended."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Start the child process that lists the processes on the GPUs among `devices`, if there are any."""
        self.newest: tuple[RunningProcess, ...] = ()
        self._child: Child[ProcessesAtMoment] | None = None
        watched = tuple(device for device in devices if device.backend != "host")
        if watched:
            self._child = Child("gpubench.tools.monitor.processes", (ProcessesAtMoment,))
            with contextlib.suppress(OSError):  # the child has ended already, which the first `update` notices
                self._child.channel.send(watched)

    def update(self) -> None:
        """Replace `newest` by the newest list that has arrived, without waiting for another one."""
        if self._child is None:
            return
        try:
            self._child.drain()
            for listed in self._child.channel.arrived():
                self.newest = listed.processes
        except (EOFError, OSError):
            self.newest = ()
            self.close()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def main() -> None:
    """Send the list of processes on the devices every two seconds, until the parent closes the channel.

    The name of the channel is the first argument of the program. The devices are the first message in it."""
    faulthandler.enable()
    channel = to_parent(sys.argv[1])
    devices: Sequence[Device] = channel.recv()
    sources = list(_open_sources(devices))
    while True:
        processes = [
            process for name, source, accepted in sources for process in _read_processes(name, source, accepted)
        ]
        processes.sort(key=lambda process: -(process.memory_bytes or 0.0))
        channel.send(ProcessesAtMoment(tuple(processes)))
        if channel.poll(PERIOD_S):
            return


def _open_sources(devices: Sequence[Device]) -> Iterator[tuple[str, ProcessSource, list[Device]]]:
    """Yield each collector that can list processes on this machine: name, open source, and the devices it accepts."""
    for name in plugins.names("collectors"):
        with contextlib.suppress(Unavailable, plugins.BrokenPlugin):
            collector: Collector = plugins.load("collectors", name)
            if isinstance(collector, ListsProcesses):
                accepted = [
                    device for device in devices if plugins.call_library(name, partial(collector.accepts, device))
                ]
                if accepted:
                    yield name, plugins.call_library(name, partial(collector.processes, accepted)), accepted


def _read_processes(name: str, source: ProcessSource, devices: Sequence[Device]) -> Iterator[RunningProcess]:
    """Yield the processes on each of these devices as the collector called `name` lists them."""
    for device in devices:
        with contextlib.suppress(Unavailable):
            for process in plugins.call_library(name, partial(source.read, device)):
                yield with_user_and_command(device, process)


def with_user_and_command(device: Device, process: DeviceProcess) -> RunningProcess:
    """Return a process with its user and its command line, both empty if /proc does not show the process."""
    user = command = ""
    with contextlib.suppress(psutil.Error):
        running = psutil.Process(process.pid)
        command = one_line(" ".join(running.cmdline()) or running.name())
        user = one_line(running.username())
    return RunningProcess(device.id, process.pid, process.memory_bytes, user, command)
