"""Turn the outputs of other tools into a run: choose the importer for each file, and join several files.

Facts that the output does not state are missing: such a run has no tier and no counters, and its devices have only the
properties that the tool printed. Its start is the time at which its oldest file was last written."""

import csv
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from gpubench import __version__, plugins
from gpubench.base import units
from gpubench.base.errors import BadOutput, FileError, UsageError
from gpubench.base.files import open_to_read
from gpubench.model import SCHEMA, Device, Facts, Manifest, Result, Run, Settings, SuiteInfo
from gpubench.model.disk import as_file_errors
from gpubench.model.record import Malformed, decode, encode
from gpubench.plugins.importer import Imported, Importer, StreamImporter

# The limits of a file. The largest known output has 600 lines; a log of hundreds of runs fits.
_MOST_BYTES = 2**25
_MOST_LINES = 2**19
_CHUNK = 2**20  # characters of a file that is read in pieces
_MOST_CHARACTERS = 200  # characters of a case id in a message
_UNSTATED = "device not stated"
UNNAMED = "unnamed"  # a case whose output does not say what it measured


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """A file of another tool: its path, the name of the importer that read it, and the content that it read.

    `written_at` is when the file was last written, in seconds since 1970."""

    path: Path
    tool: str
    content: Imported
    written_at: float = 0.0


def read(path: Path, tool: str | None = None) -> ImportedFile:
    """Read a file with the importer `tool`, or if that is None, with the only importer that recognises the file.

    Raises FileError if the file cannot be read, no importer recognises it, or it is damaged, and UsageError if
    several importers recognise it or `tool` is unknown."""
    if stream := _streamed(path, tool):
        return stream
    text = _read_text(path)
    name = tool.replace("-", "_") if tool else _recognised_tool(path, text)
    importer: Importer = plugins.load("importers", name)
    try:
        if not importer.accepts(text):
            raise BadOutput(f"this is not an output of {tool}")
        return ImportedFile(path, name, _check_storable(importer.read(text)), path.stat().st_mtime)
    except (BadOutput, csv.Error) as error:
        raise FileError(f"{path}: {name}: {error}") from error


def _streamed(path: Path, tool: str | None) -> ImportedFile | None:
    """Read a file in pieces with an importer that does so; None if no such importer accepts its begin."""
    with as_file_errors(path), os.fdopen(open_to_read(path), "rb") as file:
        if not file.seekable():
            return None
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        binary = gzip.GzipFile(fileobj=file) if is_packed else file
        text = io.TextIOWrapper(cast(IO[bytes], binary), encoding="utf-8", errors="replace")
        try:
            begin = text.read(_CHUNK)
            for name in [tool.replace("-", "_")] if tool else plugins.names("importers"):
                importer = plugins.load("importers", name)
                if isinstance(importer, StreamImporter) and importer.accepts(begin):
                    chunks = itertools.chain([begin], iter(lambda: text.read(_CHUNK), ""))
                    imported = _check_storable(importer.read_chunks(chunks))
                    return ImportedFile(path, name, imported, path.stat().st_mtime)
        except BadOutput as error:
            raise FileError(f"{path}: {name}: {error}") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path}: the compressed file is damaged: {error}") from error
    return None


def _check_storable(imported: Imported) -> Imported:
    """Return the content that an importer read, unchanged. Raises BadOutput if a run file cannot hold it."""
    _check_record(_make_manifest([imported], ()), "its head")
    for result in imported.results:
        _check_record(result, result.case.id[:_MOST_CHARACTERS])
    return imported


def _check_record(record: Manifest | Result, part: str) -> None:
    """Raise BadOutput if the store would refuse the record; `part` names it in the message."""
    try:
        decode(encode(record))
    except Malformed as error:
        raise BadOutput(f"{part}: {error}") from error


def _read_text(path: Path) -> str:
    """Return the text of a file with its line ends as newlines; bytes that are no UTF-8 are replaced."""
    with as_file_errors(path), os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise FileError(f"{path}: larger than {units.round_size(_MOST_BYTES)}; cut the tool's output out of it")
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if text.count("\n") > _MOST_LINES:
        raise FileError(f"{path}: more than {_MOST_LINES} lines; cut the tool's output out of it")
    return text


def _recognised_tool(path: Path, text: str) -> str:
    """Return the name of the only importer that accepts a text; `path` is the file in the messages."""
    tools = plugins.names("importers")
    importers = {name: plugins.load("importers", name) for name in tools}
    accepting = [
        name for name, importer in importers.items() if isinstance(importer, Importer) and importer.accepts(text)
    ]
    if not accepting:
        raise FileError(f"{path}: no output of a known tool: {', '.join(tools)}")
    if len(accepting) > 1:
        raise UsageError(f"{path}: could be an output of {' or '.join(accepting)}; choose one with --from")
    return accepting[0]


def gpu_is_unstated(source: ImportedFile) -> bool:
    """Return whether the user should name the GPU: a figure has a peak to compare with, but no GPU is stated."""
    unstated = {device.id for device in source.content.devices if device.name == _UNSTATED}
    return any(
        unstated & set(result.devices) and any(series.limit for series in result.series)
        for result in source.content.results
    )


def with_gpu_name(source: ImportedFile, name: str) -> ImportedFile:
    """Return the imported file with this GPU name for each device without a name."""
    devices = source.content.devices
    if not any(device.name == _UNSTATED for device in devices):
        raise UsageError(f"--gpu: {source.path} states its devices: {', '.join(device.name for device in devices)}")
    named = tuple(replace(device, name=name) if device.name == _UNSTATED else device for device in devices)
    return replace(source, content=replace(source.content, devices=named))


def run(sources: Sequence[ImportedFile], argv: Sequence[str]) -> Run:
    """Return the imported files as one run; a case that occurs again on the same devices is its next replicate."""
    _check_at_most_one_unnamed(sources)
    _check_devices(sources)
    manifest = _make_manifest([source.content for source in sources], argv)
    written_at = min(source.written_at for source in sources)
    manifest = replace(manifest, started=datetime.fromtimestamp(written_at, UTC).isoformat(timespec="seconds"))
    try:
        _check_record(manifest, "all files together")
    except BadOutput as error:
        raise FileError(f"{error}; import fewer files at once") from error
    return Run(manifest, tuple(_number_replicates([result for source in sources for result in source.content.results])))


def _make_manifest(outputs: Sequence[Imported], argv: Sequence[str]) -> Manifest:
    """Return the manifest of a run that consists of several outputs, with the suites, devices and versions of all."""
    suites: dict[str, SuiteInfo] = {}
    devices: dict[str, Device] = {}
    versions: dict[str, str] = {}
    for output in outputs:
        suites[output.suite.name] = _merge_suites(suites.get(output.suite.name), output.suite)
        for device in output.devices:
            devices[device.id] = _merge_devices(devices.get(device.id), device)
        versions |= output.versions
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


def _check_at_most_one_unnamed(sources: Sequence[ImportedFile]) -> None:
    """Raise FileError if two files do not say what they measured: their cases would be mistaken for replicates."""
    named = [source for source in sources if any(result.case.name == UNNAMED for result in source.content.results)]
    if len(named) > 1:
        raise FileError(
            f"{named[1].path}: neither this file nor {named[0].path} names its measurement "
            f"(older versions of {named[0].tool} do not); import them one by one"
        )


def _merge_suites(joined: SuiteInfo | None, added: SuiteInfo) -> SuiteInfo:
    views = {(view.kind, view.title): view for view in (joined.views if joined else ())}
    for view in added.views:
        same_view = views.get((view.kind, view.title), view)
        views[view.kind, view.title] = replace(view, cases=tuple(dict.fromkeys((*same_view.cases, *view.cases))))
    return replace(added, views=tuple(views.values()))


def _check_devices(sources: Sequence[ImportedFile]) -> None:
    """Raise FileError if two files state different properties of the device with one id."""
    devices: dict[str, Device] = {}
    for source in sources:
        for device in source.content.devices:
            if device.id in devices and not _are_compatible(devices[device.id], device):
                reason = "another device than in the files before; import them one by one"
                raise FileError(f"{source.path}: {device.id} is {reason}")
            devices[device.id] = _merge_devices(devices.get(device.id), device)


def _are_compatible(first: Device, second: Device) -> bool:
    pairs = ({getattr(first, field.name), getattr(second, field.name)} for field in fields(second))
    return all(len(pair - {"", 0, (), _UNSTATED}) < 2 for pair in pairs)


def _merge_devices(joined: Device | None, added: Device) -> Device:
    """Return a device with the properties that either description states; `added` counts where both state one."""
    if joined is None:
        return added
    merged = {field.name: getattr(added, field.name) or getattr(joined, field.name) for field in fields(added)}
    if added.name == _UNSTATED:
        merged["name"] = joined.name
    return Device(**merged)


def _number_replicates(results: Sequence[Result]) -> list[Result]:
    """Return the results; results of one case on the same devices are numbered from 0 as replicates."""
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    replicated = []
    for result in results:
        key = (result.case.id, result.devices)
        counts[key] = counts.get(key, -1) + 1
        replicated.append(replace(result, replicate=counts[key]))
    return replicated
