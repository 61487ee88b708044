"""The worker's side: one device, one case after another, each to a `Part` of a result.

A worker never prints results and never decides what is next. It talks to the runner over one channel: orders and
exchanged values come in; parts, values to exchange and the phase that begins go out. The runner checks all of it
(`measuring.channel`). The same limits are checked here first, because here the reason is known.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.base.errors import DeviceError, Missing, PeerDied, Skip, SuiteError, Untrustworthy, WrongAnswer
from gpubench.devices import interposed
from gpubench.measuring import boundary, keeper, plain
from gpubench.measuring.answers import T
from gpubench.measuring.channel import LIMIT_BYTES, ToParent, encoded
from gpubench.measuring.engine import Engine, Measured
from gpubench.measuring.plan import load_suite
from gpubench.measuring.process import to_parent
from gpubench.measuring.stopping import POLICIES
from gpubench.measuring.time_limits import TimeLimits
from gpubench.model import STRICT, Case, Device, Series, Status
from gpubench.plugins.backend import Backend, OpenDevice
from gpubench.plugins.collector import Collector, Watch, Watching


@dataclass(frozen=True, slots=True)
class Order:
    """A case to build and measure, as one rank of `world`."""

    case: Case
    target: Target
    seed: int
    rank: int
    peers: tuple[Device, ...]  # the device of every rank, this one's too
    devices: tuple[Device, ...] = ()  # every device of the case
    suite: str = ""  # what `plan.load_suite` finds the case's suite by, where it is not its name
    node_host: str = ""  # of a case on several nodes: the address by which the others reach this one


class Offer(bytes):
    """A value for the other ranks, which the runner passes on unread: a pickle, between nodes plain data.

    The answer is a list of all ranks' offers, or a `Gone`.
    """


@dataclass(frozen=True, slots=True)
class Gone:
    """The answer to an offer where another rank has ended its part."""

    rank: int


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's share of a result.

    `informed` are the ranks whose end it was told of. `left` is whether the case left processes behind.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    status: Status
    cause: str = ""
    reason: str = ""
    series: tuple[Series, ...] = ()
    discarded: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    window: tuple[float, float] = (0.0, 0.0)  # monotonic seconds
    informed: tuple[int, ...] = ()
    left: bool = False

    @property
    def spoils_worker(self) -> bool:
        """Return whether the worker cannot be trusted with the next case: something broke that nobody foresaw.

        What a case left behind ends with its worker.
        """
        return self.left or (self.status == "failed" and self.cause not in ("wrong-answer", "suite"))


MOST_OFFERED_BYTES = LIMIT_BYTES - 2**10
_DONE = "done"
_TRACE = 8192  # characters of a traceback that a result keeps


@dataclass(slots=True)
class Ranks:
    """The ranks of one case, as one of them sees them."""

    channel: ToParent
    world: int
    informed: list[int] = field(default_factory=list)
    decider: int = 0
    is_spread: bool = False  # over several nodes, none of which unpickles what another one sends

    def exchange(self, value: Any) -> list[Any]:
        """Give a value, get every rank's in rank order (None of one that has ended).

        Raises PeerDied, once, where a rank has ended since the last exchange.
        """
        if self.world == 1:
            return [value]
        offer = Offer(plain.encode(value) if self.is_spread else pickle.dumps(value))
        if len(offer) > MOST_OFFERED_BYTES:
            size, most = len(offer) / 2**20, MOST_OFFERED_BYTES / 2**20
            raise SuiteError(f"an exchanged value takes {size:.1f} MiB, of which {most:g} are allowed; share memory")
        self.channel.send(offer)
        answer = self.channel.recv()
        if isinstance(answer, Gone):
            self.informed.append(answer.rank)
            raise PeerDied(answer.rank)
        decode = plain.decode if self.is_spread else pickle.loads  # of the case's own ranks, on this node alone
        return [None if each is None else decode(each) for each in answer]

    def agree(self, value: T) -> T:
        """The deciding rank's value; the first rank that times anything decides."""
        decided: T = self.exchange(value)[self.decider]
        return decided

    def meet(self, active: bool) -> bool:
        """Find out who decides; return whether any rank times anything."""
        roles = self.exchange(active)
        self.decider = roles.index(True) if True in roles else 0
        return True in roles

    def attend(self) -> None:
        """An idle rank's part: be there for every agreement until the deciding rank is done."""
        while self.exchange(None)[self.decider] != _DONE:
            pass


class Worker:
    """Opens its device at the first order, then measures whatever it is sent."""

    def __init__(self, channel: ToParent) -> None:
        self._channel = channel
        self._limits = TimeLimits(channel.send)
        self._helpers: set[int] = set()  # processes that the device or a watch needs, from one case to the next
        self._open: OpenDevice | None = None
        self._watches: list[Watch] = []

    def serve(self) -> None:
        """Work until the runner closes the pipe."""
        while True:
            try:
                order: Order = self._channel.recv()
            except EOFError:
                return
            part = self.part(order)
            gc.collect()  # a task's arrays may be held by a cycle: free the device's memory now
            gc.freeze()  # what is left stays: the next collection looks at the next case's objects alone
            if self._open is not None and not part.spoils_worker:
                self._open.release()
            self._channel.send_encoded(_encoded(replace(part, left=keeper.has_descendants(self._helpers))))

    def part(self, order: Order) -> Part:
        """What becomes of one order: the case's boundary, where every outcome gets its name."""
        ranks = Ranks(self._channel, len(order.peers), is_spread=bool(order.node_host))
        try:
            return self._measured(order, ranks)
        except Skip as reason:
            return Part("skipped", "unsupported", boundary.text(str(reason)))
        except Missing as error:
            return Part("skipped", "missing", boundary.text(str(error)))
        except WrongAnswer as finding:
            return Part("failed", "wrong-answer", boundary.text(str(finding)))
        except Untrustworthy as finding:
            return Part("invalid", boundary.text(finding.cause), boundary.text(str(finding)))
        except DeviceError as error:
            return Part("failed", "device", boundary.text(str(error)))
        except SuiteError as mistake:
            return Part("failed", "suite", boundary.text(str(mistake)))
        except PeerDied as event:
            return Part("failed", "peer", str(event), informed=tuple(ranks.informed))
        except Exception as error:  # noqa: BLE001 - the case's boundary: a suite or driver may raise anything
            cause = "device" if self._open is None else "error"
            trace = ("traceback", traceback.format_exc()[-_TRACE:])
            words = f": {error}".rstrip(": ")
            return Part("failed", cause, boundary.text(type(error).__name__ + words), notes=(trace,))

    def _measured(self, order: Order, ranks: Ranks) -> Part:
        device = self._opened(order.peers[order.rank])
        self._limits.building(f"{order.case.suite}/{order.case.name}", order.target.tier, device.traits.is_gpu)
        suite = load_suite(order.suite or order.case.suite)
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
        task = suite.build(bench)
        if not ranks.meet(bool(task.stages)):
            raise SuiteError("no rank of the case has a stage: nothing would be timed")
        start = time.monotonic()
        measured = self._run(task, bench, order, ranks)
        unwatched = () if self._watches or not device.traits.is_gpu else ("unwatched",)
        through = interposed.labels() if device.traits.is_gpu else ()
        if device.traits.is_dry_run:  # a figure that is not kept can be taken for a GPU's nowhere
            measured = Measured((), labels=("dry-run",))
        return Part(
            "ok",
            series=measured.series,
            discarded=measured.discarded,
            labels=(*measured.labels, *task.labels, *unwatched, *through),
            notes=tuple(task.notes.items()),
            window=(start, time.monotonic()),
            informed=tuple(ranks.informed),
        )

    def _run(self, task: Task, bench: Bench, order: Order, ranks: Ranks) -> Measured:
        if not task.stages:
            self._limits.attending()
            ranks.attend()
            self._limits.closing()
            task.close()
            task.release()
            return Measured(())
        try:
            rule = POLICIES[order.target.tier]
            with bench.device.ranged(order.case.id):
                engine = Engine(bench.device, rule, ranks.agree, order.rank, self._watches, bench.rng, self._limits)
                measured = engine.measure(task)
        finally:
            self._limits.closing()
            task.close()  # what was opened is closed before the ranks that own it are let go
        ranks.exchange(_DONE)
        task.release()
        return measured

    def _opened(self, device: Device) -> OpenDevice:
        if self._open is None:
            self._limits.opening()
            backend: Backend = plugins.load("backends", device.backend)
            self._open = backend.open(device)
            self._watches = watches(device)
            self._helpers = keeper.descendants(os.getpid())
        return self._open


def _encoded(part: Part) -> bytes:
    """Return the message of a part; of one that no message holds, a part that says why."""
    try:
        return encoded(part)
    except (TypeError, ValueError) as error:
        reason = f"the result of the case cannot be kept: {error}"
        return encoded(Part("failed", "suite", boundary.text(reason), informed=part.informed, left=part.left))


def watches(device: Device) -> list[Watch]:
    """A watch of every collector that knows the device; none where a driver's library is missing."""
    found: list[Watch] = []
    for name in plugins.names("collectors"):
        with contextlib.suppress(Missing, plugins.BrokenPlugin):
            collector: Collector = plugins.load("collectors", name)
            if isinstance(collector, Watching) and plugins.asked(name, partial(collector.accepts, device)):
                found.append(plugins.asked(name, partial(collector.watch, device)))
    return found


def main() -> None:
    """The child."""
    Worker(to_parent(sys.argv[1])).serve()
