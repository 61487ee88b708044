"""Baselines: run files, folders of them, names that were saved, and the last of the history. Each file is a sitting."""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.analysis.fingerprint import fingerprint
from gpubench.base.errors import FileError, UsageError
from gpubench.judging.evidence import Evidence
from gpubench.measuring.plan import Plan
from gpubench.tools import history

FOLDER = "gpubench-baselines"  # where names are saved, in the folder that a gate is called in
_NAME = re.compile(r"\w[\w.+-]*")
_LAST = re.compile(r"last:([1-9]\d{0,5})")
_MOST_OWN = 1000  # results of one case that a candidate's own file can have put there: the most replicates of a run


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case as the history keeps it: what the newest results of a baseline must be of."""

    case: str
    version: int
    tier: str
    fingerprint: str


def of_plan(plan: Plan) -> list[Wanted]:
    """What a plan would measure."""
    facts, tier = plan.facts, plan.settings.tier
    found = (Wanted(job.case.id, job.case.version, tier, fingerprint(facts, job.key[1]).id) for job in plan.jobs)
    return list(dict.fromkeys(found))


def of_evidence(evidence: Evidence) -> list[Wanted]:
    """What run files have measured."""
    found = []
    for side in evidence.sides.values():
        manifest = evidence.readings[side.readings[0]].manifest
        known = {device.id for device in manifest.facts.devices}
        if known.issuperset(side.devices):
            key = fingerprint(manifest.facts, side.devices).id
            found.append(Wanted(side.case.id, side.case.version, manifest.settings.tier, key))
    return found


def is_dated(words: Iterable[str]) -> bool:
    """Whether any of the words is `last:N`: which files these are depends on what is wanted."""
    return any(_LAST.fullmatch(word) for word in words)


def find(words: Iterable[str], wanted: Sequence[Wanted], candidates: Sequence[Path] = ()) -> list[Path]:
    """The run files that the words name: files, folders, saved names, `last:N`.

    `last:N` are the files of the newest N results of each wanted case. The candidates' own files are left out, unless
    nothing else is named: a candidate that is part of its baseline looks like it. Each file counts once. FileError
    where there is no such baseline, with what there is.
    """
    found = {path.resolve(): path for word in words for path in _find(word, wanted, candidates)}
    own = {path.resolve() for path in candidates}
    return [path for place, path in found.items() if place not in own] or list(found.values())


def _find(word: str, wanted: Sequence[Wanted], candidates: Sequence[Path]) -> list[Path]:
    if last := _LAST.fullmatch(word):
        return _newest(int(last[1]), wanted, candidates)
    for place in (Path(word), Path(FOLDER) / word):
        if place.is_dir():
            return _of_folder(place)
        if place.exists():
            return [place]
    known = names()
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"saved are {', '.join(known)}" if known else "none is saved here"
    raise FileError(f"no baseline {word!r}: neither a file, a folder nor a name saved in {FOLDER}; {hint}")


def _of_folder(folder: Path) -> list[Path]:
    found = [*history.run_files([folder])]
    if not found:
        raise FileError(f"{folder}: the folder holds no run file (.jsonl, .jsonl.gz)")
    return found


def _newest(count: int, wanted: Sequence[Wanted], candidates: Sequence[Path]) -> list[Path]:
    place = history.default_place()
    own = {path.resolve() for path in candidates}
    found: dict[Path, None] = {}
    with history.History(place) as past:
        for each in wanted:
            points = past.last(each.case, each.version, each.tier, each.fingerprint, count + _MOST_OWN * len(own))
            there = [point for point in points if _is_there(Path(point.source.path), own)]
            found |= dict.fromkeys(past.files(there[-count:]))
    if not found:
        raise FileError(f"{place} holds no run of these cases on this device and driver with these settings")
    return list(found)


def _is_there(path: Path, own: set[Path]) -> bool:
    return path.resolve() not in own and path.exists()


def names() -> list[str]:
    """The names that are saved here."""
    folder = Path(FOLDER)
    return sorted(place.name for place in folder.iterdir() if place.is_dir()) if folder.is_dir() else []


def check_name(name: str) -> None:
    """Raise UsageError for what cannot be a baseline's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a baseline: a letter or digit, then letters, digits, . + - and _")


def save(name: str, files: Sequence[Path]) -> Path:
    """Make these run files the baseline of that name, in place of what it was; its folder."""
    check_name(name)
    folder = Path(FOLDER) / name
    try:
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            for number, file in enumerate(files, 1):
                shutil.copyfile(file, new / f"{number:02d}-{file.name}")
            if folder.exists():
                folder.rename(old)
            try:
                new.rename(folder)
            except OSError:
                old.rename(folder)
                raise
    except OSError as error:
        raise UsageError(f"cannot save the baseline {folder}: {error.strerror}") from error
    return folder
