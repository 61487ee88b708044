"""`gpubench list`: list the suites or their cases."""

from typing import Annotated

import typer

from gpubench.cli import _options as options

Cases = Annotated[bool, typer.Option("--cases", help="List the ids of the cases instead of the suites.")]


def list_(
    suites: options.Suites = None,
    cases: Cases = False,
    device: options.Devices = None,
    tier: options.TierOption = options.TierName.QUICK,
    json: options.Json = False,
) -> None:
    """List the suites and what each measures, or the ids of their cases."""
    if cases:
        _print_cases(suites, device, tier, json)
    else:
        _print_suites(suites, json)


def _print_suites(suites: list[str] | None, json: bool) -> None:
    """Print each suite with a sentence on what it measures, in a table, or with `json` as one JSON document."""
    from gpubench.cli import _print
    from gpubench.measuring import plan

    options.check_suites(suites)
    infos = [plan.load_suite(name).info() for name in plan.suite_names(suites or [])]
    if json:
        _print.document([{"suite": info.name, "summary": info.summary} for info in infos])
    else:
        _print.out().print(_print.table(("suite", "what it measures"), [(info.name, info.summary) for info in infos]))


def _print_cases(suites: list[str] | None, device: list[str] | None, tier: options.TierName, json: bool) -> None:
    from gpubench.cli import _print
    from gpubench.measuring import inventory, plan

    options.check_suites(suites)
    facts = inventory.facts()
    planned = plan.make(facts, options.settings(facts, suites, device, False, tier, None, None))
    ids = list(dict.fromkeys(job.case.id for job in planned.jobs))
    if json:
        _print.document(ids)
    else:
        _print.out().print(*map(_print.plain, ids), sep="\n", soft_wrap=True)
