"""`gpubench list`: list the suites or their cases.

`gpubench plan`: show what would be measured, and for how long. It opens no device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import units
from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.analysis import frame
    from gpubench.measuring import inventory
    from gpubench.measuring import plan as planning

Cases = Annotated[bool, typer.Option("--cases", help="List the ids of the cases instead of the suites.")]


def list_(
    suites: options.Suites = None,
    cases: Cases = False,
    device: options.Devices = None,
    tier: options.TierOption = "quick",
    json: options.Json = False,
) -> None:
    """List the suites and what each measures, or the ids of their cases."""
    if cases:
        options.check_suites(suites)
        _print_cases(suites, device, tier, json)
        return
    rows = list(_summaries(suites or []))
    if json:
        _print.document([{"suite": name, "summary": summary} for name, summary in rows])
        return
    _print.out().print(_print.table(("suite", "what it measures"), rows))
    if suites:
        named = (axis for name in planning.suite_names(suites) for axis in planning.load_suite(name).axis_names())
        _print.out().print(*(_print.plain(line, "dim") for line in ("axes", *frame.explained(named))), sep="\n")


def _summaries(suites: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the summary of each suite, without importing installed suites, which would take seconds."""
    if suites:
        options.check_suites(suites)
        for name in planning.suite_names(suites):
            info = planning.load_suite(name).info()
            yield info.name, info.summary
        return
    for name in plugins.names("suites"):
        try:
            yield name, plugins.summary("suites", name)
        except plugins.BrokenPlugin as error:
            _print.warn(f"left out: {error}")


def _print_cases(suites: list[str] | None, device: list[str] | None, tier: options.TierName, json: bool) -> None:
    facts = inventory.facts()
    planned = planning.make(facts, options.settings(facts, suites, device, False, tier, None, None))
    ids = list(dict.fromkeys(job.case.id for job in planned.jobs))
    if json:
        _print.document(ids)
    else:
        _print.out().print(*map(_print.plain, ids), sep="\n", soft_wrap=True)


FactsFile = Annotated[
    Path | None,
    typer.Option(
        "--facts", help="Plan for another machine, described by a file that `gpubench doctor --json` wrote there."
    ),
]


def plan(
    suites: options.Suites = None,
    device: options.Devices = None,
    with_host: options.WithHost = False,
    tier: options.TierOption = "quick",
    filter: options.Filters = None,  # noqa: A002 - the option's name
    data: options.Data = None,
    replicates: options.Replicates = 1,
    seed: options.Seed = 0,
    facts: FactsFile = None,
    json: options.Json = False,
) -> None:
    """Show which cases `run` would measure with these options, and estimate how long they take."""
    options.check_suites(suites)
    machine_facts = inventory.from_file(facts) if facts else inventory.facts()
    settings = options.settings(machine_facts, suites, device, with_host, tier, filter, data, replicates, seed)
    planned = planning.make(machine_facts, settings)
    rows = [(job.case.id, job.key[1], job.case.ranks, job.replicate) for job in planned.jobs]
    if json:
        names = ("case", "devices", "ranks", "replicate")
        jobs = [dict(zip(names, row, strict=True)) for row in rows]
        _print.document({"seconds": planned.seconds, "jobs": jobs})
        return
    cells = [(case, ", ".join(devices), ranks, replicate) for case, devices, ranks, replicate in rows]
    _print.out().print(_print.table(("case", "devices", "ranks", "replicate"), cells))
    for message in planning.skip_messages(planned):
        _print.echo(message)
    _print.echo(f"{units.count(len(rows))}, about {units.duration(planned.seconds)}")
