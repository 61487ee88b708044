"""Measure programs that are suspended: the time of each step, which kinds of memory survive, migration and eviction."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from gpubench.api import libraries as lib
from gpubench.api import suite as gb

from ._held import KINDS, HeldChild, limit_s, ticking
from ._suspension import SuspendedProgram

_BARE_BYTES = 2**21  # the memory of a program with a bare context: the smallest piece
_KIND_BYTES = 2**28
_MANY = 1000
_OFTEN, _SELDOM = 20, 3
_OFTEN_BYTES = 2**30  # the full tier suspends programs of up to this size often
_JOB_LAUNCHES = 1500  # launches of half a millisecond, with a wait after each
_HEAD_START_S = 0.2
_JOB_LIMIT_S = 60.0
_MASK = "CUDA_VISIBLE_DEVICES"

topic = gb.Topic(
    views=[
        gb.View("transfer", "Suspension time by resident memory", ("suspend",), "resident_bytes"),
        gb.View("transfer", "Checkpoint time by resident memory", ("suspend",), "resident_bytes", series="checkpoint"),
        gb.View("transfer", "Restore time by resident memory", ("suspend",), "resident_bytes", series="restore"),
        gb.View("bars", "Suspension time by kind of memory", ("suspend_kinds",), by=("kind", "count")),
        gb.View("bars", "Turnaround time of a job that evicts or shares", ("evict",), by=("resident_bytes",)),
    ],
)


def _cycles(bench: gb.Bench, nbytes: int) -> gb.Effort:
    """Return the effort of a case that suspends `nbytes`: one suspension, or in `full` 20 for 1 GiB and else 3."""
    if bench.target.tier != "full":
        return gb.Effort.exactly(1)
    return gb.Effort.exactly(_OFTEN if nbytes == _OFTEN_BYTES else _SELDOM)


@contextlib.contextmanager
def _skip_if_unsupported() -> Iterator[None]:
    """Raise Skip in place of a DriverCallError of the enclosed code whose message contains NOT_SUPPORTED."""
    try:
        yield
    except lib.DriverCallError as error:
        if "NOT_SUPPORTED" not in str(error):
            raise
        raise gb.Skip(f"the driver does not suspend programs here ({error}), as under MPS, WSL or on a vGPU") from error


def _notes(program: SuspendedProgram) -> dict[str, str]:
    """Return the notes `resident`, `processes`, `host memory` and `time limit` of a suspended program."""
    return {
        "resident": f"{program.child.nbytes} bytes of seeded data, and the context",
        "processes": program.use.note,
        "host memory": f"touched before, in {program.touched_s:.2f} s",
        "time limit": f"{limit_s(program.child.nbytes):.0f} s per step",
    }


def _stage(
    seconds: Callable[[], float], resident_bytes: int, probe: Callable[[], gb.Observation], effort: gb.Effort
) -> gb.Stage:
    """Return a stage of `seconds`, in which a program's memory is copied to the host and back; each call checks it."""
    work = gb.Work(items=1, payload=2 * resident_bytes)
    return gb.Stage(seconds, work, "item", clock="self", checked=True, probe=probe, effort=effort)


def parts(downtime_s: float, fixed_s: float | None, resident_bytes: int) -> dict[str, gb.Observed]:
    """Return `fixed`, which is `fixed_s`, and `per GiB`, the seconds that each resident GiB above 2 MiB adds to it.

    `downtime_s` is the downtime with `resident_bytes`. The result is empty if `fixed_s` is None."""
    if fixed_s is None:
        return {}
    gibibytes = (resident_bytes - _BARE_BYTES) / 2**30
    return {"fixed": gb.Observed(fixed_s, "s"), "per GiB": gb.Observed((downtime_s - fixed_s) / gibibytes, "s/GiB")}


@topic.case(when=gb.on_gpu, resident_bytes=gb.points((), (_BARE_BYTES,), full=(_BARE_BYTES, 2**30, 2**32, 2**34)))
def suspend(bench: gb.Bench, resident_bytes: int) -> gb.Task:
    """Seconds to suspend another program and to resume it (downtime).

    Locking, checkpointing, restoring and unlocking are separate series. The program's device memory is copied to the
    host and back: twice the resident bytes. While it is suspended its memory must be free, and is overwritten.
    Afterwards every word and the number of kernels that have run are compared. `fixed` is the downtime of the same
    program with 2 MiB, and `per GiB` what a resident GiB adds to it."""
    program, fixed_s = SuspendedProgram(bench, "malloc", resident_bytes), None
    if resident_bytes != _BARE_BYTES:
        with contextlib.ExitStack() as on_error, _skip_if_unsupported():
            on_error.callback(program.close)
            fixed_s = program.bare_downtime_s(_BARE_BYTES)
            on_error.pop_all()

    def downtime() -> float:
        with _skip_if_unsupported():
            program.cycle()
        return program.suspension.downtime_s

    def observed() -> gb.Observation:
        return {**program.suspension.observed(), **parts(program.suspension.downtime_s, fixed_s, resident_bytes)}

    def check() -> gb.Observation:
        """Return the seconds to start the `controller` and to `initialise` its driver, and the bytes `freed`."""
        return {
            "controller": gb.Observed(program.controller.started_s, "s"),
            "initialise": gb.Observed(program.controller.opened_s, "s"),
            "freed": gb.Observed(float(program.use.freed_bytes), "B", "more"),
        }

    stage = _stage(downtime, resident_bytes, observed, _cycles(bench, resident_bytes))
    return gb.Task.of(stage, check=check, close=program.close, notes=_notes(program))


@topic.case(
    when=gb.on_gpu,
    where=lambda _target, params: bool(params["count"] == 1 or params["kind"] == "malloc"),
    kind=gb.points((), full=KINDS),
    count=(1, _MANY),
)
def suspend_kinds(bench: gb.Bench, kind: str, count: int) -> gb.Task:
    """Seconds to suspend and resume a program with memory of one kind, or until the driver refuses it (`refused` is 1).

    After a refusal the device must still be usable. A program that resumes must have all its data."""
    program = SuspendedProgram(bench, kind, max(_KIND_BYTES, count * _BARE_BYTES), count)
    partner = None
    try:
        if kind == "ipc":
            partner = HeldChild(bench, "malloc", _BARE_BYTES)
            partner.wait()
            partner.helper.ask(limit_s(0), "open", program.child.handle, program.child.nbytes)
        begin, refusal = time.perf_counter(), ""
        try:
            program.cycle()
            seconds = program.suspension.downtime_s
        except lib.DriverCallError as error:
            seconds, refusal = time.perf_counter() - begin, str(error)
    finally:
        if partner is not None:
            partner.helper.end()
        program.close()
    program.use.expect_clean()

    def check() -> gb.Observation:
        return {"refused": gb.Observed(float(bool(refusal)))}

    stage = gb.Stage(lambda: seconds, gb.Work(items=1), "item", clock="self", effort=gb.Effort.exactly(1))
    outcome = refusal or "resumed with all its data"
    return gb.Task.of(stage, check=check, notes={**_notes(program), "outcome": outcome})


def rotation(uuids: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return (old, new) UUIDs that move every GPU's programs to the next GPU; the driver wants all GPUs named."""
    return list(zip(uuids, uuids[1:] + uuids[:1], strict=True))


def expect_moved(
    old: bytes, new: bytes, reported_uuid: bytes, before: Mapping[bytes, int], after: Mapping[bytes, int]
) -> None:
    """Raise WrongAnswer unless a program moved from the GPU `old` to the GPU `new`; all UUIDs have 16 bytes.

    `before` and `after` map a GPU's UUID to the number of processes that the driver lists on it."""
    if not before:
        gb.expect(reported_uuid == new, f"the program runs on GPU {reported_uuid.hex()}, not on {new.hex()}")
        return
    changes = [after.get(uuid, 0) - before.get(uuid, 0) for uuid in (old, new)]
    gb.expect(
        changes == [-1, 1], f"processes on GPU {old.hex()} changed by {changes[0]}, on {new.hex()} by {changes[1]}"
    )


def _need_one_model(bench: gb.Bench, gpus: int) -> None:
    """Raise Skip if CUDA_VISIBLE_DEVICES is set, if the driver has fewer than 2 GPUs (`gpus`), or if models differ."""
    if os.environ.get(_MASK) is not None:
        raise gb.Skip(
            f"{_MASK} is set: a program is restored by pairs of all GPUs that the driver has, and may then land on one "
            "that the mask excludes; unset it"
        )
    if gpus < 2:
        raise gb.Skip(f"needs two GPUs; the driver has {gpus}")
    names = {device.name for device in bench.target.facts.devices if device.backend == bench.target.device.backend}
    if len(names) > 1:
        raise gb.Skip(f"programs move only between GPUs of one model; these are {', '.join(sorted(names))}")


@topic.case(
    when=gb.on_gpu,
    devices=lambda _: 2,
    path=("rotate",),
    resident_bytes=gb.points((), (_BARE_BYTES,), full=(_BARE_BYTES, 2**30)),
)
def migrate(bench: gb.Bench, path: str, resident_bytes: int) -> gb.Task:
    """Seconds to suspend a program and to restore it on the next GPU (downtime), with each step as in `suspend`.

    The driver's lists of processes must show that it moved. `uuid` is 1 if the program itself sees the new UUID."""
    del path  # unused: every GPU's programs move to the next GPU
    program = SuspendedProgram(bench, "malloc", resident_bytes)
    with contextlib.ExitStack() as on_error:
        on_error.callback(program.close)
        uuids = program.controller.uuids()
        _need_one_model(bench, len(uuids))
        on_error.pop_all()
    following = dict(rotation(uuids))
    place, reported_uuid = program.expect_intact(0), b""

    def downtime() -> float:
        """Move the program to the next GPU and check where it is; return the downtime in seconds."""
        nonlocal place, reported_uuid
        before = program.use.by_gpu()
        with _skip_if_unsupported():
            reported_uuid = program.move(rotation(uuids))
        old, place = place, following[place]
        expect_moved(old, place, reported_uuid, before, program.use.by_gpu())
        return program.suspension.downtime_s

    def observed() -> gb.Observation:
        return {**program.suspension.observed(), "uuid": gb.Observed(float(reported_uuid == place))}

    effort = gb.Effort.exactly(_SELDOM if bench.target.tier == "full" else 1)
    stage = _stage(downtime, resident_bytes, observed, effort)
    notes = {**_notes(program), "path": f"from each of {len(uuids)} GPUs to the next"}
    return gb.Task.of(stage, check=lambda: None, close=program.close, notes=notes)


class UrgentJob:
    """A job of this process that arrives while a child of `nbytes` works: the child is suspended, or both run."""

    def __init__(self, bench: gb.Bench, nbytes: int) -> None:
        self._bench, self._program = bench, SuspendedProgram(bench, "malloc", nbytes)
        self._counter = bench.xp.zeros(2, bench.xp.uint64)
        self._launch = ticking(bench, self._counter)
        self._launch()
        bench.device.synchronize()
        self.notes = _notes(self._program)
        self._both_s = math.nan

    def seconds(self, is_evicting: bool) -> float:
        """Return the seconds from the job's arrival to its end; the child is suspended for the job if `is_evicting`."""
        child, suspension = self._program.child.helper, self._program.suspension
        begin = time.perf_counter()
        child.tell("work", _JOB_LAUNCHES)
        time.sleep(_HEAD_START_S)
        arrived = time.perf_counter()
        if is_evicting:
            with _skip_if_unsupported():
                suspension.suspend()
        self._work()
        ended = time.perf_counter()
        if is_evicting:
            suspension.resume()
        child.answer(_JOB_LIMIT_S)
        self._both_s = time.perf_counter() - begin
        self._program.expect_intact(_JOB_LAUNCHES)
        return ended - arrived

    def _work(self) -> None:
        """Run 1500 kernels and wait after each; raises WrongAnswer if one of them has not run."""
        self._counter.fill(0)
        for _ in range(_JOB_LAUNCHES):
            self._launch()
            self._bench.device.synchronize()
        counted = int(self._bench.device.to_host(self._counter)[0])
        gb.expect(counted == _JOB_LAUNCHES, f"{counted} of the job's {_JOB_LAUNCHES} kernels have run")

    def both(self) -> gb.Observation:
        """Return `both`, the seconds from the child's start of work until both jobs had ended."""
        return {"both": gb.Observed(self._both_s, "s")}

    def close(self) -> None:
        """End the child and the controller."""
        self._program.close()


@topic.case(when=gb.on_gpu, resident_bytes=gb.points((), full=(2**30,)))
def evict(bench: gb.Bench, resident_bytes: int) -> gb.Task:
    """Seconds from the arrival of a job to its end while another program works.

    The program is suspended for the job, or both share the device. Both run 1500 kernels of half a millisecond and wait
    after each. `both` is the time until both have ended."""
    job = UrgentJob(bench, resident_bytes)

    stages = {
        name: _stage(partial(job.seconds, name == "evict"), resident_bytes, job.both, gb.Effort.exactly(_SELDOM))
        for name in ("evict", "share")
    }
    return gb.Task(stages, close=job.close, notes=job.notes, labels=("time-sliced",))
