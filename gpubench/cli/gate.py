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
    from gpubench.tools.gating.gate import GateRequest, GateResult

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
        "in the history on this device, driver and settings. Can be repeated.",
    ),
]
Run = Annotated[
    bool, typer.Option("--run", help="Measure the candidate now, and measure the cases that look slower again.")
]
Floor = Annotated[bool, typer.Option("--floor", help="Compare with the floors of this model of GPU (docs/gate.md).")]
Save = Annotated[
    str | None,
    typer.Option("--save-baseline", help="Save the candidate as a baseline of this name, if the gate passes."),
]
Append = Annotated[
    bool, typer.Option("--append", help="With --save-baseline: add the candidate to the baseline as a further session.")
]
Noise = Annotated[
    list[Path] | None,
    typer.Option(
        "--noise",
        help="A run of identical code with many replicates; its noise is used where it is larger. Can be repeated.",
    ),
]
Mismatch = Annotated[
    bool, typer.Option("--allow-mismatch", help="Also compare runs with another machine, driver or settings.")
]
Replicates = Annotated[
    int | None,
    typer.Option(
        "--replicates", min=1, max=1000, help=f"With --run: the number of new processes. \\[default: {_REPLICATES}]"
    ),
]
Tier = Annotated[
    options.TierName | None,
    typer.Option("--tier", help="With --run: how much to measure, as in `run`. \\[default: quick]"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="With --run: the run file to write. \\[default: gpubench-runs/TIME-gate.jsonl]"),
]


def gate(
    arguments: Arguments = None,
    baseline: Baseline = None,
    run: Run = False,
    floor: Floor = False,
    save_baseline: Save = None,
    append: Append = False,
    noise: Noise = None,
    threshold: _verdicts.Threshold = None,
    policy: _verdicts.PolicyFile = None,
    allow_mismatch: Mismatch = False,
    strict: _verdicts.Strict = False,
    allow_missing: _verdicts.AllowMissing = False,
    allow_undecided: _verdicts.AllowUndecided = False,
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
    from gpubench.base.errors import CannotJudge
    from gpubench.tools import health
    from gpubench.tools.gating import baselines

    _check_arguments(arguments, baseline, run, floor, save_baseline, append)
    if not run:
        _check_no_run_options(replicates=replicates, rounds=rounds, device=device, tier=tier, filter=filter, out=out)
    given = (threshold, strict, allow_mismatch, allow_missing, allow_undecided)
    request = _request(floor, _verdicts.policy(policy, *given), noise, rounds)
    if run:
        planned = _plan(arguments, device, tier or options.TierName.QUICK, filter, replicates or _REPLICATES)
        judged = _measure_and_judge(request, baseline, planned, options.run_file(out, "-gate"))
    else:
        judged = _judge_files(request, baseline, [Path(argument) for argument in arguments or []])
    health.refuse_recorded(judged.files)
    status = 3 if judged.failed else 0
    if baseline or floor:
        status = judged.exit_status(request.policy)
        _verdicts.publish(judged, status, "gpubench gate", json, junit, markdown, no_redact, all_, wide)
    if save_baseline and status == 0 and not judged.measured:
        raise CannotJudge(f"not saved as the baseline {save_baseline}: no case has a figure to compare with")
    if save_baseline and status == 0:
        _print_message(f"baseline {save_baseline}: {baselines.save(save_baseline, judged.files, append)}")
    elif save_baseline:
        _print_message(f"not saved as the baseline {save_baseline}: the gate did not pass")
    raise typer.Exit(status)


def _check_arguments(
    arguments: list[str] | None,
    baseline: list[str] | None,
    run: bool,
    floor: bool,
    save: str | None,
    append: bool,
) -> None:
    """Check that the arguments fit together; `save` is the name of a baseline to save, or None."""
    from gpubench.base.errors import UsageError
    from gpubench.tools.gating import baselines

    if baseline and floor:
        raise UsageError("--baseline and --floor are two gates: call `gpubench gate` once for each")
    if not (baseline or floor or save):
        raise UsageError("name a baseline: --baseline FILE, FOLDER, NAME or last:N; or --floor")
    if not arguments and not run:
        raise UsageError("name the candidate's run files, or measure it: --run SUITE…")
    if append and not save:
        raise UsageError("--append: only with --save-baseline NAME")
    if save:
        baselines.check_name(save)


def _check_no_run_options(**given: object) -> None:
    """Raise UsageError if an option was given that only `--run` uses."""
    from gpubench.base.errors import UsageError

    if names := [f"--{name}" for name, value in given.items() if value not in (None, [])]:
        raise UsageError(f"{', '.join(names)}: only with --run")


def _request(floor: bool, policy: Policy, noise: list[Path] | None, rounds: int | None) -> GateRequest:
    """Return the request to the regression gate, or with `floor` to the gate that compares with floors."""
    from dataclasses import replace

    from gpubench import plugins
    from gpubench.judging.rounds import ROUNDS
    from gpubench.tools.gating import gate as gating

    noise_evidence = gating.read_evidence(noise) if noise else None
    gate = plugins.load("gates", "floor" if floor else "regression")
    return gating.GateRequest(gate, replace(policy, noise=noise_evidence), ROUNDS if rounds is None else rounds)


def _judge_files(request: GateRequest, baseline: list[str] | None, paths: list[Path]) -> GateResult:
    """Return the judgement of the candidate's run files `paths`."""
    from gpubench.tools.gating import baselines
    from gpubench.tools.gating import gate as gating

    names = baseline or []
    if baselines.needs_cases(names):
        candidate = gating.read_evidence(paths)
        baseline_evidence = gating.read_evidence(
            baselines.find_files(names, baselines.measured_cases(candidate), paths)
        )
    else:
        baseline_evidence, candidate = gating.read_evidence_groups(baselines.find_files(names, [], paths), paths)
    return gating.judge_files(request, baseline_evidence, candidate, paths)


def _plan(
    suites: list[str] | None, device: list[str] | None, tier: options.TierName, filters: list[str] | None, count: int
) -> Plan:
    """Return the plan of the candidate's measurement: `count` replicates of the suites."""
    from gpubench.measuring import inventory, plan

    options.check_suites(suites)
    facts = inventory.facts()
    return plan.make(facts, options.settings(facts, suites, device, False, tier, filters, None, count))


def _measure_and_judge(request: GateRequest, baseline: list[str] | None, planned: Plan, path: Path) -> GateResult:
    """Measure the candidate into the run file `path`, measure suspects again, and return the judgement."""
    from dataclasses import replace

    from gpubench.base import units
    from gpubench.cli._machine import run_display
    from gpubench.tools import health
    from gpubench.tools.gating import baselines
    from gpubench.tools.gating import gate as gating

    baseline_evidence = gating.read_evidence(baselines.find_files(baseline or [], baselines.planned_cases(planned)))
    if not request.policy.allow_mismatch:
        gating.refuse_other_machines(planned, baseline_evidence)
    health.refuse_sick(planned)
    _print_message(f"{len(planned.jobs)} results to measure, about {units.duration(planned.seconds)}; run file: {path}")
    with run_display() as watch:
        tell = lambda event: watch(replace(event, result=sharing.for_terminal(event.result)))  # noqa: E731
        return gating.measure_and_judge(request, baseline_evidence, planned, path, sys.argv, tell)


def _print_message(message: str) -> None:
    from gpubench.cli import _print

    _print.say(sharing.for_terminal(message))
