"""Pass damaged run files to every reader: each file loads and is read, or is refused in one line.

    bash ci/study.sh damaged_files [FILES] [SEED] [FOLDER]        default 10000 files, seed 1

A damaged file is a part of a recording with one to three faults of one kind (`_damage.py`): numbers replaced by absurd
ones, records dropped, swapped or torn, values of other types. A file that loads goes through every command that reads
run files. An error that is not one of ours, and a warning of NumPy, is a crash. The table counts for each kind of
damage what became of the files, and the longest time that one reader took for one of them. With a FOLDER the files that
crashed a reader are kept there. The exit status is 1 if anything crashed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import _damage
import typer

from gpubench import plugins
from gpubench.analysis import frame
from gpubench.base.errors import FileError, GpubenchError
from gpubench.cli import compare, doctor, gate, history, report
from gpubench.model import store

Reader = tuple[str, Callable[[], object]]
COLUMNS = ("loaded", "refused", "crashed")
_OURS = ("/gpubench/", "/reports/", "/ci/")


@dataclass(slots=True)
class Outcomes:
    """Counts of outcomes by kind of damage, crashes by reader and place, longest times."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    longest: dict[str, tuple[float, str]] = field(default_factory=dict)

    def table(self) -> Iterator[str]:
        """Yield the lines of a table, and one for each crash."""
        yield f"{'kind of damage':24}" + "".join(f"{name:>10}" for name in COLUMNS) + "   longest reader"
        for kind in _damage.KINDS:
            seconds, reader = self.longest.get(kind, (0.0, ""))
            counts = "".join(f"{self.counts[kind, name]:10}" for name in COLUMNS)
            yield f"{kind:24}{counts} {seconds:8.2f} s {reader}"
        totals = [sum(self.counts[kind, name] for kind in _damage.KINDS) for name in COLUMNS]
        yield f"{'all':24}" + "".join(f"{total:10}" for total in totals)
        yield from (f"{times:6} × {where}" for where, times in self.crashes.most_common())


class Readers:
    """Every command that reads run files, each as a call; files that they write lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.forms = [form for form in plugins.names("reports") if form != "parquet"]

    def of(self, path: Path, original: Path) -> Iterator[Reader]:
        """Yield the name and the call of each reader of a file; `whole` is an undamaged one."""
        out = self.folder / "out"
        yield "show", lambda: report.show(path)
        yield "show --all --wide", lambda: report.show(path, all_=True, wide=True)
        yield "show --sort", lambda: report.show(path, sort="share", top=3)
        for form in self.forms:
            yield f"report {form}", functools.partial(report.report, [path], [out], form, force=True)
        yield "report html, not redacted", lambda: report.report([path], [out], "html", force=True, no_redact=True)
        yield "report of two", lambda: report.report([path, original], [out], "html", force=True)
        for first, second in ((path, original), (original, path)):
            yield "compare", functools.partial(compare.compare, [first, second])
            files: dict[str, Path] = {"junit": out, "markdown": out}
            yield "gate", functools.partial(gate.gate, [str(first)], [str(second)], allow_mismatch=True, **files)
        for form in ("html", "md", "json"):
            to = self.folder / f"compared.{form}"
            yield f"compare {form}", functools.partial(compare.compare, [path, original], to, force=True)
        yield "gate --floor", lambda: gate.gate([str(path)], floor=True, json=True)
        yield "doctor --noise", lambda: doctor.doctor(noise=True, source=path)
        yield "redact", lambda: report.redact(path, self.folder / "shared.jsonl", force=True)
        yield "frame", lambda: (frame.to_html(store.read_run(path)), frame.to_frame(store.read_run(path), samples=True))
        yield "site", lambda: self._site(path, original)
        yield from self._history(path, self.folder / "history.sqlite")

    def _site(self, *files: Path) -> None:
        """Make a site of these files."""
        runs, pages = self.folder / "runs", self.folder / "site"
        for folder in (runs, pages):
            shutil.rmtree(folder, ignore_errors=True)
        runs.mkdir()
        for file in files:
            shutil.copyfile(file, runs / file.name)
        report.site(runs, pages)

    def _history(self, path: Path, place: Path) -> Iterator[Reader]:
        """Yield the commands of the history, on a new history with this file."""
        for file in self.folder.glob("history.sqlite*"):
            file.unlink()
        yield "history import", lambda: history.import_([path], store=place)
        if place.exists():
            yield "history", lambda: history.show(store=place)
            yield "history *", lambda: history.show(["*"], store=place)
            yield "history --json", lambda: history.show(store=place, json=True)
            yield "history --html", lambda: history.show(store=place, html=self.folder / "trend.html", force=True)


def crash(call: Callable[[], object]) -> str:
    """Return where a call crashed; empty where it did not, and where it refused the file."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            call()
        except (GpubenchError, typer.Exit):
            return ""
        except Exception as error:  # noqa: BLE001 - crashes are what this script counts
            frames = traceback.extract_tb(error.__traceback__)
            last = [*frames[-1:], *(frame for frame in frames if any(room in frame.filename for room in _OURS))][-1]
            place = Path(last.filename)
            return f"{place.parent.name}/{place.name}:{last.lineno} {type(error).__name__}: {str(error)[:80]}"
        finally:
            gc.enable()  # commands switch the collector off, because their process ends
    return ""


def outcome(path: Path, readers: Iterator[Reader]) -> tuple[str, list[str], tuple[float, str]]:
    """Return whether a file was loaded, refused or crashed, a description of each crash, and the slowest reader."""
    crashes, longest = [], (0.0, "read")
    start = time.perf_counter()
    try:
        store.read_run(path)
    except FileError as error:
        lines = str(error).splitlines()
        became = ("refused", []) if len(lines) == 1 else ("crashed", [f"read: {len(lines)} lines"])
        return *became, (time.perf_counter() - start, "read")
    for name, call in readers:
        start = time.perf_counter()
        if where := crash(call):
            crashes.append(f"{name}: {where}")
        longest = max(longest, (time.perf_counter() - start, name))
    return "crashed" if crashes else "loaded", crashes, longest


def run(
    count: int, seed: int, kinds: Sequence[str] = _damage.KINDS, keep: Path | None = None, most_parts: int = 48
) -> Outcomes:
    """Damage files by each kind of damage in turn, and give each file to every reader."""
    counts, parts = Outcomes(), _damage.parts(most_parts)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path, original, readers = folder / "damaged.jsonl", folder / "whole.jsonl", Readers(folder)
        for number in range(count):
            kind, part = kinds[number % len(kinds)], parts[number // len(kinds) % len(parts)]
            path.write_bytes(_damage.damaged(kind, part, f"{seed}/{number}"))
            original.write_bytes(_damage.content(part))
            became, crashes, longest = outcome(path, readers.of(path, original))
            counts.counts[kind, became] += 1
            counts.crashes.update(crashes)
            counts.longest[kind] = max(counts.longest.get(kind, (0.0, "")), longest)
            if crashes and keep:
                shutil.copyfile(path, keep / f"{seed}-{number}.jsonl")
    return counts


def main(count: int = 10_000, seed: int = 1, keep: str = "") -> int:
    """Print the table; return the exit status."""
    counts = run(count, seed, keep=Path(keep) if keep else None)
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(*counts.table(), f"largest memory of the process: {mebibytes:.0f} MiB", sep="\n")  # noqa: T201
    return 1 if counts.crashes else 0


if __name__ == "__main__":
    options = sys.argv[1:]
    raise SystemExit(main(*map(int, options[:2]), *options[2:]))
