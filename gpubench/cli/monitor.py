"""`gpubench monitor`: show the counters of every device live."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from gpubench.base.clean import one_line
from gpubench.base.errors import DeviceError, ReaderLeft, UsageError
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench.measuring import inventory, plan, sampler
    from gpubench.tools.monitor import endpoint, live, processes

Rows = list[dict[str, str]]  # texts by heading


def monitor(
    device: Annotated[list[str] | None, typer.Option(help="Monitor only this device. Can be repeated.")] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two updates.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="End after this number of updates; 0 means until Ctrl-C.")] = 0,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print every counter once, for Prometheus.")] = False,
    listen: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS:]PORT", help="Serve the counters at /metrics; only locally without an ADDRESS."),
    ] = None,
    stuck: Annotated[
        bool,
        typer.Option(
            "--stuck",
            help="Print nothing until a GPU looks hung: busy without a pause, near idle power, and without memory "
            "traffic, for 30 s. Then name it and end with exit status 6.",
        ),
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --listen: answer to this name too, as a DNS alias. Can be repeated."),
    ] = None,
) -> None:
    """Monitor every device: as tables on a terminal, elsewhere with one line per device and sample.

    The tables have the use, memory, power, temperature, clock and throttle reasons of each device, and the processes
    on the GPUs. Press Ctrl-C to quit."""
    place = _address_and_port(listen) if listen else None
    devices = plan.sampled_devices(inventory.facts(), device or [])
    sampling = sampler.SamplingProcess(devices, time.monotonic())
    latest = live.Latest(sampling.counters, devices)
    try:
        _take_samples(sampling, latest, 1.2)  # until each counter has been read twice
        if place:
            with endpoint.serve_page(place, partial(live.prometheus, latest), host_name or []) as url:
                _print.say(f"serving {url} (process {os.getpid()}); Ctrl-C ends it")
                while True:
                    _take_samples(sampling, latest, 0.5)
        elif stuck:
            _watch_stuck(sampling, latest, interval, count)
        elif prometheus:
            latest.add(sampling.stop())
            typer.echo(live.prometheus(latest), nl=False)
        else:
            _watch(sampling, latest, interval, count)
    finally:
        sampling.kill()
        with contextlib.suppress(ReaderLeft):
            sys.stdout.flush()


def _address_and_port(listen: str) -> tuple[str, int]:
    address, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen takes [ADDRESS:]PORT, not {listen}")
    return address.strip("[]") or "127.0.0.1", int(port)


def _take_samples(sampling: sampler.SamplingProcess, latest: live.Latest, seconds: float) -> None:
    """Add the samples that arrive within `seconds` to `latest`."""
    deadline = time.monotonic() + seconds
    while True:
        latest.add(sampling.drain())
        if sampling.ended:
            raise DeviceError(sampling.ended)
        if (left_s := deadline - time.monotonic()) <= 0:
            return
        time.sleep(min(0.1, left_s))


def _watch_stuck(sampling: sampler.SamplingProcess, latest: live.Latest, interval: float, count: int) -> None:
    """Look at the devices every `interval` seconds; raise typer.Exit with the status 6 as soon as one looks hung."""
    watch = live.StuckWatch(latest)
    for _ in range(count) if count else itertools.count():
        if lines := watch.look(time.monotonic()):
            typer.echo("\n".join(lines))
            raise typer.Exit(DeviceError.exit_status)
        _take_samples(sampling, latest, interval)


def _watch(sampling: sampler.SamplingProcess, latest: live.Latest, interval: float, count: int) -> None:
    """Show the devices every `interval` seconds: as tables on a terminal, elsewhere as lines without cursor control."""
    console = _print.out()
    on_screen = console.is_terminal and not console.is_dumb_terminal
    with contextlib.ExitStack() as stack:
        if on_screen:
            listed = stack.enter_context(contextlib.closing(processes.listed(latest.devices.values())))
            view = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
        for update in range(count) if count else itertools.count():
            if update:
                _take_samples(sampling, latest, interval)
            if on_screen:
                rows = [live.row(latest, device) for device in latest.devices]
                view.update(Group(*tables(rows, next(listed), *console.size)), refresh=True)
            else:
                now = time.strftime("%H:%M:%S")
                typer.echo("\n".join(f"{now} {line}" for line in live.lines(latest)))


def tables(devices: Rows, listed: Rows, width: int, height: int) -> Iterator[RenderableType]:
    """Yield the tables of the GPUs, the host and the processes, which fit into a terminal of this size."""
    for kind in ("device", "host"):
        if rows := [row for row in devices if kind in row]:
            yield from (_table(rows, width), "")
    room = height - len(devices) - 6  # 6: three headings, two empty lines, the last line
    if listed and room > 0:
        yield _table(listed[:room], width)
        if len(listed) > room:
            yield _print.plain(f"and {len(listed) - room} more processes", "dim")


def _table(rows: Rows, width: int) -> RenderableType:
    """Return a table of the columns that have a value; a narrow one leaves some out, and shortens the last."""
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    headings[max(2, width // 10 - 1) : -1] = []
    cells = [[Text(one_line(row[heading]), no_wrap=True, overflow="ellipsis") for heading in headings] for row in rows]
    table = _print.table(headings, cells, right=headings[1:-1])
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[-1].header = Text(headings[-1], no_wrap=True, overflow="ellipsis")
    return table
