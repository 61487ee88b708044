"""Collect the values that the template of a comparison's page shows: texts, and drawings as markup."""

from dataclasses import dataclass

from gpubench.api import report as gb

from ._charts import Chart
from ._compare import STYLES, ComparisonRow, SuiteMean, changes, column_text, rows, suites, title

_MOST_ROWS = 8_000  # the most rows of a page, which keep it below 5 MB; the others are counted


@dataclass(frozen=True, slots=True)
class ComparisonBlock:
    """One run against the first: `same` are the rows with the verdict `same`, `notable` the other rows.

    `counts` pairs the number of a verdict (`3 slower`) with a class of the style sheet."""

    letter: str
    name: str
    verdict: str
    reasons: tuple[str, ...]
    next_steps: tuple[object, ...]
    counts: tuple[tuple[str, str], ...]
    suites: tuple[SuiteMean, ...]
    charts: tuple[Chart, ...]
    notable: tuple[ComparisonRow, ...]
    same: tuple[ComparisonRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Everything that the template shows; an item of `runs` is the letter, the name and the description of a run."""

    title: str
    runs: tuple[tuple[str, str, str], ...]
    differences: tuple[gb.comparison.Difference, ...]
    blocks: tuple[ComparisonBlock, ...]


def compare_page(comparison: gb.Comparison) -> ComparePage:
    """Return the page of a comparison, with at most 8000 rows, shared equally between the runs after the first.

    The texts of the comparison must be free of control characters: the template only escapes them."""
    runs = [
        (gb.comparison.letter(index), column.name, column_text(column))
        for index, column in enumerate(comparison.columns)
    ]
    room = _MOST_ROWS // len(comparison.against)
    blocks = [
        _block(comparison, against, gb.comparison.letter(index), room)
        for index, against in enumerate(comparison.against, 1)
    ]
    return ComparePage(title(comparison), tuple(runs), comparison.differences, tuple(blocks))


def _block(comparison: gb.Comparison, against: gb.comparison.RunComparison, name: str, room: int) -> ComparisonBlock:
    """Return the section of one run against the first."""
    answer = gb.comparison.answer(against, name)
    all_rows = rows(against, answer.reasons)
    listed = all_rows[:room]
    counts = [(f"{count} {verdict}", STYLES[verdict]) for verdict, count in against.judgement.counts().items()]
    left_out = len(all_rows) - len(listed)
    notes = [f"{left_out} cases that are not worse are left out; a .json report lists every case"] if left_out else []
    return ComparisonBlock(
        name,
        against.name,
        answer.verdict,
        (*answer.reasons, *gb.comparison.one_sided_cases(comparison, against)),
        answer.next_steps,
        tuple(counts),
        tuple(suites(against)),
        tuple(changes(against)),
        tuple(row for row in listed if row.verdict != gb.Verdict.SAME),
        tuple(row for row in listed if row.verdict == gb.Verdict.SAME),
        tuple(notes),
    )
