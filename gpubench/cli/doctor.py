"""`gpubench doctor`: check devices, libraries, counters and health, and measure the noise of the machine.

`gpubench doctor --bundle`: write an archive that a user can attach to an issue."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.model import Facts, Run


_README = """\
Files that `gpubench doctor --bundle` collected. Names of host, user and device and serial numbers are removed.

facts.json     devices, versions, what is missing and why
sys/           the GPU's files, as the driver gave them: addresses on the PCI bus are as they are
run.jsonl.gz   the smallest run of every suite: `gpubench show run.jsonl.gz`
"""


def write(target: Path, device: list[str] | None) -> None:
    """Measure the smallest run, and write it and the driver's files about GPUs, anonymised, to the archive `target`.

    `device` are the ids to measure, as for `run --device`; None measures the first GPU, or the host. Raises UsageError
    if `target` exists or cannot be written, or for an unknown device, and DeviceError if a device is lost meanwhile."""
    import json

    from gpubench.model import store
    from gpubench.tools import bundle

    sharing.check_target(target, force=False)
    run = sharing.shareable(_measure_smoke(device))
    entries = {
        "README": _README.encode(),
        "facts.json": json.dumps(asdict(run.manifest.facts), indent=1, ensure_ascii=False).encode(),
        "run.jsonl.gz": store.encode_run(run, packed=True),
        **bundle.device_files(),
    }
    sharing.write(target, bundle.archive(entries))
    message = f"{target}: {len(entries)} files; list them with tar tzf before you share it"
    _print.err().print(_print.plain(message), soft_wrap=True)


def _measure_smoke(device: list[str] | None) -> Run:
    """Measure all suites in the smoke tier and return the run; its run file is temporary."""
    from gpubench.cli._machine import run_display
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session

    facts = inventory.facts()
    settings = options.settings(facts, ["all"], device, False, options.TierName.SMOKE, None, None)
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder, run_display() as watch:
        return session.measure(plan.make(facts, settings), Path(folder) / "run.jsonl", sys.argv, watch)


_REPLICATES = 10

Noise = Annotated[
    bool,
    typer.Option(
        "--noise",
        help="Measure the representative cases of each suite in many new processes, and print the between-process "
        "noise: the smallest change that a gate can detect on this machine.",
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
Counters = Annotated[
    bool,
    typer.Option(
        "--counters", help="List every counter with its unit, its period and the vendor's command for the same number."
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
    counters: Counters = False,
    json: options.Json = False,
) -> None:
    """Check the devices, libraries, counters and health of this machine, or measure its noise (--noise)."""
    from gpubench.measuring import inventory

    asked = {"--replicates": replicates, "--device": device, "--tier": tier, "--out": out, "--from": source}
    given = [option for option, value in asked.items() if value not in (None, [])]
    if bundle:
        _write_bundle(bundle, device, noise or json or given not in ([], ["--device"]))
    elif noise:
        if source and len(given) > 1:
            raise UsageError(f"--from measures nothing: leave out {', '.join(given[:-1])}")
        _print_noise(_read_replicates(source) if source else _measure(replicates, device, tier, out), json)
    elif given:
        raise UsageError(f"{', '.join(given)}: only with --noise{' or --bundle' if given == ['--device'] else ''}")
    elif json:
        _print_document(inventory.facts())
    else:
        _show(inventory.facts(), counters)


def _write_bundle(target: Path, device: list[str] | None, more: bool) -> None:
    """Measure, and write the archive of `--bundle` to `target`; `device` are the ids to measure, None for the default.

    `more` says that options other than --device were given too: it raises UsageError. Raises UsageError also if the
    archive exists."""
    if more:
        raise UsageError("--bundle goes with --device only")
    write(target, device)


def _read_replicates(source: Path) -> Run:
    from gpubench.judging import noise
    from gpubench.model import store

    run = store.read_run(source)
    if len({result.replicate for result in run.results}) < noise.LEAST_REPLICATES:
        raise UsageError(f"{source} has fewer than {noise.LEAST_REPLICATES} replicates: run with --replicates")
    return run


def _measure(replicates: int | None, device: list[str] | None, tier: options.TierName | None, out: Path | None) -> Run:
    """Measure identical code repeatedly: the headline cases, each replicate in new processes and in a new order."""
    from gpubench.base import units
    from gpubench.cli._machine import run_display
    from gpubench.judging import noise
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session

    count = _REPLICATES if replicates is None else replicates
    if count < noise.LEAST_REPLICATES:
        raise UsageError(
            f"--noise needs --replicates of at least {noise.LEAST_REPLICATES}, because a spread needs as many"
        )
    facts = inventory.facts()
    settings = options.settings(
        facts, ["headline"], device, False, tier or options.TierName.QUICK, None, None, replicates=count
    )
    planned = plan.make(facts, settings)
    path = options.run_file(out, "-noise")
    summary = f"{len(planned.jobs)} cases in {count} replicates, about {units.duration(planned.seconds)}"
    _print.say(summary)
    with run_display() as watch:
        run = session.measure(planned, path, sys.argv, watch)
    _print.say(f"run file: {path}")
    return run


def _print_noise(run: Run, json: bool) -> None:
    """Print the noise floors of a run, then the cases without a floor and why; with `json` as one JSON document."""
    from gpubench.analysis import summary
    from gpubench.analysis.records import record
    from gpubench.judging import noise

    floors = noise.floors(run)
    if json:
        _print.document({"floors": record(floors), "undecided": noise.undecided(run)})
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
        for reason in noise.undecided(run):
            out.print(_print.plain(reason, "yellow"), soft_wrap=True)
    raise typer.Exit(summary.exit_status(run.results))


def _print_document(facts: Facts) -> None:
    from gpubench.analysis.records import record
    from gpubench.measuring import sampler
    from gpubench.measuring.examination import examine

    available, unavailable = sampler.list_counters(facts.devices)
    counters = [{"device": entry.device, **record(entry.counter), "missing": entry.reason} for entry in available]
    health, not_sampled = record(examine(facts.devices)), record(unavailable)
    _print.document({**record(facts), "health": health, "counters": counters, "not_sampled": not_sampled})


def _show(facts: Facts, counters: bool) -> None:
    """Print the state of the machine or, with `counters`, only the table of every counter."""
    from gpubench.cli import _machine, _print
    from gpubench.measuring import sampler
    from gpubench.measuring.examination import examine

    available, not_sampled = sampler.list_counters(facts.devices)
    if counters:
        parts = _machine.counters(available)
    else:
        parts = _machine.machine(facts, examine(facts.devices), available, not_sampled)
    _print.out().print(*parts, sep="\n")
