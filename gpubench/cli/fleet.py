"""`gpubench fleet`: measure many machines at the same time, and find the GPU, the node or the link that is slow.

`run` and `pairs` start `fleet member` on each of them."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from typer.core import TyperCommand

from gpubench.base import units
from gpubench.base.clean import tidy
from gpubench.base.errors import UsageError
from gpubench.cli import _findings, _print, _verdicts, history
from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli._findings import Part
from gpubench.cli._late import late
from gpubench.cli._layout import NamedRow, named_rows

with late():
    from gpubench.judging import fleet as fleets
    from gpubench.judging import fleet_text
    from gpubench.judging import policy as policies
    from gpubench.tools.fleet import board as boards
    from gpubench.tools.fleet import judging, launchers, session
    from gpubench.tools.fleet import pairs as pairing

_SRUN = "gpubench.srun"  # the key of srun's options in the context of the command
_MOST_ROWS = 40  # the most suspects in the terminal; a report lists them all
_MOST_LINES, _MOST_MEDIANS = 20, 15  # the most notes, and the most cases whose medians are shown
_MOST_WATCHED, _MOST_TRENDS = 60, 2
_ENDS = {0: "green", 1: "red", 3: "red", 4: "yellow", 6: "red"}

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a fleet, or any folder of run files.", show_default=False)
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", "-b", help="The folder of an earlier fleet, or a saved baseline: compare each GPU with itself."
    ),
]
Floor = Annotated[bool, typer.Option("--floor", help="Compare each GPU with the floors of its model (docs/gate.md).")]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with status 4 if a node is missing, settings differ, or a component is suspect or too fast.",
    ),
]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", help="Write this report; its suffix selects the format: .html, .md, .json or .xml (JUnit)."
    ),
]


def judge(
    folder: Folder,
    baseline: Baseline = None,
    floor: Floor = False,
    threshold: _verdicts.Threshold = None,
    policy: _verdicts.PolicyFile = None,
    strict: Strict = False,
    out: Reports = None,
    force: sharing.Force = False,
    no_redact: sharing.NoRedact = False,
    json: options.Json = False,
) -> None:
    """Find the slow GPU, node or link in the run files of a fleet, and say how sure that is.

    The exit status is 0 if nothing is slow, 1 if something slow is confirmed, 3 if a case failed on one component and
    not on the others, 4 if the fleet cannot be judged, and 6 if a device is sick."""
    rules = _verdicts.policy(policy, threshold, strict, False, False, False)
    judgement = judging.judge(judging.read(folder), rules, judging.read_baseline(baseline) if baseline else None, floor)
    publish(judgement, out or [], force, no_redact, json)
    raise typer.Exit(fleets.fleet_status(judgement, rules.strict))


def publish(judged: fleets.FleetJudgement, out: list[Path], force: bool, no_redact: bool, json: bool) -> None:
    """Write a report to each path in `out`, then print the answer or, with `json`, the document."""
    printed = tidy(judged)
    if json or out or sharing.is_ci():
        shared = sharing.shareable(printed, no_redact)
        for path in out:
            sharing.check_target(path, force)
            sharing.write(path, judging.rendered(path, shared))
        if json:
            sys.stdout.write(judging.rendered(Path("fleet.json"), shared))
            return
        printed = shared if sharing.is_ci() else printed
    show(printed)


def show(judged: fleets.FleetJudgement) -> None:
    """Print the answer, the suspects and the smallest detectable slowdown on standard output."""
    end = fleets.fleet_status(judged) or (4 if judged.of("suspect") else 0)
    answer = fleet_text.fleet_answer(judged)
    lines = [(answer, f"bold {_ENDS[end]}"), (fleet_text.devices_text(judged), "")]
    odd = (*fleet_text.setting_sentences(judged), *fleet_text.fast_sentences(judged))
    lines += [(f"- {line}", "yellow") for line in odd]
    if detectable := fleet_text.detectable_text(judged):
        lines.append((f"smallest detectable slowdown: {detectable}", ""))
    notes = [note for note in judged.notes if note not in answer]  # without a verdict, the answer contains the first
    sentences = [*map(fleet_text.failure_text, judged.failures), *fleet_text.population_sentences(judged), *notes]
    lines += [(f"- {line}", "") for line in sentences[:_MOST_LINES]]
    if (more := len(sentences) - _MOST_LINES) > 0:
        lines.append((f"not listed: {more} more lines; --json has them all", ""))
    if missing_nodes := fleet_text.missing_node_lines(judged):
        number = f"{len(judged.missing_nodes)} of {len(judged.fleet.nodes)}"
        lines.append((f"{number} nodes did not answer", "yellow"))
        lines += [(f"- {line}", "yellow") for line in missing_nodes]
    steps = [_print.plain(f"next: {line}") for line in fleet_text.next_steps_text(judged)]
    for part in (*(_print.plain(*line) for line in lines), *_suspects(judged), *_medians(judged), *steps):
        _print.out().print(part, soft_wrap=not hasattr(part, "columns"))


def _suspects(judged: fleets.FleetJudgement) -> Iterator[Part]:
    if not judged.suspects:
        return
    rows = []
    for suspect in judged.suspects[:_MOST_ROWS]:
        worst, count = suspect.findings[0], str(len(suspect.findings))
        sizes = units.percent(worst.slowdown), units.percent(worst.detectable)
        text = f"{suspect.name}, {worst.case or worst.family}: {fleet_text.causes_text(suspect)}"
        rows.append(NamedRow(suspect.unit, text, (*sizes, count, fleet_text.STATES[suspect.state])))
    heads = ("kind", "component, slowest case, cause", "slowdown", "detectable", "cases", "state")
    yield from named_rows(heads, rows, shutil.get_terminal_size().columns)
    if rest := len(judged.suspects) - len(rows):
        yield _print.plain(f"not listed: {rest} more suspects; a report (-o fleet.html) has them all", "dim")


def _medians(judged: fleets.FleetJudgement) -> Iterator[Part]:
    for table in fleet_text.medians_tables(judged):
        yield _print.plain(table.title)
        rows = [NamedRow("", case, tuple(cells)) for case, *cells in table.rows[:_MOST_MEDIANS]]
        yield from named_rows(("", *table.heads), rows, shutil.get_terminal_size().columns)
        if (more := len(table.rows) - _MOST_MEDIANS) > 0:
            yield _print.plain(f"not listed: {more} cases with smaller differences", "dim")


Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR", help="Folders of fleets, measured on different days.", show_default=False),
]


def watch(folders: Folders, json: options.Json = False, no_redact: sharing.NoRedact = False) -> None:
    """Follow each GPU, host and link through several measurements of a fleet, by its UUID.

    Lists the components that were slow, that recovered, or whose figures became worse by the rules of `gpubench
    history`. The exit status is 1 if a component is slow in the newest fleet and was before."""
    measured = judging.read_all(folders)
    histories = judging.watch(measured)
    if json:
        _print.document([component.document for component in sharing.shareable(tuple(histories), no_redact)])
    else:
        _show_histories(sharing.shareable(tuple(histories), no_redact) if sharing.is_ci() else histories, len(measured))
    raise typer.Exit(1 if any(component.is_slow_again for component in histories) else 0)


def _show_histories(histories: Sequence[judging.ComponentHistory], count: int) -> None:
    measurements = units.count(count, "measurement")
    if not histories:
        _print.echo(f"{measurements}: no component was slow, and none became slower")
        return
    _print.echo(f"{measurements}: {units.count(len(histories), 'component')} with a slow or a worse figure")
    out, listed = _print.out(), histories[:_MOST_WATCHED]
    for component in listed:
        counts = f"slow in {component.suspected} of {len(component.states)}, recovered {component.recovered} times"
        counts += f", transient in {component.transient}" if component.transient else ""
        style = "bold red" if component.is_slow_again else ""
        out.print(_print.plain(f"{component.place.text}: {counts}", style), soft_wrap=True)
    if trends := [trend for component in listed for trend in component.trends[:_MOST_TRENDS]]:
        _findings.show(history.trend_rows(trends, True, out.width))
    if len(histories) > _MOST_WATCHED:
        _print.echo(f"not listed: {len(histories) - _MOST_WATCHED} more; --json has them all")


Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE|all|headline",
        autocompletion=options.suite_completions,
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
    tier: options.TierOption = "quick",
    filter: options.Filters = None,  # noqa: A002 - the option's name
    time_limit: TimeLimit = 600.0,
    stagger: Stagger = 0.0,
    map: RackMap = None,  # noqa: A002 - the option's name
    confirm: Confirm = False,
) -> None:
    """Measure many machines at the same time: one run file per node, and fleet.json.

    The exit status is 0 if every node answered, 4 if some did not, 6 if no node has a device that is well."""
    srun = srun_options(ctx, on, slurm, from_env)
    suites = suites or ["headline"]
    options.check_suites(suites)
    order = boards.NodeOrder(tuple(suites), (), tier, tuple(filter or ()), replicates, time_limit)
    racks = session.read_racks(map) if map else {}
    request = session.FleetRequest(order, out, tuple(sys.argv), racks, session.Patience(stagger_s=stagger))
    with ExitStack() as stack:
        launch = stack.enter_context(launched(on, slurm, request, srun))
        watch = stack.enter_context(node_display())
        measuring = stack.enter_context(session.FleetSession(launch, request, watch))
        measuring.measure()
        if confirm:
            judgement = judging.judge(judging.read(out), policies.built_in())
            again = judging.plan_second_measurement(judgement, random.SystemRandom())
            if again.roles:
                _print.say(f"measuring again: {', '.join(f'{node} ({role})' for node, role in again.roles.items())}")
                measuring.measure_again(again.roles, again.cases)
    _print_outcomes(measuring, out)
    if confirm:
        show(judging.judge(judging.read(out), policies.built_in()))
    raise typer.Exit(measuring.exit_status)


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
    tier: options.TierOption = "quick",
    time_limit: TimeLimit = 300.0,
) -> None:
    """Measure between nodes, in rounds of disjoint pairs, and find the node or the link that is slow.

    The exit status is 0 if none is slow, 1 if one is slow again when it is measured alone, and 4 if there are too few
    nodes or figures for a verdict."""
    srun = srun_options(ctx, on, slurm, from_env)
    order = boards.NodeOrder(pairing.SUITES, (), tier, pairing.FILTERS, 1, time_limit)
    request = session.FleetRequest(order, out, tuple(sys.argv))
    with ExitStack() as stack:
        launch = stack.enter_context(launched(on, slurm, request, srun))
        watch = stack.enter_context(node_display())
        judgement = stack.enter_context(pairing.PairsSession(launch, request, watch)).measure(rounds)
    show(judgement)
    raise typer.Exit(fleets.fleet_status(judgement))


Board = Annotated[Path, typer.Argument(help="The folder through which the launcher and its nodes talk.")]
Rank = Annotated[int, typer.Argument(help="The rank of this node. \\[default: from the environment]")]
World = Annotated[int, typer.Argument(help="The number of nodes.")]


def member(board: Board, rank: Rank = -1, world: World = 1) -> None:
    """Work as one node of a fleet for the launcher that made this board.

    A negative `rank` means that rank and number of nodes are read from srun's environment variables."""
    if rank < 0:
        place = launchers.job_rank(os.environ, [launchers.SLURM])  # srun passes on variables of other launchers
        rank, world = place.rank, place.world
    launchers.serve(boards.FolderBoard(board), rank, world)


def srun_options(ctx: typer.Context, on: str, slurm: bool, from_env: bool) -> tuple[str, ...]:
    """Return the options of srun that follow `--` on the command line, as `FleetRunCommand` stored them."""
    srun: tuple[str, ...] = ctx.meta.get(_SRUN, ())
    if [bool(on), slurm, from_env].count(True) != 1:
        raise UsageError("name one launcher: --on ray://HOST:PORT, --on ray:local:N, --slurm or --from-env")
    if srun and not slurm:
        raise UsageError(f"{srun[0]}: only --slurm takes options of srun behind --")
    return srun


@contextmanager
def launched(
    on: str, slurm: bool, request: session.FleetRequest, srun: Sequence[str]
) -> Iterator[launchers.FleetLaunch]:
    """Start nodes by Ray or srun, or join a job, and yield the launch; other ranks of a job work and exit here."""
    launch: AbstractContextManager[launchers.FleetLaunch]
    if on:
        launch = launchers.ray_launch(on)
    elif slurm:
        launch = launchers.slurm_launch(request.folder, srun)
    else:
        place = launchers.job_rank(os.environ)
        if place.rank:
            launchers.serve(launchers.find_board(request.folder, place), place.rank, place.world)
            raise typer.Exit
        launch = launchers.environment_launch(request.folder, place)
    with session.new_folder(request.folder), launch as started:
        yield started


@contextmanager
def node_display() -> Iterator[session.WatchNodes]:
    """Yield a function that shows the nodes' states on standard error: lines, and on a terminal a table."""
    console, printed = _print.err(), dict[str, str]()

    def print_changes(views: Sequence[session.NodeView]) -> None:
        for view in views:
            status, style = "measures" if view.is_measuring else "", ""
            if view.outcome:
                reason = f": {view.outcome.reason}" if view.outcome.reason else ""
                status = f"{view.outcome.status} after {units.duration(view.outcome.seconds)}{reason}"
                style = "" if view.outcome.status == "answered" else "red"
            if status and printed.get(view.name) != status:
                printed[view.name] = status
                console.print(_print.plain(f"{view.name}: {status}", style), soft_wrap=True)

    if not console.is_terminal or console.is_dumb_terminal:
        yield print_changes
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def watch(views: Sequence[session.NodeView]) -> None:
            measuring = [(view.name, view.phase) for view in views if view.outcome is None]
            room = max(console.height - 4, 1)
            more = [(f"… and {len(measuring) - room} more", "")] if len(measuring) > room else []
            live.update(_print.table(("node", "phase"), [*measuring[:room], *more]))
            print_changes([view for view in views if view.outcome])

        yield watch


def _print_outcomes(measured: session.FleetSession, folder: Path) -> None:
    fleet = measured.fleet
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
app.command("judge")(judge)
app.command("pairs", cls=FleetRunCommand)(pairs)
app.command("watch")(watch)
app.command("member", hidden=True)(member)
