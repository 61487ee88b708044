"""`gpubench fleet`: measure many machines at the same time, and find the GPU, the node or the link that is slow."""

import typer

from gpubench.cli import _fleet_judge, _fleet_pairs, _fleet_run, _fleet_watch

app = typer.Typer(
    help="Measure many machines at the same time, and find the GPU, the node or the link that is slow.",
)
app.command("run", cls=_fleet_run.FleetRunCommand)(_fleet_run.run)
app.command("judge")(_fleet_judge.judge)
app.command("pairs", cls=_fleet_run.FleetRunCommand)(_fleet_pairs.pairs)
app.command("watch")(_fleet_watch.watch)
app.command("member", hidden=True)(_fleet_run.member)
