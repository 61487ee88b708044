"""Build a static site of many runs: an index, a page per run, its comparison with the run before it, and trends.

A run's page is made once. Its name is a hash of the run file's content, and a small file beside it contains what the
index and the trends need, so that an unchanged run is not read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pydantic

from gpubench import __version__
from gpubench.analysis.site import ListedRun, Site, SiteDevice, SiteRun, site_run, trends
from gpubench.base.errors import FileError, UsageError
from gpubench.base.files import write_whole
from gpubench.base.walk import Value
from gpubench.judging.comparison import compare
from gpubench.judging.policy import THRESHOLD_PERCENT
from gpubench.model import Manifest, Run, store
from gpubench.model.disk import reported
from gpubench.tools import enclosing, rendering
from gpubench.tools.gating import readings
from gpubench.tools.history import run_files

INDEX = "index.html"
_RUNS, _COMPARISONS, _TRENDS = "runs", "comparisons", "trends"
_DIGITS = 16  # hexadecimal digits of the hashes that name files: 64 bits keep thousands of files distinct
_OURS = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(-[0-9a-f]{{{_DIGITS}}})?\.(html|json)")
_MARK = b'<body class="gpubench-site">'  # identifies an index that gpubench made and may replace


class Sharing(Protocol):
    """How a site anonymises its content, if it does."""

    @property
    def is_redacted(self) -> bool:
        """Return whether names are hidden."""

    def run(self, run: Run) -> Run:
        """Return the run as the site may show it."""

    def value(self, value: Value, manifests: Sequence[Manifest]) -> Value:
        """Return a value made from the runs of these manifests as the site may show it."""


@dataclass(frozen=True, slots=True)
class BuiltSite:
    """The outcome of a build: the index, the number of runs and of new pages, and the refused files with reasons."""

    index: Path
    runs: int
    new: int
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _StoredRun:
    """The file beside a run's page; it is made again for another version of gpubench or another kind of sharing."""

    gpubench: str
    is_redacted: bool
    run: SiteRun


@dataclass(frozen=True, slots=True)
class _Member:
    """A run of the site: its file and its name in the site."""

    path: Path
    name: str
    run: SiteRun


_STORED_RUN = pydantic.TypeAdapter(_StoredRun)


def build(folder: Path, out: Path, sharing: Sharing, tell: Callable[[str], None]) -> BuiltSite:
    """Write the site of the run files in a folder and below it into another folder, or bring it up to date.

    `tell` is called for each page that is made. A file that cannot be read is listed in the index with the reason.
    Raises FileError if there is no run file, and UsageError if `out` cannot be written or its index is not a site's.
    """
    files = list(run_files([folder]))
    if not files:
        raise FileError(
            f"{folder}: there is no run file (.jsonl, .jsonl.gz) in it; name a folder that contains run files"
        )
    _prepare(out)
    members: dict[str, _Member] = {}
    refused: list[tuple[str, str]] = []
    hashes = set()
    for path in files:
        try:
            member = _member(path, out, sharing)
        except FileError as error:
            refused.append((path.name, str(error).removeprefix(f"{path}: ")))
            continue
        hashes.add(member.name)
        same_run = members.get(member.run.key)
        if same_run is None or member.run.results > same_run.run.results:  # the most complete copy of a run counts
            members[member.run.key] = member
    ordered = sorted(members.values(), key=lambda member: (member.run.at, member.name))
    new = sum(_write_page(out, member, sharing, tell) for member in ordered)
    devices = _write_devices(out, ordered, sharing, tell)
    # the name of a damaged file may contain names of machines that only the other runs' manifests reveal
    manifests = [store.scan(member.path, _ignore).manifest for member in ordered] if refused else []
    listed = sharing.value(tuple(refused), [manifest for manifest in manifests if manifest])
    _write(out / INDEX, rendering.report("html").index(Site(devices, listed)))
    _remove_old(out, hashes, devices)
    return BuiltSite(out / INDEX, len(ordered), new, listed)


def _ignore(record: object) -> None:
    del record


def _prepare(out: Path) -> None:
    """Make the folders. Raises UsageError if the index would replace a page that gpubench did not make."""
    index = out / INDEX
    with _written(out):
        if index.exists() and _MARK not in index.read_bytes():
            raise UsageError(f"{index} exists and is not the index of a site; choose another folder with -o")
        for name in (_RUNS, _COMPARISONS, _TRENDS):
            (out / name).mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn an error of the operating system about a file of the site into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another folder with -o") from error


def _write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, unless it already has this content."""
    data = content if isinstance(content, bytes) else content.encode()
    with _written(path):
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)


def _remove(path: Path) -> None:
    with _written(path):
        path.unlink(missing_ok=True)


def _member(path: Path, out: Path, sharing: Sharing) -> _Member:
    """Return a run of the site; the run file is read only if it is new. Raises FileError if it is invalid."""
    content = store.file_hash(path)
    name = content[:_DIGITS]
    entry_file = out / _RUNS / f"{name}.json"
    if stored_run := _stored_run(entry_file, sharing):
        return _Member(path, name, stored_run)
    with readings.uncollected():
        run = store.read_run(path)
        shown_name = sharing.value(path.name, [run.manifest])
        with reported(path):
            written_at = path.stat().st_mtime
        run_entry = site_run(sharing.run(run), shown_name, content, written_at)
    for outdated in (out / _RUNS / f"{name}.html", *(out / _COMPARISONS).glob(f"*{name}*.html")):
        _remove(outdated)  # they may contain names, because sharing was different
    _write(entry_file, _STORED_RUN.dump_json(_StoredRun(__version__, sharing.is_redacted, run_entry)))
    return _Member(path, name, run_entry)


def _write_page(out: Path, member: _Member, sharing: Sharing, tell: Callable[[str], None]) -> bool:
    """Write the page of a run and return True; return False if it exists."""
    page = out / _RUNS / f"{member.name}.html"
    if page.exists():
        return False
    with readings.uncollected():
        shared = sharing.run(store.read_run(member.path))
        enclosure = replace(enclosing.enclosure(shared, member.path), index=f"../{INDEX}")
        _write(page, rendering.report("html").enclose(shared, enclosure))
    tell(f"{member.path.name}: page written")
    return True


def _stored_run(entry_file: Path, sharing: Sharing) -> SiteRun | None:
    """Return the stored run beside a page; None if it is damaged, or of another version or kind of sharing."""
    try:
        entry = _STORED_RUN.validate_json(entry_file.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None
    return entry.run if (entry.gpubench, entry.is_redacted) == (__version__, sharing.is_redacted) else None


def _write_devices(
    out: Path, members: Sequence[_Member], sharing: Sharing, tell: Callable[[str], None]
) -> tuple[SiteDevice, ...]:
    """Write the comparisons and the trends of each model of device, and return what the index lists."""
    groups: dict[str, list[_Member]] = {}
    for member in members:
        groups.setdefault(member.run.device, []).append(member)
    return tuple(_device(out, name, group, sharing, tell) for name, group in sorted(groups.items()))


def _remove_old(out: Path, hashes: Collection[str], devices: Sequence[SiteDevice]) -> None:
    """Remove the pages of runs that do not exist any more: the user may have removed them to hide them."""
    needed = {address for device in devices for address in _addresses(device)}
    needed |= {f"{_RUNS}/{name}.json" for name in hashes}
    for folder in (_RUNS, _COMPARISONS, _TRENDS):
        for path in (out / folder).iterdir():
            if _OURS.fullmatch(path.name) and f"{folder}/{path.name}" not in needed:
                _remove(path)


def _addresses(device: SiteDevice) -> Iterator[str]:
    yield device.trends
    for listed in device.runs:
        yield from (listed.page, listed.comparison)


def _device(
    out: Path, name: str, members: Sequence[_Member], sharing: Sharing, tell: Callable[[str], None]
) -> SiteDevice:
    """Return the runs on one model of device, with their comparisons and trends written."""
    listed = []
    for place, member in enumerate(members):
        page = f"{_RUNS}/{member.name}.html"
        before = _before(member, members[:place])
        address = _compared(out, before, member, sharing, tell) if before else ""
        listed.append(ListedRun(member.run, page, address, before.run.date if before and address else ""))
    device_trends = trends([member.run for member in members])
    address = f"{_TRENDS}/{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}.html" if device_trends else ""
    if device_trends:
        _write(out / address, rendering.report("html").trends(device_trends))
    return SiteDevice(name, address, tuple(reversed(listed)))


def _before(member: _Member, earlier: Sequence[_Member]) -> _Member | None:
    """Return the newest earlier run of the same tier that has a suite in common."""
    for candidate in reversed(earlier):
        if candidate.run.tier == member.run.tier and set(candidate.run.suites) & set(member.run.suites):
            return candidate
    return None


def _compared(out: Path, before: _Member, after: _Member, sharing: Sharing, tell: Callable[[str], None]) -> str:
    """Return the address of the comparison of two runs; empty if they have no case in common."""
    address = f"{_COMPARISONS}/{before.name}-{after.name}.html"
    if (out / address).exists():
        return address
    run_readings = readings.read_all([before.path, after.path])
    manifests = [reading.manifest for reading in run_readings]
    named = [
        replace(reading, manifest=sharing.run(Run(reading.manifest)).manifest, source=member.run.date)
        for reading, member in zip(run_readings, (before, after), strict=True)
    ]
    try:
        comparison = compare(named, lambda _: THRESHOLD_PERCENT / 100)
    except UsageError:  # no case in common
        return ""
    _write(out / address, rendering.report("html").compare(sharing.value(comparison, manifests)))
    tell(f"{after.path.name}: compared with {before.path.name}")
    return address
