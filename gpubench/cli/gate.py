"""`gpubench gate`: compare a candidate with a baseline, or with the floors of its model.

`gpubench ab`: measure two builds of different environments in turn, and compare them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import units
from gpubench.base.errors import CannotJudge, UsageError
from gpubench.cli import _findings, _machine, _print, _verdicts
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.judging import rounds as settling
    from gpubench.measuring import inventory, plan
    from gpubench.tools import health
    from gpubench.tools.gating import ab as builds
    from gpubench.tools.gating import baselines, saved
    from gpubench.tools.gating import gate as gating

_REPLICATES = 5

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CANDIDATE|SUITE",
        autocompletion=options.suite_completions,
        help="Run files to judge; with --run the suites to measure.",
        show_default=False,
    ),
]
Baseline = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        "-b",
        autocompletion=lambda: saved.names(),
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
    _check_arguments(arguments, baseline, run, floor, save_baseline, append)
    if not run:
        _check_no_run_options(replicates=replicates, rounds=rounds, device=device, tier=tier, filter=filter, out=out)
    saved.check(baseline or [])
    rules = _verdicts.policy(policy, threshold, strict, allow_mismatch, allow_missing, allow_undecided)
    request = gating.GateRequest(
        plugins.load("gates", "floor" if floor else "regression"),
        replace(rules, noise=gating.read_evidence(noise) if noise else None),
        settling.ROUNDS if rounds is None else rounds,
    )
    if run:
        options.check_suites(arguments)
        facts, wanted = inventory.facts(), tier or "quick"
        settings = options.settings(facts, arguments, device, False, wanted, filter, None, replicates or _REPLICATES)
        planned = plan.make(facts, settings)
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
        sharing.say(f"baseline {save_baseline}: {baselines.save(save_baseline, judged.files, append)}")
    elif save_baseline:
        sharing.say(f"not saved as the baseline {save_baseline}: the gate did not pass")
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
    if names := [f"--{name}" for name, value in given.items() if value not in (None, [])]:
        raise UsageError(f"{', '.join(names)}: only with --run")


def _judge_files(request: gating.GateRequest, baseline: list[str] | None, paths: list[Path]) -> gating.GateResult:
    """Return the judgement of the candidate's run files `paths`."""
    names = baseline or []
    if saved.needs_cases(names):
        candidate = gating.read_evidence(paths)
        files = baselines.find_files(names, baselines.measured_cases(candidate), paths)
        return _split(gating.judge_files(request, gating.read_evidence(files), candidate, paths), files)
    files = baselines.find_files(names, [], paths)
    before, after = gating.read_evidence_groups(files, paths)
    return _split(gating.judge_files(request, before, after, paths), files)


def _split(judged: gating.GateResult, files: Sequence[Path]) -> gating.GateResult:
    """Return the result with the largest changes split into rungs, by the last run file of each side."""
    if not files or not judged.files:
        return judged
    findings = _findings.split(judged.judgement.findings, files[-1], judged.files[-1])
    return replace(judged, judgement=replace(judged.judgement, findings=findings))


def _measure_and_judge(
    request: gating.GateRequest, baseline: list[str] | None, planned: plan.Plan, path: Path
) -> gating.GateResult:
    """Measure the candidate into the run file `path`, measure suspects again, and return the judgement."""
    evidence = gating.read_evidence(baselines.find_files(baseline or [], baselines.planned_cases(planned)))
    if not request.policy.allow_mismatch:
        gating.refuse_other_machines(planned, evidence)
    health.refuse_sick(planned)
    sharing.say(f"{len(planned.jobs)} results to measure, about {units.duration(planned.seconds)}; run file: {path}")
    with _machine.run_display() as watch:
        tell = lambda event: watch(replace(event, result=sharing.for_terminal(event.result)))  # noqa: E731
        return gating.measure_and_judge(request, evidence, planned, path, sys.argv, tell)


A = Annotated[
    str,
    typer.Option(
        "--a",
        metavar="CMD",
        help="The shell command of the baseline's gpubench, with environment variables in front: "
        "'LD_LIBRARY_PATH=/opt/cublas-13.0/lib /opt/venv/bin/gpubench'.",
    ),
]
B = Annotated[str, typer.Option("--b", metavar="CMD", help="The shell command of the candidate's gpubench.")]
Both = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE|all|headline",
        autocompletion=options.suite_completions,
        help="Suites that both builds measure, as in `run`.",
        show_default=False,
    ),
]
PerBuild = Annotated[
    int, typer.Option("--replicates", min=1, max=1000, help="New processes per build; the builds alternate.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A new folder for the run files. \\[default: gpubench-runs/TIME-ab]"),
]


def ab(
    a: A,
    b: B,
    suites: Both = None,
    threshold: _verdicts.Threshold = None,
    policy: _verdicts.PolicyFile = None,
    strict: _verdicts.Strict = False,
    allow_undecided: _verdicts.AllowUndecided = False,
    all_: _verdicts.All = False,
    wide: _verdicts.Wide = False,
    json: options.Json = False,
    junit: _verdicts.JUnit = None,
    markdown: _verdicts.Markdown = None,
    no_redact: sharing.NoRedact = False,
    replicates: PerBuild = _REPLICATES,
    rounds: _verdicts.Rounds = None,
    device: options.Devices = None,
    tier: options.TierOption = "quick",
    filter: options.Filters = None,  # noqa: A002 - the option's name
    out: Folder = None,
) -> None:
    """Measure two builds in turn, each time in a new process, and say what is slower or faster in the second."""
    request = gating.GateRequest(
        plugins.load("gates", "regression"),
        _verdicts.policy(policy, threshold, strict, False, False, allow_undecided),
        settling.ROUNDS if rounds is None else rounds,
    )
    devices = [argument for text in device or [] for argument in ("--device", text)]
    arguments = (*(suites or []), "--tier", tier, *devices)
    both = builds.Build.parse("a", a), builds.Build.parse("b", b)
    pair = builds.BuildPair(both, arguments, tuple(filter or []), options.new_folder(out, "-ab"), _print.say)
    judged = gating.measure_and_judge_pair(request, pair, replicates)
    health.refuse_recorded(judged.files)
    status = judged.exit_status(request.policy)
    _verdicts.publish(judged, status, "gpubench ab", json, junit, markdown, no_redact, all_, wide)
    sharing.say(f"run files: {pair.folder}")
    raise typer.Exit(status)
