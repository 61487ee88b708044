"""Simulate a device whose time is arithmetic, for tests only: it is never listed, and every figure is exact.

A kernel's source is JSON: `{"seconds": 1e-3}` and these optional fields: `warmup` (seconds of the first launches),
`noise` (relative sigma), `rho` (its lag-one correlation: AR(1)), `seed`, `drift` (relative growth per launch), `cold`
(factor after a flush), `outlier_every` (each n-th launch takes three times as long), `throttled` (launches [from, to)
that take twice as long, and show as `thermal` in the device's condition), `backwards_every` (each n-th launch moves the
clock back), `begin` (seconds before a launch that finds the device idle), `beside` (seconds of work that a launch
leaves to another queue), `hangs` (the launch never ends)."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _modules import room_module

from gpubench.base.errors import Skip
from gpubench.model import Device
from gpubench.plugins.backend import Kernel, Traits
from gpubench.plugins.collector import Condition

_TRAITS = Traits("clockwork", "arithmetic", "", ("hot", "each", "cold", "graph"), "arithmetic")


@dataclass(slots=True)
class _KernelProgram:
    """The behaviour of a simulated kernel: the fields of its JSON source, which the module's docstring explains."""

    seconds: float
    warmup: list[float] = field(default_factory=list)
    noise: float = 0.0
    rho: float = 0.0
    outlier_every: int = 0
    throttled: tuple[int, int] = (0, 0)
    hangs: bool = False
    seed: int = 0
    drift: float = 0.0
    cold: float = 1.0
    backwards_every: int = 0
    begin: float = 0.0
    beside: float = 0.0


class ClockworkDevice(room_module("backends", "host").HostDevice):
    """An open clockwork device; `spend` advances its clock."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.traits = _TRAITS
        self._now = 0.0
        self._flushed = False
        self._throttled = False
        self._is_busy = False
        self._beside_until = 0.0  # when the other queue has ended its work

    def now(self) -> float:
        return self._now

    def _timed_call(self, call: Callable[[], object], cold: bool) -> float:
        if cold:
            self.flush()
        start = self.now()
        call()
        return self.now() - start

    def _mean_seconds(self, call: Callable[[], object], calls: int) -> float:
        return sum(self._timed_call(call, False) for _ in range(calls)) / calls

    def shared_memory(self, kind: str) -> Any:
        raise Skip(f"{self.device.id} does not support shared memory (kind {kind} was asked for)")

    def spend(self, seconds: float) -> None:
        """Advance the clock by these seconds."""
        self._now += seconds

    def leave_beside(self, seconds: float) -> None:
        """Queue work of these seconds beside the clock's queue."""
        self._beside_until = max(self._beside_until, self._now) + seconds

    def elsewhere(self) -> float:
        seconds = max(self._beside_until - self._now, 0.0)
        self.spend(seconds)
        return seconds

    def rest(self, seconds: float) -> None:
        self.spend(seconds)

    def flush(self) -> None:
        self._flushed = True
        self._is_busy = True

    def synchronize(self) -> None:
        self._is_busy = False

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        del name, defines
        return _ClockworkKernel(self, _KernelProgram(**json.loads(source)))

    def throttle(self) -> None:
        """Mark the launch that is running as throttled by heat."""
        self._throttled = True

    def begin(self) -> None:
        """Begin to watch the device, as its own watch: forget earlier throttling."""
        self._throttled = False

    def look(self) -> Condition:
        """Return the condition since the last call: it has `thermal` in `discard` if a launch was throttled."""
        throttled, self._throttled = self._throttled, False
        return Condition(discard=("thermal",) if throttled else ())

    def was_idle(self) -> bool:
        """Return whether nothing was queued before this launch, and mark the device as busy."""
        idle, self._is_busy = not self._is_busy, True
        return idle

    def take_flushed(self) -> bool:
        """Return whether the cache was flushed since the last launch, and forget the flush."""
        flushed, self._flushed = self._flushed, False
        return flushed

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        self.spend(target.nbytes / 1e9)

    def together(self, *calls: Callable[[], object], peer: Device | None = None) -> None:
        del peer
        for call in calls:  # with a single clock, the calls together take the sum of their times
            call()

    def free_bytes(self) -> int:
        return 2**30


class _ClockworkKernel:
    """A simulated kernel: each launch advances the device's clock by the time of its program."""

    def __init__(self, device: ClockworkDevice, program: _KernelProgram) -> None:
        self._device = device
        self._program = program
        self._rng = np.random.default_rng(program.seed)
        self._launches = 0
        self._deviation: float | None = None

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        del grid, block, args, shared_bytes
        if self._program.beside:
            self._device.leave_beside(self._program.beside)
        self._device.spend(self._duration())
        self._launches += 1

    def early(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0) -> None:
        self(grid, block, args, shared_bytes)

    def resources(self, threads: int, shared_bytes: int = 0) -> None:
        del threads, shared_bytes

    def symbol(self, name: str, nbytes: int) -> Any:
        raise Skip(f"clockwork has no memory behind its kernels ({name} of {nbytes} B was asked for)")

    def _duration(self) -> float:
        """Return the seconds of this launch by the kernel's program; negative if the program moves the clock back."""
        program, launch = self._program, self._launches
        cold = program.cold if self._device.take_flushed() else 1.0
        begin = program.begin if self._device.was_idle() else 0.0
        while program.hangs:
            time.sleep(1)
        if launch < len(program.warmup):
            return program.warmup[launch]
        if program.backwards_every and launch % program.backwards_every == 0:
            return -program.seconds
        seconds = program.seconds * cold * self._slowdown(launch) * (1 + self._jitter()) * (1 + program.drift * launch)
        return begin + seconds

    def _slowdown(self, launch: int) -> float:
        """Return the factor of launch number `launch`: 2 if it is throttled, 3 for an outlier, else 1."""
        start, end = self._program.throttled
        if start <= launch < end:
            self._device.throttle()
            return 2.0
        every = self._program.outlier_every
        return 3.0 if every and launch % every == every - 1 else 1.0

    def _jitter(self) -> float:
        """Return the next value of a stationary AR(1) process with the standard deviation `noise`."""
        rho = self._program.rho
        fresh = float(self._rng.standard_normal())
        start = self._deviation is None
        self._deviation = fresh if start else rho * (self._deviation or 0.0) + (1 - rho * rho) ** 0.5 * fresh
        return self._program.noise * self._deviation


class ClockworkBackend:
    """The backend of the clockwork device."""

    listed = False

    def devices(self) -> Sequence[Device]:
        return (Device("clockwork", "clockwork", "clockwork", "arithmetic", memory_bytes=2**30, units=1),)

    def versions(self) -> Mapping[str, str]:
        return {}

    def open(self, device: Device) -> ClockworkDevice:
        return ClockworkDevice(device)


backend = ClockworkBackend()
