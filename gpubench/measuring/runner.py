"""Run a plan: the cases in order, in supervised worker processes, with one rank or many.

A crash, a hang, a broken device or an invalid message of a worker costs one result and one worker; the rest of the run
continues. The runner does not trust a worker: its messages are limited and checked, and never executed."""

import itertools
import math
import time
from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, Protocol

from gpubench.base.errors import DeviceError
from gpubench.measuring import boundary, nodes, progress, time_limits
from gpubench.measuring.channel import SEND_S, BadMessage
from gpubench.measuring.claims import SHARED_LABEL, Claims
from gpubench.measuring.plan import Job, Plan, missing_devices
from gpubench.measuring.sampler import SamplingProcess
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import CaseOrder, OfferedValue, RankEnded, RankResult
from gpubench.measuring.worker_pool import WorkerChild, WorkerPool
from gpubench.model import Remark, Result, Samples, Series, Status


@dataclass(slots=True)
class JobRanks:
    """The ranks of a job on this node while it runs: their results, offered values and phases, by rank.

    The ranks count from 0 on this node."""

    workers: list[WorkerChild]
    spread: nodes.MultiNodeCase | None = None
    results: dict[int, RankResult] = field(default_factory=dict)
    offers: dict[int, OfferedValue] = field(default_factory=dict)
    phases: dict[int, Phase] = field(default_factory=dict)  # the current phase of each rank
    begun_at: dict[int, float] = field(default_factory=dict)  # when that phase began, plus the waits for other ranks
    offered_at: dict[int, float] = field(default_factory=dict)
    messages: Tally[tuple[int, type]] = field(default_factory=Tally)
    informed_of: dict[int, set[int]] = field(default_factory=dict)  # rank → the ranks whose end it has been informed of
    order: int = field(default_factory=itertools.count(1).__next__)  # the number that the results repeat

    @property
    def running(self) -> list[int]:
        """Return the ranks on this node that have not ended."""
        return [rank for rank in range(len(self.workers)) if rank not in self.results]

    @property
    def are_over(self) -> bool:
        """Return whether all ranks have ended, including ranks on other nodes."""
        return not self.running and (self.spread is None or self.spread.is_over)

    @property
    def all_results(self) -> list[RankResult]:
        """Return the results in the order of all ranks; a rank on another node has an outcome and no series.

        All ranks must have ended."""
        local_results = [self.results[rank] for rank in range(len(self.workers))]
        if self.spread is None:
            return local_results
        first, ended = self.spread.first, self.spread.ended
        before, after = range(first), range(first + len(local_results), self.spread.world)
        return [*(ended[rank] for rank in before), *local_results, *(ended[rank] for rank in after)]

    @property
    def world(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.spread.world if self.spread else len(self.workers)

    def number(self, rank: int) -> int:
        """Return the number of a rank among the ranks of all nodes."""
        return rank + (self.spread.first if self.spread else 0)

    def rank_of(self, channel: object) -> int:
        """Return the rank that uses this channel."""
        return next(rank for rank, worker in enumerate(self.workers) if worker.channel is channel)

    def left_s(self, rank: int, now: float) -> float:
        """Return the seconds until a rank counts as hung; infinite while it waits for other ranks.

        `now` is in monotonic seconds."""
        if rank in self.offers:
            return math.inf
        return self.begun_at[rank] + min(self.phases[rank].limit_s, time_limits.MOST_S) - now

    def begin(self, rank: int, phase: Phase) -> None:
        """Record that a rank begins a phase, or continues it with a new limit."""
        self.phases[rank], self.begun_at[rank] = phase, time.monotonic()

    def resume(self, rank: int) -> None:
        """Record that a rank gets the answer to its offer.

        The time that it waited does not count for its phase, and a phase that restarts begins anew."""
        now, offered_at = time.monotonic(), self.offered_at.pop(rank)
        self.begun_at[rank] = now if self.phases[rank].restarts else self.begun_at[rank] + now - offered_at


# The worst status decides; a part with the cause "peer" only repeats another rank's end, so it decides last.
_SEVERITY: dict[Status, int] = {"failed": 3, "invalid": 2, "skipped": 1, "ok": 0}


def merged(job: Job, results: Sequence[RankResult], started_at: float, elapsed_s: float) -> Result:
    """Return the result of a job: the worst outcome of any rank, the series of all, the notes of the first with series.

    A rank that only failed because another rank ended does not decide the outcome."""
    deciding = _deciding_results(results)
    causes = [rank_result for rank_result in deciding if rank_result.status != "ok" and rank_result.cause != "peer"]
    worst = max(causes or deciding, key=lambda rank_result: _SEVERITY[rank_result.status])
    active = next((rank_result for rank_result in results if rank_result.series), worst)
    discarded: dict[str, int] = {}
    series: list[Series] = []
    for rank_result in results:
        series += rank_result.series
        for reason, count in rank_result.discarded:
            discarded[reason] = discarded.get(reason, 0) + count
    return Result(
        case=job.case,
        devices=job.key[1],
        status=worst.status,
        replicate=job.replicate,
        cause=worst.cause,
        reason=boundary.text(worst.reason),
        series=tuple(series),
        discarded=tuple(sorted(discarded.items())),
        labels=tuple(sorted({label for rank_result in results for label in rank_result.labels})),
        notes=active.notes,
        window=(active.window[0] - started_at, active.window[1] - started_at) if active.window[1] else (0.0, 0.0),
        elapsed_s=elapsed_s,
    )


def _deciding_results(results: Sequence[RankResult]) -> list[RankResult]:
    crashed = {rank for rank, rank_result in enumerate(results) if rank_result.cause == "crash"}
    survivors = [rank_result for rank, rank_result in enumerate(results) if rank not in crashed]
    handled = bool(survivors) and all(
        rank_result.status == "ok" and crashed <= set(rank_result.informed) for rank_result in survivors
    )
    return survivors if handled else list(results)


_TICK_S = 0.2
# The most messages of a rank in one case: ranks that agree on each sample of a long tail send a fifth of these offers,
# and a rank that sends a sign of life every second for a day sends a third of these phases.
_MOST_OFFERS, _MOST_PHASES = 10_000_000, 300_000
_BUDGET_ENDED = "the time of the run ended"
_LOST_DEVICE = 3  # cases in a row that cannot open their device, after which it counts as lost


class RecordSink(Protocol):
    """Receives results, samples and remarks as soon as they exist: the run file's writer."""

    def result(self, result: Result) -> None: ...
    def samples(self, samples: Samples) -> None: ...
    def remark(self, remark: Remark) -> None: ...


class Runner(AbstractContextManager["Runner"]):
    """Runs jobs; leaving the context ends the workers and the sampler."""

    def __init__(
        self,
        plan: Plan,
        sampler: SamplingProcess,
        sink: RecordSink,
        deadline_s: float = time_limits.CASE_S,
        claims: Claims | None = None,
        group: nodes.NodeGroup | None = None,
    ) -> None:
        """Set up a runner of jobs of `plan`, which writes results, samples and remarks to `sink`."""
        self._plan = plan
        self._group = group
        self._sampler = sampler
        self._sink = sink
        self._deadline_s = deadline_s
        self._claims = claims
        self._pool = WorkerPool()
        self._replicate = -1
        self._failures: dict[str, int] = {}  # device → cases in a row that could not open it

    def __exit__(self, *_: object) -> None:
        self._pool.end_all()
        self._sampler.kill()

    def run(self, jobs: Sequence[Job], started_at: float, watch: progress.Observer) -> None:
        """Run the jobs in order; every result is in the sink before the next job starts.

        `started_at` is the run's start in monotonic seconds, and `watch` is called before and after each job."""
        forecast = progress.Forecast(self._plan, jobs)
        index = 0
        for group in self._plan.groups(jobs):
            start = time.monotonic()
            if group[0].replicate and start - started_at >= self._plan.most_s:
                break
            for place, job in enumerate(group, index):
                watch(progress.ProgressEvent(job, place, jobs, forecast.left_s()))
            if group[0].replicate != self._replicate:
                self._pool.end_all()
                self._pool.start(jobs)
                self._replicate = group[0].replicate
            results = [self._write(result) for result in self._measure_jobs(group, started_at)]
            self._relay(self._sampler.drain())
            seconds = (time.monotonic() - start) / len(group)
            for job, result in zip(group, results, strict=True):
                forecast.add(job, seconds)
                watch(progress.ProgressEvent(job, index, jobs, forecast.left_s(), result))
                self._count_failures(result)
                index += 1
        self._relay(self._sampler.stop())
        if lost := [device for device in self._failures if self._is_lost(device)]:
            message = f"{', '.join(lost)} can no longer be opened; the results of the other cases are kept"
            raise DeviceError(f"{message}: check the driver and its log (dmesg)")

    def _write(self, result: Result) -> Result:
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

    def _count_failures(self, result: Result) -> None:
        """Count the cases in a row that could not open each device of `result`; an ok result sets the count to 0."""
        for device in result.devices:
            if result.cause == "device":
                self._failures[device] = self._failures.get(device, 0) + 1
            elif result.status == "ok":
                self._failures.pop(device, None)

    def _is_lost(self, device_id: str) -> bool:
        return self._failures.get(device_id, 0) >= _LOST_DEVICE

    def _measure_jobs(self, jobs: Sequence[Job], started_at: float) -> list[Result]:
        """Run jobs at the same time, and return their results in the same order."""
        start, ends_at = time.monotonic(), started_at + self._plan.ends_s
        results = {job.key: result for job in jobs if (result := self._refusal(job, start >= ends_at))}
        accepted = [job for job in jobs if job.key not in results]
        was_shared = [self._is_shared(job) for job in accepted]
        running = [self._start_ranks(job) for job in accepted]
        self._serve_ranks(running, ends_at)
        for job, ranks, shared in zip(accepted, running, was_shared, strict=True):
            for rank, worker in enumerate(ranks.workers):
                if ranks.results[rank].needs_new_worker:
                    self._pool.end_worker(worker)
            result = merged(job, ranks.all_results, started_at, time.monotonic() - start)
            if shared or self._is_shared(job):
                result = replace(result, labels=tuple(sorted({*result.labels, SHARED_LABEL})))
            results[job.key] = result
        return [results[job.key] for job in jobs]

    def _refusal(self, job: Job, is_over: bool) -> Result | None:
        """Return the result of a job that cannot run, with the reason, or None; `is_over` says that the time is."""
        if is_over:
            return Result(job.case, job.key[1], "skipped", job.replicate, "budget", _BUDGET_ENDED)
        if reason := missing_devices(job):
            return Result(job.case, job.key[1], "skipped", job.replicate, "devices", reason)
        size = self._group.size if self._group else 1
        if job.nodes not in (1, size):
            reason = f"needs {job.nodes} nodes that measure together; {size} available"
            return Result(job.case, job.key[1], "skipped", job.replicate, "nodes", reason)
        lost = [device for device in job.key[1] if self._is_lost(device)]
        if lost and job.nodes == 1:  # a case on several nodes runs nevertheless: its ranks must report the failure
            return Result(job.case, job.key[1], "failed", job.replicate, "device", f"{', '.join(lost)} is lost")
        return None

    def _is_shared(self, job: Job) -> bool:
        return self._claims is not None and bool(self._claims.others(job.key[1]))

    def _start_ranks(self, job: Job) -> JobRanks:
        """Send the case to one worker per rank, and return the ranks."""
        devices = job.rank_devices
        spread = self._group.begin(len(devices)) if self._group and job.nodes > 1 else None
        ranks = JobRanks(self._pool.workers_for(devices, job.runtime), spread)
        first_rank, host = (spread.first, spread.host) if spread else (0, "")
        target, suite, settings = self._plan.target(job), self._plan.suite(job.case), self._plan.settings
        for rank in range(len(devices)):
            peers = devices * job.nodes  # every node has devices of the same names
            number = first_rank + rank
            order = CaseOrder(
                job.case,
                target,
                settings.seed,
                number,
                peers,
                job.devices,
                suite,
                host,
                settings.paranoid,
                ranks.order,
            )
            ranks.begin(rank, time_limits.STARTING)
            self._send(ranks, rank, order)
        return ranks

    def _serve_ranks(self, jobs: Sequence[JobRanks], ends_at: float) -> None:
        """Read the messages of ranks, sampler and other nodes until every rank has a result; end ranks that hang."""
        deadline = time.monotonic() + self._deadline_s
        while active := [ranks for ranks in jobs if not ranks.are_over]:
            workers = [(ranks, ranks.workers[rank]) for ranks in active for rank in ranks.running]
            sources: list[tuple[Any, JobRanks]] = [(worker.channel, ranks) for ranks, worker in workers]
            sources += [(worker.output, ranks) for ranks, worker in workers if worker.output >= 0]
            waiting: list[Any] = [source for source, _ in sources]
            waiting += [self._sampler.channel] if self._sampler.channel else []
            node_descriptors = self._group.descriptors if self._group else []
            ready: Any
            for ready in wait([*waiting, *node_descriptors], _TICK_S):
                if ready is self._sampler.channel:
                    self._relay(self._sampler.drain())
                elif ready not in node_descriptors:
                    self._read_ready(next(ranks for source, ranks in sources if source is ready), ready)
            if self._group:
                self._group.listen()
            for ranks in active:
                self._end_hung(ranks, deadline, ends_at)

    def _read_ready(self, ranks: JobRanks, ready: object) -> None:
        """Read what arrived at `ready`: a worker's channel, or a descriptor of worker output."""
        if isinstance(ready, int):
            for worker in ranks.workers:
                if worker.output == ready:
                    worker.drain()
        else:
            self._read_messages(ranks, ranks.rank_of(ready))

    def _read_messages(self, ranks: JobRanks, rank: int) -> None:
        """Take the messages that arrived from a rank; a bad message or the end of its channel makes the rank fail."""
        if rank in ranks.results:  # another rank's message has just ended it
            return
        worker = ranks.workers[rank]
        try:
            for message in worker.channel.arrived():
                self._take_message(ranks, rank, message)
        except BadMessage as error:
            worker.kill()
            ranks.results[rank] = RankResult("failed", "message", f"rank {ranks.number(rank)}: the worker sent {error}")
            self._answer_offers(ranks)
        except (EOFError, OSError):
            self._record_crash(ranks, rank)

    def _take_message(self, ranks: JobRanks, rank: int, message: RankResult | OfferedValue | Phase) -> None:
        # A result of the case before, or a forged one, counts like a phase and changes nothing.
        is_late = isinstance(message, RankResult) and message.order != ranks.order
        kind = Phase if is_late else type(message)
        ranks.messages[rank, kind] += 1
        most = {RankResult: 1, Phase: _MOST_PHASES, OfferedValue: _MOST_OFFERS if ranks.world > 1 else 0}[kind]
        if rank in ranks.results or rank in ranks.offers or ranks.messages[rank, kind] > most:
            raise BadMessage("more messages than a case can have")
        if is_late:
            return
        if isinstance(message, Phase):
            ranks.begin(rank, message)
            return
        if isinstance(message, OfferedValue):
            ranks.offers[rank], ranks.offered_at[rank] = message, time.monotonic()
        else:
            ranks.results[rank] = message
        self._answer_offers(ranks)

    def _answer_offers(self, ranks: JobRanks) -> None:
        if ranks.spread:
            self._answer_across_nodes(ranks, ranks.spread)
            return
        for rank in list(ranks.offers):
            newly_ended = ranks.results.keys() - ranks.informed_of.setdefault(rank, set())
            if newly_ended:
                del ranks.offers[rank]
                ranks.resume(rank)
                ranks.informed_of[rank] |= newly_ended
                self._send(ranks, rank, RankEnded(min(newly_ended)))
        if ranks.offers and len(ranks.offers) == len(ranks.running):
            self._answer_all(ranks, [ranks.offers.get(rank) for rank in range(len(ranks.workers))])

    def _answer_across_nodes(self, ranks: JobRanks, spread: nodes.MultiNodeCase) -> None:
        while len(ranks.offers) == len(ranks.running) and not spread.is_over:
            spread.contribute(ranks.offers, ranks.results)
            round_values = spread.finish_round()
            if round_values is None:
                return
            offers, ended = round_values
            values = [offers.get(rank) for rank in range(spread.world)]
            self._answer_all(ranks, RankEnded(min(ended)) if ended else values)

    def _answer_all(self, ranks: JobRanks, answer: object) -> None:
        """Send the answer to each rank that has offered a value."""
        answered = list(ranks.offers)
        ranks.offers.clear()
        for rank in answered:
            ranks.resume(rank)
            self._send(ranks, rank, answer)

    def _send(self, ranks: JobRanks, rank: int, message: object) -> None:
        """Send a message to the worker of a rank; a rank that does not read it within 30 s or has ended fails."""
        try:
            ranks.workers[rank].channel.send(message)
        except TimeoutError:
            self._give_up(ranks, rank, f"it did not read an answer within {SEND_S:g} s")
        except OSError:  # the worker has ended; `_record_crash` finds the reason
            self._record_crash(ranks, rank)

    def _record_crash(self, ranks: JobRanks, rank: int) -> None:
        """Give a rank whose worker ended a failed result that says how it ended, unless the rank has a result."""
        if rank in ranks.results:
            return
        worker = ranks.workers[rank]
        ranks.results[rank] = RankResult(
            "failed", "crash", f"rank {ranks.number(rank)}: the worker ended: {worker.describe_end()}"
        )
        self._answer_offers(ranks)

    def _end_hung(self, ranks: JobRanks, deadline: float, ends_at: float) -> None:
        """End each rank whose phase takes too long, and record each one whose worker has ended without a message."""
        now = time.monotonic()
        for rank in ranks.running:
            worker, phase = ranks.workers[rank], ranks.phases[rank]
            if now > ends_at:
                worker.kill()
                ranks.results[rank] = RankResult("invalid", "budget", f"{_BUDGET_ENDED} while {phase.name}")
                continue
            if now > deadline:
                phase = Phase(phase.name, self._deadline_s, "the limit of a case")
            elif worker.process.poll() is not None and not worker.channel.is_waiting():
                self._record_crash(ranks, rank)
                continue
            elif ranks.left_s(rank, now) > 0:
                continue
            reason = f"no answer within {phase.limit_s:.3g} s while {phase.name} (limit: {phase.basis})"
            self._give_up(ranks, rank, reason)
        self._answer_offers(ranks)

    def _give_up(self, ranks: JobRanks, rank: int, reason: str) -> None:
        """End the worker of a rank, and give the rank a failed result with the cause `hang` and the given reason."""
        worker = ranks.workers[rank]
        last_line = f"; last line: {worker.last_line}" if worker.last_line else ""
        ranks.results[rank] = RankResult("failed", "hang", f"rank {ranks.number(rank)}: {reason}{last_line}")
        worker.kill()
