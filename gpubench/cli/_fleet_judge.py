"""`gpubench fleet judge` and `fleet watch`: find the GPU, node or link of a fleet that is slow, in one or many days."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli import _verdicts

if TYPE_CHECKING:
    from gpubench.cli._findings import Part
    from gpubench.judging.fleet import FleetJudgement
    from gpubench.tools.fleet.watching import ComponentHistory

_MOST_ROWS = 40  # the most suspects in the terminal; a report lists them all
_MOST_WATCHED, _MOST_TRENDS = 60, 2
_ENDS = {0: "green", 1: "red", 3: "red", 4: "yellow", 6: "red"}

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a fleet, or any folder of run files.", show_default=False)
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", "-b", help="The folder of an earlier fleet, or a saved baseline: compare each GPU with itself."
    ),
]
Floor = Annotated[bool, typer.Option("--floor", help="Compare each GPU with the floors of its model (docs/gate.md).")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with status 4 if a node is missing or a suspect was not measured again.")
]
Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", help="Write this report; its suffix selects the format: .html, .md, .json or .xml (JUnit)."
    ),
]


def judge(
    folder: Folder,
    baseline: Baseline = None,
    floor: Floor = False,
    threshold: _verdicts.Threshold = None,
    policy: _verdicts.PolicyFile = None,
    strict: Strict = False,
    out: Out = None,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
    json: options.Json = False,
) -> None:
    """Find the slow GPU, node or link in the run files of a fleet, and say how sure that is.

    The exit status is 0 if nothing is slow, 1 if something slow is confirmed, 3 if a case failed on one component and
    not on the others, 4 if the fleet cannot be judged, and 6 if a device is sick."""
    from gpubench.judging.fleet import fleet_status
    from gpubench.tools.fleet import judging

    rules = _verdicts.policy(policy, threshold, strict, False)
    judgement = judging.judge(judging.read(folder), rules, judging.read_baseline(baseline) if baseline else None, floor)
    publish(judgement, out or [], force, no_redact, json)
    raise typer.Exit(fleet_status(judgement, rules.strict))


def publish(judged: FleetJudgement, out: list[Path], force: bool, no_redact: bool, json: bool) -> None:
    """Write a report to each path in `out`, then print the answer, or with `json` the JSON document.

    All are anonymised unless `no_redact` is set, the printed answer only in a CI. `force` replaces existing files."""
    import sys

    from gpubench.base.clean import tidy
    from gpubench.tools.fleet import judging

    printed = tidy(judged)
    if json or out or sharing.is_ci():
        shared = sharing.shareable(printed, no_redact)
        for path in out:
            sharing.check_target(path, force)
            sharing.write(path, judging.rendered(path, shared))
        if json:
            sys.stdout.write(judging.rendered(Path("fleet.json"), shared))
            return
        printed = shared if sharing.is_ci() else printed
    show(printed)


def show(judged: FleetJudgement) -> None:
    """Print the answer, the suspects and the smallest detectable slowdown on standard output."""
    from gpubench.cli import _print
    from gpubench.judging import fleet_text
    from gpubench.judging.fleet import fleet_status

    end = fleet_status(judged) or (4 if judged.of("suspect") else 0)
    answer = fleet_text.fleet_answer(judged)
    lines = [(answer, f"bold {_ENDS[end]}"), (fleet_text.devices_text(judged), "")]
    if detectable := fleet_text.detectable_text(judged):
        lines.append((f"smallest detectable slowdown: {detectable}", ""))
    notes = [note for note in judged.notes if note not in answer]  # without a verdict, the answer contains the first
    sentences = (*map(fleet_text.failure_text, judged.failures), *fleet_text.population_sentences(judged), *notes)
    lines += [(f"- {line}", "") for line in sentences]
    if missing_nodes := fleet_text.missing_node_lines(judged):
        lines.append((f"{len(missing_nodes)} of {len(judged.fleet.nodes)} nodes did not answer", "yellow"))
        lines += [(f"- {line}", "yellow") for line in missing_nodes]
    steps = [_print.plain(f"next: {line}") for line in fleet_text.next_steps_text(judged)]
    for part in (*(_print.plain(*line) for line in lines), *_suspects(judged), *steps):
        _print.out().print(part, soft_wrap=not hasattr(part, "columns"))


def _suspects(judged: FleetJudgement) -> Iterator[Part]:
    from gpubench.base import units
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows
    from gpubench.judging import fleet_text

    if not judged.suspects:
        return
    rows = []
    for suspect in judged.suspects[:_MOST_ROWS]:
        worst, count = suspect.findings[0], str(len(suspect.findings))
        sizes = units.percent(worst.slowdown), units.percent(worst.detectable)
        text = f"{suspect.name}, {worst.case or worst.family}: {fleet_text.causes_text(suspect)}"
        rows.append(NamedRow(suspect.unit, text, (*sizes, count, fleet_text.STATES[suspect.state])))
    heads = ("kind", "component, slowest case, cause", "slowdown", "detectable", "cases", "state")
    yield from named_rows(heads, rows, shutil.get_terminal_size().columns)
    if rest := len(judged.suspects) - len(rows):
        yield _print.plain(f"not listed: {rest} more suspects; a report (-o fleet.html) has them all", "dim")


Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR…", help="Folders of fleets, measured on different days.", show_default=False),
]


def watch(folders: Folders, json: options.Json = False, no_redact: sharing.NoRedact = False) -> None:
    """Follow each GPU, host and link through several measurements of a fleet, by its UUID.

    Lists the components that were slow, that recovered, or whose figures became worse by the rules of `gpubench
    history`. The exit status is 1 if a component is slow in the newest fleet and was before."""
    from gpubench.cli import _print
    from gpubench.tools.fleet import watching

    fleets = watching.read_all(folders)
    histories = watching.watch(fleets)
    if json:
        _print.document([component.document for component in sharing.shareable(tuple(histories), no_redact)])
    else:
        _show_histories(sharing.shareable(tuple(histories), no_redact) if sharing.is_ci() else histories, len(fleets))
    raise typer.Exit(1 if any(component.is_slow_again for component in histories) else 0)


def _show_histories(histories: Sequence[ComponentHistory], fleets: int) -> None:
    from gpubench.cli import _findings, _print, _trends
    from gpubench.judging.finding_text import plural

    if not histories:
        _print.echo(f"{plural(fleets, 'measurement')}: no component was slow, and none became slower")
        return
    _print.echo(f"{plural(fleets, 'measurement')}: {plural(len(histories), 'component')} with a slow or a worse figure")
    out, listed = _print.out(), histories[:_MOST_WATCHED]
    for component in listed:
        counts = f"slow in {component.suspected} of {len(component.states)}, recovered in {component.transient}"
        style = "bold red" if component.is_slow_again else ""
        out.print(_print.plain(f"{component.place.text}: {counts}", style), soft_wrap=True)
    if trends := [trend for component in listed for trend in component.trends[:_MOST_TRENDS]]:
        _findings.show(_trends.trend_rows(trends, True, out.width))
    if len(histories) > _MOST_WATCHED:
        _print.echo(f"not listed: {len(histories) - _MOST_WATCHED} more; --json has them all")
