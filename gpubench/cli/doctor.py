"""`gpubench doctor`: devices, libraries and counters, their health, what is missing and how to get it; noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options

if TYPE_CHECKING:
    from gpubench.measuring.health import Health
    from gpubench.model import Device, Facts, Run

_REPLICATES = 10

Noise = Annotated[
    bool,
    typer.Option(
        "--noise",
        help="Measure one representative case per suite in many new processes, and print the between-process noise: "
        "the smallest change that a gate can detect on this machine.",
    ),
]
Replicates = Annotated[
    int | None,
    typer.Option(
        "--replicates",
        max=1000,
        help=f"With --noise: how many times to measure, each in new processes; at least 3. \\[default: {_REPLICATES}]",
    ),
]
Device_ = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="With --noise or --bundle: device to measure. Can be repeated. \\[default: the first GPU, or the host]",
    ),
]
Tier = Annotated[
    options.TierName | None,
    typer.Option("--tier", help="With --noise: how much to measure, as in `run`. \\[default: quick]"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="With --noise: the run file to write. \\[default: gpubench-runs/TIME-noise.jsonl]"
    ),
]
Source = Annotated[
    Path | None,
    typer.Option("--from", help="With --noise: read this run file, made with --replicates, instead of measuring."),
]

Bundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        help="Write an anonymised archive (.tar.gz) to attach to an issue: the inventory, the GPU's driver files, "
        "and a smoke run of every suite.",
    ),
]


def doctor(
    noise: Noise = False,
    replicates: Replicates = None,
    device: Device_ = None,
    tier: Tier = None,
    out: Out = None,
    source: Source = None,
    bundle: Bundle = None,
    json: options.Json = False,
) -> None:
    """Check this machine: devices, libraries, counters and health; what is missing and how to get it; its noise."""
    from gpubench.base.errors import UsageError
    from gpubench.measuring import inventory

    asked = {"--replicates": replicates, "--device": device, "--tier": tier, "--out": out, "--from": source}
    given = [option for option, value in asked.items() if value not in (None, [])]
    if bundle:
        _bundle(bundle, device, noise or json or given not in ([], ["--device"]))
    elif noise:
        if source and len(given) > 1:
            raise UsageError(f"--from measures nothing: leave out {', '.join(given[:-1])}")
        _noise(_read(source) if source else _measure(replicates, device, tier, out), json)
    elif given:
        raise UsageError(f"{', '.join(given)}: only with --noise{' or --bundle' if given == ['--device'] else ''}")
    elif json:
        _document(inventory.facts())
    else:
        _show(inventory.facts())


def _bundle(target: Path, device: list[str] | None, more: bool) -> None:
    from gpubench.base.errors import UsageError
    from gpubench.cli import _bundle as bundling

    if more:
        raise UsageError("--bundle goes with --device only")
    bundling.write(target, device)


def _read(source: Path) -> Run:
    from gpubench.base.errors import UsageError
    from gpubench.judging import noise
    from gpubench.model import store

    run = store.read_run(source)
    if len({result.replicate for result in run.results}) < noise.LEAST_REPLICATES:
        raise UsageError(f"{source} has fewer than {noise.LEAST_REPLICATES} replicates: run with --replicates")
    return run


def _measure(replicates: int | None, device: list[str] | None, tier: options.TierName | None, out: Path | None) -> Run:
    """Measure the A/A: the headline cases, each replicate in fresh processes and shuffled."""
    from gpubench.base import units
    from gpubench.base.errors import UsageError
    from gpubench.cli import _print
    from gpubench.cli._progress import shown
    from gpubench.judging import noise
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session

    count = _REPLICATES if replicates is None else replicates
    if count < noise.LEAST_REPLICATES:
        raise UsageError(f"--noise needs --replicates of at least {noise.LEAST_REPLICATES}: a spread of fewer is none")
    facts = inventory.facts()
    settings = options.settings(
        facts, ["headline"], device, False, tier or options.TierName.QUICK, None, None, replicates=count
    )
    planned = plan.make(facts, settings)
    path = options.run_file(out, "-noise")
    words = f"{len(planned.jobs)} cases in {count} replicates, about {units.duration(planned.seconds)}"
    _print.say(words)
    with shown() as watch:
        run = session.measure(planned, path, sys.argv, watch)
    _print.say(f"run file: {path}")
    return run


def _noise(run: Run, json: bool) -> None:
    """Print the floors of a run, then what has none and why; end with the run's status."""
    from dataclasses import asdict

    from gpubench.analysis import summary
    from gpubench.cli import _print
    from gpubench.judging import noise

    floors = noise.floors(run)
    if json:
        _print.document({"floors": [asdict(floor) for floor in floors], "undecided": noise.undecided(run)})
    else:
        out = _print.out()
        heads = ("case", "device", "processes", "between processes", "smallest detectable change")
        rows = [
            (
                floor.case,
                "+".join(floor.devices),
                floor.replicates,
                f"±{noise.percent(floor.between)}",
                floor.detectable,
            )
            for floor in floors
        ]
        out.print(_print.table(heads, rows, right=heads[2:4]))
        for words in noise.undecided(run):
            out.print(_print.plain(words, "yellow"), soft_wrap=True)
    raise typer.Exit(summary.exit_status(run.results))


def _document(facts: Facts) -> None:
    """All that is shown, as one JSON document."""
    from dataclasses import asdict

    from gpubench.cli import _print
    from gpubench.measuring import sampler
    from gpubench.measuring.examination import examine

    found, absent = sampler.available(facts.devices)
    health = [asdict(device) for device in examine(facts.devices)]
    counters = [{"device": each.device, **asdict(each.counter), "missing": each.reason} for each in found]
    not_sampled = [asdict(each) for each in absent]
    _print.document({**asdict(facts), "health": health, "counters": counters, "not_sampled": not_sampled})


def _show(facts: Facts) -> None:
    from gpubench.cli import _print

    out = _print.out()
    rows = [_device(device) for device in facts.devices]
    out.print(
        _print.table(
            ("device", "name", "architecture", "memory", "last-level cache", "SMs/CUs/cores", "settings"),
            rows,
            "devices",
        )
    )
    out.print("", _print.table(("library", "version"), facts.versions, "versions"), sep="\n")
    out.print("", _print.table(("host", ""), facts.host, "host"), sep="\n")
    if facts.absent:
        rows = [(absent.what, absent.reason, absent.how) for absent in facts.absent]
        out.print("", _print.table(("missing", "reason", "how to get it"), rows, "missing"), sep="\n")
    else:
        out.print("", "nothing is missing", sep="\n")
    _show_health(facts)
    _show_counters(facts)


def _show_health(facts: Facts) -> None:
    """Print a line for each device that can be asked; for what is not well, the advice and the commands."""
    from gpubench.cli import _print
    from gpubench.measuring.examination import examine

    out = _print.out()
    healths = examine(facts.devices)
    if healths:
        out.print("", _print.plain("health", "italic"), sep="\n")
    for health in healths:
        for line, style in _health_lines(health):
            out.print(_print.plain(line, style), soft_wrap=True)


def _health_lines(health: Health) -> list[tuple[str, str]]:
    """Return the lines for one device, each with its style. The commands are printed and never run."""
    if not health.findings:
        return [(f"{health.device}: unavailable: {health.unavailable}", "yellow")]
    unavailable, bad = health.of("unavailable"), [*health.of("sick"), *health.of("warning")]
    read = len(health.findings) - len(unavailable)
    state = {"ok": "healthy", "warning": "usable, with warnings"}.get(health.severity, health.severity)
    lines = [(f"{health.device}: {state} ({read} of {len(health.findings)} readings are available)", "")]
    for finding in bad:
        lines.append((f"  {finding.severity}: {finding.text}", "bold red" if finding.severity == "sick" else "yellow"))
        lines += [(f"    {finding.advice}", "")] if finding.advice else []
        lines += [(f"    $ {finding.command}", "")] if finding.command else []
    return lines + [(f"  unavailable: {finding.text}", "dim") for finding in unavailable]


def _show_counters(facts: Facts) -> None:
    from gpubench.cli import _print
    from gpubench.measuring import sampler

    out = _print.out()
    found, absent = sampler.available(facts.devices)
    heads = ("device", "counter", "unit", "kind", "every", "available", "vendor command")
    rows = [
        (
            *(each.device, each.counter.name, each.counter.unit, each.counter.kind, f"{each.counter.period_s:g} s"),
            *(f"no: {each.reason}" if each.reason else "yes", each.counter.source),
        )
        for each in found
    ]
    out.print("", _print.table(heads, rows, "counters"), sep="\n")
    if absent:
        rows_absent = [(each.what, each.reason, each.how) for each in absent]
        out.print("", _print.table(("collector", "not sampled: reason", "how to get it"), rows_absent), sep="\n")


def _device(device: Device) -> tuple[object, ...]:
    from gpubench.base import units

    details = ", ".join(f"{name}={value}" for name, value in device.details)
    memory, cache = units.round_size(device.memory_bytes), units.round_size(device.cache_bytes)
    return (device.id, device.name, device.arch, memory, cache, device.units, details)
