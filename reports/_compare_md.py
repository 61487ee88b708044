"""A comparison as GitHub Markdown, short enough for a comment: the worst stays where room is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.api.report import Against, Answer, Comparison, Verdict, code, escape
from gpubench.api.report import comparison as comparing

from ._compare import Row, column_words, rows, suites, title
from ._markdown import MOST_BYTES, clipped, cut, table

_MOST_DIFFERENCES = 30
_NEWLINE = 1
_HEAD_BYTES = 300  # of a table: its own head, and the words on what is left out


def compare_markdown(comparison: Comparison) -> str:
    """The document, with a newline at its end."""
    answers = [comparing.answer(each, comparing.letter(index)) for index, each in enumerate(comparison.against, 1)]
    every = [rows(against, answer) for against, answer in zip(comparison.against, answers, strict=True)]
    bare = _document(comparison, answers, [[] for _ in every], every)
    room = MOST_BYTES - len(bare.encode()) - _HEAD_BYTES * len(every)
    return cut(_document(comparison, answers, _fitting(every, room), every))


def _fitting(every: Sequence[Sequence[Row]], room_bytes: int) -> list[list[Row]]:
    """Of each run the first rows, that is the worst, as far as there is room for each; none of what is the same."""
    share, kept = room_bytes // max(len(every), 1), []
    for found in every:
        left, rows_kept = share, []
        for row in found:
            left -= len(_line(row).encode()) + _NEWLINE
            if left < 0 or row.verdict == Verdict.SAME:
                break
            rows_kept.append(row)
        kept.append(rows_kept)
    return kept


def _document(
    comparison: Comparison, answers: Sequence[Answer], kept: Sequence[Sequence[Row]], every: Sequence[Sequence[Row]]
) -> str:
    parts = [f"# {escape(title(comparison))}", ""]
    for answer, against in zip(answers, comparison.against, strict=True):
        parts += _answer(answer, comparing.only_one(comparison, against))
    parts += table(("run", "name", "what it is"), _runs(comparison))
    parts += _environment(comparison)
    for index, against in enumerate(comparison.against, 1):
        parts += _against(against, comparing.letter(index), kept[index - 1], len(every[index - 1]))
    return "\n".join(parts) + "\n"


def _answer(answer: Answer, only_one: Sequence[str]) -> Iterator[str]:
    yield f"**{escape(answer.verdict)}**\n"
    yield from (f"- {escape(clipped(words))}" for words in (*answer.why, *only_one))
    for step in answer.next_steps:
        yield f"- **next:** {escape(clipped(step.words))}{f': {code(clipped(step.command))}' if step.command else ''}"
    yield ""


def _runs(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for index, column in enumerate(comparison.columns):
        yield comparing.letter(index), escape(column.name), escape(column_words(column))


def _environment(comparison: Comparison) -> Iterator[str]:
    yield "\n## Environment\n"
    found = comparison.differences
    if not found:
        yield "No known environment differences."
        return
    heads = ("environment", *(comparing.letter(index) for index in range(len(comparison.columns))))
    lines = ((escape(each.name), *(escape(clipped(value)) or "–" for value in each.values)) for each in found)
    yield from table(heads, list(lines)[:_MOST_DIFFERENCES])
    if len(found) > _MOST_DIFFERENCES:
        yield f"\nand {len(found) - _MOST_DIFFERENCES} more"


def _against(against: Against, name: str, kept: Sequence[Row], count: int) -> Iterator[str]:
    yield f"\n## {name} against A: {escape(against.tally)}\n"
    means = suites(against)
    if means:
        lines = ((escape(mean.name), escape(mean.words), mean.cases) for mean in means)
        yield from table(("suite", "geometric mean", "cases"), lines)
        yield ""
    if kept:
        yield from table(("verdict", "case", "A", name, "change", "95 % interval", "threshold", "why"), ())
        yield from map(_line, kept)
    if left := count - len(kept):
        yield f"\n{left} {'more' if kept else 'cases'}, none worse: the `.html` and the `.json` have them all."


def _line(row: Row) -> str:
    case = " ".join([code(row.case), *([escape(row.device)] if row.device else [])])
    verdict = f"**{row.verdict}**" if row.style in ("bad", "odd") else row.verdict
    cells = (row.before, row.after, row.change, row.interval, row.threshold, clipped(row.why))
    return f"| {' | '.join((verdict, case, *map(escape, cells)))} |"
