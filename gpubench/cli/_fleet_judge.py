"""`gpubench fleet judge`: find the GPU, node or link of a fleet that is slow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli import _verdicts

if TYPE_CHECKING:
    from gpubench.cli._findings import Part
    from gpubench.judging.fleet import FleetJudgement

_MOST_ROWS = 40  # the most suspects in the terminal; a report lists them all
_ENDS = {0: "green", 1: "red", 3: "red", 4: "yellow", 6: "red"}

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The folder of a fleet, or any folder of run files.", show_default=False),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", "-b", help="The folder of an earlier fleet, or a saved baseline: compare each GPU with itself."
    ),
]
Floor = Annotated[bool, typer.Option("--floor", help="Compare each GPU with the floors of its model (docs/gate.md).")]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with status 4 if a node is missing or a suspect was not measured again."),
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
    from gpubench.tools.fleet.judging import read

    rules = _verdicts.policy(policy, threshold, strict, False)
    current = read(folder)
    judgement = judging.judge(current, rules, judging.read_baseline(baseline) if baseline else None, floor)
    publish(judgement, out or [], force, no_redact, json)
    raise typer.Exit(fleet_status(judgement, rules.strict))


def publish(judged: FleetJudgement, out: list[Path], force: bool, no_redact: bool, json: bool) -> None:
    """Write a report to each path in `out`, then print the answer, or with `json` the JSON document.

    Reports and the document are anonymised unless `no_redact` is set; in a CI, so is the printed answer. `force`
    replaces existing files. Raises UsageError if a file exists without `force`, or cannot be written."""
    import sys

    from gpubench.base.clean import tidy
    from gpubench.tools.fleet import judging

    printed = tidy(judged)
    if json or out or sharing.is_ci():
        shared = sharing.shareable_fleet(printed, no_redact)
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

    for part in _parts(judged):
        _print.out().print(part, soft_wrap=not hasattr(part, "columns"))


def _parts(judged: FleetJudgement) -> Iterator[Part]:
    """Yield the texts and tables of a judgement in the order in which the terminal shows them."""
    from gpubench.cli import _print
    from gpubench.judging import fleet_text
    from gpubench.judging.fleet import fleet_status

    end = fleet_status(judged) or (4 if judged.of("suspect") else 0)
    answer = fleet_text.fleet_answer(judged)
    yield _print.plain(answer, f"bold {_ENDS[end]}")
    yield _print.plain(fleet_text.devices_text(judged))
    if detectable := fleet_text.detectable_text(judged):
        yield _print.plain(f"smallest detectable slowdown: {detectable}")
    notes = [note for note in judged.notes if note not in answer]  # without a verdict, the answer contains the first
    for line in (*map(fleet_text.failure_text, judged.failures), *fleet_text.population_sentences(judged), *notes):
        yield _print.plain(f"- {line}")
    if missing_nodes := fleet_text.missing_node_lines(judged):
        yield _print.plain(f"{len(missing_nodes)} of {len(judged.fleet.nodes)} nodes did not answer", "yellow")
        for line in missing_nodes:
            yield _print.plain(f"- {line}", "yellow")
    yield from _suspects(judged)
    for line in fleet_text.next_steps_text(judged):
        yield _print.plain(f"next: {line}")


def _suspects(judged: FleetJudgement) -> Iterator[Part]:
    """Yield the table of the first 40 suspects, each with its slowest case, and a line with the number of further ones.

    Nothing is yielded if there is no suspect.
    """
    from gpubench.base import units
    from gpubench.cli import _print
    from gpubench.cli._layout import NamedRow, named_rows
    from gpubench.judging import fleet_text

    if not judged.suspects:
        return
    rows = []
    for suspect in judged.suspects[:_MOST_ROWS]:
        worst = suspect.findings[0]
        count = len(suspect.findings)
        figures = (
            units.percent(worst.slowdown),
            units.percent(worst.detectable),
            str(count),
            fleet_text.STATES[suspect.state],
        )
        rows.append(
            NamedRow(
                suspect.unit,
                f"{suspect.name}, {worst.case or worst.family}: {fleet_text.causes_text(suspect)}",
                figures,
            )
        )
    heads = ("kind", "component, slowest case, cause", "slowdown", "detectable", "cases", "state")
    yield from named_rows(heads, rows, shutil.get_terminal_size().columns)
    if rest := len(judged.suspects) - len(rows):
        yield _print.plain(f"not listed: {rest} more suspects; a report (-o fleet.html) has them all", "dim")
