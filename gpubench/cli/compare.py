"""`gpubench compare`: runs side by side, and what can be told of their differences."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _print, _verdicts
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from gpubench.judging.comparison import Against, Comparison
    from gpubench.judging.evidence import Reading
    from gpubench.judging.judge import Finding

_STYLES = {"slower": "bold red", "faster": "cyan", "same": "green"}
_MOST_REASONS = 8
_MOST_ROWS = 60  # more are counted: -o and --json have them all

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="A B…", help="Run files; the first is what the others are held against.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write a file instead: .html, .md or .json, as its suffix says."),
]


def compare(
    runs: Runs,
    out: Out = None,
    json: options.Json = False,
    threshold: _verdicts.Threshold = None,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
) -> None:
    """Say what differs in the environment, then case by case what changed, and whether that can be told."""
    import gc

    from gpubench.base.errors import UsageError
    from gpubench.tools import rendering
    from gpubench.tools.gating import readings

    if len(runs) < 2:
        raise UsageError("name two run files or more: the first is what the others are held against")
    form = _form(out, json)
    if out:
        sharing.check_target(out, force, *runs)
    gc.disable()  # findings have no cycles, and the process ends: looking for them takes a twentieth
    found = _compared(readings.read_all(runs), _names(runs), threshold, no_redact)
    if form:
        written = rendering.report(form).compare(found)
        sharing.write(out, written) if out else sys.stdout.write(written)
    else:
        _print.out().print(*_parts(found), sep="\n")


def _form(out: Path | None, json: bool) -> str:
    """The report that is asked for; empty for the terminal."""
    from gpubench import plugins
    from gpubench.base.errors import UsageError
    from gpubench.tools import rendering

    if out is None:
        return "json" if json else ""
    if json:
        raise UsageError("--json prints, -o writes: leave out one of them")
    name = out.suffix.removeprefix(".")
    known = plugins.names("reports")
    if name not in known or not rendering.report(name).offers("compare"):
        able = [f".{each}" for each in known if rendering.report(each).offers("compare")]
        raise UsageError(f"no comparison as {out.suffix or 'a file without a suffix'}; there is {', '.join(able)}")
    return name


def _names(paths: Sequence[Path]) -> list[str]:
    """What the runs are called: their files' names without what all run files have, numbered where they are equal."""
    names = [path.name.removesuffix(".gz").removesuffix(".jsonl") for path in paths]
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _compared(found: list[Reading], names: list[str], threshold: float | None, no_redact: bool) -> Comparison:
    from dataclasses import replace

    from gpubench.judging.comparison import compare
    from gpubench.judging.policy import THRESHOLD_PERCENT

    fraction = (THRESHOLD_PERCENT if threshold is None else threshold) / 100
    manifests = [reading.manifest for reading in found]
    shared = sharing.shareable_manifests(manifests, no_redact)
    named = [
        replace(reading, manifest=manifest, source=name)
        for reading, manifest, name in zip(found, shared, names, strict=True)
    ]
    return sharing.nameless(compare(named, lambda _: fraction), manifests, no_redact)


def _parts(found: Comparison) -> list[Table | Text]:
    """The comparison for a terminal: the runs, what differs, and each of the others against the first."""
    from gpubench.judging.comparison import letter

    letters = [letter(index) for index in range(len(found.columns))]
    rows = [
        (name, column.name, ", ".join(column.devices), column.started, column.results)
        for name, column in zip(letters, found.columns, strict=True)
    ]
    parts: list[Table | Text] = [
        _print.table(("run", "name", "devices", "started", "results"), rows, right=("results",)),
        _print.plain(""),
    ]
    if found.differences:
        different = [(each.name, *(value or "–" for value in each.values)) for each in found.differences]
        parts.append(_print.table(("differs", *letters), different))
    else:
        parts.append(_print.plain("nothing that is known differs in the environment"))
    for name, against in zip(letters[1:], found.against, strict=True):
        parts += _against(found, name, against)
    return parts


def _against(found: Comparison, name: str, against: Against) -> list[Table | Text]:
    from gpubench.judging import comparison
    from gpubench.model import Verdict

    findings = against.judgement.findings
    shown = findings
    if len(findings) > _MOST_ROWS:
        shown = tuple(each for each in findings if each.verdict is not Verdict.SAME)[:_MOST_ROWS]
    means = [(mean.suite, comparison.times_words(mean.ratio), mean.cases) for mean in against.geomeans]
    devices = len({each.devices for each in findings}) > 1
    columns = ("verdict", "case", *(("device",) if devices else ()), "A", name, "change", "95 % interval")
    parts: list[Table | Text] = [_print.plain("")]
    if means:
        parts += [_print.table(("suite", f"{name} is", "cases"), means, right=("cases",)), _print.plain("")]
    parts.append(_print.table(columns, (_row(each, devices) for each in shown), right=columns[-4:]))
    words = [*_reasons(against), *comparison.only_one(found, against), *against.judgement.notes]
    if len(shown) < len(findings):
        words.append(f"not shown: {len(findings) - len(shown)} cases, none worse; -o and --json have them all")
    parts += [_print.plain(line, "yellow") for line in words]
    return [*parts, _print.plain(f"{name} against A: {against.tally}", "bold")]


def _row(finding: Finding, devices: bool) -> list[object]:
    from gpubench.judging import comparison

    words = comparison.words(finding)
    verdict = _print.plain(finding.verdict, _STYLES.get(finding.verdict, "yellow"))
    where = ["+".join(finding.devices)] if devices else []
    return [verdict, finding.case.id, *where, words.before, words.after, words.change, words.interval]


def _reasons(against: Against) -> list[str]:
    """Why cases could not be told, each reason once with the number of cases that it holds for."""
    from gpubench.judging.comparison import words

    reasons: dict[str, list[str]] = {}
    for finding in against.judgement.findings:
        if why := words(finding).why:
            reasons.setdefault(f"{finding.verdict}: {why}", []).append(finding.case.id)
    lines = [f"{why} ({_named(ids)})" for why, ids in reasons.items()]
    rest = len(lines) - _MOST_REASONS
    return lines[:_MOST_REASONS] + ([f"and {rest} more reasons"] if rest > 0 else [])


def _named(ids: Sequence[str]) -> str:
    return ids[0] + (f" and {len(ids) - 1} more" if len(ids) > 1 else "")
