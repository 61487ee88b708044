"""Two GPUs on paper that reach each other's memory: NumPy's arrays, kernels by g++, and a clock that is arithmetic.

A bulk copy takes its bytes over LINK. A copy of 8 bytes takes QUICK_S on an idle link and SLOW_S beside a kernel that
copies in bulk; behind a copy engine's bulk copy it waits until that is done.
"""

import contextlib
import dataclasses
from types import SimpleNamespace

import numpy as np
from _grid import kernel, path_of
from _modules import room_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.model import Case, Device, Facts
from gpubench.plugins.backend import Timing, Traits

LINK = 400e9  # B/s
QUICK_S, SLOW_S = 2e-6, 14e-6
_SMALL_BYTES = 8
FIRST, SECOND = (
    Device(f"cuda:{index}", "cupy", "Paper GPU", "sm_90", units=5, peers=(f"cuda:{1 - index}",)) for index in range(2)
)
FACTS = Facts((FIRST, SECOND))
SUITE = plugins.load("suites", "p2p")


class PaperArray(np.ndarray):
    """An array that has `data.ptr` as CuPy's arrays have."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def on_paper(array):
    """Return an array whose address is real."""
    return np.ascontiguousarray(array).view(PaperArray)


class PaperEvent:
    def __init__(self, pair):
        self._pair, self.at = pair, float("nan")

    def record(self):
        self.at = self._pair.clock


class PaperPair:
    device = FIRST

    def __init__(self, features=frozenset({"bulk_copy"})):
        """Open the pair with these optional features of the first GPU."""
        self.traits = Traits(
            "nvidia", "sm_90", "cuda", ("hot",), "paper", is_gpu=True, max_shared_bytes=2**15, features=features
        )
        self.clock = 0.0
        self.busy_until = 0.0
        self.engine_busy_until = 0.0
        cuda = SimpleNamespace(
            Event=lambda: PaperEvent(self), get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at)
        )
        arrays = {name: self._made(name) for name in ("empty", "zeros", "full", "empty_like")}
        types = {name: getattr(np, name) for name in ("uint8", "uint32", "uint64")}
        self.xp = SimpleNamespace(asarray=on_paper, cuda=cuda, **arrays, **types)

    @staticmethod
    def _made(name):
        return lambda *args: on_paper(getattr(np, name)(*args))

    def free_bytes(self):
        return 2**40

    def synchronize(self):
        pass

    def now(self):
        return self.clock

    def to_host(self, array):
        return np.array(array)

    def peer_memory(self, peer, nbytes):
        assert peer == SECOND
        return on_paper(np.zeros(nbytes, np.uint8))

    def copy(self, target, source):
        """Copy by the copy engine: a bulk copy takes its bytes over LINK, a small one waits until it is done."""
        target[:] = source
        if source.nbytes > _SMALL_BYTES:
            self.clock += source.nbytes / LINK
            self.engine_busy_until = self.clock
        elif self.clock < self.engine_busy_until:
            self.clock = self.engine_busy_until + QUICK_S
        else:
            self.clock += SLOW_S if self.clock < self.busy_until else QUICK_S

    def time(self, call, calls, mode="hot"):
        seconds = []
        for _ in range(calls):
            before = self.clock
            call()
            seconds.append(self.clock - before)
        return Timing(tuple(seconds) if mode == "each" else (sum(seconds) / calls,), 0.0)

    def together(self, first, *others, peer=None):
        """Run `first` beside the other calls, all from the same moment on; the clock ends with the last one."""
        assert peer in (None, SECOND)
        begin, ends = self.clock, [self.clock]
        for call in others:
            self.clock = begin
            call()
            ends.append(self.clock)
        self.clock, self.busy_until = begin, max(ends)
        with contextlib.ExitStack() as after:
            after.callback(setattr, self, "busy_until", 0.0)
            first()
        self.clock = max(self.clock, *ends)


@dataclasses.dataclass
class PairBench(Bench):
    """A bench on paper: kernels by g++ but for those that fill and compare, which are NumPy's; launches are kept."""

    launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = dataclasses.field(default_factory=list)

    def kernel(self, file, name, **defines):
        """Return a launch that is kept, runs on the host, and takes its bytes over LINK if it copies in bulk."""
        path = path_of(self._find_source(file))
        replacement = {"fill_words": _fill, "count_wrong_words": _count_wrong}.get(name)
        run = replacement or kernel(path, name, **({"__CUDA_ARCH__": 900} if path == "bulk_copy.cu" else defines))

        def launch(grid, block, args, shared_bytes=0):
            self.launches.append((name, grid, block, shared_bytes))
            run(grid, block, args, shared_bytes)
            if name in ("copy", "bulk_copy"):
                self.device.clock += args[0].nbytes / LINK

        return launch


def _fill(_, __, args, ___=0):
    array, words, seed = args
    array[:] = room_module("suites", "_between").pattern(int(words) * 8, int(seed))


def _count_wrong(_, __, args, ___=0):
    """Add the number of words that differ from the pattern of `seed` to `counter`."""
    array, words, seed, counter = args
    expected = room_module("suites", "_between").pattern(int(words) * 8, int(seed))
    counter[0] += np.count_nonzero(np.asarray(array).view(np.uint64) != expected.view(np.uint64))


def bench(name="control", features=frozenset({"bulk_copy"}), **params):
    case = Case(SUITE.name, name, (("device", FIRST.id), ("peer", SECOND.id), *params.items()))
    target = Target(FACTS, FIRST)
    return PairBench(PaperPair(features), case, target, SUITE.package, 1, devices=(FIRST, SECOND))
