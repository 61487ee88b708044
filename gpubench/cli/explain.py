"""`gpubench explain`: say why a case is not faster, by what the run itself measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.base.errors import UsageError
from gpubench.base.patterns import matches
from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench.analysis import records
    from gpubench.analysis import summary as summaries
    from gpubench.explaining import ladder as ladders
    from gpubench.explaining import lines, rungs

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)]
CaseId = Annotated[
    str | None,
    typer.Argument(
        metavar="CASE",
        help="The id of a case, or a text that only its id contains; * and ? are wildcards. "
        "\\[default: the key figures, one line each]",
    ),
]


def explain(run: Run, case: CaseId = None, json: options.Json = False) -> None:
    """Explain why a case is not faster: its share of the peak as factors, each with the evidence of the run."""
    from gpubench.model.store import read_run

    read = read_run(run)
    summary = summaries.Summary(read)
    explainer = rungs.Explainer(summary)
    if case is None:
        found = [ladder for _, ladder in rungs.key_ladders(summary)]
        if not found:
            raise UsageError(f"{run} has no key figure with a peak; name a case of it")
    else:
        found = [_one(explainer, summary, case)]
    if json:
        _print.document([{"whole": each.whole, **records.record(each)} for each in found])
    elif case is None:
        rows = [(each.case, lines.rows(each)[-1][2], each.brief) for each in found]
        _print.out().print(_print.table(("key figure", "of peak", "change by rung"), rows))
    else:
        show(found[0])


def show(ladder: ladders.Ladder) -> None:
    """Print a ladder: a line with the figure, one for each rung, and one for each evidence that is missing."""
    _print.echo(lines.headline(ladder))
    _print.out().print(_print.table(lines.HEADS, lines.rows(ladder), right=lines.HEADS[1:4]))
    for reason in ladder.missing:
        _print.out().print(_print.plain(f"missing: {reason}", "dim"), soft_wrap=True)


def _one(explainer: rungs.Explainer, summary: summaries.Summary, wanted: str) -> ladders.Ladder:
    """Return the ladder of the one case with this id, or whose id matches; raises UsageError if it has none."""
    spreads = summary.spreads()
    chosen = [spread for spread in spreads if spread.case.id == wanted]
    chosen = chosen or [spread for spread in spreads if matches(spread.case.id, (wanted,))]
    measured = [spread for spread in chosen if spread.figures] or chosen
    if not measured:
        raise UsageError(f"no case of this run matches {wanted!r}; `gpubench show RUN --all` lists its cases")
    if len({spread.case.id for spread in measured}) > 1:
        ids = list(dict.fromkeys(spread.case.id for spread in measured))
        raise UsageError(f"{len(ids)} cases match {wanted!r}: name one of {', '.join(ids[:5])}")
    ladder = explainer.ladder(measured[0])
    if isinstance(ladder, ladders.NoLadder):
        raise UsageError(f"{ladder.case} cannot be explained: {ladder.reason}")
    return ladder
