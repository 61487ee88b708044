"""`gpubench plan`: show what would be measured, and for how long. It opens no device."""

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _options as options

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
    tier: options.TierOption = options.TierName.QUICK,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    data: options.Data = None,
    replicates: options.Replicates = 1,
    seed: options.Seed = 0,
    facts: FactsFile = None,
    json: options.Json = False,
) -> None:
    """Show which cases `run` would measure with these options, and estimate how long they take."""
    from gpubench.base import units
    from gpubench.cli import _print
    from gpubench.measuring import inventory
    from gpubench.measuring import plan as planning

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
    _print.echo(f"{len(rows)} case{'s' * (len(rows) > 1)}, about {units.duration(planned.seconds)}")
