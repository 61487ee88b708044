"""`gpubench import`: convert the output of other tools to a run file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.cli import _options as options
from gpubench.cli import _print, explain
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.analysis import summary as summaries
    from gpubench.tools import foreign

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Outputs of other tools. A case that occurs again becomes its next replicate."),
]
Tool = Annotated[
    str | None, typer.Option("--from", help="The tool that wrote the files. \\[default: recognised by their content]")
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="The name of the measured GPU, such as 'NVIDIA H200', if the output does not state it.",
    ),
]
Tools = Annotated[bool, typer.Option("--tools", help="List the known tools and what is read from each.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="The run file to write (.jsonl or .jsonl.gz). \\[default: gpubench-runs/TIME-import.jsonl]"
    ),
]


def import_(
    files: Files = None,
    tool: Tool = None,
    gpu: Gpu = None,
    out: Out = None,
    force: sharing.Force = False,
    tools: Tools = False,
) -> None:
    """Convert the output of other benchmarks to a run file, to show, compare and report it like any other."""
    from gpubench.model.store import encode_run

    importers = plugins.names("importers")
    if tools:
        rows = [(name.replace("_", "-"), plugins.load("importers", name).summary) for name in importers]
        _print.out().print(_print.table(("tool", "what is read"), rows))
        return
    if not files:
        raise UsageError("name the files to import; --tools lists the tools whose output is known")
    if tool and (name := tool.replace("-", "_")) not in importers:
        raise plugins.unknown("importer", name, importers)
    if out:
        sharing.check_target(out, force, *files)
    sources = [foreign.read(path, tool) for path in files]
    if gpu:
        sources = [foreign.with_gpu_name(source, gpu) for source in sources]
    run = foreign.run(sources, sys.argv)
    path = options.run_file(out, "-import")
    sharing.write(path, encode_run(run, packed=path.suffix == ".gz"))
    _print_sources(sources, path)
    if parts := explain.operator_parts(summaries.Summary(run)):
        _print.out().print(*parts, sep="\n")
        _print.say(f"for the roofs that this machine reaches: gpubench explain {path} --roofs RUN")


def _print_sources(sources: list[foreign.ImportedFile], path: Path) -> None:
    """Print the number of results of each source, what was left out, and the run file `path`, on standard error."""
    for source in sources:
        count = len(source.content.results)
        _print.say(f"{source.path}: {source.tool}, {units.count(count, 'result')}")
        if omitted := source.content.left_out:
            more = f" and {len(omitted) - 3} more" if len(omitted) > 3 else ""
            _print.warn(f"left out, since their unit is not stated anywhere: {', '.join(omitted[:3])}{more}")
        if foreign.gpu_is_unstated(source):
            _print.warn("the GPU is not stated: name it with --gpu to see the share of its peak")
    _print.say(f"run file: {path}")
