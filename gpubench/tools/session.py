"""Measure a plan into a run file: this module connects the runner, the sampler and the store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gpubench import __version__
from gpubench.base.errors import DeviceError, GpubenchError, Interrupted, Terminated, UsageError
from gpubench.measuring import claims as claiming
from gpubench.measuring import plan as planning
from gpubench.measuring.claims import Claims
from gpubench.measuring.joining import Membership, join
from gpubench.measuring.nodes import NodeGroup
from gpubench.measuring.plan import Job, Plan
from gpubench.measuring.progress import Observer
from gpubench.measuring.recording import Recording, new_manifest
from gpubench.measuring.runner import Runner
from gpubench.model import Device, Facts, Manifest, Run
from gpubench.model.store import read_run
from gpubench.tools import history
from gpubench.tools.health import RunHealth, Tell, measured_devices, silent

# a shell starts background jobs with SIGINT ignored; a run ends on SIGINT even then
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def measure(
    plan: Plan,
    path: Path,
    argv: Sequence[str],
    watch: Observer,
    resume: bool = False,
    tell: Tell = silent,
    exclusive: bool = False,
) -> Run:
    """Measure a plan into a run file, record it in the history if there is one, and return the run.

    Before the first case, `tell` is called with a line for each device that is sick or has a warning, and with a line
    if other runs measure on these devices.

    Raises UsageError, before anything is measured, if the file cannot be written or must not be resumed. Raises
    DeviceError if a device is lost, or if another run uses it and one of both runs is `exclusive`. Raises Interrupted
    on SIGINT, SIGTERM or SIGHUP; the file then contains everything measured so far.
    """
    devices = measured_devices(plan)
    with (
        terminable(lambda: _measured(path)),
        Claims(devices, exclusive) as claims,
        RunHealth(devices, tell) as health,
        _group(plan, resume) as group,
    ):
        _tell_of_others(claims, devices, tell)
        if resume:
            _resume(plan, path, watch, health, claims)
        else:
            _begin(plan, path, argv, watch, health, claims, group)
    run = read_run(path)
    return replace(run, warnings=(*run.warnings, *history.note(path, run)))


def _group(plan: Plan, resume: bool) -> AbstractContextManager[NodeGroup | None]:
    """Join the nodes that measure the plan together, if the environment names such a group."""
    place = Membership.take() if plan.settings.nodes > 1 else None
    if place is None:
        return nullcontext()
    if resume:
        raise UsageError("a run that measures together with other nodes cannot be resumed; start all nodes again")
    channels = join(place, planning.described(plan.jobs, plan.settings).encode())
    return NodeGroup(place.rank, place.size, channels)


def _tell_of_others(claims: Claims, devices: Sequence[Device], tell: Tell) -> None:
    if claims.problem:
        tell(f"whether another run of gpubench measures on the same devices is unknown: {claims.problem}")
    if message := claiming.warning(claims.others([device.id for device in devices])):
        tell(message)


def _begin(
    plan: Plan,
    path: Path,
    argv: Sequence[str],
    watch: Observer,
    health: RunHealth,
    claims: Claims,
    group: NodeGroup | None,
) -> None:
    manifest = new_manifest(plan.facts, plan.settings, plan.suites, [_as_utf8(word) for word in argv])
    with Recording.begin(path, manifest, _sampled(plan)) as recording:
        _run(plan, plan.jobs, recording, watch, health, claims, group)


def _as_utf8(word: str) -> str:
    """Return a word of the command line as UTF-8, whatever encoding the locale assumed."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")


def _run(
    plan: Plan,
    jobs: Sequence[Job],
    recording: Recording,
    watch: Observer,
    health: RunHealth,
    claims: Claims,
    group: NodeGroup | None = None,
) -> None:
    """Run all jobs and write the end record, also after a device was lost: the file is then complete."""
    with Runner(plan, recording.sampler, recording, claims=claims, group=group) as runner:
        health.begin(recording)
        try:
            runner.run(jobs, recording.started_at, watch)
        except DeviceError:
            health.end(recording)
            recording.end()
            raise
        health.end(recording)
        recording.end()


def _resume(plan: Plan, path: Path, watch: Observer, health: RunHealth, claims: Claims) -> None:
    before = read_run(path)
    if differs := differences(before.manifest, plan) + _changed_cases(before, plan):
        raise UsageError(f"{path} cannot be resumed: {'; '.join(differs)}")
    recording, run = Recording.resume(path, _sampled(plan))
    measured = {result.key for result in run.results}
    with recording:
        _run(plan, [job for job in plan.jobs if job.key not in measured], recording, watch, health, claims)


def _sampled(plan: Plan) -> list[Device]:
    wanted = {device.id for job in plan.jobs for device in job.devices} | {"host"}
    return [device for device in plan.facts.devices if device.id in wanted]


def differences(before: Manifest, plan: Plan) -> list[str]:
    """Return why a plan cannot continue a run: the devices, versions or settings that changed."""
    changes = [] if before.gpubench == __version__ else [f"gpubench was {before.gpubench}, is {__version__}"]
    changes += _changed("settings", before.settings, plan.settings)
    changes += _changed_pairs("version of", dict(before.facts.versions), dict(plan.facts.versions))
    changes += _changed_devices(before.facts, plan.facts)
    return changes


def _changed_cases(before: Run, plan: Plan) -> list[str]:
    versions = {job.case.id: job.case.version for job in plan.jobs}
    return [
        f"case {result.case.id} was version {result.case.version}, is {versions[result.case.id]}"
        for result in before.results
        if versions.get(result.case.id, result.case.version) != result.case.version
    ]


def _changed(subject: str, before: object, now: object) -> list[str]:
    if before == now:
        return []
    fields = [name for name in type(before).__slots__ if getattr(before, name) != getattr(now, name)]  # type: ignore[attr-defined]
    return [f"{subject} {name} was {getattr(before, name)!r}, is {getattr(now, name)!r}" for name in fields]


def _changed_pairs(subject: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    names = sorted(before.keys() | now.keys())
    return [
        f"{subject} {name} was {before.get(name, 'none')}, is {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _changed_devices(before: Facts, now: Facts) -> list[str]:
    old = {device.id: device for device in before.devices}
    new = {device.id: device for device in now.devices}
    changes = [f"device {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"device {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        # the memory of a virtual machine may grow while it runs
        changes += _changed(f"device {name}:", replace(old[name], memory_bytes=0), replace(new[name], memory_bytes=0))
    return changes


def _measured(path: Path) -> str:
    return f"what was measured is in {path}; continue with --resume" if path.exists() else "nothing was measured"


@contextmanager
def terminable(outcome: Callable[[], str]) -> Iterator[None]:
    """End a run in order on SIGINT, SIGTERM or SIGHUP, and raise Interrupted; `outcome` describes what was measured."""
    arrived: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        arrived.append(number)
        raise Terminated(number)

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # by nohup
    before = {number: signal.signal(number, end) for number in _ENDING - ignored}
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        number = error.number if isinstance(error, Terminated) else signal.SIGINT
        raise Interrupted(f"{_ending(number)}; {outcome()}", 128 + number) from None
    except GpubenchError as error:
        if not arrived:
            raise
        raise Interrupted(f"{_ending(arrived[0])}; {error}", 128 + arrived[0]) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"
