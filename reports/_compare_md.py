"""Write a comparison of runs as GitHub Markdown, short enough for a comment: if room is short, the worst rows stay."""

from collections.abc import Iterator, Sequence

from gpubench.api import report as gb

from ._compare import ComparisonRow, column_text, rows, suites, title
from ._markdown import MOST_BYTES, clipped, cut, table

_MOST_DIFFERENCES = 30
_NEWLINE = 1
_HEAD_BYTES = 300  # bytes for the head of a table and the sentence about the rows that are left out


def compare_markdown(comparison: gb.Comparison) -> str:
    """Return the comparison as Markdown, which ends with a newline and has at most 65 536 bytes, as a comment may have.

    Of the rows that do not fit, the best ones are left out and counted."""
    answers = [
        gb.comparison.answer(against, gb.comparison.letter(index))
        for index, against in enumerate(comparison.against, 1)
    ]
    rows_by_run = [rows(against, answer.reasons) for against, answer in zip(comparison.against, answers, strict=True)]
    without_rows = _document(comparison, [[] for _ in rows_by_run], rows_by_run)
    room = MOST_BYTES - len(without_rows.encode()) - _HEAD_BYTES * len(rows_by_run)
    return cut(_document(comparison, _fitting_rows(rows_by_run, room), rows_by_run))


def _fitting_rows(rows_by_run: Sequence[Sequence[ComparisonRow]], room_bytes: int) -> list[list[ComparisonRow]]:
    """Return for each run its first rows, the worst ones, that fit into an equal part of `room_bytes`."""
    share, fitting_by_run = room_bytes // max(len(rows_by_run), 1), []
    for run_rows in rows_by_run:
        left_bytes, fitting = share, []
        for row in run_rows:
            left_bytes -= len(_row_line(row).encode()) + _NEWLINE
            if left_bytes < 0 or row.verdict == gb.Verdict.SAME:
                break
            fitting.append(row)
        fitting_by_run.append(fitting)
    return fitting_by_run


def _document(
    comparison: gb.Comparison,
    listed: Sequence[Sequence[ComparisonRow]],
    rows_by_run: Sequence[Sequence[ComparisonRow]],
) -> str:
    """Return the document with the rows `listed`; `rows_by_run` has all rows, so that those left out are counted."""
    parts = [f"# {gb.escape(title(comparison))}", ""]
    for index, against in enumerate(comparison.against, 1):
        parts += _answer(comparison, against, gb.comparison.letter(index))
    parts += table(("run", "name", "what it is"), _runs(comparison))
    parts += _environment(comparison)
    for index, against in enumerate(comparison.against, 1):
        parts += _against(against, gb.comparison.letter(index), listed[index - 1], len(rows_by_run[index - 1]))
    return "\n".join(parts) + "\n"


def _answer(comparison: gb.Comparison, against: gb.comparison.RunComparison, name: str) -> Iterator[str]:
    """Yield the verdict, then a list item for each reason, each one-sided case and each next step."""
    answer, one_sided = gb.comparison.answer(against, name), gb.comparison.one_sided_cases(comparison, against)
    yield f"**{gb.escape(answer.verdict)}**\n"
    yield from (f"- {gb.escape(clipped(reason))}" for reason in (*answer.reasons, *one_sided))
    for step in answer.next_steps:
        command = f": {gb.code(clipped(step.command))}" if step.command else ""
        yield f"- **next:** {gb.escape(clipped(step.text))}{command}"
    yield ""


def _runs(comparison: gb.Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the letter, the name and the description of each run, escaped for Markdown."""
    for index, column in enumerate(comparison.columns):
        yield gb.comparison.letter(index), gb.escape(column.name), gb.escape(column_text(column))


def _environment(comparison: gb.Comparison) -> Iterator[str]:
    """Yield the section on the differences of the environment, in parts that newlines join."""
    yield "\n## Environment\n"
    differences = comparison.differences
    if not differences:
        yield "No known environment differences."
        return
    heads = ("environment", *(gb.comparison.letter(index) for index in range(len(comparison.columns))))
    lines = (
        (gb.escape(difference.name), *(gb.escape(clipped(value)) or "–" for value in difference.values))
        for difference in differences
    )
    yield from table(heads, list(lines)[:_MOST_DIFFERENCES])
    if len(differences) > _MOST_DIFFERENCES:
        yield f"\nand {len(differences) - _MOST_DIFFERENCES} more"


def _against(
    against: gb.comparison.RunComparison, name: str, listed: Sequence[ComparisonRow], count: int
) -> Iterator[str]:
    """Yield the section of one run against run A: its suites, the rows `listed`, and how many rows are left out."""
    yield f"\n## {name} against A: {gb.escape(against.tally)}\n"
    means = suites(against)
    if means:
        lines = ((gb.escape(mean.name), gb.escape(mean.text), mean.cases) for mean in means)
        yield from table(("suite", "geometric mean", "cases"), lines)
        yield ""
    if listed:
        yield from table(("verdict", "case", "A", name, "change", "95 % interval", "threshold", "reason"), ())
        yield from map(_row_line, listed)
    if left := count - len(listed):
        yield f"\n{left} {'more' if listed else 'cases'}, none worse; a `.html` or `.json` report lists them all."


def _row_line(row: ComparisonRow) -> str:
    """Return a row as a line of a Markdown table; verdicts that are bad or a warning are bold."""
    case = " ".join([gb.code(row.case), *([gb.escape(row.device)] if row.device else [])])
    verdict = f"**{row.verdict}**" if row.style in ("bad", "warning") else row.verdict
    cells = (row.before, row.after, row.change, row.interval, row.threshold, clipped(row.explanation))
    return f"| {' | '.join((verdict, case, *map(gb.escape, cells)))} |"
