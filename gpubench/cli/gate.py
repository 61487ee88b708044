"""`gpubench gate`: compare a candidate with a baseline, or with the floors of its model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli import _verdicts

if TYPE_CHECKING:
    from gpubench.judging.policy import Policy
    from gpubench.measuring.plan import Plan
    from gpubench.tools.gating.gate import Asked, Judged

_REPLICATES = 5

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CANDIDATE…|SUITE…]", help="Run files to judge; with --run the suites to measure.", show_default=False
    ),
]
Baseline = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        "-b",
        help="The baseline: a run file, a folder of them, a saved name, or last:N, the newest N results of each case "
        "in the history on this device, driver and settings; may be repeated.",
    ),
]
Run = Annotated[
    bool, typer.Option("--run", help="Measure the candidate here, and measure again the cases that look slower.")
]
Floor = Annotated[bool, typer.Option("--floor", help="Compare with the floors of this model of GPU (docs/gate.md).")]
Save = Annotated[
    str | None,
    typer.Option("--save-baseline", help="Save the candidate as a baseline of this name, if the gate passes."),
]
Noise = Annotated[
    list[Path] | None,
    typer.Option(
        "--noise",
        help="A run of identical code with many replicates, whose noise counts where it is larger; may be repeated.",
    ),
]
Mismatch = Annotated[
    bool, typer.Option("--allow-mismatch", help="Also compare runs of another machine, driver or setting.")
]
Replicates = Annotated[
    int | None,
    typer.Option("--replicates", min=1, max=1000, help=f"With --run: new processes. \\[default: {_REPLICATES}]"),
]
Tier = Annotated[
    options.TierName | None, typer.Option("--tier", help="With --run: as `run` has it. \\[default: quick]")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="With --run: its file. \\[default: gpubench-runs/TIME-gate.jsonl]"),
]


def gate(
    arguments: Arguments = None,
    baseline: Baseline = None,
    run: Run = False,
    floor: Floor = False,
    save_baseline: Save = None,
    noise: Noise = None,
    threshold: _verdicts.Threshold = None,
    policy: _verdicts.PolicyFile = None,
    allow_mismatch: Mismatch = False,
    strict: _verdicts.Strict = False,
    all_: _verdicts.All = False,
    wide: _verdicts.Wide = False,
    json: options.Json = False,
    junit: _verdicts.JUnit = None,
    markdown: _verdicts.Markdown = None,
    no_redact: sharing.NoRedact = False,
    replicates: Replicates = None,
    rounds: _verdicts.Rounds = None,
    device: options.Devices = None,
    tier: Tier = None,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    out: Out = None,
) -> None:
    """Compare a candidate with its baseline: pass, fail on a regression, or say which measurements would decide."""
    from gpubench.tools import health
    from gpubench.tools.gating import baselines

    _check(arguments, baseline, run, floor, save_baseline)
    if not run:
        _check_files(replicates=replicates, rounds=rounds, device=device, tier=tier, filter=filter, out=out)
    request = _asked(floor, _verdicts.policy(policy, threshold, strict, allow_mismatch), noise, rounds)
    if run:
        planned = _plan(arguments, device, tier or options.TierName.QUICK, filter, replicates or _REPLICATES)
        judged = _measured(request, baseline, planned, options.run_file(out, "-gate"))
    else:
        judged = _read(request, baseline, [Path(argument) for argument in arguments or []])
    health.refuse_recorded(judged.files)
    status = 3 if judged.failed else 0
    if baseline or floor:
        status = judged.exit_status(request.policy.strict)
        _verdicts.publish(judged, status, "gpubench gate", json, junit, markdown, no_redact, all_, wide)
    if save_baseline and status == 0:
        _say(f"baseline {save_baseline}: {baselines.save(save_baseline, judged.files)}")
    elif save_baseline:
        _say(f"not saved as the baseline {save_baseline}: the gate did not pass")
    raise typer.Exit(status)


def _check(arguments: list[str] | None, baseline: list[str] | None, run: bool, floor: bool, save: str | None) -> None:
    """Raise UsageError for arguments that do not fit together."""
    from gpubench.base.errors import UsageError
    from gpubench.tools.gating import baselines

    if baseline and floor:
        raise UsageError("--baseline and --floor are two gates: call `gpubench gate` once for each")
    if not (baseline or floor or save):
        raise UsageError("name a baseline: --baseline FILE, FOLDER, NAME or last:N; or --floor")
    if not arguments and not run:
        raise UsageError("name the candidate's run files, or measure it: --run SUITE…")
    if save:
        baselines.check_name(save)


def _check_files(**given: object) -> None:
    from gpubench.base.errors import UsageError

    if names := [f"--{name}" for name, value in given.items() if value not in (None, [])]:
        raise UsageError(f"{', '.join(names)}: only with --run")


def _asked(floor: bool, policy: Policy, noise: list[Path] | None, rounds: int | None) -> Asked:
    from dataclasses import replace

    from gpubench import plugins
    from gpubench.judging.rounds import ROUNDS
    from gpubench.tools.gating import gate as gating

    noise_evidence = gating.evidence(noise) if noise else None
    gate = plugins.load("gates", "floor" if floor else "regression")
    return gating.Asked(gate, replace(policy, noise=noise_evidence), ROUNDS if rounds is None else rounds)


def _read(request: Asked, baseline: list[str] | None, paths: list[Path]) -> Judged:
    from gpubench.tools.gating import baselines
    from gpubench.tools.gating import gate as gating

    names = baseline or []
    if baselines.is_dated(names):
        candidate = gating.evidence(paths)
        baseline_evidence = gating.evidence(baselines.find(names, baselines.of_evidence(candidate), paths))
    else:
        baseline_evidence, candidate = gating.evidences(baselines.find(names, [], paths), paths)
    return gating.of_files(request, baseline_evidence, candidate, paths)


def _plan(
    suites: list[str] | None, device: list[str] | None, tier: options.TierName, filters: list[str] | None, count: int
) -> Plan:
    from gpubench.measuring import inventory, plan

    options.check_suites(suites)
    facts = inventory.facts()
    return plan.make(facts, options.settings(facts, suites, device, False, tier, filters, None, count))


def _measured(request: Asked, baseline: list[str] | None, planned: Plan, path: Path) -> Judged:
    from dataclasses import replace

    from gpubench.base import units
    from gpubench.cli._progress import shown
    from gpubench.tools import health
    from gpubench.tools.gating import baselines
    from gpubench.tools.gating import gate as gating

    baseline_evidence = gating.evidence(baselines.find(baseline or [], baselines.of_plan(planned)))
    if not request.policy.allow_mismatch:
        gating.refuse_strangers(planned, baseline_evidence)
    health.refuse_sick(planned)
    _say(f"{len(planned.jobs)} results to measure, about {units.duration(planned.seconds)}; run file: {path}")
    with shown() as watch:
        tell = lambda event: watch(replace(event, result=sharing.for_log(event.result)))  # noqa: E731
        return gating.measure(request, baseline_evidence, planned, path, sys.argv, tell)


def _say(message: str) -> None:
    from gpubench.cli import _print

    _print.say(sharing.for_log(message))
