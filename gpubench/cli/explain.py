"""`gpubench explain`: say why a case is not faster, by what the run itself measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gpubench.base.errors import UsageError
from gpubench.base.patterns import matches
from gpubench.cli import _machine, _print
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.analysis import records
    from gpubench.analysis import summary as summaries
    from gpubench.explaining import contributing, counterfactuals, lines, operators, rungs
    from gpubench.explaining import ladder as ladders
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run file (.jsonl, .jsonl.gz); with --measure the id of a case.", show_default=False
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Measure the case, and cases without the causes of its loss (zeros, whole waves, after a rest, larger "
        "messages), into a run file; then confirm or correct each rung.",
    ),
]
Roofs = Annotated[
    Path | None,
    typer.Option(
        "--roofs",
        metavar="RUN",
        help="For a traced program: a run file of this machine, whose rates of memory, links and products are the "
        "roofs of its operators. \\[default: the data sheet]",
    ),
]
CaseId = Annotated[
    str | None,
    typer.Argument(
        metavar="CASE",
        help="The id of a case, or a text that only its id contains; * and ? are wildcards. "
        "\\[default: the key figures, one line each]",
    ),
]


def explain(
    run: Run,
    case: CaseId = None,
    measure: Measure = False,
    roofs: Roofs = None,
    device: options.Devices = None,
    json: options.Json = False,
) -> None:
    """Explain why a case is not faster: its share of the peak as factors, each with the evidence of the run."""
    from gpubench.model.store import read_run

    if measure and case:
        raise UsageError("--measure takes the id of one case and no run file: gpubench explain CASE --measure")
    read, case = (_measured(run, device), run) if measure else (read_run(Path(run)), case)
    summary = summaries.Summary(read)
    if case is None and (parts := operator_parts(summary, roofs)):
        _print.out().print(*parts, sep="\n")
        return
    if case is None:
        built = [ladder for _, ladder in rungs.key_ladders(summary)]
        if not built:
            raise UsageError(f"{run} has no key figure with a peak; name a case of it, on a host one of gemm/square")
    else:
        built = [_one(rungs.Explainer(summary), summary, case)]
    checks: list[counterfactuals.Check] = []
    if measure:
        corrected, checks = counterfactuals.checked(built[0], summary)
        built = [corrected]
    if json:
        check_records = [{**records.record(check), "verdict": check.verdict} for check in checks]
        _print.document(
            [{**records.record(ladder), **({"checks": check_records} if measure else {})} for ladder in built]
        )
    elif case is None:
        rows = [(ladder.case, lines.rows(ladder)[-1][2], ladder.brief) for ladder in built]
        _print.out().print(_print.table(("key figure", "of peak", "change by rung"), rows))
    else:
        show(built[0])
        for check in checks:
            _print.echo(check.text)
        untested = [rung.name for rung in built[0].shown if rung.name not in {check.rung for check in checks}]
        if measure and untested:
            _print.echo(f"not tested again, because other cases or counters measured them: {', '.join(untested)}")


def operator_parts(summary: summaries.Summary, roofs: Path | None = None) -> list[Table | Text]:
    """Return the tables of the operators of a traced program under the measured roofs of a run; none otherwise."""
    from gpubench.model.store import read_run

    measured = summaries.Summary(read_run(roofs)) if roofs else None
    try:
        tables = operators.operator_tables(summary, measured)
    except LookupError as error:
        raise UsageError(f"{roofs}: {error.args[0]}") from error
    parts: list[Table | Text] = []
    for table in tables:
        right = [head for head in table.heads if head not in table.text_heads]
        parts += [_print.table(table.heads, table.rows, table.title, right), _print.plain(table.note, "dim")]
    return parts


def _measured(case_id: str, devices: list[str] | None) -> model.Run:
    """Measure a case and its counterfactual ones into a new run file, in the full tier if that has the case."""
    facts = inventory.facts()
    names = [case_id.partition("/")[0], "bandwidth", "gemm", "latency", "tensor"]
    ids: tuple[str, ...] = ()
    for tier in ("full", "quick"):  # the first one has more cases
        settings = options.settings(facts, list(dict.fromkeys(names)), devices, False, tier, None, None)
        cases = [job.case for job in plan.make(facts, settings).jobs]
        wanted = [other for other in cases if other.id == case_id]
        chosen = counterfactuals.chosen(wanted[0], cases) if wanted else []
        if ids := tuple(other.id for other in chosen):
            break
    else:
        raise UsageError(f"no case of {settings.suites[0]} on this machine has the id {case_id}")
    suites = tuple(name for name in settings.suites if any(chosen_id.startswith(f"{name}/") for chosen_id in ids))
    path = options.run_file(None, "-explain")
    planned = plan.make(facts, replace(settings, suites=suites, filters=ids))
    with _machine.run_display() as watch:
        measured = session.measure(planned, path, sys.argv, watch, tell=_print.warn)
    _print.say(f"run file: {path}")
    return measured


def show(ladder: ladders.Ladder) -> None:
    """Print a ladder: a line with the figure, one for each rung, and one for missing evidence."""
    _print.echo(lines.headline(ladder))
    if ladder.standing:
        _print.echo(f"is this normal? {ladder.standing}")
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


ContributionFile = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The file to write. \\[default: contributed-HASH.json beside the run file]"),
]
ContributedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run file (.jsonl, .jsonl.gz).", show_default=False)
]


def contribute(run: ContributedRun, out: ContributionFile = None, force: sharing.Force = False) -> None:
    """Write the key figures of a run's GPUs, without any name, as a small file for a pull request to gpubench."""
    import json

    from gpubench.model import store

    sha256 = store.file_hash(run)
    runs = contributing.contributions(summaries.Summary(store.read_run(run)), sha256)
    if not runs:
        raise UsageError(f"{run} has no key figure of a GPU; measure one with `gpubench run all`")
    path = out or run.with_name(f"contributed-{sha256[:12]}.json")
    sharing.check_target(path, force, run)
    sharing.write(path, json.dumps(runs, indent=1) + "\n")
    _print.say(f"{path}: add it to gpubench/knowledge in a pull request; keep the run file, which its hash identifies")
