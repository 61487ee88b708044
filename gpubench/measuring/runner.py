"""Run a plan: the cases in order, in supervised worker processes, with one rank or many.

A crash, a hang, a broken device or an invalid message of a worker costs one result and one worker; the rest of the run
continues. The runner does not trust a worker: its messages are limited and checked, and never executed.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, Protocol

from gpubench.base.errors import DeviceError
from gpubench.measuring import boundary, time_limits
from gpubench.measuring.channel import SEND_S, BadMessage
from gpubench.measuring.claims import SHARED_LABEL, Claims
from gpubench.measuring.nodes import NodeGroup, SpreadCase
from gpubench.measuring.outcome import merged
from gpubench.measuring.plan import Job, Plan, missing_devices
from gpubench.measuring.process import Child
from gpubench.measuring.progress import Forecast, Observer, Progress
from gpubench.measuring.sampler import SamplingProcess
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import Gone, Offer, Order, Part
from gpubench.model import Device, Remark, Result, Samples

_TICK_S = 0.2
# The most messages of a rank in one case: ranks that agree on each sample of a long tail send a fifth of these offers,
# and a rank that sends a sign of life every second for a day sends a third of these phases.
_MOST_OFFERS, _MOST_PHASES = 10_000_000, 300_000
_LOST_DEVICE = 3  # cases in a row that cannot open their device, after which it counts as lost


class Sink(Protocol):
    """Receives results, samples and remarks as soon as they exist: the run file's writer."""

    def result(self, result: Result) -> None: ...
    def samples(self, samples: Samples) -> None: ...
    def remark(self, remark: Remark) -> None: ...


Worker = Child[Part | Offer | Phase]


class Crew:
    """Worker processes by device and slot: started when first needed, and replaced when they fail."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], Worker] = {}
        self._runtime = ""

    def members(self, devices: Sequence[Device], runtime: str) -> list[Worker]:
        """Return one worker per rank. Ranks on the same device get different workers, and a new runtime new ones."""
        if runtime != self._runtime:
            self.dismiss_all()
            self._runtime = runtime
        slots: dict[str, int] = {}
        workers = []
        for device in devices:
            slot = slots.get(device.id, 0)
            slots[device.id] = slot + 1
            key = (device.id, slot)
            worker = self._workers.get(key)
            if worker is not None and (worker.process.poll() is not None or worker.channel.is_waiting()):
                self.dismiss(worker)  # it died between two cases, or sent a message without an order
            if key not in self._workers:
                self._workers[key] = Child("gpubench.measuring.worker", (Part, Offer, Phase))
            workers.append(self._workers[key])
        return workers

    def dismiss(self, child: Worker) -> None:
        """End a worker; the next case that needs its slot gets a fresh one."""
        self._workers = {key: worker for key, worker in self._workers.items() if worker is not child}
        child.kill()

    def dismiss_all(self) -> None:
        """End every worker."""
        for child in self._workers.values():
            child.kill()
        self._workers = {}


@dataclass(slots=True)
class _Ranks:
    """The ranks of a job on this node while it runs: their parts, offers, phases, and the ends they know of.

    They count from 0; `spread` knows their numbers among the ranks of all nodes.
    """

    children: list[Worker]
    spread: SpreadCase | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    phases: dict[int, Phase] = field(default_factory=dict)  # the current phase of each rank
    begun_at: dict[int, float] = field(default_factory=dict)  # since when, not counting waits for other ranks
    offered_at: dict[int, float] = field(default_factory=dict)
    messages: Tally[tuple[int, type]] = field(default_factory=Tally)
    informed_of: dict[int, set[int]] = field(default_factory=dict)  # rank → the ranks whose end it has been informed of

    @property
    def missing(self) -> list[int]:
        """Return the ranks that have not ended their part."""
        return [rank for rank in range(len(self.children)) if rank not in self.parts]

    @property
    def are_over(self) -> bool:
        """Return whether all ranks have ended, including those on other nodes."""
        return not self.missing and (self.spread is None or self.spread.is_over)

    @property
    def all_parts(self) -> list[Part]:
        """Return the parts in the order of the ranks; a rank on another node has an outcome and no series."""
        own = [self.parts[rank] for rank in range(len(self.children))]
        if self.spread is None:
            return own
        first, ends = self.spread.first, self.spread.ends
        before, after = range(first), range(first + len(own), self.spread.world)
        return [*(ends[rank] for rank in before), *own, *(ends[rank] for rank in after)]

    @property
    def world(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.spread.world if self.spread else len(self.children)

    def number(self, rank: int) -> int:
        """Return the number of a rank among the ranks of all nodes."""
        return rank + (self.spread.first if self.spread else 0)

    def rank_of(self, channel: object) -> int:
        """Return the rank that uses this channel."""
        return next(rank for rank, child in enumerate(self.children) if child.channel is channel)

    def left_s(self, rank: int, now: float) -> float:
        """Return the seconds until a rank counts as hung; infinite while it waits for other ranks."""
        if rank in self.offers:
            return math.inf
        return self.begun_at[rank] + min(self.phases[rank].limit_s, time_limits.MOST_S) - now

    def begin(self, rank: int, phase: Phase) -> None:
        """Record that a rank begins a phase, or continues it with a new limit."""
        self.phases[rank], self.begun_at[rank] = phase, time.monotonic()

    def go_on(self, rank: int) -> None:
        """Record that a rank gets the answer to its offer; its waiting time does not count."""
        now, offered_at = time.monotonic(), self.offered_at.pop(rank)
        self.begun_at[rank] = now if self.phases[rank].restarts else self.begun_at[rank] + now - offered_at


class Runner(AbstractContextManager["Runner"]):
    """Runs jobs; leaving the context ends all processes.

    `deadline_s` limits each case, whatever its phases may take.
    """

    def __init__(
        self,
        plan: Plan,
        sampler: SamplingProcess,
        sink: Sink,
        deadline_s: float = time_limits.CASE_S,
        claims: Claims | None = None,
        group: NodeGroup | None = None,
    ) -> None:
        self._plan = plan
        self._group = group
        self._sampler = sampler
        self._sink = sink
        self._deadline_s = deadline_s
        self._claims = claims
        self._crew = Crew()
        self._replicate = 0
        self._failures: dict[str, int] = {}  # device → cases in a row that could not open it

    def __exit__(self, *_: object) -> None:
        self._crew.dismiss_all()
        self._sampler.kill()

    def run(self, jobs: Sequence[Job], started_at: float, watch: Observer) -> None:
        """Run the jobs in order; every result is in the sink before the next job starts.

        `started_at` is the run's start in monotonic seconds. Raises DeviceError at the end if a device no longer
        opened: its cases fail, and the cases of other devices are measured.
        """
        forecast = Forecast(self._plan, jobs)
        for index, job in enumerate(jobs):
            start = time.monotonic()
            if job.replicate and start - started_at >= self._plan.most_s:
                break
            watch(Progress(job, index, jobs, forecast.left_s()))
            if job.replicate != self._replicate:
                self._crew.dismiss_all()
                self._replicate = job.replicate
            result = self._written(self._result(job, started_at))
            self._relay(self._sampler.drain())
            forecast.add(job, time.monotonic() - start)
            watch(Progress(job, index, jobs, forecast.left_s(), result))
            self._watch_device(result)
        self._relay(self._sampler.stop())
        if lost := [device for device in self._failures if self._is_lost(device)]:
            message = f"{', '.join(lost)} does not open any more; the results of the other cases are kept"
            raise DeviceError(f"{message}: check the driver and its log (dmesg)")

    def _written(self, result: Result) -> Result:
        """Write a result and return it; if the file refuses it, write a failed result with the reason instead."""
        try:
            self._sink.result(result)
        except ValueError as error:
            result = Result(result.case, result.devices, "failed", result.replicate, "suite", boundary.text(str(error)))
            self._sink.result(result)
        return result

    def _relay(self, chunks: Sequence[Samples]) -> None:
        for chunk in chunks:
            self._sink.samples(chunk)
        for remark in self._sampler.remarks():
            self._sink.remark(remark)

    def _watch_device(self, result: Result) -> None:
        for device in result.devices:
            if result.cause == "device":
                self._failures[device] = self._failures.get(device, 0) + 1
            elif result.status == "ok":
                self._failures.pop(device, None)

    def _is_lost(self, device_id: str) -> bool:
        return self._failures.get(device_id, 0) >= _LOST_DEVICE

    def _result(self, job: Job, started_at: float) -> Result:
        start = time.monotonic()
        if reason := missing_devices(job):
            return Result(job.case, job.key[1], "skipped", job.replicate, "devices", reason)
        size = self._group.size if self._group else 1
        if job.nodes not in (1, size):
            reason = f"needs {job.nodes} nodes that measure together; {size} available"
            return Result(job.case, job.key[1], "skipped", job.replicate, "nodes", reason)
        lost = [device for device in job.key[1] if self._is_lost(device)]
        if lost and job.nodes == 1:  # a case on several nodes runs nevertheless: its ranks must report the failure
            return Result(job.case, job.key[1], "failed", job.replicate, "device", f"{', '.join(lost)} is lost")
        others = self._others(job)
        result = merged(job, self._run_ranks(job), started_at, time.monotonic() - start)
        if others or self._others(job):
            result = replace(result, labels=tuple(sorted({*result.labels, SHARED_LABEL})))
        return result

    def _others(self, job: Job) -> bool:
        """Return whether another run measures on a device of the job now."""
        return self._claims is not None and bool(self._claims.others(job.key[1]))

    def _run_ranks(self, job: Job) -> list[Part]:
        local_ranks = job.case.ranks // job.nodes
        devices = tuple(job.devices[rank % len(job.devices)] for rank in range(local_ranks))
        spread = self._group.begin(local_ranks) if self._group and job.nodes > 1 else None
        ranks = _Ranks(self._crew.members(devices, job.runtime), spread)
        first_rank, host = (spread.first, spread.host) if spread else (0, "")
        target, suite = self._plan.target(job), self._plan.suite(job.case)
        for rank, child in enumerate(ranks.children):
            peers = devices * job.nodes  # every node has devices of the same names
            order = Order(
                job.case, target, self._plan.settings.seed, first_rank + rank, peers, job.devices, suite, host
            )
            ranks.begin(rank, time_limits.STARTING)
            self._send(ranks, rank, order, child)
        self._attend(ranks)
        for rank, child in enumerate(ranks.children):
            if ranks.parts[rank].needs_new_worker:
                self._crew.dismiss(child)
        return ranks.all_parts

    def _attend(self, ranks: _Ranks) -> None:
        deadline = time.monotonic() + self._deadline_s
        while not ranks.are_over:
            waiting: list[Any] = [ranks.children[rank].channel for rank in ranks.missing]
            waiting += [ranks.children[rank].output for rank in ranks.missing if ranks.children[rank].output >= 0]
            waiting += [self._sampler.channel] if self._sampler.channel else []
            node_descriptors = self._group.descriptors if self._group else []
            for ready in wait([*waiting, *node_descriptors], _TICK_S):
                if ready not in node_descriptors:
                    self._hear(ranks, ready)
            if self._group:
                self._group.listen()
            self._end_hung(ranks, deadline)

    def _hear(self, ranks: _Ranks, ready: object) -> None:
        if ready is self._sampler.channel:
            self._relay(self._sampler.drain())
        elif isinstance(ready, int):
            for child in ranks.children:
                if child.output == ready:
                    child.drain()
        else:
            self._listen(ranks, ranks.rank_of(ready))

    def _listen(self, ranks: _Ranks, rank: int) -> None:
        if rank in ranks.parts:  # another rank's message has just ended it
            return
        child = ranks.children[rank]
        try:
            for message in child.channel.arrived():
                self._take(ranks, rank, message)
        except BadMessage as error:
            child.kill()
            ranks.parts[rank] = Part("failed", "message", f"rank {ranks.number(rank)}: the worker sent {error}")
            self._answer(ranks)
        except (EOFError, OSError):
            self._record_crash(ranks, rank)

    def _take(self, ranks: _Ranks, rank: int, message: Part | Offer | Phase) -> None:
        ranks.messages[rank, type(message)] += 1
        most = {Part: 1, Phase: _MOST_PHASES, Offer: _MOST_OFFERS if ranks.world > 1 else 0}[type(message)]
        if rank in ranks.parts or rank in ranks.offers or ranks.messages[rank, type(message)] > most:
            raise BadMessage("more messages than its case has")
        if isinstance(message, Phase):
            ranks.begin(rank, message)
            return
        if isinstance(message, Offer):
            ranks.offers[rank], ranks.offered_at[rank] = message, time.monotonic()
        else:
            ranks.parts[rank] = message
        self._answer(ranks)

    def _answer(self, ranks: _Ranks) -> None:
        """Answer the ranks' offers: first report new ends to them, else wait until all remaining ranks have offered."""
        if ranks.spread:
            self._answer_spread(ranks, ranks.spread)
            return
        for rank in list(ranks.offers):
            new_ends = ranks.parts.keys() - ranks.informed_of.setdefault(rank, set())
            if new_ends:
                del ranks.offers[rank]
                ranks.go_on(rank)
                ranks.informed_of[rank] |= new_ends
                self._send(ranks, rank, Gone(min(new_ends)), ranks.children[rank])
        if ranks.offers and len(ranks.offers) == len(ranks.missing):
            values = [ranks.offers.get(rank) for rank in range(len(ranks.children))]
            answered = list(ranks.offers)
            ranks.offers.clear()
            for rank in answered:
                ranks.go_on(rank)
                self._send(ranks, rank, values, ranks.children[rank])

    def _answer_spread(self, ranks: _Ranks, spread: SpreadCase) -> None:
        """Answer the offers with those of all nodes, or with an end, once all ranks here have offered or ended."""
        while len(ranks.offers) == len(ranks.missing) and not spread.is_over:
            spread.give(ranks.offers, ranks.parts)
            union = spread.union()
            if union is None:
                return
            offers, ends = union
            answer = Gone(min(ends)) if ends else [offers.get(rank) for rank in range(spread.world)]
            answered = list(ranks.offers)
            ranks.offers.clear()
            for rank in answered:
                ranks.go_on(rank)
                self._send(ranks, rank, answer, ranks.children[rank])

    def _send(self, ranks: _Ranks, rank: int, message: object, child: Worker) -> None:
        try:
            child.channel.send(message)
        except TimeoutError:
            self._give_up(ranks, rank, f"it did not read an answer within {SEND_S:g} s")
        except OSError:  # it has ended; `_record_crash` finds out how
            self._record_crash(ranks, rank)

    def _record_crash(self, ranks: _Ranks, rank: int) -> None:
        if rank in ranks.parts:
            return
        child = ranks.children[rank]
        ranks.parts[rank] = Part("failed", "crash", f"rank {ranks.number(rank)}: the worker ended: {child.obituary()}")
        self._answer(ranks)

    def _end_hung(self, ranks: _Ranks, deadline: float) -> None:
        """End each rank whose phase takes too long, and each one that ended while another process holds its channel."""
        now = time.monotonic()
        for rank in ranks.missing:
            child, phase = ranks.children[rank], ranks.phases[rank]
            if now > deadline:
                phase = Phase(phase.name, self._deadline_s, "the limit of a case")
            elif child.process.poll() is not None and not child.channel.is_waiting():
                self._record_crash(ranks, rank)
                continue
            elif ranks.left_s(rank, now) > 0:
                continue
            reason = f"no answer within {phase.limit_s:.3g} s while {phase.name} (limit: {phase.basis})"
            self._give_up(ranks, rank, reason)
        self._answer(ranks)

    def _give_up(self, ranks: _Ranks, rank: int, reason: str) -> None:
        child = ranks.children[rank]
        last_line = f"; last line: {child.last_words}" if child.last_words else ""
        ranks.parts[rank] = Part("failed", "hang", f"rank {ranks.number(rank)}: {reason}{last_line}")
        child.kill()
