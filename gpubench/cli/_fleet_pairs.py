"""`gpubench fleet pairs`: measure between nodes, and find slow nodes and links."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _fleet_run as launching
from gpubench.cli import _options as options

if TYPE_CHECKING:
    from gpubench.judging.links import LinkJudgement
    from gpubench.tools.fleet.pairs import PairsJudgement

_MOST_ROWS = 40
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
    _show(judgement)
    raise typer.Exit(judgement.exit_status)


def _show(judgement: PairsJudgement) -> None:
    """Print for each case the slowest pairs and nodes, then the pairs that failed, the suspects, and the verdict."""
    from gpubench.base import units
    from gpubench.cli import _print

    for case, rates in judgement.rates.items():
        judged = judgement.cases[case]
        slowest = sorted(rates, key=lambda pair: rates[pair])[:_MOST_ROWS]
        rows = [
            (
                *(judgement.nodes[node] for node in pair),
                units.quantity(rates[pair], "B/s", 4),
                _slowdown_text(judged, pair),
            )
            for pair in slowest
        ]
        title = f"{case}: typical {units.quantity(judged.typical, 'B/s', 4)}"
        columns = ("node", "node", "rate", "slower than predicted")
        _print.out().print(_print.table(columns, rows, title, right=columns[2:]))
        nodes = [
            (judgement.nodes[node], f"{effect.slowdown:.1%}", f"{effect.detectable:.1%}")
            for node, effect in sorted(judged.nodes.items(), key=lambda item: -item[1].slowdown)[:_MOST_ROWS]
            if not judged.too_few
        ]
        if nodes:
            heads = ("node", "slower", "smallest detectable")
            _print.out().print(_print.table(heads, nodes, right=heads[1:]))
    for failure in judgement.failures:
        _print.say(f"not measured: {failure}", "yellow")
    for suspect in judgement.suspects:
        again = (
            "not measured alone" if suspect.alone is None else f"alone {suspect.alone:.1%} slower than a healthy pair"
        )
        state = "slow" if suspect.is_confirmed else "suspect"
        _print.say(f"{state}: {suspect.name} by {suspect.slowdown:.1%} in {suspect.case}; {again}", "red")
    if judgement.too_few:
        _print.say(f"no verdict: {judgement.too_few}", "yellow")
    elif not judgement.suspects:
        _print.say("no node and no link is slow", "green")


def _slowdown_text(judged: LinkJudgement, pair: tuple[int, int]) -> str:
    """Return how much slower a pair of nodes is than predicted, as `3.1%`; empty if too few pairs were measured."""
    return "" if judged.too_few else f"{judged.links[pair].slowdown:.1%}"
