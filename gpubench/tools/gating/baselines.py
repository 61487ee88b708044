"""Find and save baselines: run files, folders of them, saved names, and the newest results of the history."""

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
from gpubench.tools.gating.readings import read
from gpubench.tools.gating.saved import FOLDER, LAST, place
from gpubench.tools.history import reading, recording

_NAME = re.compile(r"\w[\w.+-]*")
_MOST_ADDED = 1000  # results of one case that a candidate's own file can have added: the most replicates of a run


@dataclass(frozen=True, slots=True)
class CaseInHistory:
    """A case as the history identifies it: the case's id, version and tier, and a fingerprint id."""

    case: str
    version: int
    tier: str
    fingerprint: str


def planned_cases(plan: Plan) -> list[CaseInHistory]:
    """Return the cases of a plan as the history identifies them, each once and in the order of the plan."""
    facts, tier = plan.facts, plan.settings.tier
    cases = (CaseInHistory(job.case.id, job.case.version, tier, fingerprint(facts, job.key[1]).id) for job in plan.jobs)
    return list(dict.fromkeys(cases))


def measured_cases(evidence: Evidence) -> list[CaseInHistory]:
    """Return the cases of run files as the history identifies them; a case may occur several times."""
    cases = []
    for side in evidence.sides.values():
        manifest = evidence.readings[side.readings[0]].manifest
        device_ids = {device.id for device in manifest.facts.devices}
        if device_ids.issuperset(side.devices):
            key = fingerprint(manifest.facts, side.devices).id
            cases.append(CaseInHistory(side.case.id, side.case.version, manifest.settings.tier, key))
    return cases


def find_files(
    arguments: Iterable[str], wanted: Sequence[CaseInHistory], candidates: Sequence[Path] = ()
) -> list[Path]:
    """Return the run files that `--baseline` names, each once: files, folders, saved names, or `last:N` of `wanted`."""
    by_path = {
        path.resolve(): path for argument in arguments for path in _find_for_argument(argument, wanted, candidates)
    }
    candidate_paths = {path.resolve() for path in candidates}
    return [path for resolved, path in by_path.items() if resolved not in candidate_paths] or list(by_path.values())


def _find_for_argument(argument: str, wanted: Sequence[CaseInHistory], candidates: Sequence[Path]) -> list[Path]:
    """Return the run files that one argument names; raises as `find_files` does."""
    if last := LAST.fullmatch(argument):
        return _newest_files(int(last[1]), wanted, candidates)
    path = place(argument)
    return _files_in_folder(path) if path.is_dir() else [path]


def _files_in_folder(folder: Path) -> list[Path]:
    """Return the run files in a folder and below. Raises FileError if there are none."""
    files = [*recording.run_files([folder])]
    if not files:
        raise FileError(f"{folder}: the folder contains no run file (.jsonl, .jsonl.gz)")
    return files


def _newest_files(count: int, wanted: Sequence[CaseInHistory], candidates: Sequence[Path]) -> list[Path]:
    """Return the files of the newest `count` results of each wanted case, each file once, without the candidates."""
    path = history.default_place()
    candidate_paths = {path.resolve() for path in candidates}
    files: dict[Path, None] = {}
    with reading.History(path) as past:
        for case in wanted:
            points = past.last(
                case.case, case.version, case.tier, case.fingerprint, count + _MOST_ADDED * len(candidate_paths)
            )
            stored = [(point, Path(point.source.path)) for point in points]
            available = [point for point, file in stored if file.resolve() not in candidate_paths and file.exists()]
            files |= dict.fromkeys(past.files(available[-count:]))
    if not files:
        raise FileError(f"{path} has no run of these cases on this device and driver with these settings; measure one")
    return list(files)


def check_name(name: str) -> None:
    """Raise UsageError unless `name` can name a baseline: letters, digits and `.+-_`, but none of `.+-` first."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a baseline: use letters, digits, . + - and _; begin with a letter or digit"
        )


def _check_same_machine(name: str, files: Sequence[Path]) -> None:
    """Raise UsageError if the first run of a baseline has other cards, drivers or settings than a run to append."""
    first, *others = (read(path).manifest for path in files)
    for other in others:
        devices = other.settings.devices
        cards = [{device.uuid for device in run.facts.devices if device.id in devices} for run in (first, other)]
        differences = fingerprint(other.facts, devices).differences(fingerprint(first.facts, devices))
        if first.settings.tier != other.settings.tier or differences or cards[0] != cards[1]:
            reason = "; ".join(differences) or "another card or tier"
            raise UsageError(f"not appended to the baseline {name}: {reason}; save it under another name")


def save(name: str, files: Sequence[Path], append: bool = False) -> Path:
    """Copy these run files into the baseline of that name, and return its folder.

    They replace an earlier baseline, or with `append` are added to it as a further session. If copying fails, the
    earlier baseline stays. Raises UsageError if `append` adds files of another schema, card or method."""
    check_name(name)
    folder = Path(FOLDER) / name
    earlier = sorted(folder.iterdir()) if append and folder.is_dir() else []
    if earlier:
        _check_same_machine(name, [*earlier, *files])
    try:
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            for file in earlier:
                shutil.copyfile(file, new / file.name)
            for number, file in enumerate(files, len(earlier) + 1):
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
