"""Define the options that several commands share, and turn them into settings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from gpubench.base.errors import UsageError
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import model, plugins
    from gpubench.analysis.views import breakeven
    from gpubench.measuring import data_files, inventory, nodes
    from gpubench.measuring import plan as planning
    from gpubench.tools import history


TierName = Literal["smoke", "quick", "full"]


def suite_completions() -> list[str]:
    """Return the words with which a shell completes the name of a suite."""
    return [*plugins.names("suites"), "all", "headline"]


def case_completions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words with which a shell completes the id of a case: the suites, then names, and after a `[` the ids.

    Only the ids need a plan, and that imports one suite: all of them take a second."""
    suite = incomplete.partition("/")[0]
    if "/" not in incomplete or suite not in plugins.names("suites"):
        return [f"{name}/" for name in plugins.names("suites")]
    if "[" not in incomplete:
        return [f"{suite}/{name}" for name in planning.load_suite(suite).definitions]
    given = ctx.params
    tier: TierName = given.get("tier") or "quick"
    facts = inventory.facts()
    planned = planning.make(facts, settings(facts, [suite], given.get("device"), False, tier, None, None))
    return list(dict.fromkeys(job.case.id for job in planned.jobs))


Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE|PATH|all|headline",
        autocompletion=suite_completions,
        help="Suites: names, or paths of suite files or folders. Without any, all suites are selected. The word "
        "`headline` selects the representative cases of each suite.",
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="Device to measure: cuda:0, rocm:0, host, or all (every GPU, one after the other). Can be repeated. "
        "\\[default: the first GPU, or the host if there is none]",
    ),
]
WithHost = Annotated[bool, typer.Option("--with-host", help="Measure the host processor as well.")]
TierOption = Annotated[
    TierName,
    typer.Option(
        "--tier", help="How much to measure: smoke takes seconds, quick about two minutes, full several times as long."
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        autocompletion=case_completions,
        help="Select the cases whose id contains this text; * and ? are wildcards. Can be repeated.",
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help="Compress this file, or the files in this folder, instead of the built-in data, and read them in the "
        "suite storage. Can be repeated.",
    ),
]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        help="Estimate whether compression would pay over a link of this rate (25GbE, 400Gb/s, 12.5GB/s). "
        "Can be repeated.",
    ),
]
Replicates = Annotated[
    int,
    typer.Option(
        "--replicates",
        min=1,
        max=1000,
        help="How many times to measure everything, each time in new processes and in a new order.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the data and of the order of the cases.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output; messages go to standard error.")
]


def check_suites(suites: list[str] | None) -> None:
    """Raise UsageError for an unknown suite, and say which cannot be loaded; without `suites` all are meant."""
    planning.suite_names(suites or [])
    for message in planning.broken_suite_messages(suites or []):
        _print.warn(message)


def settings(
    facts: model.Facts,
    suites: list[str] | None,
    devices: list[str] | None,
    with_host: bool,
    tier: model.Tier,
    filters: list[str] | None,
    data: list[Path] | None,
    replicates: int = 1,
    seed: int = 0,
    links: list[str] | None = None,
    paranoid: bool = False,
) -> model.Settings:
    """Return the settings of a run from the command's options; None means that an option was not given.

    Raises UsageError, with the valid choices, for an invalid option or a file that cannot be used."""
    return model.Settings(
        suites=planning.suite_names(suites or []),
        devices=planning.device_ids(facts, devices or [], with_host),
        tier=tier,
        filters=tuple(filters or []),
        replicates=replicates,
        seed=seed,
        data=data_files.data_files(data or []),
        headline=planning.is_headline(suites or []),
        links=tuple(map(breakeven.named_link, dict.fromkeys(links or []))),
        nodes=nodes.group_size(),
        paranoid=paranoid,
    )


def run_file(out: Path | None, kind: str = "") -> Path:
    """Return the path of a new run file: `out`, or a name of time and `kind` in gpubench-runs, which is made."""
    if out is not None:
        return out
    folder = Path(history.FOLDER)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; name a place with --out") from error
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}{kind}.jsonl"


def new_folder(out: Path | None, kind: str) -> Path:
    """Make and return a new folder: `out`, or a name of time and `kind` in gpubench-runs."""
    folder = (out or Path(history.FOLDER) / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}{kind}").absolute()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; name a new folder with --out") from error
    return folder
