"""`gpubench preflight`: say within seconds whether the devices of a node are sound."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base.errors import DeviceError
from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.analysis import records
    from gpubench.measuring import inventory, plan, progress
    from gpubench.tools import preflight as preflights
    from gpubench.tools import session, soak

Budget = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="The most time it takes: a number with s or min, 10s or more.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Keep the run file here (.jsonl or .jsonl.gz).")]
_FACTS, _HEALTH = 0.5, 0.2  # the shares of the budget in which the devices must be found, and answer about their health
_COLOURS = {"ok": "green", "slow": "red", "sick": "red"}


def preflight(
    budget: Budget = "30s", device: options.Devices = None, out: Out = None, json: options.Json = False
) -> None:
    """Check the health, the bits and the speed of all GPUs at once, and compare each GPU with the others.

    The exit status is 0 if all are sound, 1 if a GPU is slow, 4 if a GPU or its speed could not be judged (busy with
    another program, fewer than five GPUs of one model), and 6 if one is sick."""
    begun = time.monotonic()
    budget_s = soak.seconds_of(budget, "--budget")
    preflights.check_budget(budget_s)
    facts = inventory.facts(_FACTS * budget_s)
    missing = preflights.missing(facts, device or [])
    names = [name for name in device or ["all"] if name not in missing]
    settings = options.settings(facts, None, names, False, "quick", None, None)
    if not device and (reason := plan.why_host(facts, settings)):
        _print.warn(reason)
    settings = settings if names else replace(settings, devices=())
    unfit = missing | preflights.unfit([facts.device(name) for name in settings.devices], _HEALTH * budget_s)
    settings = replace(settings, devices=tuple(name for name in settings.devices if name not in unfit))
    verdict = preflights.Preflight(tuple(unfit.values()))
    if settings.devices:
        planned = preflights.plan_of(facts, settings, budget_s, time.monotonic() - begun)
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            path = out or Path(folder) / "preflight.jsonl"
            measured = _measure(planned, path)
        verdict = preflights.judge(measured, tuple(unfit.values()))
    if json:
        _print.document({**records.record(verdict), "verdict": verdict.verdict, "status": verdict.status})
    else:
        for checked in verdict.devices:
            _print.out().print(_print.plain(checked.text, _COLOURS.get(checked.state, "yellow")), soft_wrap=True)
        _print.out().print(_print.plain(f"preflight: {verdict.verdict}", "bold"), soft_wrap=True)
    raise typer.Exit(verdict.status)


def _measure(planned: plan.Plan, path: Path) -> model.Run:
    """Measure the plan into `path`; a device that is lost meanwhile leaves the run of the others."""
    from gpubench.model.store import read_run

    try:
        return session.measure(planned, path, sys.argv, _watch, tell=_print.warn)
    except DeviceError:
        if not path.exists():
            raise
        return read_run(path)


def _watch(event: progress.ProgressEvent) -> None:
    """Show no progress: a preflight prints its lines at the end."""
    del event
