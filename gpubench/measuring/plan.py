"""What would run: suites, devices, tiers, filters and data resolved to jobs. Touches no device."""

from __future__ import annotations

import difflib
import hashlib
import math
import random
import re
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubench import DISTRIBUTION, __version__, plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.suite import Suite
from gpubench.base import patterns
from gpubench.base.errors import UsageError
from gpubench.model import Case, DataFile, Device, Facts, Settings, SuiteInfo, Tier

# a host of two cores, and an H200 with its kernels compiled: as runs of hundreds of cases took, in the full tier parts
# of such runs (suites differ there by ten times)
_SECONDS_A_CASE: dict[Tier, float] = {"smoke": 0.2, "quick": 0.35, "full": 1.5}
_SECONDS_A_GPU_CASE: dict[Tier, float] = {"smoke": 0.1, "quick": 0.2, "full": 0.4}
_SECONDS_A_WORKER = 2.0
_MOST_DATA_FILES = 256
_HASHED_BYTES = 2**24  # enough to tell a file that was exchanged; reading all of a huge one takes minutes
_ALL, _HEADLINE = "all", "headline"  # words that stand where a suite's name does


@dataclass(frozen=True, slots=True)
class Job:
    """One case to run on one device set in one replicate; its ranks are spread over `nodes` machines.

    A job with another `runtime` than the one before it needs a fresh worker.
    """

    case: Case
    devices: tuple[Device, ...]
    replicate: int
    nodes: int = 1
    runtime: str = ""

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """Equal to the key of the result that it becomes."""
        return (self.case.id, tuple(device.id for device in self.devices), self.replicate)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run needs to know before it touches a device.

    After `most_s` seconds no job of a further replicate is begun; the first replicate is always whole.
    """

    facts: Facts
    settings: Settings
    suites: tuple[SuiteInfo, ...]
    jobs: tuple[Job, ...]
    most_s: float = math.inf

    def suite(self, case: Case) -> str:
        """What `load_suite` finds the case's suite by: its name, or its file."""
        files = (name for name in self.settings.suites if plugins.is_file(name) and plugins.called(name) == case.suite)
        return next(files, case.suite)

    def target(self, job: Job) -> Target:
        """What the job's case is planned and built for."""
        return _target(self.facts, job.devices[0], self.settings)

    @property
    def seconds(self) -> float:
        """An estimate of the run's length."""
        workers = len({(device.id, job.replicate) for job in self.jobs for device in job.devices})
        return sum(map(self.seconds_of, self.jobs)) + workers * _SECONDS_A_WORKER

    def seconds_of(self, job: Job) -> float:
        """Return an estimate of how long a job takes without its worker's start; none if devices are missing."""
        seconds = _SECONDS_A_CASE if job.devices[0].backend == "host" else _SECONDS_A_GPU_CASE
        return 0.0 if lack(job) else seconds[self.settings.tier]


def make(facts: Facts, settings: Settings) -> Plan:
    """Resolve settings to jobs; UsageError, with what there is instead, where nothing would run."""
    suites = [load_suite(name) for name in settings.suites]
    devices = [facts.device(device_id) for device_id in settings.devices]
    every = [
        job
        for device in devices
        for suite in suites
        for job in _in_blocks(
            _job(suite, case, device, facts)
            for case in _cases(suite, _target(facts, device, settings), settings.headline)
        )
    ]
    selected = [job for job in every if matches(job.case.id, settings.filters)]
    if not selected:
        raise UsageError(_nothing_matches(settings, [job.case.id for job in every]))
    jobs = [job for replicate in range(settings.replicates) for job in _replicate(selected, replicate, settings)]
    return Plan(facts, settings, tuple(suite.info() for suite in suites), tuple(jobs))


def _job(suite: Suite, case: Case, device: Device, facts: Facts) -> Job:
    definition, params = suite.definitions[case.name], dict(case.params)
    return Job(case, _device_set(case, device, facts), 0, definition.spread(params), definition.runtime(params))


def _in_blocks(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs with those of each runtime together, else in their order."""
    blocks: dict[str, list[Job]] = {}
    for job in jobs:
        blocks.setdefault(job.runtime, []).append(job)
    return [job for block in blocks.values() for job in block]


def _target(facts: Facts, device: Device, settings: Settings) -> Target:
    return Target(facts, device, settings.tier, settings.data, settings.nodes)


def _cases(suite: Suite, target: Target, only_headline: bool) -> list[Case]:
    return headline(suite, target) if only_headline else list(suite.cases(target))


def headline(suite: Suite, target: Target) -> list[Case]:
    """The case that speaks for a suite on this device, in a list; an empty one where the suite has no case here.

    Of the points of the flagged definitions that have the values of their flag (or as many of them
    as a point has here: a device may lack the precision, a tier the size) the last that finds enough
    devices. Of a suite without a flag, its first case.
    """
    cases = list(suite.cases(target))
    flags = {name: flag for name, definition in suite.definitions.items() if (flag := definition.headline) is not None}
    lacking = [
        (len(flags[case.name].items() - dict(case.params).items()), case) for case in cases if case.name in flags
    ]
    fewest = min((count for count, _ in lacking), default=0)
    candidates = [case for count, case in lacking if count == fewest] or cases[:1]
    able = [case for case in candidates if len(_device_set(case, target.device, target.facts)) == case.devices]
    return (able or candidates)[-1:]


def lack(job: Job) -> str:
    """Return why a job has too few devices to run, or an empty text."""
    if len(job.devices) >= job.case.devices:
        return ""
    return f"needs {job.case.devices} devices with access to each other's memory; {len(job.devices)} available"


def lacking(plan: Plan) -> list[str]:
    """Return each reason why cases of a plan will be skipped, with their number, to report before the run starts."""
    reasons = [reason for job in plan.jobs if not job.replicate and (reason := lack(job))]
    found = [
        f"{count} case{'s' * (count > 1)} will be skipped: {reason}" for reason, count in Tally(reasons).most_common()
    ]
    return [*found, *(["--data is ignored: none of these cases reads it"] if _ignores_data(plan) else [])]


def described(jobs: Sequence[Job], settings: Settings) -> str:
    """Return in a line what will be measured: equal for nodes that measure the same, whatever their devices' names."""
    rows = [(job.case.id, job.case.version, len(job.devices), job.replicate, job.nodes) for job in jobs]
    digest = hashlib.sha256(repr((rows, settings.tier, settings.seed)).encode()).hexdigest()
    return f"{len(jobs)} cases with version {__version__} ({digest[:16]})"


def _ignores_data(plan: Plan) -> bool:
    """Return whether the user named data that none of the cases reads."""
    if not plan.settings.data:
        return False
    suites = [load_suite(name) for name in plan.settings.suites]
    tier, devices = plan.settings.tier, [plan.facts.device(name) for name in plan.settings.devices]
    without = {
        case.id for device in devices for suite in suites for case in suite.cases(Target(plan.facts, device, tier))
    }
    return all(job.case.id in without for job in plan.jobs)


def load_suite(name: str) -> Suite:
    """The suite of that name or in that file; UsageError with a did-you-mean."""
    if not plugins.is_file(name):
        named: Suite = plugins.load("suites", name)
        return named
    found = plugins.load_file("suites", Path(name))
    if not isinstance(found, Suite) or not found.definitions:
        raise UsageError(f"{name}: `suite` must be a Suite with at least one case; see docs/writing-a-suite.md")
    return found


def broken_suites() -> dict[str, str]:
    """Return the installed suites that do not load, each with the reason; `all` runs without them."""
    found: dict[str, str] = {}
    for name in plugins.names("suites"):
        try:
            load_suite(name)
        except plugins.BrokenPlugin as error:
            found[name] = str(error)
    return found


def suite_names(wanted: Sequence[str]) -> tuple[str, ...]:
    """The suites of these words, each once: `all` (or no name) is every suite that loads, `headline` names none.

    The path of a file stands for the suite in it, as an absolute path: workers start elsewhere.
    """
    known = plugins.names("suites")
    for name in wanted:
        if not plugins.is_file(name) and name not in (*known, _ALL, _HEADLINE):
            raise plugins.unknown("suite", name, [*known, _ALL, _HEADLINE])
    words = [_file(name, known) if plugins.is_file(name) else name for name in wanted if name != _HEADLINE]
    if _ALL in (words or [_ALL]):
        sound = [name for name in known if name not in broken_suites()]
        words = [name for word in words or [_ALL] for name in (sound if word == _ALL else (word,))]
    _check_unlike(words)
    return tuple(dict.fromkeys(words))


def _file(name: str, known: Sequence[str]) -> str:
    path = Path(name).resolve()
    if path.name == "__init__.py":  # of a folder that is a suite
        path = path.parent
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise UsageError(f"{name}: it is a folder without an __init__.py; name the Python file of a suite")
    if not path.exists():
        raise UsageError(f"{name}: there is no such file; name the Python file of a suite")
    called = plugins.called(path)
    if called in known:
        raise UsageError(f"{name}: a suite named {called} exists already; rename the file")
    return str(path)


def _check_unlike(words: Sequence[str]) -> None:
    """Raise UsageError for two files of one name: their cases could not be told apart."""
    files: dict[str, str] = {}
    for word in filter(plugins.is_file, words):
        if files.setdefault(plugins.called(word), word) != word:
            raise UsageError(f"{word} and {files[plugins.called(word)]} are suites of the same name; rename one")


def left_out(wanted: Sequence[str]) -> tuple[str, ...]:
    """What `all` among these words goes on without, in words."""
    if [name for name in wanted if name not in (_ALL, _HEADLINE)] and _ALL not in wanted:
        return ()
    return tuple(f"left out: {words}" for words in broken_suites().values())


def is_headline(wanted: Sequence[str]) -> bool:
    """Return whether these words select only the headline case of each suite."""
    return _HEADLINE in wanted


def sampled_devices(facts: Facts, wanted: Sequence[str]) -> list[Device]:
    """Return the devices whose counters are read, always with the host; UsageError for an unknown device."""
    known = {device.id: device for device in facts.devices}
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"there is no device {unknown[0]}; there is {', '.join(known)}")
    return [found for name, found in known.items() if not wanted or name in wanted or name == "host"]


def device_ids(facts: Facts, wanted: Sequence[str], with_host: bool) -> tuple[str, ...]:
    """The devices to measure: the first GPU or else the host; `all` is each; `with_host` adds the host."""
    known = [device.id for device in facts.devices]
    gpus = [device.id for device in facts.devices if device.backend != "host"]
    for device_id in wanted:
        if device_id not in (*known, "all"):
            raise UsageError(_no_device(facts, device_id))
    chosen = gpus[:1] or known[:1] if not wanted else gpus or known if "all" in wanted else list(wanted)
    if not chosen:
        raise UsageError("no device found; `gpubench doctor` says what was looked for")
    return tuple(dict.fromkeys([*chosen, *(["host"] if with_host else [])]))


def why_host(facts: Facts, settings: Settings) -> str:
    """Return why a run without --device measures the host, or an empty text if there is a GPU."""
    if settings.devices != ("host",):
        return ""
    return f"no GPU is usable, so the host processor is measured; {_looked_for(facts)}"


def _looked_for(facts: Facts) -> str:
    reasons = "; ".join(f"{absent.what}: {absent.reason}; {absent.how}" for absent in facts.absent)
    return reasons or f"pip install '{DISTRIBUTION}[cuda13]' for an NVIDIA GPU"


def _no_device(facts: Facts, device_id: str) -> str:
    known = ", ".join(device.id for device in facts.devices) or "none"
    if device_id.partition(":")[0] not in ("cuda", "rocm") or any(d.backend != "host" for d in facts.devices):
        return f"no device {device_id!r}; there is {known}"
    return f"no device {device_id!r} (there is {known}); looked for GPUs through CuPy: {_looked_for(facts)}"


def matches(case_id: str, filters: Sequence[str]) -> bool:
    """Whether any filter is found in the id; `*` and `?` are wild. No filter matches everything."""
    return not filters or patterns.matches(case_id, filters)


def _nothing_matches(settings: Settings, ids: Sequence[str]) -> str:
    if not ids:
        return f"{', '.join(settings.suites)}: no case runs on {', '.join(settings.devices)}"
    words = {part for case_id in ids for part in (case_id, case_id.partition("[")[0])}
    near = difflib.get_close_matches(settings.filters[0], sorted(words), n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`gpubench list --cases` shows the cases"
    return f"no case matches --filter {' '.join(settings.filters)}; {hint}"


def _device_set(case: Case, device: Device, facts: Facts) -> tuple[Device, ...]:
    here = {found.id: found for found in facts.devices}
    named = dict(case.params).get("peer")
    peers = [here[peer] for peer in device.peers if peer in here and named in (None, peer)]
    return (device, *peers)[: case.devices]


def _replicate(jobs: Sequence[Job], replicate: int, settings: Settings) -> list[Job]:
    numbered = [replace(job, replicate=replicate) for job in jobs]
    if settings.replicates > 1:
        random.Random(f"{settings.seed}/{replicate}").shuffle(numbered)
        return _in_blocks(numbered)
    return numbered


def data_files(paths: Iterable[Path]) -> tuple[DataFile, ...]:
    """The user's data: files, and the files of folders; UsageError where one is empty or unreadable."""
    found = [entry for path in paths for entry in _data_of(path)]
    if len(found) > _MOST_DATA_FILES:
        raise UsageError(f"--data names {len(found)} files; the maximum is {_MOST_DATA_FILES}: name fewer or pack them")
    labels = [entry.label for entry in found]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--data names two files called {label}; case ids need different names")
    return tuple(found)


def _data_of(path: Path) -> list[DataFile]:
    try:
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.is_file() and inner.stat().st_size)
            if not files:
                raise UsageError(f"--data {path}: the folder holds no file with content")
            return [_data_file(inner, inner.relative_to(path).as_posix()) for inner in files]
        return [_data_file(path, path.name)]
    except OSError as error:
        raise UsageError(f"--data {path}: {error.strerror}") from error


def _data_file(path: Path, label: str) -> DataFile:
    if path.exists() and (not path.is_file() or not path.stat().st_size):
        what = "the file is empty" if path.is_file() else "not a regular file"
        raise UsageError(f"--data {path}: {what}")
    with path.open("rb") as file:
        first = file.read(_HASHED_BYTES)
    return DataFile(_label(label), str(path.resolve()), path.stat().st_size, hashlib.sha256(first).hexdigest())


def _label(text: str) -> str:
    """A name that can stand in a case id: no brackets, commas, blanks or control characters."""
    return re.sub(r"[^\w.+/-]", "_", text)
