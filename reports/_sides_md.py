"""Write runs side by side as GitHub Markdown, short enough for a comment: if room is short, the worst rows stay."""

from collections.abc import Iterator, Sequence

from gpubench.api import report as gb

from ._markdown import MOST_BYTES, clipped, cut, table
from ._sides import Cell, FindingRow, Judged, Row, Side, Sides

_MOST_DIFFERENCES = 30
_HEAD_BYTES = 300  # bytes for the head of a table and the sentence about the rows that are left out


def sides_markdown(page: Sides) -> str:
    """Return the Markdown, which ends with a newline and has at most 65 536 bytes, as a comment may have.

    Findings that do not fit are counted; of runs that are not judged, lines at the end are left out."""
    room = MOST_BYTES - len(_document(page, [() for _ in page.judged]).encode()) - _HEAD_BYTES * len(page.judged)
    share = room // max(len(page.judged), 1)
    return cut(_document(page, [_fitting(judged.notable, share) for judged in page.judged]))


def _fitting(rows: Sequence[FindingRow], room_bytes: int) -> Sequence[FindingRow]:
    """Return the first rows, the worst ones, that fit into `room_bytes`."""
    for index, row in enumerate(rows):
        room_bytes -= len(_finding_line(row).encode()) + 1
        if room_bytes < 0:
            return rows[:index]
    return rows


def _document(page: Sides, listed: Sequence[Sequence[FindingRow]]) -> str:
    """Return the document with the findings `listed` for each judged run."""
    letters = [side.letter for side in page.sides]
    parts = [f"# {gb.escape(page.title)}", ""]
    for judged in page.judged:
        parts += _answer(judged)
    parts += table(("run", "name", "devices", "conditions", "trust"), map(_side_cells, page.sides))
    if page.key_figures:
        parts += ["\n## Key figures\n", *table(("key figure", *letters), map(_row, page.key_figures))]
    if page.key_figures or not page.judged:
        parts += [f"\n{gb.escape(page.note)}"]
    parts += _environment(page, letters)
    for judged, rows in zip(page.judged, listed, strict=True):
        parts += _findings(judged, rows)
    for name, _, cases in page.suites if not page.judged else ():
        parts += [f"\n## {gb.escape(name)}\n", *table(("case", *letters), map(_row, cases))]
    return "\n".join(parts) + "\n"


def _side_cells(side: Side) -> tuple[str, ...]:
    trust = "; ".join(filter(None, (side.trust, *side.limitations)))
    name = side.name if side.name != side.letter else ""
    cells = (side.letter, name, "; ".join(side.devices), " · ".join(side.conditions), trust)
    return tuple(map(gb.escape, cells))


def _answer(judged: Judged) -> Iterator[str]:
    """Yield the verdict, then a list item for each reason, each one-sided case and each next step."""
    yield f"**{gb.escape(judged.answer.verdict)}**\n"
    yield from (f"- {gb.escape(clipped(reason))}" for reason in judged.reasons)
    for step in judged.answer.next_steps:
        command = f": {gb.code(clipped(step.command))}" if step.command else ""
        yield f"- **next:** {gb.escape(clipped(step.text))}{command}"
    yield ""


def _environment(page: Sides, letters: Sequence[str]) -> Iterator[str]:
    yield "\n## Environment\n"
    if not page.differences:
        yield "No known environment differences."
        return
    shown_differences = page.differences[:_MOST_DIFFERENCES]
    rows = (
        (gb.escape(difference.name), *(gb.escape(clipped(value)) or "–" for value in difference.values))
        for difference in shown_differences
    )
    yield from table(("environment", *letters), rows)
    if (more := len(page.differences) - len(shown_differences)) > 0:
        yield f"\nand {more} more"


def _row(row: Row) -> Sequence[str]:
    name = f"{gb.code(row.title) if row.anchor else gb.escape(row.title)} {gb.escape(row.device)}".rstrip()
    return (name, *map(_cell, row.cells))


def _cell(cell: Cell) -> str:
    """Return a figure with its change, verdict and note as Markdown; a dash if it has neither text nor note."""
    change = f" ({cell.change})" if cell.change else ""
    parts = (f"**{gb.escape(cell.text)}**{change}" if cell.text else "", cell.verdict, gb.escape(cell.note))
    return ", ".join(part for part in parts if part) or "–"


def _findings(judged: Judged, rows: Sequence[FindingRow]) -> Iterator[str]:
    yield f"\n## {judged.side.letter} against A: {gb.escape(judged.tally)}\n"
    if judged.means:
        lines = ((gb.escape(mean.suite), gb.escape(mean.text), mean.counts) for mean, _ in judged.means)
        yield from table(("suite", "geometric mean", "cases"), lines)
        yield ""
    if rows:
        heads = ("verdict", "case", "A", judged.side.letter, "change", "95 % interval", "threshold", "reason")
        yield from table(heads, ())
        yield from map(_finding_line, rows)
    if left := len(judged.notable) + len(judged.same) + judged.left_out - len(rows):
        yield f"\n{left} {'more' if rows else 'cases'}, none worse; a `.html` or `.json` report lists them all."


def _finding_line(row: FindingRow) -> str:
    """Return a finding as a line of a Markdown table; verdicts that are bad or a warning are bold."""
    texts = row.cells
    case = " ".join([gb.code(row.finding.case.id), *([gb.escape(row.device)] if row.device else [])])
    verdict = f"**{texts.verdict}**" if row.style in ("bad", "warning") else texts.verdict
    cells = (texts.before, texts.after, texts.change, texts.interval, texts.threshold, clipped(row.explanation))
    return f"| {' | '.join((verdict, case, *map(gb.escape, cells)))} |"
