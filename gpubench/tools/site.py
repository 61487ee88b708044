"""A static site of many runs: an index, each run's page, its comparison with the run before it, and trends.

A run's page is made once: its name is a hash of the run file's content, and beside it lies a small file of what the
index and the trends need, so that an unchanged run is not even read again.
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
_DIGITS = 16  # of the hashes that name files: 64 bits, of which a site holds some thousands
_OURS = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(-[0-9a-f]{{{_DIGITS}}})?\.(html|json)")
_MARK = b'<body class="gpubench-site">'  # of our own index, which alone may be replaced


class Sharing(Protocol):
    """How a site anonymises what it shows, or does not."""

    @property
    def is_redacted(self) -> bool:
        """Whether names are hidden."""

    def run(self, run: Run) -> Run:
        """Return the run as it may be shown."""

    def value(self, value: Value, manifests: Sequence[Manifest]) -> Value:
        """Return what was made of the runs of these manifests as it may be shown."""


@dataclass(frozen=True, slots=True)
class BuiltSite:
    """What became of the files: the number of runs, of new pages of runs, and the files that were refused."""

    index: Path
    runs: int
    new: int
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What lies beside a run's page; by another version of gpubench, or shared in another way, it is made again."""

    gpubench: str
    is_redacted: bool
    run: SiteRun


@dataclass(frozen=True, slots=True)
class _Member:
    """A run of the site: its file and its name in the site."""

    path: Path
    name: str
    run: SiteRun


_KEPT = pydantic.TypeAdapter(_Kept)


def build(folder: Path, out: Path, sharing: Sharing, tell: Callable[[str], None]) -> BuiltSite:
    """Write the site of the run files in a folder and below it into another folder, or bring it up to date.

    `tell` is told of each page that is made. A file that cannot be read is listed in the index with the reason.
    Raises FileError where there is no run file, UsageError where `out` cannot be written or holds another site.
    """
    files = list(run_files([folder]))
    if not files:
        raise FileError(f"{folder}: there is no run file (.jsonl, .jsonl.gz) in it; name a folder that holds some")
    _prepare(out)
    members: dict[str, _Member] = {}
    refused: list[tuple[str, str]] = []
    hashes = set()
    for path in files:
        try:
            found = _member(path, out, sharing)
        except FileError as error:
            refused.append((path.name, str(error).removeprefix(f"{path}: ")))
            continue
        hashes.add(found.name)
        known = members.get(found.run.key)
        if known is None or found.run.results > known.run.results:  # of copies of a run, the most complete one
            members[found.run.key] = found
    ordered = sorted(members.values(), key=lambda member: (member.run.at, member.name))
    new = sum(_write_page(out, member, sharing, tell) for member in ordered)
    devices = _write_devices(out, ordered, sharing, tell)
    # a damaged file says nothing of its machine: its name may hold what the other runs know as a name
    manifests = [store.scan(member.path, _ignore).manifest for member in ordered] if refused else []
    listed = sharing.value(tuple(refused), [manifest for manifest in manifests if manifest])
    _write(out / INDEX, rendering.report("html").index(Site(devices, listed)))
    _remove_old(out, hashes, devices)
    return BuiltSite(out / INDEX, len(ordered), new, listed)


def _ignore(record: object) -> None:
    del record


def _prepare(out: Path) -> None:
    """Make the folders; UsageError where the index would replace a page that is none of ours."""
    index = out / INDEX
    with _written(out):
        if index.exists() and _MARK not in index.read_bytes():
            raise UsageError(f"{index} exists and is not the index of a site; choose another folder with -o")
        for name in (_RUNS, _COMPARISONS, _TRENDS):
            (out / name).mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file of the site into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another folder with -o") from error


def _write(path: Path, content: str | bytes) -> None:
    """Write a file whole, unless it holds the same already."""
    data = content if isinstance(content, bytes) else content.encode()
    with _written(path):
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)


def _remove(path: Path) -> None:
    with _written(path):
        path.unlink(missing_ok=True)


def _member(path: Path, out: Path, sharing: Sharing) -> _Member:
    """Return a run of the site, read only where nothing of this content was kept; raises FileError."""
    content = store.file_hash(path)
    name = content[:_DIGITS]
    beside = out / _RUNS / f"{name}.json"
    if kept := _kept(beside, sharing):
        return _Member(path, name, kept)
    with readings.uncollected():
        run = store.read_run(path)
        shown = sharing.value(path.name, [run.manifest])
        with reported(path):
            written_at = path.stat().st_mtime
        found = site_run(sharing.run(run), shown, content, written_at)
    for old in (out / _RUNS / f"{name}.html", *(out / _COMPARISONS).glob(f"*{name}*.html")):
        _remove(old)  # made in another way, perhaps with names in them
    _write(beside, _KEPT.dump_json(_Kept(__version__, sharing.is_redacted, found)))
    return _Member(path, name, found)


def _write_page(out: Path, member: _Member, sharing: Sharing, tell: Callable[[str], None]) -> bool:
    """Write the page of a run and return True; return False where it is there."""
    page = out / _RUNS / f"{member.name}.html"
    if page.exists():
        return False
    with readings.uncollected():
        shared = sharing.run(store.read_run(member.path))
        enclosure = replace(enclosing.enclosure(shared, member.path), index=f"../{INDEX}")
        _write(page, rendering.report("html").enclose(shared, enclosure))
    tell(f"{member.path.name}: page written")
    return True


def _kept(beside: Path, sharing: Sharing) -> SiteRun | None:
    """Return what lies beside a page, where it is whole and was made in the same way."""
    try:
        kept = _KEPT.validate_json(beside.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None
    return kept.run if (kept.gpubench, kept.is_redacted) == (__version__, sharing.is_redacted) else None


def _write_devices(
    out: Path, members: Sequence[_Member], sharing: Sharing, tell: Callable[[str], None]
) -> tuple[SiteDevice, ...]:
    """Write the comparisons and the trends of each model of device, and return what the index lists."""
    groups: dict[str, list[_Member]] = {}
    for member in members:
        groups.setdefault(member.run.device, []).append(member)
    return tuple(_device(out, name, group, sharing, tell) for name, group in sorted(groups.items()))


def _remove_old(out: Path, hashes: Collection[str], devices: Sequence[SiteDevice]) -> None:
    """Remove what was made of runs that are gone: they may have been removed for good reasons."""
    kept = {address for device in devices for address in _addresses(device)}
    kept |= {f"{_RUNS}/{name}.json" for name in hashes}
    for folder in (_RUNS, _COMPARISONS, _TRENDS):
        for path in (out / folder).iterdir():
            if _OURS.fullmatch(path.name) and f"{folder}/{path.name}" not in kept:
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
    found = trends([member.run for member in members])
    address = f"{_TRENDS}/{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}.html" if found else ""
    if found:
        _write(out / address, rendering.report("html").trends(found))
    return SiteDevice(name, address, tuple(reversed(listed)))


def _before(member: _Member, earlier: Sequence[_Member]) -> _Member | None:
    """Return the newest earlier run of the same tier that has a suite in common."""
    for other in reversed(earlier):
        if other.run.tier == member.run.tier and set(other.run.suites) & set(member.run.suites):
            return other
    return None


def _compared(out: Path, before: _Member, after: _Member, sharing: Sharing, tell: Callable[[str], None]) -> str:
    """Return the address of the comparison of two runs; empty where they have no case in common."""
    address = f"{_COMPARISONS}/{before.name}-{after.name}.html"
    if (out / address).exists():
        return address
    found = readings.read_all([before.path, after.path])
    manifests = [reading.manifest for reading in found]
    named = [
        replace(reading, manifest=sharing.run(Run(reading.manifest)).manifest, source=member.run.date)
        for reading, member in zip(found, (before, after), strict=True)
    ]
    try:
        comparison = compare(named, lambda _: THRESHOLD_PERCENT / 100)
    except UsageError:  # no case in common
        return ""
    _write(out / address, rendering.report("html").compare(sharing.value(comparison, manifests)))
    tell(f"{after.path.name}: compared with {before.path.name}")
    return address
