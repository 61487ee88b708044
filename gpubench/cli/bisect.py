"""`gpubench bisect`: find the commit that made a case slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print, _verdicts
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.judging import answer
    from gpubench.judging import rounds as settling
    from gpubench.tools.gating import ab as builds
    from gpubench.tools.gating import bisect as search
    from gpubench.tools.gating import gate as gating

Good = Annotated[str, typer.Argument(metavar="GOOD", help="A commit of the repository here that is fast.")]
Bad = Annotated[str, typer.Argument(metavar="BAD", help="A later commit that is slower.")]
BuildCommand = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- BUILD", help="The command that builds a checkout, run in its folder; put it after --."),
]
Command = Annotated[
    str,
    typer.Option(
        "--command",
        metavar="CMD",
        help="The gpubench that measures a build, as in `ab`; {} stands for the folder of the checkout: "
        "'LD_LIBRARY_PATH={}/build gpubench'.",
    ),
]
Suite = Annotated[
    list[str] | None,
    typer.Option("--suite", metavar="SUITE", help="A suite to measure. Can be repeated. \\[default: headline]"),
]
Replicates = Annotated[int, typer.Option("--replicates", min=3, max=1000, help="New processes per build and commit.")]
Folder = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A new folder for run files and logs. \\[default: gpubench-runs/TIME-bisect]"),
]


def bisect(
    good: Good,
    bad: Bad,
    build: BuildCommand = None,
    command: Command = "{}/.venv/bin/gpubench",
    suite: Suite = None,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    device: options.Devices = None,
    tier: options.TierOption = "quick",
    threshold: _verdicts.Threshold = None,
    replicates: Replicates = 5,
    out: Folder = None,
) -> None:
    """Find the commit that made a case slower: git bisect, with each build measured in turn with the good one.

    A commit that cannot be built or judged is skipped."""
    if not build:
        raise UsageError("name the command that builds a checkout: gpubench bisect GOOD BAD -- make")
    folder = options.new_folder(out, "-bisect")
    policy = _verdicts.policy(None, threshold, False, False, False, False)
    request = gating.GateRequest(plugins.load("gates", "regression"), policy, settling.ROUNDS)
    devices = [argument for text in device or [] for argument in ("--device", text)]
    arguments = (*(suite or ["headline"]), "--tier", tier, *devices)
    filters = tuple(filter or ())

    def judge(pair: tuple[builds.Build, builds.Build], place: Path) -> int:
        nonlocal filters
        place.mkdir()
        measured = builds.BuildPair(pair, arguments, filters, place, _print.say)
        judged = gating.measure_and_judge_pair(request, measured, replicates)
        slower = [finding.case.id for finding in judged.judgement.findings if finding.verdict == "slower"]
        sharing.say(f"{place.name}: {answer.tally(judged.judgement)}")
        filters = filters or tuple(slower[: answer.MOST_FILTERS])  # the first verdict decides which cases to follow
        return judged.exit_status(policy)

    suspects = search.Bisection(Path.cwd(), tuple(build), command, folder, judge, sharing.say).find(good, bad)
    sharing.say(f"followed: {', '.join(filters)}; run files: {folder}")
    skipped = f", {suspects.skipped} skipped" if suspects.skipped else ""
    if len(suspects.commits) == 1:
        _print.echo(f"FOUND: {suspects.commits[0]} is the first commit that is slower{skipped}")
        raise typer.Exit(0)
    for line in (f"CANNOT JUDGE: it is one of {len(suspects.commits)} commits{skipped}", *suspects.commits):
        _print.echo(line)
    raise typer.Exit(4)
