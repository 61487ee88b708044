"""`gpubench compare`: runs side by side, and what can be told of their differences."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _print, _verdicts
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.cli._findings import Part
    from gpubench.judging.comparison import Against, Comparison
    from gpubench.judging.evidence import Reading

_COLORS = {1: "cyan", 0: "", -1: "red"}  # by the direction of a suite's mean

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="A B…", help="Run files; the others are compared with the first.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write a file instead: .html, .md or .json, as its suffix says."),
]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", help="List only cases whose id contains this; * and ? are wild; may be repeated."),
]
Top = Annotated[int | None, typer.Option("--top", min=1, help="List only so many cases.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which cases are listed, and whether with all their columns."""

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
    """Say what differs in the environment, then case by case what changed, and whether that can be told."""
    import gc

    from gpubench.base.errors import UsageError
    from gpubench.cli import _findings
    from gpubench.tools import rendering
    from gpubench.tools.gating import readings

    if len(runs) < 2:
        raise UsageError("name two run files or more: the others are compared with the first")
    form = _form(out, json)
    if out:
        sharing.check_target(out, force, *runs)
    gc.disable()  # findings have no cycles, and the process ends: looking for them takes a twentieth
    found = _compared(readings.read_all(runs), _names(runs), threshold, no_redact)
    if form:
        written = rendering.report(form).compare(found)
        sharing.write(out, written) if out else sys.stdout.write(written)
    else:
        chosen = Chosen(tuple(filter or ()), top, all_ or bool(filter), wide)
        _findings.show(_parts(found, chosen))


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


def _parts(found: Comparison, chosen: Chosen = Chosen()) -> list[Part]:
    """Return the comparison for a terminal: what each run is against the first, then who they are, then the cases."""
    from gpubench.cli import _findings
    from gpubench.judging.comparison import answer, letter, only_one

    letters = [letter(index) for index in range(len(found.columns))]
    parts: list[Part] = []
    for name, against in zip(letters[1:], found.against, strict=True):
        said = answer(against, name)
        parts += _findings.said(said.verdict, [*said.why, *only_one(found, against)], said.next_steps)
    parts += [_print.plain(""), *_runs(found, letters)]
    for name, against in zip(letters[1:], found.against, strict=True):
        parts += [_print.plain(""), *_suites(against, name), *_cases(against, name, chosen)]
    return parts


def _runs(found: Comparison, letters: Sequence[str]) -> list[Part]:
    """Return who the runs are, and what differs between them."""
    lines = [
        f"{name}: {column.name}, {', '.join(column.devices)}, {column.started}, {column.results} results"
        for name, column in zip(letters, found.columns, strict=True)
    ]
    if not found.differences:
        return [_print.plain(line) for line in (*lines, "no known environment differences")]
    different = [(each.name, *(value or "–" for value in each.values)) for each in found.differences]
    table = _print.table(("environment", *letters), different)
    return [*map(_print.plain, lines), _print.plain(""), table]


def _suites(against: Against, name: str) -> list[Part]:
    """Return the geometric mean of each suite; that of undecided changes has a sign and no verb."""
    rows = [(mean.suite, _print.plain(mean.words, _COLORS[mean.direction]), mean.counts) for mean in against.geomeans]
    heads = ("suite", f"{name} against A", "cases")
    return [_print.table(heads, rows, right=heads[1:2])] if rows else []


def _cases(against: Against, name: str, chosen: Chosen) -> list[Part]:
    """Return the cases, the worst first; of many those that are not the same."""
    from gpubench.base.patterns import matches
    from gpubench.cli import _findings
    from gpubench.cli._summary import FEW_CASES
    from gpubench.judging.words import plural
    from gpubench.model import Verdict

    found = [each for each in against.judgement.findings if matches(each.case.id, chosen.filters or ("",))]
    is_whole = chosen.every or len(found) <= FEW_CASES
    shown = found if is_whole else [each for each in found if each.verdict is not Verdict.SAME]
    hidden = len(found) - len(shown)
    note = _print.plain(f"not listed: {plural(hidden)} with the verdict same; --all lists them", "dim")
    return [*_findings.listed(shown[: chosen.top], ("A", name), is_whole, chosen.wide), *([note] if hidden else [])]
