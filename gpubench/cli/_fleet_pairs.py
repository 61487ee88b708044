"""`gpubench fleet pairs`: measure between nodes, and find slow nodes and links."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _fleet_run as launching
from gpubench.cli import _options as options
from gpubench.cli._fleet_judge import show

Out = Annotated[Path, typer.Option("--out", "-o", help="A new folder for pairs.json and the run files.", metavar="DIR")]
Rounds = Annotated[
    int,
    typer.Option(
        "--rounds", min=1, max=1000, help="How many other nodes each node is paired with. A verdict needs at least 3."
    ),
]


def pairs(
    ctx: typer.Context,
    out: Out = Path("gpubench-pairs"),
    on: launching.On = "",
    slurm: launching.Slurm = False,
    from_env: launching.FromEnv = False,
    rounds: Rounds = 5,
    tier: options.TierOption = options.TierName.QUICK,
    time_limit: launching.TimeLimit = 300.0,
) -> None:
    """Measure between nodes, in rounds of disjoint pairs, and find the node or the link that is slow.

    The exit status is 0 if none is slow, 1 if one is slow again when it is measured alone, and 4 if there are too few
    nodes or figures for a verdict."""
    from gpubench.judging.fleet import fleet_status
    from gpubench.tools.fleet import pairs as measuring
    from gpubench.tools.fleet.messages import NodeOrder
    from gpubench.tools.fleet.session import FleetRequest

    srun = launching.srun_options(ctx, on, slurm, from_env)
    order = NodeOrder(measuring.SUITES, (), tier.value, measuring.FILTERS, 1, time_limit)
    request = FleetRequest(order, out, tuple(sys.argv))
    with ExitStack() as stack:
        launch = stack.enter_context(launching.launched(on, slurm, request, srun))
        watch = stack.enter_context(launching.node_display())
        session = stack.enter_context(measuring.PairsSession(launch, request, watch))
        judgement = session.measure(rounds)
    show(judgement)
    raise typer.Exit(fleet_status(judgement))
