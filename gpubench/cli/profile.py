"""`gpubench profile`: sample the devices while any program runs.

Show a profiled program in the terminal: its phases as lanes above the counters, then as tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from gpubench.base import blocks, units
from gpubench.base.clean import clean
from gpubench.base.errors import GpubenchError
from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.analysis import summary as summaries
    from gpubench.analysis.views import phase_tables, table
    from gpubench.measuring import inventory, plan
    from gpubench.tools import profile as profiling


Part = Table | Text
_GAP = 2  # characters between two columns
_SHARE_OF_NAMES = 0.4  # share of the width for names, if the columns do not fit side by side
_LEAST_NAME = 10  # least width of a column of names; longer names are folded
_MOST_LANE = 100  # columns of the axis of time
_LEAST_LANE = 8


def profiled(run: model.Run, console: Console) -> list[Part]:
    """Return the phases of a profiled program in lines that fit the console, then its warnings and failures."""
    failed = [result.reason for result in run.results if result.status in ("failed", "invalid")]
    warnings = [_print.plain(line, "yellow") for line in (*run.messages, *failed)]
    return [*phases(summaries.Summary(run), console), *warnings]


def phases(summary: summaries.Summary, console: Console) -> list[Part]:
    """Return the phases of a profiled program as lanes and tables; an empty list for any other run."""
    tables = (
        part for of_phases in phase_tables.phase_tables(summary) for part in _table_parts(of_phases, console.width)
    )
    return [*_lanes(summary, console), *tables]


def _table_parts(phase_table: table.Table, width: int) -> Iterator[Part]:
    """Yield a table of phases that fits `width` columns of the terminal."""
    heads, rows, text_heads = phase_table.heads, phase_table.rows, phase_table.text_heads
    constants = [
        f"{head} {rows[0][place]}"
        for place, head in enumerate(heads)
        if place and head in text_heads and len({row[place] for row in rows}) == 1
    ]
    printed = [place for place, head in enumerate(heads) if f"{head} {rows[0][place]}" not in constants]
    title = ", ".join([phase_table.title, *constants])
    key_count = next((place for place, head in enumerate(heads) if head not in text_heads), len(heads))
    keys = [place for place in printed if place < key_count]
    others = [place for place in printed if place not in keys]
    rooms = {}  # the width of each column: of its longest cell or, if longer, its heading, which may be broken
    for place in printed:
        is_broken = heads[place] not in text_heads or place >= key_count
        parts = heads[place].split() if is_broken else [heads[place]]
        rooms[place] = max(map(cell_len, [*parts, *(row[place] for row in rows)]))
    if sum(rooms[place] + _GAP for place in printed) - _GAP > width:
        for place in keys:
            rooms[place] = min(rooms[place], max(int(width * _SHARE_OF_NAMES) // len(keys), _LEAST_NAME))
    left = width - sum(rooms[place] + _GAP for place in keys)
    for number, group in enumerate(_column_groups(others, rooms, left)):
        yield Text("")
        yield _rich_table(phase_table, [*keys, *group], rooms, title if number == 0 else "")
    if phase_table.note:
        yield _print.plain(phase_table.note, "dim")


def _column_groups(places: Sequence[int], rooms: dict[int, int], left: int) -> Iterator[list[int]]:
    """Yield the columns in groups that fit side by side in `left` columns of the terminal, at least one each."""
    group: list[int] = []
    for place in places:
        if group and sum(rooms[member] + _GAP for member in [*group, place]) - _GAP > left:
            yield group
            group = []
        group.append(place)
    yield group


def _rich_table(phase_table: table.Table, places: Sequence[int], rooms: dict[int, int], title: str) -> Table:
    """Return the columns with the indices `places` as a table of the terminal; `rooms` are the widths by index."""
    heads = [phase_table.heads[place] for place in places]
    rows = [[row[place] for place in places] for row in phase_table.rows]
    printed = _print.table(heads, rows, title, right=[head for head in heads if head not in phase_table.text_heads])
    for column, place in zip(printed.columns, places, strict=True):
        column.vertical = "bottom"
        if phase_table.heads[place] not in phase_table.text_heads:
            column.min_width = rooms[place]
        else:
            column.max_width = rooms[place]
    return printed


def _lanes(summary: summaries.Summary, console: Console) -> Iterator[Text]:
    narrowest = phase_tables.phase_lanes(summary, 1)
    if narrowest is None:
        return
    names = [*(lane.name for lane in narrowest.lanes), *(counter.name for counter in narrowest.counters)]
    name_room = min(max(map(cell_len, names), default=0), max(console.width // 4, _LEAST_NAME))
    end_room = max((len(lane.highest) for lane in narrowest.counters), default=0)
    columns = min(console.width - name_room - end_room - 2 * _GAP, _MOST_LANE)
    drawn = phase_tables.phase_lanes(summary, columns) if columns >= _LEAST_LANE else None
    if drawn and (drawn.lanes or drawn.counters):
        yield from _lane_lines(drawn, name_room, columns, console.options.ascii_only)


def _lane_lines(drawn: phase_tables.PhaseLanes, name_room: int, columns: int, ascii_only: bool) -> Iterator[Text]:
    """Yield a line for each phase and each counter, then the time axis, and a line if short phases are not drawn."""
    full, part = ("#", "-") if ascii_only else ("█", "▒")
    yield Text("")
    for lane in drawn.lanes:  # by the share of a column's time in which the phase ran
        cells = "".join(" " if share <= 0.0 else full if share >= 0.5 else part for share in lane.shares)
        yield _print.plain(_padded_name(lane.name, name_room)) + Text(cells.rstrip(), "cyan")
    for number, counter in enumerate(drawn.counters):
        cells = blocks.chart(counter.fractions, ascii_only=ascii_only)
        name = _print.plain(_padded_name(counter.name, name_room))
        yield name + Text(cells, "green" if number % 2 else "blue") + _print.plain(f"  {counter.highest}")
    end = units.duration(drawn.seconds)
    axis = "0 s".ljust(max(columns - len(end), 4)) + end
    yield _print.plain(" " * (name_room + _GAP) + axis, "dim")
    if drawn.left_out:
        yield _print.plain(f"{drawn.left_out} shorter phases are not drawn; the table has them", "dim")


def _padded_name(name: str, room: int) -> str:
    """Return a name cut or padded to `room` columns of the terminal, with a gap of two columns after it."""
    name = clean(name)
    short = name if cell_len(name) <= room else set_cell_size(name, room - 1) + "…"
    return set_cell_size(short, room + _GAP)


CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}
_OWN = 125  # the exit status of gpubench's own errors, as with env and timeout
TyperUsageError: Any = typer.BadParameter.__base__  # Click's class, which Typer contains or imports

Program = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND…", help="The command to run, with its arguments.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="The run file to write (.jsonl or .jsonl.gz). \\[default: gpubench-runs/TIME-profile.jsonl]"
    ),
]
Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="The command is a Python script: record its kernels and copies as well (CUDA, extra counters).",
    ),
]
Sampled = Annotated[
    list[str] | None,
    typer.Option("--device", help="Sample only this device. Can be repeated. \\[default: every device]"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing after the program has ended.")]


class Command(TyperCommand):
    """A command whose own errors have exit status 125; every other status is the program's."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Return Click's context for the arguments; the error for an invalid argument gets exit status 125."""
        try:
            return super().make_context(*given, **named)
        except TyperUsageError as error:
            error.exit_code = _OWN
            raise


def profile(
    command: Program = None,
    out: Out = None,
    trace: Trace = False,
    device: Sampled = None,
    quiet: Quiet = False,
) -> None:
    """Sample every device while a program runs, find its phases, and write a run file.

    The exit status is the program's."""
    from gpubench.tools.profile import program

    if not command:
        raise profiling.ProfileError("no command given; name the program to run: gpubench profile -- COMMAND…")
    try:
        program.check_executable(profiling.tracing_command(command) if trace else command, os.environ)
        facts = inventory.facts()
        path = options.run_file(out, "-profile")
        devices = plan.sampled_devices(facts, device or [])
        outcome = profiling.profile(command, facts, devices, path, sys.argv, trace=trace)
    except program.CannotRun:
        raise
    except GpubenchError as error:
        raise profiling.ProfileError(str(error)) from error
    if not quiet and outcome.run is not None:
        console = _print.err()
        console.print(*profiled(outcome.run, console), sep="\n")
    if not quiet:
        for warning in outcome.warnings:
            _print.warn(warning)
        _print.say(f"run file: {path}; for a report: gpubench report {path}")
    raise typer.Exit(outcome.status)
