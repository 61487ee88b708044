"""Show a run in the terminal: the overview first, then its cases by suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from gpubench.base import units
from gpubench.cli import _print, profile
from gpubench.cli._late import late
from gpubench.cli._layout import INDENT, LONGEST_PART, folded, joined, name_parts

with late():
    from gpubench import model, stats
    from gpubench.analysis import figure, frame, key_figures, trust
    from gpubench.analysis import overview as overviews
    from gpubench.analysis import summary as summaries
    from gpubench.analysis.views import table, tables

Part = Table | Text
Columns = list[tuple[str, list[str]]]  # column heads, each with its cells
FEW_CASES = 40  # a run of at most this number of cases is listed in full
_MOST_REASONS = 8
_MOST_WARNINGS = 200
_LONGEST_NAME = 60  # longest name of a case that stays on one line at the cost of other columns


def run_parts(run: model.Run, path: object) -> list[Part]:
    """Return the texts and tables that `run` prints at its end: the overview, and the cases if they are at most 40."""
    summary = summaries.Summary(run)
    if len({result.case.id for result in run.results}) <= FEW_CASES:
        return [*overview(summary), *cases(summary)]
    return [*overview(summary), _print.plain(f"every case: gpubench show {path} --all", "dim")]


def overview(summary: summaries.Summary) -> list[Part]:
    """Return the overview of a run: devices, conditions, key figures, trust, main points, and a line per suite."""
    run = summary.run
    run_overview = overviews.overview(summary)
    parts = [*_head_parts(run_overview), Text("")]
    if run_overview.values:
        notes = [run_overview.expected_note, _range_note([value.figure for value in run_overview.values])]
        parts.append(_key_table(run_overview.values, summary.interval_name, is_grouped=True))
        parts += [_print.plain(note, "dim") for note in notes if note]
    parts.append(_print.plain(run_overview.brief_trust, "bold yellow" if run_overview.doubts else "bold green"))
    parts += [_print.plain(line, "dim") for line in (run_overview.notes_lead,) if line]
    parts += [_print.plain(f"- {line}") for line in run_overview.notes]
    parts += [_print.plain(f"- {line}", "yellow") for line in (*_warnings(run), *_reasons(run.results))]
    if run_overview.suites:
        measured = [line for line in run_overview.suites if sum(line.counts.values()) > line.counts["skipped"]]
        names = {line.name for line in measured}
        rows = [(line.name, units.duration(line.seconds) if line.seconds > 0 else "", line.ended) for line in measured]
        if rows:
            parts += [Text(""), _print.table(("suite", "time", "cases"), rows, right=("time",))]
        if others := [f"{line.name} {line.ended}" for line in run_overview.suites if line.name not in names]:
            parts.append(_print.plain(f"not measured: {', '.join(others)}", "dim"))
    return parts


def head(summary: summaries.Summary) -> list[Part]:
    """Return the devices and the conditions of a run."""
    return _head_parts(overviews.overview(summary))


def _head_parts(run_overview: overviews.Overview) -> list[Part]:
    devices: list[Part] = [_print.plain(device, "bold") for device in run_overview.devices]
    return [*devices, _print.plain(", ".join(run_overview.conditions))]


def _key_table(values: Sequence[key_figures.KeyValue], interval_name: str, is_grouped: bool = False) -> Table:
    """Return a table of key figures, with a line for each group if `is_grouped`.

    Columns for which no figure has a value are left out, and the direction if the terminal is too narrow for it."""
    several = len({value.devices[0] for value in values if value.devices}) > 1
    columns: dict[str, list[str]] = {
        "key figure": [value.title for value in values],
        "device": ["+".join(value.devices) if several else "" for value in values],
        "median": [value.figure.text for value in values],
        _interval_head(interval_name): [value.figure.half_width_text for value in values],
        _DIRECTION: [value.figure.better for value in values],
        "of data\nsheet": [units.percent(value.of_spec) if value.of_spec else "" for value in values],
        "of\nexpected": [units.percent(value.of_expected) if value.of_expected else "" for value in values],
    }
    needed = [head for head, cells in columns.items() if any(cells)]
    if sum(2 + max(map(len, (*head.split("\n"), *columns[head]))) for head in needed) - 2 > _print.out().width:
        needed.remove(_DIRECTION)
    rows: list[list[Text]] = []
    for row, value in enumerate(values):
        if is_grouped and (not row or values[row - 1].group != value.group):
            rows.append([_print.plain(value.group, "dim italic"), *[Text("")] * (len(needed) - 1)])
        rows.append(
            [_print.plain(columns[head][row], "yellow" if value.is_below_expectation else "") for head in needed]
        )
    right = [head for head in needed if head not in ("key figure", "device", _DIRECTION)]
    return _print.table(needed, rows, right=right)


def _range_note(figures: Sequence[figure.Figure]) -> str:
    """Return the explanation of the word behind some intervals, or an empty text if none of `figures` has it."""
    has_range = any(of.half_width_text.endswith(" range") for of in figures)
    return f"range: ± spans all values, which are fewer than {stats.LEAST_FOR_INTERVAL}" if has_range else ""


_DIRECTION = "is\nbest"  # heads the words more and less


def cases(
    whole_run: summaries.Summary,
    filters: Sequence[str] = (),
    order: frame.Order = "measured",
    top: int | None = None,
    wide: bool = False,
) -> list[Part]:
    """Return the cases of a run by suite; if all are listed as measured, also the tables that are derived from them.

    `order` is `measured`, or the figure by which they are sorted, the highest first: `share`, `noise` or `duration`."""
    is_whole = not filters and top is None and order == "measured"
    parts: list[Part] = []
    for suite in frame.listing(whole_run, filters, order, top):
        parts += _suite_parts(suite, wide, _print.out().width)
        if is_whole:
            parts += [part for derived in tables.tables(whole_run, suite.name) for part in derived_parts(derived)]
    if is_whole:
        of_run = (derived for derived in tables.tables(whole_run) if derived.topic != "phases")
        parts += [part for derived in of_run for part in derived_parts(derived)]
        parts += profile.phases(whole_run, _print.out())
    meanings = "; ".join(frame.explained(_columns_of(parts)))
    notes = [_range_note([row.figure for row in whole_run.rows() if row.figure]), meanings]
    notes += [whole_run.recorded_sources_text] if wide else []
    if not whole_run.replicated and any(row.figure and row.figure.samples > 1 for row in whole_run.rows()):
        notes.insert(0, "± is the 95 % interval within one process; --replicates 3 measures how much processes differ")
    return parts + [part for note in notes if note for part in (Text(""), _print.plain(note, "dim"))]


def _columns_of(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the heads of the printed tables, each as one line."""
    for part in parts:
        if isinstance(part, Table):
            yield from (" ".join(str(column.header).split()) for column in part.columns)


def derived_parts(derived: table.Table) -> list[Part]:
    """Return a table of derived figures with its note below it."""
    right = [head for head in derived.heads if head not in derived.text_heads]
    note = [_print.plain(derived.note, "dim")] if derived.note else []
    return [Text(""), _print.table(derived.heads, derived.rows, derived.title, right), *note]


def _suite_parts(suite: frame.ListedSuite, wide: bool, width: int) -> Iterator[Part]:
    """Yield a suite's heading and its cases: a table of the most columns that fit `width`, else lines of text."""
    yield Text("")
    heading = _print.plain(suite.name, "bold")
    yield heading.append_text(_print.plain(f"  {suite.constants}" if suite.constants else "", "not bold dim"))
    if suite.leading:
        yield from (_key_table(suite.leading, suite.interval_name), Text(""))
    whole = max(len(case.name) for case in suite.cases)
    longest = max(len(part) for case in suite.cases for part in name_parts(case.name))
    *full, one_share = _column_variants(suite, wide)
    rooms = (min(whole, _LONGEST_NAME), min(longest, LONGEST_PART) + len(INDENT))
    for columns, room_for_names in [*((columns, room) for room in rooms for columns in full), (one_share, rooms[1])]:
        room = width - sum(2 + max(map(len, (*head.split("\n"), *cells))) for head, cells in columns)
        if room >= room_for_names:
            yield _one_line_each(suite, columns, room)
            return
    yield from _two_lines_each(suite, full[0], width)


def _column_variants(suite: frame.ListedSuite, wide: bool) -> list[Columns]:
    """Return four variants of the columns: complete, without the peaks' names, without the bounds, with one share."""
    whole = [(head, cells) for head, cells in _columns(suite, wide) if any(cells)]
    unnamed = [
        (head, [(cell.partition("%")[0] + "%" if cell else "") for cell in cells] if head == "of peak" else cells)
        for head, cells in whole
    ]
    unbound = [(head, cells) for head, cells in unnamed if head != "bound by"]
    peaks = dict(unbound).get("of peak", [""] * len(suite.cases))
    one_share = [
        (head, [roof or peak for roof, peak in zip(cells, peaks, strict=True)] if head == _ROOF else cells)
        for head, cells in unbound
        if head != "of peak" or _ROOF not in dict(unbound)
    ]
    return [whole, unnamed, unbound, one_share]


def _columns(suite: frame.ListedSuite, wide: bool) -> Columns:
    """Return the columns of figures, each with its heading and one cell per case."""
    named = [
        ("device", [case.device for case in suite.cases]),
        ("median", [case.median for case in suite.cases]),
        (_interval_head(suite.interval_name), [case.interval for case in suite.cases]),
        ("of peak", [case.share for case in suite.cases]),
        (_ROOF, [case.shares[-1] for case in suite.cases]),
    ]
    if wide:
        named[3:] = [
            *((head, [case.shares[place] for case in suite.cases]) for place, head in enumerate(_WIDE_SHARES)),
            ("noise within", [case.within for case in suite.cases]),
            ("between", [case.between for case in suite.cases]),
        ]
    return [
        *named,
        ("bound by", [case.bound for case in suite.cases]),
        ("state", [case.ended for case in suite.cases]),
    ]


def _interval_head(interval_name: str) -> str:
    """Return the head of a column of intervals in two lines, which say what they cover: `± within`, `process`."""
    return "\n".join(interval_name.replace("95 %", "±").rsplit(" ", 1))


_ROOF = "of roof"
_WIDE_SHARES = ("of data sheet", "at the clock", "of best", _ROOF)  # the heads in the order of `peaks.BASES`
_LEFT = ("device", "bound by", "state")


def _one_line_each(suite: frame.ListedSuite, columns: Columns, room: int) -> Table:
    """Return the cases as a table; names are folded to `room` characters, and cases that are not ok are yellow."""
    heads = ["case", *(head for head, _ in columns)]
    rows = []
    for number, case in enumerate(suite.cases):
        rows.append([folded(case.name, room), *(_styled(cells[number], case) for _, cells in columns)])
        rows += [[line, *[Text("")] * len(columns)] for line in _secondary_lines(case.beside, room)]
    printed = _print.table(heads, rows, right=[head for head in heads[1:] if head not in _LEFT])
    for column in printed.columns[1:]:
        column.no_wrap = True
    return printed


def _two_lines_each(suite: frame.ListedSuite, columns: Columns, width: int) -> Iterator[Text]:
    """Yield each case as its name and, below, its figures in indented lines of at most `width` characters."""
    for number, case in enumerate(suite.cases):
        yield folded(case.name, width)
        line = INDENT
        figures = ((head, cells[number]) for head, cells in columns if cells[number])
        for text in (f"{cell} {head}" if head == _ROOF else cell for head, cell in figures):
            if line.strip() and len(line) + len(text) > width:
                yield _styled(line.rstrip(), case)
                line = INDENT
            line += f"{text}  "
        yield _styled(line.rstrip(), case)
        yield from _secondary_lines(case.beside, width)


def _styled(cell: str, case: frame.ListedCase) -> Text:
    return _print.plain(cell, "" if case.is_ok else "yellow")


def _secondary_lines(secondary: str, room: int) -> list[Text]:
    lines = joined(INDENT, [f"{part}, " for part in secondary.split(", ")], room + 1) if secondary else []
    return [_print.plain(line.rstrip(", "), "dim") for line in lines]


def _warnings(run: model.Run) -> list[str]:
    """Return the warnings and remarks of a run, without remarks on the health and the state of devices."""
    sources = (trust.HEALTH_SOURCE, trust.STATE_SOURCE)
    remarks = [remark for remark in run.remarks if remark.state != "absent" and remark.source not in sources]
    lines = [*run.warnings, *dict.fromkeys(remark.text for remark in remarks)]
    rest = len(lines) - _MOST_WARNINGS
    return lines[:_MOST_WARNINGS] + ([f"and {rest} more warnings: see the run file"] if rest > 0 else [])


def _reasons(results: Sequence[model.Result]) -> list[str]:
    cases_by_reason: dict[tuple[str, str], dict[str, None]] = {}
    for result in results:
        if result.status in ("failed", "invalid"):
            cases_by_reason.setdefault((result.status, result.reason), {})[result.case.id] = None
    lines = [
        f"{status}: {next(iter(ids))}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {reason}"
        for (status, reason), ids in cases_by_reason.items()
    ]
    rest = len(lines) - _MOST_REASONS
    return lines[:_MOST_REASONS] + ([f"and {rest} more reasons: see the report"] if rest > 0 else [])
