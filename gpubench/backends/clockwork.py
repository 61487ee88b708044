"""A device whose time is arithmetic, for tests alone: never listed, every figure exact.

A kernel's source is JSON: `{"seconds": 1e-3}` and, each optional, `warmup` (seconds of the first
launches), `noise` (relative sigma), `seed`, `drift` (relative growth a launch), `cold` (factor
after a flush), `backwards_every` (each n-th launch moves the clock back).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubench.errors import Skip
from gpubench.model import Device
from gpubench.protocols import Kernel, Mode, SharedBuffer, Timing, Traits

_TRAITS = Traits("clockwork", "arithmetic", "", ("hot", "cold", "graph"), "arithmetic")


@dataclass(slots=True)
class _Program:
    seconds: float
    warmup: list[float] = field(default_factory=list)
    noise: float = 0.0
    seed: int = 0
    drift: float = 0.0
    cold: float = 1.0
    backwards_every: int = 0


class ClockworkDevice:
    """An open clockwork device; `spend` moves its clock."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.traits = _TRAITS
        self.xp = np
        self._now = 0.0
        self._flushed = False

    def now(self) -> float:
        return self._now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def time(self, call: Callable[[], object], calls: int, mode: Mode = "hot", gated: bool = True) -> Timing:
        del gated  # arithmetic has no launch gaps
        values = []
        for _ in range(calls):
            if mode == "cold":
                self.flush()
            start = self._now
            call()
            values.append(self._now - start)
        if mode == "cold":
            return Timing(tuple(values), sum(values) / calls)
        return Timing((sum(values) / calls,), sum(values) / calls)

    def synchronize(self) -> None:
        pass

    def flush(self) -> None:
        self._flushed = True

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Kernel:
        del name, defines
        return _ClockworkKernel(self, _Program(**json.loads(source)))

    def take_flushed(self) -> bool:
        """Whether the cache was flushed since the last launch."""
        flushed, self._flushed = self._flushed, False
        return flushed

    def to_host(self, array: Any) -> Any:
        return np.array(array)

    def pinned(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def copy(self, target: Any, source: Any) -> None:
        np.copyto(target, source)
        self.spend(target.nbytes / 1e9)

    def free_bytes(self) -> int:
        return 2**30

    def share(self, nbytes: int) -> SharedBuffer:
        raise Skip(f"the clockwork device shares no memory ({nbytes} B asked for)")

    def open_shared(self, handle: bytes, nbytes: int) -> SharedBuffer:
        raise Skip(f"the clockwork device shares no memory ({nbytes} B of {handle!r} asked for)")

    def release(self) -> None:
        pass


class _ClockworkKernel:
    def __init__(self, device: ClockworkDevice, program: _Program) -> None:
        self._device = device
        self._program = program
        self._rng = np.random.default_rng(program.seed)
        self._launches = 0

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        del grid, block, args, shared_bytes
        self._device.spend(self._duration())
        self._launches += 1

    def _duration(self) -> float:
        program, launch = self._program, self._launches
        cold = program.cold if self._device.take_flushed() else 1.0
        if launch < len(program.warmup):
            return program.warmup[launch]
        if program.backwards_every and launch % program.backwards_every == 0:
            return -program.seconds
        jitter = 1 + program.noise * float(self._rng.standard_normal())
        return program.seconds * cold * jitter * (1 + program.drift * launch)


class Clockwork:
    """The backend of the clockwork device."""

    listed = False

    def devices(self) -> Sequence[Device]:
        return (Device("clockwork", "clockwork", "clockwork", "arithmetic", memory_bytes=2**30, units=1),)

    def versions(self) -> Mapping[str, str]:
        return {}

    def open(self, device: Device) -> ClockworkDevice:
        return ClockworkDevice(device)


backend = Clockwork()
