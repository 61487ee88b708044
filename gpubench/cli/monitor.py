"""`gpubench monitor`: show the counters of every device live."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import ReaderLeft

if TYPE_CHECKING:
    from gpubench.measuring.sampler import SamplingProcess
    from gpubench.model import Device
    from gpubench.tools.monitor.live import Latest

Watched = Annotated[
    list[str] | None,
    typer.Option("--device", help="Monitor only this device. Can be repeated. \\[default: every device]"),
]
Interval = Annotated[float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two updates.")]
Count = Annotated[
    int, typer.Option("--count", min=0, help="End after this number of updates; 0 means until q or Ctrl-C.")
]
Prometheus = Annotated[bool, typer.Option("--prometheus", help="Print every counter once in the format of Prometheus.")]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="[ADDRESS:]PORT",
        help="Serve the counters to Prometheus at /metrics; without an address, only this machine can read them.",
    ),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--host-name",
        metavar="NAME",
        help="With --listen: also answer to this name, such as an alias in your DNS. Can be repeated. Without it, the "
        "endpoint answers only to localhost, this machine's host name and its addresses.",
    ),
]
_FIRST_S = 1.2  # seconds until each counter has been read twice


def monitor(
    device: Watched = None,
    interval: Interval = 1.0,
    count: Count = 0,
    prometheus: Prometheus = False,
    listen: Listen = None,
    host_name: HostNames = None,
) -> None:
    """Monitor every device: live on a terminal, elsewhere with one line per device and sample.

    It draws the use, memory, power, temperature and clock of each device with the last minute, and lists its throttle
    reasons and its processes. Press q to quit."""
    from gpubench.measuring import inventory
    from gpubench.measuring.plan import sampled_devices
    from gpubench.measuring.sampler import SamplingProcess
    from gpubench.tools.monitor.live import Latest

    place = _address_and_port(listen) if listen else None
    facts = inventory.facts()
    devices = sampled_devices(facts, device or [])
    sampler = SamplingProcess(devices, time.monotonic())
    latest = Latest(sampler.counters)
    with contextlib.suppress(KeyboardInterrupt, ReaderLeft), _killing(sampler):
        if place:
            _serve(place, sampler, latest, devices, host_name or [])
        elif prometheus:
            _print_once(sampler, latest, devices)
        else:
            _watch(sampler, latest, devices, interval, count)


@contextlib.contextmanager
def _killing(sampler: SamplingProcess) -> Iterator[None]:
    """Kill the sampler's process and flush standard output on leaving the context, also after an error or an interrupt.

    A closed pipe is ignored in the flush.
    """
    try:
        yield
    finally:
        sampler.kill()
        with contextlib.suppress(ReaderLeft):
            sys.stdout.flush()


def _take_samples(
    sampler: SamplingProcess, latest: Latest, seconds: float, wait: Callable[[float], None] = time.sleep
) -> None:
    """Add the samples that arrive within `seconds` to `latest`."""
    from gpubench.base.errors import DeviceError

    deadline = time.monotonic() + seconds
    while True:
        latest.add(sampler.drain())
        if sampler.ended:
            raise DeviceError(sampler.ended)
        if time.monotonic() >= deadline:
            return
        wait(min(0.1, max(deadline - time.monotonic(), 0.0)))


def _print_once(sampler: SamplingProcess, latest: Latest, devices: list[Device]) -> None:
    """Print every counter of the devices once, in the format of Prometheus, after sampling for 1.2 seconds."""
    from gpubench.tools.monitor.live import prometheus

    _take_samples(sampler, latest, _FIRST_S)
    latest.add(sampler.stop())
    typer.echo(prometheus(latest, {device.id: device for device in devices}), nl=False)


def _watch(sampler: SamplingProcess, latest: Latest, devices: list[Device], interval: float, count: int) -> None:
    """Show the devices every `interval` seconds: drawn if standard output is a terminal, else as lines."""
    from gpubench.cli import _print

    updates = range(count) if count else itertools.count()
    console = _print.out()
    if console.is_terminal and not console.is_dumb_terminal:
        _draw(sampler, latest, devices, interval, updates)
    else:
        _log(sampler, latest, [device.id for device in devices], interval, updates)


def _log(sampler: SamplingProcess, latest: Latest, devices: list[str], interval: float, updates: Iterable[int]) -> None:
    """Print a line for each device every `interval` seconds, without any cursor movement."""
    from gpubench.tools.monitor import live

    for _ in updates:
        _take_samples(sampler, latest, max(interval, _FIRST_S) if not latest.all() else interval)
        now = time.strftime("%H:%M:%S")
        for line in live.lines(latest, devices):
            typer.echo(f"{now} {line}")
        sys.stdout.flush()


def _draw(
    sampler: SamplingProcess, latest: Latest, devices: list[Device], interval: float, updates: Iterable[int]
) -> None:
    """Draw the devices on the whole terminal until q or Ctrl-C, and then restore the terminal."""
    from rich.live import Live

    from gpubench.cli import _monitor, _print
    from gpubench.tools.monitor.processes import ProcessList

    console, picture, keys = _print.out(), _monitor.Picture(devices), _monitor.Keys()
    with (
        contextlib.closing(ProcessList(devices)) as processes,
        keys.unbuffered(),
        Live(console=console, auto_refresh=False, screen=True) as view,
    ):
        for _ in updates:
            _take_samples(sampler, latest, interval if latest.all() else _FIRST_S, keys.wait)
            processes.update()
            view.update(picture.render(latest, processes.newest, console, time.monotonic()), refresh=True)


def _address_and_port(listen: str) -> tuple[str, int]:
    from gpubench.base.errors import UsageError

    address, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen takes [ADDRESS:]PORT, not {listen}")
    return address.strip("[]") or "127.0.0.1", int(port)


def _serve(
    place: tuple[str, int], sampler: SamplingProcess, latest: Latest, devices: list[Device], names: list[str]
) -> None:
    """Answer GET /metrics with the newest counters at the address and port in `place`, until Ctrl-C."""
    from gpubench.cli import _print
    from gpubench.tools.monitor import endpoint

    devices_by_id = {device.id: device for device in devices}
    _take_samples(sampler, latest, _FIRST_S)
    with endpoint.serve_counters(place, latest, devices_by_id, names) as url:
        _print.say(f"serving {url} (process {os.getpid()}); Ctrl-C ends it")
        while True:
            _take_samples(sampler, latest, 0.5)
