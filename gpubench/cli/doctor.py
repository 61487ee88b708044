"""`gpubench doctor`: check devices, libraries, counters and health, and measure the noise of the machine.

`gpubench doctor --bundle`: write an archive that a user can attach to an issue."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.cli import _machine, _print
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.analysis import records, summary
    from gpubench.judging import noise as noises
    from gpubench.measuring import examination, inventory, plan, sampler
    from gpubench.tools import bundle as bundles
    from gpubench.tools import card as cards
    from gpubench.tools import session

_README = """\
Files that `gpubench doctor --bundle` collected. Names of host, user and device and serial numbers are removed.

facts.json     devices, versions, what is missing and why
sys/           the GPU's files, as the driver gave them: addresses on the PCI bus are as they are
run.jsonl.gz   the smallest run of every suite: `gpubench show run.jsonl.gz`
"""


def write(target: Path, device: list[str] | None) -> None:
    """Measure the smallest run, and write it and the driver's files about GPUs, anonymised, to the archive `target`."""
    from gpubench.model import store

    sharing.check_target(target, force=False)
    if not os.access(target.absolute().parent, os.W_OK):  # now, not after a minute of measuring
        raise UsageError(f"cannot write {target}: its folder is missing or read-only; choose another place")
    run = sharing.shareable(_measure_smoke(device))
    entries = {
        "README": _README.encode(),
        "facts.json": dumps(asdict(run.manifest.facts), indent=1, ensure_ascii=False).encode(),
        "run.jsonl.gz": store.encode_run(run, packed=True),
        **bundles.device_files(),
    }
    sharing.write(target, bundles.archive(entries))
    _print.say(f"{target}: {len(entries)} files; list them with tar tzf before you share it")


def _measure_smoke(device: list[str] | None) -> model.Run:
    """Measure all suites in the smoke tier and return the run; its run file is temporary."""
    facts = inventory.facts()
    settings = options.settings(facts, ["all"], device, False, "smoke", None, None)
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder, _machine.run_display() as watch:
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

Card = Annotated[
    str,
    typer.Option("--card", help="Say what would run on a card that is not here, by a short name such as rtx-4090."),
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
    card: Card = "",
    json: options.Json = False,
) -> None:
    """Check the devices, libraries, counters and health of this machine, or measure its noise (--noise)."""
    asked = {"--replicates": replicates, "--device": device, "--tier": tier, "--out": out, "--from": source}
    given = [option for option, value in asked.items() if value not in (None, [])]
    if card:
        if given or noise or bundle or json or counters:
            raise UsageError("--card goes with no other option")
        for line in cards.described(card):
            _print.echo(line)
    elif bundle:
        if noise or json or given not in ([], ["--device"]):
            raise UsageError("--bundle goes with --device only")
        write(bundle, device)
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


def _read_replicates(source: Path) -> model.Run:
    from gpubench.model.store import read_run

    run = read_run(source)
    if len({result.replicate for result in run.results}) < noises.LEAST_REPLICATES:
        raise UsageError(f"{source} has fewer than {noises.LEAST_REPLICATES} replicates: run with --replicates")
    return run


def _measure(
    replicates: int | None, device: list[str] | None, tier: options.TierName | None, out: Path | None
) -> model.Run:
    """Measure identical code repeatedly: the headline cases, each replicate in new processes and in a new order."""
    count = _REPLICATES if replicates is None else replicates
    if count < noises.LEAST_REPLICATES:
        raise UsageError(
            f"--noise needs --replicates of at least {noises.LEAST_REPLICATES}, because a spread needs as many"
        )
    facts = inventory.facts()
    settings = options.settings(facts, ["headline"], device, False, tier or "quick", None, None, replicates=count)
    planned = plan.make(facts, settings)
    path = options.run_file(out, "-noise")
    _print.say(f"{len(planned.jobs)} cases in {count} replicates, about {units.duration(planned.seconds)}")
    with _machine.run_display() as watch:
        run = session.measure(planned, path, sys.argv, watch)
    _print.say(f"run file: {path}")
    return run


def _print_noise(run: model.Run, json: bool) -> None:
    """Print the noise floors of a run, then the cases without a floor and why; with `json` as one JSON document."""
    floors, undecided = noises.floors(run), noises.undecided(run)
    if json:
        _print.document({"floors": records.record(floors), "undecided": undecided})
    else:
        out = _print.out()
        heads = ("case", "device", "processes", "between processes", "smallest detectable change")
        rows = [
            (
                *(floor.case, "+".join(floor.devices), floor.replicates),
                *(f"±{noises.percent(floor.between)}", floor.detectable),
            )
            for floor in floors
        ]
        out.print(_print.table(heads, rows, right=heads[2:4]))
        for reason in undecided:
            out.print(_print.plain(reason, "yellow"), soft_wrap=True)
    raise typer.Exit(summary.exit_status(run.results))


def _print_document(facts: model.Facts) -> None:
    available, unavailable = sampler.list_counters(facts.devices)
    counters = [
        {"device": entry.device, **records.record(entry.counter), "missing": entry.reason} for entry in available
    ]
    health, not_sampled = records.record(examination.examine(facts.devices)), records.record(unavailable)
    _print.document({**records.record(facts), "health": health, "counters": counters, "not_sampled": not_sampled})


def _show(facts: model.Facts, counters: bool) -> None:
    """Print the state of the machine or, with `counters`, only the table of every counter."""
    available, not_sampled = sampler.list_counters(facts.devices)
    if counters:
        parts = _machine.counters(available)
    else:
        parts = _machine.machine(facts, examination.examine(facts.devices), available, not_sampled)
    _print.out().print(*parts, sep="\n")
