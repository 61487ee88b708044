"""Measure a plan into a run file with the runner, the sampler and the store."""

import math
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
from gpubench.measuring.examination import PATIENCE_S
from gpubench.measuring.nodes import Membership, NodeGroup, join
from gpubench.measuring.plan import Job, Plan
from gpubench.measuring.progress import Observer
from gpubench.measuring.recording import Recording, new_manifest
from gpubench.measuring.runner import Runner
from gpubench.model import Device, Facts, Manifest, Run
from gpubench.model.store import read_run
from gpubench.tools.health import RunHealth, Tell, measured_devices, silent
from gpubench.tools.history.recording import record_measured_run

_LEAST_PATIENCE_S = 2.0  # for the health of all devices, in a run that has to end in time
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
    """Measure a plan into a run file, record it in the history if there is one, and return the run."""
    devices = measured_devices(plan)
    with (
        terminable(lambda: _outcome_text(path)),
        Claims(devices, exclusive) as claims,
        RunHealth(devices, tell, min(PATIENCE_S, max(plan.ends_s / 8, _LEAST_PATIENCE_S))) as health,
        _join_group(plan, resume) as group,
    ):
        _warn_of_other_runs(claims, devices, tell)
        recording, jobs = _resumed(plan, path) if resume else (_begun(plan, path, argv), plan.jobs)
        with recording, Runner(plan, recording.sampler, recording, claims=claims, group=group) as runner:
            health.begin(recording)
            if math.isfinite(plan.most_s):
                watch = health.by_pass(recording, watch)
            try:
                runner.run(jobs, recording.started_at, watch)
            except DeviceError:
                health.end(recording)
                recording.end()
                raise
            health.end(recording)
            recording.end()
    run = read_run(path)
    return replace(run, warnings=(*run.warnings, *record_measured_run(path, run)))


def _join_group(plan: Plan, resume: bool) -> AbstractContextManager[NodeGroup | None]:
    membership = Membership.from_environment() if plan.settings.nodes > 1 else None
    if membership is None:
        return nullcontext()
    if resume:
        raise UsageError("a run that measures together with other nodes cannot be resumed; start all nodes again")
    channels = join(membership, planning.described(plan.jobs, plan.settings).encode())
    return NodeGroup(membership.rank, membership.size, channels)


def _warn_of_other_runs(claims: Claims, devices: Sequence[Device], tell: Tell) -> None:
    """Call `tell` with a line if other runs use these devices, or if that cannot be found out."""
    if claims.problem:
        tell(f"whether another run of gpubench measures on the same devices is unknown: {claims.problem}")
    if message := claiming.warning(claims.others([device.id for device in devices])):
        tell(message)


def _begun(plan: Plan, path: Path, argv: Sequence[str]) -> Recording:
    """Begin the run file `path` with the plan's manifest, with `argv` as UTF-8 whatever the locale is."""
    arguments = [os.fsencode(argument).decode("utf-8", "surrogateescape") for argument in argv]
    manifest = new_manifest(plan.facts, plan.settings, plan.suites, arguments)
    return Recording.begin(path, manifest, _sampled_devices(plan))


def _resumed(plan: Plan, path: Path) -> tuple[Recording, Sequence[Job]]:
    """Open the run file `path` again, and return the jobs of the plan that it does not have yet."""
    before = read_run(path)
    if changes := differences(before.manifest, plan) + _changed_cases(before, plan):
        raise UsageError(f"{path} cannot be resumed: {'; '.join(changes)}")
    recording, run = Recording.resume(path, _sampled_devices(plan))
    measured = {result.key for result in run.results}
    return recording, [job for job in plan.jobs if job.key not in measured]


def _sampled_devices(plan: Plan) -> list[Device]:
    device_ids = {device.id for job in plan.jobs for device in job.devices} | {"host"}
    return [device for device in plan.facts.devices if device.id in device_ids]


def differences(before: Manifest, plan: Plan) -> list[str]:
    """Return a clause for each change that keeps a plan from continuing a run; empty if it can continue."""
    changes = [] if before.gpubench == __version__ else [f"gpubench was {before.gpubench}, is {__version__}"]
    changes += _changed_fields("settings", before.settings, plan.settings)
    changes += _changed_versions("version of", dict(before.facts.versions), dict(plan.facts.versions))
    changes += _changed_devices(before.facts, plan.facts)
    return changes


def _changed_cases(before: Run, plan: Plan) -> list[str]:
    versions = {job.case.id: job.case.version for job in plan.jobs}
    return [
        f"case {result.case.id} was version {result.case.version}, is {versions[result.case.id]}"
        for result in before.results
        if versions.get(result.case.id, result.case.version) != result.case.version
    ]


def _changed_fields(subject: str, before: object, now: object) -> list[str]:
    """Return a clause for each field in which two values of one dataclass differ; `subject` begins the clause."""
    if before == now:
        return []
    fields = [name for name in type(before).__slots__ if getattr(before, name) != getattr(now, name)]  # type: ignore[attr-defined]
    return [f"{subject} {name} was {getattr(before, name)!r}, is {getattr(now, name)!r}" for name in fields]


def _changed_versions(subject: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a clause for each library whose version changed, appeared or vanished; `subject` begins the clause."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{subject} {name} was {before.get(name, 'none')}, is {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _changed_devices(before: Facts, now: Facts) -> list[str]:
    """Return a clause for each device that is gone, new or changed; the size of its memory is not compared."""
    old = {device.id: device for device in before.devices}
    new = {device.id: device for device in now.devices}
    changes = [f"device {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"device {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        # the memory of a virtual machine may grow while it runs
        changes += _changed_fields(
            f"device {name}:", replace(old[name], memory_bytes=0), replace(new[name], memory_bytes=0)
        )
    return changes


def _outcome_text(path: Path) -> str:
    return f"what was measured is in {path}; continue with --resume" if path.exists() else "nothing was measured"


@contextmanager
def terminable(outcome: Callable[[], str]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into Interrupted, whose message ends with the clause of `outcome`."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        raise Terminated(number)

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # nohup has set it
    before = {number: signal.signal(number, end) for number in _ENDING - ignored}
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        number = error.number if isinstance(error, Terminated) else signal.SIGINT
        raise Interrupted(f"{_signal_text(number)}; {outcome()}", 128 + number) from None
    except GpubenchError as error:
        if not received:
            raise
        raise Interrupted(f"{_signal_text(received[0])}; {error}", 128 + received[0]) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_text(number: int) -> str:
    """Return `interrupted` for SIGINT and `terminated` for any other signal."""
    return "interrupted" if number == signal.SIGINT else "terminated"
