"""Other tools' outputs as a run: which importer reads a file, and how several files are one run.

What nobody states is absent: such a run has no start, no tier, no counters and of its devices only what was printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpubench import __version__, plugins
from gpubench.base import units
from gpubench.base.errors import BadOutput, FileError, UsageError
from gpubench.model import SCHEMA, Device, Facts, Manifest, Result, Run, Settings, SuiteInfo
from gpubench.plugins.importer import Imported, Importer

_MOST_BYTES = 2**28  # of a file: a log of everything that a cluster printed fits
UNNAMED = "unnamed"  # a case whose output does not say what it is of


@dataclass(frozen=True, slots=True)
class Source:
    """A file and what an importer found in it."""

    path: Path
    tool: str
    found: Imported


def read(path: Path, tool: str | None = None) -> Source:
    """What a file says, read by the importer of that name, or else by the one that knows its form.

    FileError, one line, where it cannot be read, where no importer knows it, and where it is damaged.
    """
    text = _text(path)
    name = tool.replace("-", "_") if tool else _tool(path, text)
    importer: Importer = plugins.load("importers", name)
    try:
        if not importer.accepts(text):
            raise BadOutput(f"this is not an output of {tool}")
        return Source(path, name, _checked(importer.read(text)))
    except BadOutput as error:
        raise FileError(f"{path}: {name}: {error}") from error


def _checked(found: Imported) -> Imported:
    """What an importer found, all of it finite; raises BadOutput."""
    for result in found.results:
        for series in result.series:
            if not all(map(math.isfinite, series.values)):
                raise BadOutput(f"{result.case.id}: {series.label} is out of range")
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise FileError(f"{path}: larger than {units.round_size(_MOST_BYTES)}; cut the tool's output out of it")
    return data.decode(errors="replace")


def _tool(path: Path, text: str) -> str:
    known = plugins.names("importers")
    found = [name for name in known if plugins.load("importers", name).accepts(text)]
    if not found:
        raise FileError(f"{path}: no output of a tool that is known: {', '.join(known)}")
    if len(found) > 1:
        raise UsageError(f"{path}: could be of {' or '.join(found)}; say which with --from")
    return found[0]


def run(sources: Sequence[Source], argv: Sequence[str]) -> Run:
    """All files as one run: a case that comes again is its next replicate.

    FileError where the files name different devices by one id, or do not say of which of two cases they are.
    """
    _check_unnamed(sources)
    suites: dict[str, SuiteInfo] = {}
    devices: dict[str, Device] = {}
    versions: dict[str, str] = {}
    for source in sources:
        suite = source.found.suite
        suites[suite.name] = _joined_suite(suites.get(suite.name), suite)
        for device in source.found.devices:
            devices[device.id] = _joined_device(source.path, devices.get(device.id), device)
        versions |= source.found.versions
    manifest = Manifest(
        schema=SCHEMA,
        gpubench=__version__,
        facts=Facts(tuple(devices.values()), versions=tuple(versions.items())),
        settings=Settings(tuple(suites), tuple(devices), tier=""),
        suites=tuple(suites.values()),
        counters=(),
        argv=tuple(argv),
        started="",
        started_at=0.0,
    )
    return Run(manifest, tuple(_replicated([result for source in sources for result in source.found.results])))


def _check_unnamed(sources: Sequence[Source]) -> None:
    named = [source for source in sources if any(result.case.name == UNNAMED for result in source.found.results)]
    if len(named) > 1:
        raise FileError(
            f"{named[1].path}: neither it nor {named[0].path} says what it measured (older versions of {named[0].tool} "
            "do not); import them one by one"
        )


def _joined_suite(known: SuiteInfo | None, found: SuiteInfo) -> SuiteInfo:
    """Of several files of one tool: the views of all, each once, its cases joined."""
    views = {(view.kind, view.title): view for view in (known.views if known else ())}
    for view in found.views:
        other = views.get((view.kind, view.title), view)
        views[view.kind, view.title] = replace(view, cases=tuple(dict.fromkeys((*other.cases, *view.cases))))
    return replace(found, views=tuple(views.values()))


def _joined_device(path: Path, known: Device | None, found: Device) -> Device:
    """What both say of a device; raises FileError where they contradict each other."""
    if known is None:
        return found
    merged = {field.name: getattr(found, field.name) or getattr(known, field.name) for field in fields(found)}
    for field in fields(found):
        pair = {getattr(known, field.name), getattr(found, field.name)} - {"", 0, (), "device not stated"}
        if len(pair) > 1:
            raise FileError(f"{path}: {found.id} is another device than in the files before; import them one by one")
    if found.name == "device not stated":
        merged["name"] = known.name
    return Device(**merged)


def _replicated(results: Sequence[Result]) -> list[Result]:
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    found = []
    for result in results:
        key = (result.case.id, result.devices)
        counts[key] = counts.get(key, -1) + 1
        found.append(replace(result, replicate=counts[key]))
    return found
