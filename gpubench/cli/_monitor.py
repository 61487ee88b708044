"""Draw the picture of `gpubench monitor` on a terminal: bars, a minute of history, and the processes on each device."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpubench.base import blocks
from gpubench.cli import _print
from gpubench.tools.monitor import gauges, live

if TYPE_CHECKING:
    from gpubench.model import Device
    from gpubench.tools.monitor.processes import RunningProcess

_NARROW = ((100, 10), (72, 7), (48, 4), (0, 3))  # least width of the terminal, number of table columns that fit
_HISTORY = 60  # readings of a history, one per second
_LEAST_HISTORY = 6
_WARM, _FULL = 0.7, 0.9  # fractions of a limit from which a bar is yellow or red
_MOST_PROCESSES = 20
_WITH_COMMAND = 60  # columns of a terminal that also has room for the user and the command of a process
_LONGEST_USER = 12
_GAP = 2


class Picture:
    """Draws the gauges and the processes of the devices, with the history of the last minute."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = sorted(devices, key=lambda device: device.backend == "host")  # the host last
        self._recent = gauges.Recent()

    def render(
        self, latest: live.Latest, processes: Sequence[RunningProcess], console: Console, now: float
    ) -> RenderableType:
        """Return the picture at the moment `now` (monotonic seconds), in the size of the console.

        The values are added to the history. If the console has too few lines for the gauges of all devices, the picture
        is a table with one row per device. Processes, sorted by memory with the most first, fill the lines that are
        left.
        """
        gauges_by_device = {device.id: gauges.gauges(latest, device) for device in self._devices}
        for device, current in gauges_by_device.items():
            self._recent.add(now, device, current)
        panels = [
            self._device_lines(latest, device, gauges_by_device[device.id], console, now) for device in self._devices
        ]
        lines = sum(len(panel) for panel in panels)
        parts: list[RenderableType] = [part for panel in panels for part in panel]
        if lines + 1 > console.height:
            parts = list(self._table(latest, console.width))
            lines = len(self._devices) + 3
        room = min(console.height - lines - 3, _MOST_PROCESSES)
        if processes and room > 0:
            parts += _processes(processes, room, console.width)
        return Group(*parts, _print.plain("q quits", "dim"))

    def _device_lines(
        self, latest: live.Latest, device: Device, current: Sequence[gauges.Gauge], console: Console, now: float
    ) -> list[Text]:
        """Return the lines of a device: its name, each gauge with bar and history, its activity, and an empty line."""
        title = _print.plain(f"{device.id}  {device.name}", "bold")
        if reasons := gauges.throttle_text(latest, device):
            title.append_text(_print.plain(f"  {reasons}", "yellow"))
        title.truncate(console.width, overflow="ellipsis")
        ascii_only = console.options.ascii_only
        label_room = max((cell_len(gauge.label) for gauge in current), default=0)
        text_room = max((cell_len(gauge.text) for gauge in current), default=0)
        bar, history = widths(console.width - label_room - text_room - 2 * _GAP)
        lines = [title]
        for gauge in current:
            line = _print.plain(gauge.label.ljust(label_room + 1))
            if bar:
                line.append(blocks.bar(gauge.fraction or 0.0, bar, ascii_only=ascii_only), _colour(gauge.fraction))
            line.append(f" {gauge.text.rjust(text_room)}")
            if history:
                fractions = self._recent.fractions(now, device.id, gauge.label, history)
                line.append(f" {blocks.chart(fractions, ascii_only=ascii_only)}", "cyan")
            lines.append(line)
        if activity := gauges.shares_text(latest, device):
            lines.append(_print.plain(activity))
            lines[-1].truncate(console.width, overflow="ellipsis")
        return [*lines, Text("")]

    def _table(self, latest: live.Latest, width: int) -> Iterator[RenderableType]:
        """Yield a table with one row per GPU, and one for the host, for terminals without enough lines for gauges."""
        rows = [live.device_cells(latest, device.id) for device in self._devices if device.backend != "host"]
        filled = [place for place in range(len(live.COLUMNS)) if any(row[place] for row in rows)]
        filled = filled[: next(columns for least, columns in _NARROW if width >= least)]
        if rows:
            yield _table([live.COLUMNS[place] for place in filled], [[row[place] for place in filled] for row in rows])
        if len(rows) < len(self._devices):
            yield _table(live.HOST_COLUMNS, [live.host_cells(latest)])


def widths(room: int) -> tuple[int, int]:
    """Return the widths of a bar and of a history chart that share `room` columns.

    The history gets two thirds, at most 60 columns, and the bar gets the rest. Below 12 columns there is no history:
    its width is 0, and the bar's may be 0 too."""
    if room < 2 * _LEAST_HISTORY:
        return max(room, 0), 0
    history = min(room * 2 // 3, _HISTORY)
    return room - history, history


def _colour(fraction: float | None) -> str:
    if fraction is None or fraction < _WARM:
        return "green"
    return "yellow" if fraction < _FULL else "red"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = _print.table(heads, rows, right=heads[1:])
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return table


def _processes(processes: Sequence[RunningProcess], room: int, width: int) -> Iterator[RenderableType]:
    """Yield the table of the first `room` processes, and a line with the number of the others, if there are any."""
    from gpubench.base import units

    heads = ["process", "device", "memory", "user"] if width >= _WITH_COMMAND else ["process", "device", "memory"]
    rows = [
        [
            str(process.pid),
            process.device,
            units.round_size(process.memory_bytes) if process.memory_bytes is not None else "unknown",
            _shortened(process.user or "unknown", _LONGEST_USER),
        ][: len(heads)]
        for process in processes[:room]
    ]
    left = width - sum(max(map(cell_len, cells)) + _GAP for cells in zip(heads, *rows, strict=True))
    if width >= _WITH_COMMAND:
        heads.append("command")
        for row, process in zip(rows, processes, strict=False):
            row.append(_shortened(process.command or "unknown: in another container", left))
    yield _print.table(heads, rows, right=("process", "memory"))
    if len(processes) > room:
        yield _print.plain(f"and {len(processes) - room} more processes", "dim")


def _shortened(text: str, room: int) -> str:
    shortened = _print.plain(text)
    shortened.truncate(room, overflow="ellipsis")
    return shortened.plain


class Keys:
    """Waits for the key q on a terminal; without a terminal it only waits."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if _is_ours() else -1

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until a key is pressed.

        Raises KeyboardInterrupt if the key is q, which ends the command like Ctrl-C."""
        if self._descriptor < 0:
            time.sleep(seconds)
        elif select.select([self._descriptor], [], [], seconds)[0]:
            pressed = os.read(self._descriptor, 100)
            if not pressed:  # the terminal was closed
                self._descriptor = -1
            if b"q" in pressed.lower():
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def unbuffered(self) -> Iterator[None]:
        """Deliver each key to `wait` at once, without echo, until the context ends, and then restore the terminal."""
        if self._descriptor < 0:
            yield
            return
        before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSANOW)
        try:
            yield
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)


def _is_ours() -> bool:
    """Return whether standard input is a terminal in whose foreground this process runs."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard input is closed, or no terminal
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False
