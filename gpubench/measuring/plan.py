"""Resolve suites, devices, tiers, filters and data to the jobs of a run, without touching a device."""

import difflib
import hashlib
import math
import random
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubench import __version__, plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.suite import Suite
from gpubench.base import installation, patterns, units
from gpubench.base.errors import UsageError
from gpubench.model import Case, Device, Facts, Settings, SuiteInfo, Tier

# Measured on a host with two cores and on an H200 with compiled kernels, in runs of hundreds of cases; in the full
# tier in parts of such runs, where suites differ by ten times.
_SECONDS_A_CASE: dict[Tier, float] = {"smoke": 0.2, "quick": 0.35, "full": 1.5}
_SECONDS_A_GPU_CASE: dict[Tier, float] = {"smoke": 0.1, "quick": 0.2, "full": 0.4}
_SECONDS_A_WORKER = 2.0
_ALL, _HEADLINE = "all", "headline"  # arguments that stand in place of a suite's name


@dataclass(frozen=True, slots=True)
class Job:
    """One case to run on one device set in one replicate; its ranks are spread over `nodes` machines.

    A job with a `runtime` needs a worker that no other runtime has used."""

    case: Case
    devices: tuple[Device, ...]
    replicate: int
    nodes: int = 1
    runtime: str = ""

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """Return the case id, the device ids and the replicate: equal to the key of the job's result."""
        return (self.case.id, tuple(device.id for device in self.devices), self.replicate)

    @property
    def rank_devices(self) -> tuple[Device, ...]:
        """Return the device of each rank on one node."""
        return tuple(self.devices[rank % len(self.devices)] for rank in range(self.case.ranks // self.nodes))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run needs to know before it touches a device.

    After `most_s` seconds no job of a further replicate starts; the first replicate is always complete. After `ends_s`
    seconds every job ends. With `is_at_once` the jobs of one case run on all their devices at the same time."""

    facts: Facts
    settings: Settings
    suites: tuple[SuiteInfo, ...]
    jobs: tuple[Job, ...]
    most_s: float = math.inf
    ends_s: float = math.inf
    is_at_once: bool = False

    def groups(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Yield the jobs that run at the same time: neighbours of one case and replicate without a common device."""
        group: list[Job] = []
        for job in jobs:
            names = {device.id for other in group for device in other.devices}
            is_same = bool(group) and (group[0].case, group[0].replicate) == (job.case, job.replicate)
            if not (self.is_at_once and is_same and job.nodes == 1 and names.isdisjoint(job.key[1])) and group:
                yield group
                group = []
            group.append(job)
        if group:
            yield group

    def at_once(self) -> "Plan":
        """Return this plan with the jobs of each case and replicate as neighbours, so that they run at once."""
        first = {(job.replicate, job.case.id): place for place, job in reversed(list(enumerate(self.jobs)))}
        jobs = sorted(self.jobs, key=lambda job: first[job.replicate, job.case.id])
        return replace(self, jobs=tuple(jobs), is_at_once=True)

    def suite(self, case: Case) -> str:
        """Return the name by which `load_suite` finds the suite of a case: its name, or the path of its file."""
        paths = filter(plugins.is_file, self.settings.suites)
        return next((path for path in paths if plugins.plugin_name(path) == case.suite), case.suite)

    def target(self, job: Job) -> Target:
        """Return the target that the job's case is planned and built for."""
        return _target(self.facts, job.devices[0], self.settings)

    @property
    def seconds(self) -> float:
        """Return an estimate of the run's duration in seconds."""
        workers = len({(device.id, job.replicate) for job in self.jobs for device in job.devices})
        return sum(map(self.seconds_of, self.jobs)) + workers * _SECONDS_A_WORKER

    def seconds_of(self, job: Job) -> float:
        """Return an estimate of a job's duration in seconds without its worker's start; 0 if devices are missing."""
        seconds = _SECONDS_A_CASE if job.devices[0].backend == "host" else _SECONDS_A_GPU_CASE
        return 0.0 if missing_devices(job) else seconds[self.settings.tier]


def make(facts: Facts, settings: Settings) -> Plan:
    """Return the plan that follows from the facts of the machine and the settings of the run.

    Raises UsageError if nothing would run (the message names an alternative), or if a suite or a device is unknown,
    and BrokenPlugin if a suite does not load."""
    suites = [load_suite(name) for name in settings.suites]
    devices = [facts.device(device_id) for device_id in settings.devices]
    all_jobs = [
        job
        for device in devices
        for suite in suites
        for job in _grouped_by_runtime(
            _make_job(suite, case, device, facts)
            for case in _cases(suite, _target(facts, device, settings), settings.headline)
        )
    ]
    selected = [job for job in all_jobs if matches(job.case.id, settings.filters)]
    if not selected:
        raise UsageError(_no_case_message(settings, suites, facts, [job.case.id for job in all_jobs]))
    jobs = [
        job for replicate in range(settings.replicates) for job in _jobs_of_replicate(selected, replicate, settings)
    ]
    return Plan(facts, settings, tuple(suite.info() for suite in suites), tuple(jobs))


def _make_job(suite: Suite, case: Case, device: Device, facts: Facts) -> Job:
    definition, params = suite.definitions[case.name], dict(case.params)
    return Job(case, _device_set(case, device, facts), 0, definition.spread(params), definition.runtime(params))


def _grouped_by_runtime(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs grouped by runtime, in the order in which the runtimes first occur; a group keeps its order."""
    blocks: dict[str, list[Job]] = {}
    for job in jobs:
        blocks.setdefault(job.runtime, []).append(job)
    return [job for block in blocks.values() for job in block]


def _target(facts: Facts, device: Device, settings: Settings) -> Target:
    return Target(facts, device, settings.tier, settings.data, settings.nodes)


def _cases(suite: Suite, target: Target, only_headline: bool) -> list[Case]:
    return headline(suite, target) if only_headline else list(suite.cases(target))


def headline(suite: Suite, target: Target) -> list[Case]:
    """Return the cases that represent a suite on the target's device; empty if it has none there.

    For each definition with a flag it is the last case with enough devices among the cases with the most of the flag's
    values. Without a flag it is the first case of the suite."""
    cases = list(suite.cases(target))
    chosen: list[Case] = []
    for name, definition in suite.definitions.items():
        if (flag := definition.headline) is None:
            continue
        differences = [(len(flag.items() - dict(case.params).items()), case) for case in cases if case.name == name]
        fewest = min((count for count, _ in differences), default=0)
        candidates = [case for count, case in differences if count == fewest]
        runnable = [case for case in candidates if len(_device_set(case, target.device, target.facts)) == case.devices]
        chosen += (runnable or candidates)[-1:]
    return chosen or cases[:1]


def missing_devices(job: Job) -> str:
    """Return why a job has too few devices to run, or an empty text if it has enough."""
    if len(job.devices) >= job.case.devices:
        return ""
    return f"needs {job.case.devices} devices with access to each other's memory; {len(job.devices)} available"


def skip_messages(plan: Plan) -> list[str]:
    """Return messages about a plan: how many cases will be skipped for each reason, and that no case reads the data.

    The list is empty if there is nothing to say."""
    reasons = [reason for job in plan.jobs if not job.replicate and (reason := missing_devices(job))]
    messages = [f"{units.count(count)} will be skipped: {reason}" for reason, count in Tally(reasons).most_common()]
    return [*messages, *(["--data is ignored: none of these cases reads it"] if _ignores_data(plan) else [])]


def described(jobs: Sequence[Job], settings: Settings) -> str:
    """Return a line that describes the jobs: their number, the version and a hash.

    It is equal on nodes that measure the same cases in the same order, by the same tier and seed, on equal numbers
    of devices."""
    rows = [(job.case.id, job.case.version, len(job.devices), job.replicate, job.nodes) for job in jobs]
    digest = hashlib.sha256(repr((rows, settings.tier, settings.seed)).encode()).hexdigest()
    return f"{len(jobs)} cases with version {__version__} ({digest[:16]})"


def _ignores_data(plan: Plan) -> bool:
    if not plan.settings.data:
        return False
    suites = [load_suite(name) for name in plan.settings.suites]
    tier, devices = plan.settings.tier, [plan.facts.device(name) for name in plan.settings.devices]
    case_ids_without_data = {
        case.id for device in devices for suite in suites for case in suite.cases(Target(plan.facts, device, tier))
    }
    return all(job.case.id in case_ids_without_data for job in plan.jobs)


def load_suite(name: str) -> Suite:
    """Return the suite with this name, or the suite in the file or folder of which `name` is the path.

    Raises UsageError with a suggestion if the name is unknown or the file holds no suite, and BrokenPlugin if the
    suite does not load."""
    if not plugins.is_file(name):
        installed: Suite = plugins.load("suites", name)
        return installed
    suite = plugins.load_file("suites", Path(name))
    if not isinstance(suite, Suite) or not suite.definitions:
        raise UsageError(f"{name}: `suite` must be a Suite with at least one case; see docs/writing-a-suite.md")
    return suite


def broken_suites() -> dict[str, str]:
    """Return the reasons why installed suites do not load, by the suite's name; `all` runs without these suites."""
    reasons: dict[str, str] = {}
    for name in plugins.names("suites"):
        try:
            load_suite(name)
        except plugins.BrokenPlugin as error:
            reasons[name] = str(error)
    return reasons


def suite_names(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the suites that the command's arguments select, each once, in the order of the arguments.

    `all` (or no argument) selects every installed suite that loads, and `headline` alone does the same."""
    installed = plugins.names("suites")
    for name in arguments:
        if not plugins.is_file(name) and name not in (*installed, _ALL, _HEADLINE):
            raise plugins.unknown("suite", name, [*installed, _ALL, _HEADLINE])
    names = [_suite_path(name, installed) if plugins.is_file(name) else name for name in arguments if name != _HEADLINE]
    if _ALL in (names or [_ALL]):
        broken = broken_suites()
        loadable = [name for name in installed if name not in broken]
        names = [name for selected in names or [_ALL] for name in (loadable if selected == _ALL else (selected,))]
    _check_unique_names(names)
    return tuple(dict.fromkeys(names))


def _suite_path(name: str, installed: Sequence[str]) -> str:
    """Return the absolute path of the suite whose file or folder `name` is."""
    path = Path(name).resolve()
    if path.name == "__init__.py":  # the suite is the folder
        path = path.parent
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise UsageError(f"{name}: it is a folder without an __init__.py; name the Python file of a suite")
    if not path.exists():
        raise UsageError(f"{name}: there is no such file; name the Python file of a suite")
    plugin_name = plugins.plugin_name(path)
    if plugin_name in installed:
        raise UsageError(f"{name}: a suite named {plugin_name} exists already; rename the file")
    return str(path)


def _check_unique_names(names: Sequence[str]) -> None:
    """Raise UsageError if two paths among `names` give suites of one name: their cases would have the same ids."""
    files: dict[str, str] = {}
    for file in filter(plugins.is_file, names):
        if files.setdefault(plugins.plugin_name(file), file) != file:
            raise UsageError(f"{file} and {files[plugins.plugin_name(file)]} are suites of the same name; rename one")


def broken_suite_messages(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each suite that `all` leaves out because it does not load.

    There is none if the command's `arguments` name a suite and not `all`."""
    if [name for name in arguments if name not in (_ALL, _HEADLINE)] and _ALL not in arguments:
        return ()
    return tuple(f"left out: {reason}" for reason in broken_suites().values())


def is_headline(arguments: Sequence[str]) -> bool:
    """Return whether these arguments select only the headline cases of each suite."""
    return _HEADLINE in arguments


def sampled_devices(facts: Facts, names: Sequence[str]) -> list[Device]:
    """Return the devices whose counters are read: the host, and devices with an id in `names`, or all if it is empty.

    Raises UsageError for an unknown device."""
    devices = {device.id: device for device in facts.devices}
    if unknown := [name for name in names if name not in devices]:
        raise UsageError(f"there is no device {unknown[0]}; available: {', '.join(devices)}")
    return [device for name, device in devices.items() if not names or name in names or name == "host"]


def device_ids(facts: Facts, names: Sequence[str], with_host: bool) -> tuple[str, ...]:
    """Return the ids of the devices to measure, each once; `names` are the arguments of the user.

    `with_host` adds the host."""
    ids = [device.id for device in facts.devices]
    gpus = [device.id for device in facts.devices if device.backend != "host"]
    for device_id in names:
        if device_id not in (*ids, "all"):
            raise UsageError(_no_device_message(facts, device_id))
    selected = gpus[:1] or ids[:1] if not names else gpus or ids if "all" in names else list(names)
    if not selected:
        raise UsageError("no device found; run `gpubench doctor` to see what is missing")
    return tuple(dict.fromkeys([*selected, *(["host"] if with_host else [])]))


def why_host(facts: Facts, settings: Settings) -> str:
    """Return the reason why only the host is measured, as a sentence; empty if other devices are."""
    if settings.devices != ("host",):
        return ""
    return f"no GPU is usable, so the host processor is measured; {_why_no_gpu(facts)}"


def _why_no_gpu(facts: Facts) -> str:
    reasons = "; ".join(f"{part.what}: {part.reason}; {part.how}" for part in facts.absent)
    return reasons or installation.for_gpu()


def _no_device_message(facts: Facts, device_id: str) -> str:
    ids = ", ".join(device.id for device in facts.devices) or "none"
    if device_id.partition(":")[0] not in ("cuda", "rocm") or any(device.backend != "host" for device in facts.devices):
        return f"no device {device_id!r}; available: {ids}"
    return f"no device {device_id!r} (available: {ids}); looked for GPUs through CuPy: {_why_no_gpu(facts)}"


def matches(case_id: str, filters: Sequence[str]) -> bool:
    """Return whether the id matches any of the filters (`*` and `?` are wildcards), or there are no filters."""
    return not filters or patterns.matches(case_id, filters)


def _no_case_message(settings: Settings, suites: Sequence[Suite], facts: Facts, ids: Sequence[str]) -> str:
    on = ", ".join(settings.devices)
    names = [f"{suite.name}/{name}" for suite in suites for name in suite.definitions]
    full = [_target(facts, facts.device(name), replace(settings, tier="full")) for name in settings.devices]
    in_full = {f"{suite.name}/{case.name}" for suite in suites for target in full for case in suite.cases(target)}
    named = {name for name in names if matches(name, settings.filters)}  # without filters all of them
    what = ", ".join(sorted(named) if settings.filters else settings.suites)
    if named and not named & in_full:
        has_gpu = any(device.backend != "host" for device in facts.devices)
        return f"{what}: no case runs on {on}" if has_gpu else f"{what} needs a GPU; none here"
    if named and not settings.headline:
        return f"{what}: no case runs on {on} in the tier {settings.tier}; try --tier full"
    suggestions = {part: name for name in names for part in (name, name.partition("/")[2])}
    suggestions |= {case_id: case_id for case_id in ids}
    similar = difflib.get_close_matches(settings.filters[0], sorted(suggestions), n=1)
    hint = f"did you mean {suggestions[similar[0]]}?" if similar else "`gpubench list --cases` shows the cases"
    return f"no case matches --filter {' '.join(settings.filters)}; {hint}"


def _device_set(case: Case, device: Device, facts: Facts) -> tuple[Device, ...]:
    """Return the devices for a case: `device`, then peers whose memory it can access, until the case has enough."""
    devices_by_id = {device_here.id: device_here for device_here in facts.devices}
    wanted_peer = dict(case.params).get("peer")
    peers = [devices_by_id[peer] for peer in device.peers if peer in devices_by_id and wanted_peer in (None, peer)]
    return (device, *peers)[: case.devices]


def _jobs_of_replicate(jobs: Sequence[Job], replicate: int, settings: Settings) -> list[Job]:
    """Return the jobs with this number of a replicate, in their order; with several replicates in a random order."""
    numbered = [replace(job, replicate=replicate) for job in jobs]
    if settings.replicates > 1:
        random.Random(f"{settings.seed}/{replicate}").shuffle(numbered)
        return _grouped_by_runtime(numbered)
    return numbered
