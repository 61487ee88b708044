"""Other tools' outputs as a run: which importer reads a file, and how several files are one run.

What nobody states is absent: such a run has no start, no tier, no counters and of its devices only what was printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpubench import __version__, plugins
from gpubench.base import units
from gpubench.base.errors import BadOutput, FileError, UsageError
from gpubench.model import SCHEMA, Device, Facts, Manifest, Result, Run, Settings, SuiteInfo
from gpubench.model.record import Malformed, decode, encode
from gpubench.plugins.importer import Imported, Importer

# Of a file. The largest output that is known has 600 lines; a log of hundreds of runs fits.
_MOST_BYTES = 2**25
_MOST_LINES = 2**19
_MOST_LETTERS = 200  # of a case in a message
_UNSTATED = "device not stated"
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
    """Return what an importer found, where all of it fits in a run file; raises BadOutput."""
    _check(_manifest([found], ()), "its head")
    for result in found.results:
        _check(result, result.case.id[:_MOST_LETTERS])
    return found


def _check(record: Manifest | Result, words: str) -> None:
    try:
        decode(encode(record))
    except Malformed as error:
        raise BadOutput(f"{words}: {error}") from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise FileError(f"{path}: larger than {units.round_size(_MOST_BYTES)}; cut the tool's output out of it")
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if text.count("\n") > _MOST_LINES:
        raise FileError(f"{path}: more than {_MOST_LINES} lines; cut the tool's output out of it")
    return text


def _tool(path: Path, text: str) -> str:
    known = plugins.names("importers")
    found = [name for name in known if plugins.load("importers", name).accepts(text)]
    if not found:
        raise FileError(f"{path}: no output of a tool that is known: {', '.join(known)}")
    if len(found) > 1:
        raise UsageError(f"{path}: could be of {' or '.join(found)}; say which with --from")
    return found[0]


def lacks_gpu(source: Source) -> bool:
    """Return whether a figure of the source has a peak to be compared with, and the GPU of that peak is not stated."""
    unstated = {device.id for device in source.found.devices if device.name == _UNSTATED}
    return any(
        result.devices[0] in unstated and any(series.limit for series in result.series)
        for result in source.found.results
    )


def on_gpu(source: Source, name: str) -> Source:
    """Return a source whose devices without a stated name have this one; raises UsageError if it states all names."""
    devices = source.found.devices
    if not any(device.name == _UNSTATED for device in devices):
        raise UsageError(f"--gpu: {source.path} states its devices: {', '.join(device.name for device in devices)}")
    named = tuple(replace(device, name=name) if device.name == _UNSTATED else device for device in devices)
    return replace(source, found=replace(source.found, devices=named))


def run(sources: Sequence[Source], argv: Sequence[str]) -> Run:
    """All files as one run: a case that comes again is its next replicate.

    FileError where the files name different devices by one id, or do not say of which of two cases they are.
    """
    _check_unnamed(sources)
    _check_devices(sources)
    manifest = _manifest([source.found for source in sources], argv)
    try:
        _check(manifest, "all files together")
    except BadOutput as error:
        raise FileError(f"{error}; import fewer files at once") from error
    return Run(manifest, tuple(_replicated([result for source in sources for result in source.found.results])))


def _manifest(found: Sequence[Imported], argv: Sequence[str]) -> Manifest:
    suites: dict[str, SuiteInfo] = {}
    devices: dict[str, Device] = {}
    versions: dict[str, str] = {}
    for each in found:
        suites[each.suite.name] = _joined_suite(suites.get(each.suite.name), each.suite)
        for device in each.devices:
            devices[device.id] = _joined_device(devices.get(device.id), device)
        versions |= each.versions
    return Manifest(
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


def _check_devices(sources: Sequence[Source]) -> None:
    """Raise FileError where two files contradict each other about a device."""
    known: dict[str, Device] = {}
    for source in sources:
        for device in source.found.devices:
            if device.id in known and not _agree(known[device.id], device):
                words = "another device than in the files before; import them one by one"
                raise FileError(f"{source.path}: {device.id} is {words}")
            known[device.id] = _joined_device(known.get(device.id), device)


def _agree(known: Device, found: Device) -> bool:
    pairs = ({getattr(known, field.name), getattr(found, field.name)} for field in fields(found))
    return all(len(pair - {"", 0, (), _UNSTATED}) < 2 for pair in pairs)


def _joined_device(known: Device | None, found: Device) -> Device:
    """Return what both say of a device."""
    if known is None:
        return found
    merged = {field.name: getattr(found, field.name) or getattr(known, field.name) for field in fields(found)}
    if found.name == _UNSTATED:
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
