"""Open a device in a worker process, and turn one case after another into a rank's part of its result.

A worker never prints results and never decides what comes next. It talks to the runner over one channel: orders and
exchanged values come in; parts, values to exchange and the phases that begin go out. The runner checks all of it
(`measuring.channel`). The same limits are checked here first, because here the reason is known."""

import contextlib
import gc
import os
import pickle
import sys
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic  # kept from import on: a case may replace them
from typing import Any

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.base.errors import DeviceError, PeerDied, Skip, SuiteError, Unavailable, Untrustworthy, WrongAnswer
from gpubench.devices import interposed
from gpubench.measuring import answers, boundary, keeper, plain, plan, stopping, surroundings
from gpubench.measuring.channel import LIMIT_BYTES, ToParent, encoded, to_parent
from gpubench.measuring.engine import Engine, RankMeasurement
from gpubench.measuring.time_limits import OPENED, TimeLimits
from gpubench.model import Case, Device, Series, Status, Strict
from gpubench.plugins.backend import Backend, OpenDevice
from gpubench.plugins.collector import Collector, OpensWatch, Watch


@dataclass(frozen=True, slots=True)
class CaseOrder:
    """A case to build and measure as the rank with the number `rank`."""

    case: Case
    target: Target
    seed: int
    rank: int
    peers: tuple[Device, ...]  # the device of every rank, including this one
    devices: tuple[Device, ...] = ()  # every device of the case
    suite: str = ""  # the file of the case's suite, if it is not found by its name
    node_host: str = ""  # for a case on several nodes: the address by which other nodes reach this one
    is_paranoid: bool = False  # check the answer of each batch
    number: int = 0  # of the order, which the result repeats


class OfferedValue(bytes):
    """A value for the other ranks, which the runner passes on unread: a pickle, or plain data between nodes.

    The answer is a list of all ranks' offers, or a `RankEnded`."""


@dataclass(frozen=True, slots=True)
class RankEnded:
    """The answer to an offer if another rank has ended its part."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankResult(Strict):
    """One rank's part of a result; `informed` are the ended ranks that this rank knows of."""

    status: Status
    cause: str = ""
    reason: str = ""
    series: tuple[Series, ...] = ()
    discarded: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    window: tuple[float, float] = (0.0, 0.0)  # monotonic seconds
    informed: tuple[int, ...] = ()
    is_changed: bool = False  # the case left processes behind, or changed the state of its process
    order: int = 0  # the number of its CaseOrder

    @property
    def needs_new_worker(self) -> bool:
        """Return whether the next case needs a fresh worker: an unforeseen failure, a change, or times without sense.

        Processes that a case left behind end with its worker."""
        is_known = self.status != "failed" or self.cause in ("wrong-answer", "suite")
        has_odd_times = self.cause == "discarded" or "clock" in dict(self.discarded)
        return self.is_changed or has_odd_times or not is_known


MOST_OFFERED_BYTES = LIMIT_BYTES - 2**10
_DONE = "done"
_TRACE = 8192  # characters of a traceback that a result keeps


@dataclass(slots=True)
class PeerRanks:
    """The ranks of one case, as one of them sees them: it exchanges values with the others through the runner.

    `world` is the number of ranks, `informed` are the ranks of whose end this rank knows, and `decider` is the rank
    whose decisions all follow."""

    channel: ToParent
    world: int
    informed: list[int] = field(default_factory=list)
    decider: int = 0
    is_spread: bool = False  # over several nodes, which never unpickle each other's values

    def exchange(self, value: Any) -> list[Any]:
        """Offer a value and return every rank's value in the order of the ranks, None for a rank that has ended.

        Every rank that has not ended must call it."""
        if self.world == 1:
            return [value]
        offer = OfferedValue(plain.encode(value) if self.is_spread else pickle.dumps(value))
        if len(offer) > MOST_OFFERED_BYTES:
            size, most = len(offer) / 2**20, MOST_OFFERED_BYTES / 2**20
            raise SuiteError(
                f"an exchanged value takes {size:.1f} MiB, of which {most:g} are allowed; use shared memory"
            )
        self.channel.send(offer)
        answer = self.channel.recv()
        if isinstance(answer, RankEnded):
            self.informed.append(answer.rank)
            raise PeerDied(answer.rank)
        # Pickles come only from the case's own ranks on this node.
        decode = plain.decode if self.is_spread else pickle.loads
        return [None if offered is None else decode(offered) for offered in answer]

    def agree(self, value: answers.T) -> answers.T:
        """Return the value of the deciding rank on every rank.

        Every rank must call it. Raises PeerDied as `exchange`."""
        decided: answers.T = self.exchange(value)[self.decider]
        return decided

    def choose_decider(self, active: bool) -> bool:
        """Make the first active rank the deciding one, and return whether there is one; every rank must call it.

        This rank is active if it times something. Raises PeerDied as `exchange`."""
        roles = self.exchange(active)
        self.decider = roles.index(True) if True in roles else 0
        return True in roles

    def answer_until_done(self) -> None:
        """Take part in every agreement as an idle rank until the deciding rank is done.

        Raises PeerDied as `exchange`."""
        while self.exchange(None)[self.decider] != _DONE:
            pass


class Worker:
    """Opens its device for the first order, and measures every case that it is sent."""

    def __init__(self, channel: ToParent) -> None:
        """Set up a worker that talks to the runner over `channel`; the phases that it begins are reported there."""
        self._channel = channel
        self._limits = TimeLimits(channel.send)
        self._helpers: set[int] = set()  # ids of processes that the device or a watch keeps between cases
        self._open: OpenDevice | None = None
        self._watches: list[Watch] = []
        self._state: tuple[Any, ...] = ()  # of this process, before a case builds its task

    def serve(self) -> None:
        """Measure the cases that the runner orders and send each result, until the runner closes the channel."""
        while True:
            try:
                order: CaseOrder | Device = self._channel.recv()
            except EOFError:
                return
            if isinstance(order, Device):  # a case will need it
                self._open_device(order)
                self._channel.send(OPENED)
                continue
            self._state = ()
            part = self.measure_case(order)
            gc.collect()  # reference cycles may hold a task's arrays: free the device's memory now
            gc.freeze()  # the remaining objects stay: the next collection then visits the next case's objects only
            if self._open is not None and not part.needs_new_worker:
                self._open.release()
            is_changed = self._state not in ((), surroundings.state()) or keeper.has_descendants(self._helpers)
            self._channel.send_encoded(_encoded_result(replace(part, is_changed=is_changed, order=order.number)))

    def measure_case(self, order: CaseOrder) -> RankResult:
        """Return this rank's part of the result of a case; every error of the case becomes an outcome with a cause."""
        ranks = PeerRanks(self._channel, len(order.peers), is_spread=bool(order.node_host))
        try:
            return self._measure(order, ranks)
        except Skip as reason:
            return RankResult("skipped", "unsupported", boundary.text(str(reason)))
        except Unavailable as error:
            return RankResult("skipped", "missing", boundary.text(str(error)))
        except WrongAnswer as finding:
            return RankResult("failed", "wrong-answer", boundary.text(str(finding)))
        except Untrustworthy as finding:
            return RankResult("invalid", boundary.text(finding.cause), boundary.text(str(finding)))
        except DeviceError as error:
            return RankResult("failed", "device", boundary.text(str(error)))
        except SuiteError as mistake:
            return RankResult("failed", "suite", boundary.text(str(mistake)))
        except PeerDied as event:
            return RankResult("failed", "peer", str(event), informed=tuple(ranks.informed))
        except Exception as error:  # noqa: BLE001 - the case's boundary: a suite or driver may raise anything
            cause = "device" if self._open is None else "error"
            trace = ("traceback", traceback.format_exc()[-_TRACE:])
            message = f": {error}".rstrip(": ")
            return RankResult("failed", cause, boundary.text(type(error).__name__ + message), notes=(trace,))

    def _measure(self, order: CaseOrder, ranks: PeerRanks) -> RankResult:
        """Build and measure a case, and return the outcome of this rank; errors pass to `measure_case`."""
        device = self._open_device(order.peers[order.rank])
        self._limits.building(f"{order.case.suite}/{order.case.name}", order.target.tier, device.traits.is_gpu)
        suite = plan.load_suite(order.suite or order.case.suite)
        bench = Bench(
            device,
            order.case,
            order.target,
            suite.package,
            order.seed,
            order.rank,
            ranks.world,
            order.peers,
            order.devices or order.peers[:1],
            ranks.exchange,
            order.node_host,
        )
        self._state = surroundings.state()
        try:
            return self._measure_built(suite.build(bench), bench, order, ranks)
        finally:
            bench.end_helpers()

    def _measure_built(self, task: Task, bench: Bench, order: CaseOrder, ranks: PeerRanks) -> RankResult:
        """Measure the task of a case, and return the outcome of this rank."""
        device = bench.device
        if not ranks.choose_decider(bool(task.stages)):
            raise SuiteError("no rank of the case has a stage: nothing would be timed")
        start = monotonic()
        measured = self._measure_task(task, bench, order, ranks)
        unwatched = () if self._watches or not device.traits.is_gpu else ("unwatched",)
        through = interposed.labels() if device.traits.is_gpu else ()
        if device.traits.is_dry_run:  # drop the figures, so that they cannot be mistaken for a GPU's
            measured = RankMeasurement((), labels=("dry-run",))
        return RankResult(
            "ok",
            series=measured.series,
            discarded=measured.discarded,
            labels=(*measured.labels, *task.labels, *unwatched, *through),
            notes=tuple(task.notes.items()),
            window=(start, monotonic()),
            informed=tuple(ranks.informed),
        )

    def _measure_task(self, task: Task, bench: Bench, order: CaseOrder, ranks: PeerRanks) -> RankMeasurement:
        """Measure a task, then close and release it."""
        if not task.stages:
            self._limits.attending()
            ranks.answer_until_done()
            self._limits.closing()
            task.close()
            task.release()
            return RankMeasurement(())
        try:
            rule = stopping.POLICIES[order.target.tier]
            with bench.device.ranged(order.case.id):
                engine = Engine(
                    bench.device,
                    rule,
                    ranks.agree if ranks.world > 1 else answers.agree_alone,
                    order.rank,
                    self._watches,
                    bench.rng,
                    self._limits,
                    order.is_paranoid,
                )
                measured = engine.measure(task)
        finally:
            self._limits.closing()
            task.close()  # close what other ranks own before they may end
        ranks.exchange(_DONE)
        task.release()
        return measured

    def _open_device(self, device: Device) -> OpenDevice:
        """Return the open device of this worker; the first call opens `device` with its watches, later ones do not."""
        if self._open is None:
            self._limits.opening()
            backend: Backend = plugins.load("backends", device.backend)
            self._open = backend.open(device)
            self._watches = open_watches(device)
            self._helpers = keeper.descendants(os.getpid())
        return self._open


def _encoded_result(part: RankResult) -> bytes:
    """Return a rank's result as the content of a frame; if no message can hold it, a failed result that says why."""
    try:
        return encoded(part)
    except (TypeError, ValueError) as error:
        reason = boundary.text(f"the result of the case cannot be kept: {error}")
        failed = RankResult("failed", "suite", reason, is_changed=part.is_changed, order=part.order)
        return encoded(replace(failed, informed=part.informed))


def open_watches(device: Device) -> list[Watch]:
    """Return a watch on the device for every collector that offers watches and accepts it.

    Collectors whose libraries are unavailable are left out."""
    opened: list[Watch] = []
    for name in plugins.names("collectors"):
        with contextlib.suppress(Unavailable, plugins.BrokenPlugin):
            collector: Collector = plugins.load("collectors", name)
            if isinstance(collector, OpensWatch) and plugins.call_library(name, partial(collector.accepts, device)):
                opened.append(plugins.call_library(name, partial(collector.watch, device)))
    return opened


def main() -> None:
    """Serve the runner's orders: the program of the worker process."""
    Worker(to_parent(sys.argv[1])).serve()
