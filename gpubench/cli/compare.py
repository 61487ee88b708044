"""`gpubench compare`: show runs side by side, and judge their differences."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.base.patterns import matches
from gpubench.cli import _findings, _print, _summary, _verdicts
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._findings import Part
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.judging import comparison as judged
    from gpubench.judging import evidence, policy
    from gpubench.tools import rendering
    from gpubench.tools.gating import gate, peers, readings

_COLORS = {1: "cyan", 0: "", -1: "red"}  # color by the direction of a suite's geometric mean

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Run files; each of the others is compared with the first.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Write this file instead of printing; its suffix selects the format: .html, .md or .json."
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", help="List only cases whose id contains this text; * and ? are wildcards. Can be repeated."
    ),
]
Top = Annotated[int | None, typer.Option("--top", min=1, help="List at most this number of cases.", show_default=False)]


@dataclass(frozen=True, slots=True)
class CaseSelection:
    """The cases to list: by `filters`, the `top` ones, with `every` the same ones too; `wide` adds columns."""

    filters: tuple[str, ...] = ()
    top: int | None = None
    every: bool = False
    wide: bool = False


def compare(
    runs: Runs,
    out: Out = None,
    filter: Filters = None,  # noqa: A002 - the option's name
    top: Top = None,
    all_: _verdicts.All = False,
    wide: _verdicts.Wide = False,
    json: options.Json = False,
    threshold: _verdicts.Threshold = None,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
) -> None:
    """Compare runs: show environment differences, then the change of each case and its verdict."""
    if len(runs) < 2:
        raise UsageError("name two run files or more: the others are compared with the first")
    form = _output_form(out, json)
    if out:
        sharing.check_target(out, force, *runs)
    fraction = (policy.THRESHOLD_PERCENT if threshold is None else threshold) / 100
    gc.disable()  # findings have no reference cycles; searching for them would take 5 % of the time
    if out:
        comparison = side_by_side(runs, _run_names(runs), lambda named: _judged(named, fraction), no_redact)
    else:
        comparison = _comparison(readings.read_all(runs), _run_names(runs), fraction, no_redact)
        comparison = _split(comparison, runs)
    if form:
        written = rendering.report(form).compare(comparison)
        sharing.write(out, written, is_told=True) if out else sys.stdout.write(written)
    else:
        selection = CaseSelection(tuple(filter or ()), top, all_ or bool(filter), wide)
        _findings.show(_parts(comparison, selection))


def _output_form(out: Path | None, json: bool) -> str:
    """Return the form of the output: `html`, `md` or `json`, or an empty text for the terminal."""
    if out is None:
        return "json" if json else ""
    if json:
        raise UsageError("--json prints and -o writes a file: leave out one of them")
    name = out.suffix.removeprefix(".")
    names = plugins.names("reports")
    able = [f".{report}" for report in names if hasattr(rendering.report(report), "compare")]
    if f".{name}" not in able:
        raise UsageError(
            f"cannot write a comparison to {out.suffix or 'a file without a suffix'}; choose from {', '.join(able)}"
        )
    return name


def _run_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the runs, in order: file names without suffix; equal names get a number, as in `a (2)`."""
    names = [sharing.run_name(path) for path in paths]
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def side_by_side(
    paths: Sequence[Path],
    names: Sequence[str],
    compared: Callable[[Sequence[evidence.Reading]], judged.Comparison],
    no_redact: bool,
) -> judged.Comparison:
    """Return what `compared` makes of whole runs, with the runs themselves, anonymised unless `no_redact` is set."""
    from gpubench.model.store import read_run

    runs = tuple(map(read_run, paths))
    shared = sharing.shareable(runs, no_redact)
    named = [evidence.Reading.of(run, name) for run, name in zip(shared, names, strict=True)]
    manifests = [run.manifest for run in runs]
    return replace(sharing.shareable(compared(named), no_redact, manifests, is_told=False), runs=shared)


def _comparison(
    run_readings: list[evidence.Reading], names: list[str], fraction: float, no_redact: bool
) -> judged.Comparison:
    """Return the comparison of each run with the first one, anonymised unless `no_redact` is set."""
    manifests = [reading.manifest for reading in run_readings]
    shared = sharing.shareable(tuple(manifests), no_redact, manifests)
    named = [
        replace(reading, manifest=manifest, source=name)
        for reading, manifest, name in zip(run_readings, shared, names, strict=True)
    ]
    return sharing.shareable(_judged(named, fraction), no_redact, manifests, is_told=False)


def _split(comparison: judged.Comparison, paths: Sequence[Path]) -> judged.Comparison:
    """Return the comparison with the largest changes split into the rungs of the cases in the whole runs."""
    against = []
    for one, path in zip(comparison.against, paths[1:], strict=True):
        findings = _findings.split(one.judgement.findings, paths[0], path)
        against.append(replace(one, judgement=replace(one.judgement, findings=findings)))
    return replace(comparison, against=tuple(against))


def _judged(named: Sequence[evidence.Reading], fraction: float) -> judged.Comparison:
    gate.refuse_other_methods(named)
    named, notes = peers.as_ours(named)
    for note in notes:
        _print.say(note)
    return judged.compare(named, lambda _: fraction)


def _parts(comparison: judged.Comparison, selection: CaseSelection = CaseSelection()) -> list[Part]:
    """Return the texts and tables of a comparison: the verdict of each run, the runs, then the cases."""
    letters = [judged.letter(index) for index in range(len(comparison.columns))]
    parts: list[Part] = []
    for name, against in zip(letters[1:], comparison.against, strict=True):
        reply = judged.answer(against, name)
        reasons = [*reply.reasons, *judged.one_sided_cases(comparison, against)]
        parts += _findings.verdict_parts(reply.verdict, reasons, reply.next_steps)
    parts += [_print.plain(""), *_run_parts(comparison, letters)]
    for name, against in zip(letters[1:], comparison.against, strict=True):
        parts += [_print.plain(""), *_suite_parts(against, name), *_case_parts(against, name, selection)]
    return parts


def _run_parts(comparison: judged.Comparison, letters: Sequence[str]) -> list[Part]:
    """Return a line for each run, which begins with its letter, and the table of environment differences."""
    lines = [
        f"{name}: {column.name}, {', '.join(column.devices)}, {column.started}, {column.results} results"
        for name, column in zip(letters, comparison.columns, strict=True)
    ]
    if not comparison.differences:
        return [_print.plain(line) for line in (*lines, "no known environment differences")]
    rows = [(difference.name, *(value or "–" for value in difference.values)) for difference in comparison.differences]
    return [*map(_print.plain, lines), _print.plain(""), _print.table(("environment", *letters), rows)]


def _suite_parts(against: judged.RunComparison, name: str) -> list[Part]:
    """Return the table of each suite's geometric mean; an undecided change has a sign but no verb."""
    rows = [(mean.suite, _print.plain(mean.text, _COLORS[mean.direction]), mean.counts) for mean in against.geomeans]
    heads = ("suite", f"{name} against A, + is better", "cases")
    return [_print.table(heads, rows, right=heads[1:2])] if rows else []


def _case_parts(against: judged.RunComparison, name: str, selection: CaseSelection) -> list[Part]:
    """Return the table of the selected cases, the worst first, and a note on cases that are not listed."""
    selected = [
        finding for finding in against.judgement.findings if matches(finding.case.id, selection.filters or ("",))
    ]
    is_whole = selection.every or len(selected) <= _summary.FEW_CASES
    printed = [finding for finding in selected if selection.every or not judged.is_small(finding)]
    hidden = len(selected) - len(printed)
    note = _print.plain(f"not listed: {units.count(hidden)} with less than 1 % of difference; --all lists them", "dim")
    return [
        *_findings.finding_parts(printed[: selection.top], ("A", name), is_whole, selection.wide),
        *([note] if hidden else []),
    ]
