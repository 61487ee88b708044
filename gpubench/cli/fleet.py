"""`gpubench fleet`: measure many machines at the same time, and find the GPU, the node or the link that is slow.

`run` and `pairs` start `fleet member` on each of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gpubench.cli import _fleet_judge
from gpubench.cli import _options as options

if TYPE_CHECKING:
    from gpubench.model.fleet import Fleet
    from gpubench.tools.fleet.collect import NodeView
    from gpubench.tools.fleet.launchers import FleetLaunch
    from gpubench.tools.fleet.session import FleetRequest

_SRUN = "gpubench.srun"  # the key of srun's options in the context of the command

Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUITE…|all|headline]",
        help="Suites to measure on every node. \\[default: headline, the representative cases of each suite]",
    ),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="A new folder for fleet.json and one run file per node.", metavar="DIR")
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ADDRESS",
        help="Measure the nodes of a Ray cluster: ray://HOST:PORT, or ray:local:N for a new one with N nodes on this "
        "machine.",
    ),
]
Slurm = Annotated[
    bool,
    typer.Option(
        "--slurm", help="Measure the nodes that srun starts. Put options of srun at the end: --slurm … -- --nodes=4."
    ),
]
FromEnv = Annotated[
    bool,
    typer.Option(
        "--from-env",
        help="Measure the nodes of a job that torchrun, mpirun or srun has started: each process of the job runs this "
        "command, which reads its rank from the environment.",
    ),
]
Replicates = Annotated[
    int,
    typer.Option(
        "--replicates",
        min=1,
        max=1000,
        help="How many times each node measures everything, each time in new processes and in a new order.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="The longest time that a node may take to answer."),
]
Stagger = Annotated[
    float,
    typer.Option(
        "--stagger",
        min=0.0,
        metavar="SECONDS",
        help="Start one node after the other with this delay, instead of all at the same time.",
    ),
]
RackMap = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="FILE", help="A file with the rack of each node, one line per node, as in: gpu07 rack2."
    ),
]


Confirm = Annotated[
    bool,
    typer.Option(
        "--confirm",
        help="Judge the nodes at the end, and measure the suspects again together with as many healthy nodes.",
    ),
]


class FleetRunCommand(TyperCommand):
    """A command whose arguments after `--` are options of srun."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before `--`, and store the arguments after it in `ctx.meta` for `srun_options`."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_SRUN] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def run(
    ctx: typer.Context,
    suites: Suites = None,
    out: Out = Path("gpubench-fleet"),
    on: On = "",
    slurm: Slurm = False,
    from_env: FromEnv = False,
    replicates: Replicates = 3,
    tier: options.TierOption = options.TierName.QUICK,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    time_limit: TimeLimit = 600.0,
    stagger: Stagger = 0.0,
    map: RackMap = None,  # noqa: A002 - the option's name
    confirm: Confirm = False,
) -> None:
    """Measure many machines at the same time: one run file per node, and fleet.json.

    The exit status is 0 if every node answered, 4 if some did not, 6 if no node has a device that is well."""
    import random

    from gpubench.cli._print import say
    from gpubench.judging.policy import built_in
    from gpubench.tools.fleet import judging
    from gpubench.tools.fleet.board import NodeOrder
    from gpubench.tools.fleet.collect import Patience, read_racks
    from gpubench.tools.fleet.session import FleetRequest, FleetSession

    srun = srun_options(ctx, on, slurm, from_env)
    suites = suites or ["headline"]
    options.check_suites(suites)
    order = NodeOrder(tuple(suites), (), tier.value, tuple(filter or ()), replicates, time_limit)
    racks = read_racks(map) if map else {}
    request = FleetRequest(order, out, tuple(sys.argv), racks, Patience(stagger_s=stagger))
    with ExitStack() as stack:
        launch = stack.enter_context(launched(on, slurm, request, srun))
        watch = stack.enter_context(node_display())
        session = stack.enter_context(FleetSession(launch, request, watch))
        fleet = session.measure()
        if confirm:
            again = judging.plan_second_measurement(judging.judge(judging.read(out), built_in()), random.SystemRandom())
            if again.roles:
                say(f"measuring again: {', '.join(f'{node} ({role})' for node, role in again.roles.items())}")
                fleet = session.measure_again(again.roles, again.cases)
    _print_outcomes(fleet, out)
    if confirm:
        _fleet_judge.show(judging.judge(judging.read(out), built_in()))
    raise typer.Exit(session.exit_status)


Rounds = Annotated[
    int,
    typer.Option(
        "--rounds", min=1, max=1000, help="How many other nodes each node is paired with. A verdict needs at least 3."
    ),
]
PairsOut = Annotated[
    Path, typer.Option("--out", "-o", help="A new folder for pairs.json and the run files.", metavar="DIR")
]


def pairs(
    ctx: typer.Context,
    out: PairsOut = Path("gpubench-pairs"),
    on: On = "",
    slurm: Slurm = False,
    from_env: FromEnv = False,
    rounds: Rounds = 5,
    tier: options.TierOption = options.TierName.QUICK,
    time_limit: TimeLimit = 300.0,
) -> None:
    """Measure between nodes, in rounds of disjoint pairs, and find the node or the link that is slow.

    The exit status is 0 if none is slow, 1 if one is slow again when it is measured alone, and 4 if there are too few
    nodes or figures for a verdict."""
    from gpubench.judging.fleet import fleet_status
    from gpubench.tools.fleet import pairs as measuring
    from gpubench.tools.fleet.board import NodeOrder
    from gpubench.tools.fleet.session import FleetRequest

    srun = srun_options(ctx, on, slurm, from_env)
    order = NodeOrder(measuring.SUITES, (), tier.value, measuring.FILTERS, 1, time_limit)
    request = FleetRequest(order, out, tuple(sys.argv))
    with ExitStack() as stack:
        launch = stack.enter_context(launched(on, slurm, request, srun))
        watch = stack.enter_context(node_display())
        session = stack.enter_context(measuring.PairsSession(launch, request, watch))
        judgement = session.measure(rounds)
    _fleet_judge.show(judgement)
    raise typer.Exit(fleet_status(judgement))


Board = Annotated[Path, typer.Argument(help="The folder through which the launcher and its nodes talk.")]
Rank = Annotated[int, typer.Argument(help="The rank of this node. \\[default: from the environment]")]
World = Annotated[int, typer.Argument(help="The number of nodes.")]


def member(board: Board, rank: Rank = -1, world: World = 1) -> None:
    """Work as one node of a fleet for the launcher that made this board.

    A negative `rank` means that rank and number of nodes are read from srun's environment variables."""
    from gpubench.tools.fleet.board import FolderBoard
    from gpubench.tools.fleet.launchers import SLURM, job_rank
    from gpubench.tools.fleet.member import serve

    if rank < 0:
        place = job_rank(os.environ, [SLURM])  # srun passes on variables of other launchers
        rank, world = place.rank, place.world
    serve(FolderBoard(board), rank, world)


def srun_options(ctx: typer.Context, on: str, slurm: bool, from_env: bool) -> tuple[str, ...]:
    """Return the options of srun that follow `--` on the command line, as `FleetRunCommand` stored them."""
    from gpubench.base.errors import UsageError

    srun: tuple[str, ...] = ctx.meta.get(_SRUN, ())
    if [bool(on), slurm, from_env].count(True) != 1:
        raise UsageError("name one launcher: --on ray://HOST:PORT, --on ray:local:N, --slurm or --from-env")
    if srun and not slurm:
        raise UsageError(f"{srun[0]}: only --slurm takes options of srun behind --")
    return srun


@contextmanager
def launched(on: str, slurm: bool, request: FleetRequest, srun: Sequence[str]) -> Iterator[FleetLaunch]:
    """Start nodes by Ray (`on`, an address) or srun (`slurm`), or join the nodes of a job, and yield their launch.

    With --from-env a process whose rank is not 0 works as a node here and raises typer.Exit at the end."""
    from gpubench.tools.fleet import launchers, member
    from gpubench.tools.fleet.session import new_folder

    launch: AbstractContextManager[FleetLaunch]
    if on:
        launch = launchers.ray_launch(on)
    elif slurm:
        launch = launchers.slurm_launch(request.folder, srun)
    else:
        place = launchers.job_rank(os.environ)
        if place.rank:
            member.serve(launchers.find_board(request.folder, place), place.rank, place.world)
            raise typer.Exit
        launch = launchers.environment_launch(request.folder, place)
    with new_folder(request.folder), launch as started:
        yield started


@contextmanager
def node_display() -> Iterator[Callable[[Sequence[NodeView]], None]]:
    """Yield a function that shows the nodes' states on standard error: lines, and on a terminal a table."""
    from gpubench.cli import _print

    console, printed = _print.err(), dict[str, str]()

    def print_changes(views: Sequence[NodeView]) -> None:
        for view in views:
            status = _status(view)
            if status and printed.get(view.name) != status:
                printed[view.name] = status
                style = "" if view.outcome is None or view.outcome.status == "answered" else "red"
                console.print(_print.plain(f"{view.name}: {status}", style), soft_wrap=True)

    if not console.is_terminal or console.is_dumb_terminal:
        yield print_changes
        return
    from rich.live import Live

    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def watch(views: Sequence[NodeView]) -> None:
            measuring = [(view.name, view.phase) for view in views if view.outcome is None]
            room = max(console.height - 4, 1)
            more = [(f"… and {len(measuring) - room} more", "")] if len(measuring) > room else []
            live.update(_print.table(("node", "phase"), [*measuring[:room], *more]))
            print_changes([view for view in views if view.outcome])

        yield watch


def _status(view: NodeView) -> str:
    """Return the status text of a node: empty before it measures, `measures` while it does, then the outcome."""
    from gpubench.base import units

    if view.outcome is None:
        return "measures" if view.is_measuring else ""
    reason = f": {view.outcome.reason}" if view.outcome.reason else ""
    return f"{view.outcome.status} after {units.duration(view.outcome.seconds)}{reason}"


def _print_outcomes(fleet: Fleet, folder: Path) -> None:
    from gpubench.base import units
    from gpubench.cli import _print

    has_racks = any(node.rack for node in fleet.nodes)
    rows = [
        (node.name, *([node.rack] if has_racks else []), node.status, units.duration(node.seconds), node.file)
        for node in fleet.nodes
    ]
    columns = ("node", *(["rack"] if has_racks else []), "status", "time", "file")
    _print.out().print(_print.table(columns, rows, right=("time",)))
    for node in fleet.nodes:
        if node.status != "answered":
            _print.say(f"{node.name} {node.status}: {node.reason}", "red")
    answered = sum(node.status == "answered" for node in fleet.nodes)
    _print.say(
        f"{answered} of {len(fleet.nodes)} nodes answered in {units.duration(fleet.seconds)}, up to {fleet.at_once} at "
        f"once; to judge them: gpubench fleet judge {folder}"
    )


app = typer.Typer(help="Measure many machines at the same time, and find the GPU, the node or the link that is slow.")
app.command("run", cls=FleetRunCommand)(run)
app.command("judge")(_fleet_judge.judge)
app.command("pairs", cls=FleetRunCommand)(pairs)
app.command("watch")(_fleet_judge.watch)
app.command("member", hidden=True)(member)
