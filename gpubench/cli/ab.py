"""`gpubench ab`: measure two builds of different environments in turn, and compare them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli import _options as options
from gpubench.cli import _sharing as sharing
from gpubench.cli import _verdicts

_REPLICATES = 5

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
Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUITE…|all|headline]", help="Suites that both builds measure, as in `run`.", show_default=False
    ),
]
Replicates = Annotated[
    int, typer.Option("--replicates", min=1, max=1000, help="New processes per build; the builds alternate.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A new folder for the run files. \\[default: gpubench-runs/TIME-ab]"),
]


def ab(
    a: A,
    b: B,
    suites: Suites = None,
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
    replicates: Replicates = _REPLICATES,
    rounds: _verdicts.Rounds = None,
    device: options.Devices = None,
    tier: options.TierOption = options.TierName.QUICK,
    filter: options.Filters = None,  # noqa: A002 - the option's name
    out: Out = None,
) -> None:
    """Measure two builds in turn, each time in a new process, and say what is slower or faster in the second."""
    from gpubench import plugins
    from gpubench.cli import _print
    from gpubench.judging.rounds import ROUNDS
    from gpubench.tools import health
    from gpubench.tools.gating import gate as gating
    from gpubench.tools.gating.ab import Build, BuildPair

    request = gating.GateRequest(
        plugins.load("gates", "regression"),
        _verdicts.policy(policy, threshold, strict, False, False, allow_undecided),
        ROUNDS if rounds is None else rounds,
    )
    devices = [argument for text in device or [] for argument in ("--device", text)]
    arguments = (*(suites or []), "--tier", tier.value, *devices)
    builds = Build.parse("a", a), Build.parse("b", b)
    console = _print.err()
    tell = lambda text: console.print(_print.plain(text), soft_wrap=True)  # noqa: E731
    pair = BuildPair(builds, arguments, tuple(filter or []), _make_folder(out), tell)
    judged = gating.measure_and_judge_pair(request, pair, replicates)
    health.refuse_recorded(judged.files)
    status = judged.exit_status(request.policy)
    _verdicts.publish(judged, status, "gpubench ab", json, junit, markdown, no_redact, all_, wide)
    _print.say(sharing.for_terminal(f"run files: {pair.folder}"))
    raise typer.Exit(status)


def _make_folder(out: Path | None) -> Path:
    """Make a new folder for the run files of both builds, with its parents, and return its absolute path."""
    from gpubench.base.errors import UsageError
    from gpubench.tools import history

    folder = out or Path(history.FOLDER) / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ab"
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{folder} exists; name a new folder with --out") from error
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; name another folder with --out") from error
    return folder.absolute()
