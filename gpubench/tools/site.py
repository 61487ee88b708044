"""Build a static site of many runs: an index, a page per run, its comparison with the run before it, and trends.

A run's page is made once. Its name is a hash of the run file's content, and a small file beside it contains what the
index and the trends need, so that an unchanged run is not read again."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pydantic

from gpubench import __version__
from gpubench.analysis.site import ListedRun, Site, SiteDevice, SiteRun, catalogue, site_run, trends
from gpubench.base.errors import FileError, UsageError
from gpubench.base.files import write_whole
from gpubench.base.walk import Value
from gpubench.judging.comparison import compare
from gpubench.judging.policy import THRESHOLD_PERCENT
from gpubench.model import Manifest, store
from gpubench.model.disk import as_file_errors
from gpubench.tools import enclosing, rendering
from gpubench.tools.gating import readings
from gpubench.tools.history.recording import run_files
from gpubench.tools.sharing import FileNames

INDEX, _STYLE = "index.html", "site.css"
_RUNS, _COMPARISONS, _TRENDS = "runs", "comparisons", "trends"
_FOLDERS = (_RUNS, _COMPARISONS, _TRENDS, "cards", "cases")
_DIGITS = 16  # hexadecimal digits of the hashes that name files: 64 bits keep thousands of files distinct
_PAGE_NAME = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(-[0-9a-f]{{{_DIGITS}}})?\.(html|json)")
_MARK = b'<body class="gpubench-site">'  # identifies an index that gpubench made and may replace


class Share(Protocol):
    """Anonymises a value that is made from the runs of some manifests, or leaves it unchanged."""

    def __call__(self, value: Value, manifests: Sequence[Manifest], /) -> Value:
        """Return the value as the site may show it."""


@dataclass(frozen=True, slots=True)
class BuiltSite:
    """The outcome of a build: the index, the number of runs and of new pages, and refused files with reasons."""

    index: Path
    runs: int
    new: int
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _StoredRun:
    """The content of the file beside a run's page; another version of gpubench or kind of sharing replaces it."""

    gpubench: str
    is_redacted: bool
    run: SiteRun


@dataclass(frozen=True, slots=True)
class _SiteEntry:
    """A run of the site: its file, the name of its pages (the first digits of the file's hash), and its summary."""

    path: Path
    name: str
    run: SiteRun


_STORED_RUN = pydantic.TypeAdapter(_StoredRun)


def build(
    folder: Path, out: Path, share: Share, is_redacted: bool, tell: Callable[[str], None], has_runs: bool = True
) -> BuiltSite:
    """Write the site of the run files in a folder and below it into the folder `out`, or bring it up to date.

    `share` anonymises every page, unless it leaves it unchanged (`is_redacted` is False). Without the pages of runs
    (`has_runs` is False), comparisons and trends, the index and the catalogue remain."""
    files = list(run_files([folder]))
    if not files:
        raise FileError(
            f"{folder}: there is no run file (.jsonl, .jsonl.gz) in it; name a folder that contains run files"
        )
    return _SiteFolder(out, share, is_redacted, tell, has_runs).build(files)


@dataclass(frozen=True, slots=True)
class _SiteFolder:
    """The folder of a site, and how its content is anonymised."""

    out: Path
    share: Share
    is_redacted: bool
    tell: Callable[[str], None]
    has_runs: bool

    def build(self, files: Sequence[Path]) -> BuiltSite:
        self._make_folders()
        entries: dict[str, _SiteEntry] = {}
        refused: list[tuple[str, str]] = []
        hashes = set()
        for path in files:
            try:
                entry = self._read_entry(path)
            except FileError as error:
                refused.append((path.name, str(error).removeprefix(f"{path}: ")))
                continue
            hashes.add(entry.name)
            copies = (entries.get(entry.run.key, entry), entry)  # the most complete copy of a run counts
            entries[entry.run.key] = max(copies, key=lambda copy: copy.run.results)
        ordered = sorted(entries.values(), key=lambda entry: (entry.run.at, entry.name))
        new = sum(self._write_page(entry) for entry in ordered if self.has_runs)
        devices = self._write_devices(ordered)
        # the name of a damaged file may contain names of machines that only the other runs' manifests reveal
        manifests = [store.scan(entry.path, lambda _: None).manifest for entry in ordered] if refused else []
        read_manifests = [manifest for manifest in manifests if manifest]
        names = self.share(FileNames(tuple(file for file, _ in refused)), read_manifests).names
        reasons = self.share(tuple(reason for _, reason in refused), read_manifests)
        refused_files = tuple(zip(names, reasons, strict=True))
        _write(self.out / _STYLE, rendering.report("html").style())
        _write(self.out / INDEX, rendering.report("html").index(Site(devices, refused_files)))
        pages = catalogue(devices)
        for address, content in pages.items():
            _write(self.out / address, rendering.report("html").catalogue(content))
        self._remove_old(hashes, devices, pages)
        return BuiltSite(self.out / INDEX, len(ordered), new, refused_files)

    def _make_folders(self) -> None:
        index = self.out / INDEX
        with _reporting_errors(self.out):
            if index.exists() and _MARK not in _content(index):
                raise UsageError(f"{index} exists and is not the index of a site; choose another folder with -o")
            for name in _FOLDERS if self.has_runs else _FOLDERS[-2:]:
                (self.out / name).mkdir(parents=True, exist_ok=True)

    def _read_entry(self, path: Path) -> _SiteEntry:
        """Return the entry of the run file `path`, from the file beside its page if gpubench stored it there before."""
        content = store.file_hash(path)
        name = content[:_DIGITS]
        entry_file = self.out / _RUNS / f"{name}.json"
        if stored_run := self._stored_run(entry_file):
            return _SiteEntry(path, name, stored_run)
        with readings.garbage_collection_off():
            run = store.read_run(path)
            (shown_name,) = self.share(FileNames((path.name,)), [run.manifest]).names
            with as_file_errors(path):
                written_at = path.stat().st_mtime
            run_entry = site_run(self.share(run, ()), shown_name, content, written_at)
        for outdated in (self.out / _RUNS / f"{name}.html", *(self.out / _COMPARISONS).glob(f"*{name}*.html")):
            _remove(outdated)  # they may contain names, because sharing was different
        if self.has_runs:
            _write(entry_file, _STORED_RUN.dump_json(_StoredRun(__version__, self.is_redacted, run_entry)))
        return _SiteEntry(path, name, run_entry)

    def _write_page(self, entry: _SiteEntry) -> bool:
        """Write the page of a run and return True; return False if the page exists."""
        page = self.out / _RUNS / f"{entry.name}.html"
        if page.is_file():
            return False
        with readings.garbage_collection_off():
            shared = self.share(store.read_run(entry.path), ())
            enclosure = replace(enclosing.enclosure(shared, entry.path), index=f"../{INDEX}")
            _write(page, rendering.report("html").enclose(shared, enclosure))
        self.tell(f"{entry.path.name}: page written")
        return True

    def _stored_run(self, entry_file: Path) -> SiteRun | None:
        """Return the summary in the file beside a page; None if it is missing or damaged."""
        try:
            entry = _STORED_RUN.validate_json(_content(entry_file))
        except (OSError, pydantic.ValidationError):
            return None
        return entry.run if (entry.gpubench, entry.is_redacted) == (__version__, self.is_redacted) else None

    def _write_devices(self, entries: Sequence[_SiteEntry]) -> tuple[SiteDevice, ...]:
        groups: dict[str, list[_SiteEntry]] = {}
        for entry in entries:
            groups.setdefault(entry.run.device, []).append(entry)
        return tuple(self._write_device(name, group) for name, group in sorted(groups.items()))

    def _remove_old(self, hashes: Collection[str], devices: Sequence[SiteDevice], pages: Collection[str]) -> None:
        needed = {address for device in devices for address in _addresses(device)}
        needed |= {f"{_RUNS}/{name}.json" for name in hashes} | set(pages)
        for folder in _FOLDERS:
            for path in (self.out / folder).glob("*"):
                if _PAGE_NAME.fullmatch(path.name) and f"{folder}/{path.name}" not in needed:
                    _remove(path)

    def _write_device(self, name: str, entries: Sequence[_SiteEntry]) -> SiteDevice:
        listed_runs = []
        for index, entry in enumerate(entries):
            page = f"{_RUNS}/{entry.name}.html" if self.has_runs else f"{INDEX}#{entry.name[:8]}"
            before = _previous_run(entry, entries[:index]) if self.has_runs else None
            address = self._write_comparison(before, entry) if before else ""
            listed_runs.append(ListedRun(entry.run, page, address, before.run.date if before and address else ""))
        device_trends = trends([entry.run for entry in entries] if self.has_runs else [])
        address = f"{_TRENDS}/{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}.html" if device_trends else ""
        if device_trends:
            _write(self.out / address, rendering.report("html").trends(device_trends))
        return SiteDevice(name, address, tuple(reversed(listed_runs)))

    def _write_comparison(self, before: _SiteEntry, after: _SiteEntry) -> str:
        """Write the page that compares two runs, unless it exists, and return its address relative to the index."""
        address = f"{_COMPARISONS}/{before.name}-{after.name}.html"
        if (self.out / address).is_file():
            return address
        run_readings = readings.read_all([before.path, after.path])
        manifests = [reading.manifest for reading in run_readings]
        named = [
            replace(reading, manifest=self.share(reading.manifest, ()), source=entry.run.date)
            for reading, entry in zip(run_readings, (before, after), strict=True)
        ]
        try:
            comparison = compare(named, lambda _: THRESHOLD_PERCENT / 100)
        except UsageError:  # no case in common
            return ""
        _write(self.out / address, rendering.report("html").compare(self.share(comparison, manifests)))
        self.tell(f"{after.path.name}: compared with {before.path.name}")
        return address


@contextlib.contextmanager
def _reporting_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in the context into a UsageError that names `path`, a file or folder of the site."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another folder with -o") from error


def _write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, unless it already has this content. Raises UsageError if that fails."""
    data = content if isinstance(content, bytes) else content.encode()
    with _reporting_errors(path):
        if _content(path) != data:
            write_whole(path, data)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _remove(path: Path) -> None:
    with _reporting_errors(path):
        path.unlink(missing_ok=True)


def _addresses(device: SiteDevice) -> Iterator[str]:
    yield device.trends
    for listed_run in device.runs:
        yield from (listed_run.page, listed_run.comparison)


def _previous_run(entry: _SiteEntry, earlier: Sequence[_SiteEntry]) -> _SiteEntry | None:
    """Return the newest of the `earlier` runs, which are in order of time, that can be compared with a run."""
    for candidate in reversed(earlier):
        if candidate.run.tier == entry.run.tier and set(candidate.run.suites) & set(entry.run.suites):
            return candidate
    return None
