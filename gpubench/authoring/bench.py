"""Give a case its inputs: the open device, its parameters, its ranks, its seed and its kernels."""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.board import Board
from gpubench.authoring.helper import Helper
from gpubench.base import units
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Case, Device
from gpubench.plugins.backend import Backend, Handle, Kernel, OpenDevice, OpensUntimed, SharedBuffer, Traits

_PART_BYTES = 2**24  # a GPU overwrites host memory in parts of this size
_WORD_BYTES = 8
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
# a wait for another rank's handle gives up after this time; ranks that build the same case are milliseconds apart
_PATIENCE_S = 10.0
_THREADS, _MOST_BLOCKS = 256, 1056  # the blocks go round the array
_PART_WORDS = 2**16  # words that the host computes at once, so that they stay in a cache
# Constants of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), as in known_words.cu and in the suites' gb_random.
_OTHER_SEED = 2**63
_GOLDEN, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Exchange(Protocol):
    """The communication of ranks: every rank calls it with a value, and each gets the values of all in rank order.

    Raises PeerDied, once, if a rank has ended since; afterwards the value of that rank is None."""

    def __call__(self, value: Any) -> list[Any]: ...


def _exchange_alone(value: Any) -> list[Any]:
    """Return the values of all ranks of a case with a single rank."""
    return [value]


def _receive_descriptors(address: str, count: int) -> tuple[int, ...]:
    """Return the `count` file descriptors that another rank sends over the local socket at `address`."""
    if not count:
        return ()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.connect(address)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    if len(descriptors) != count:
        raise WrongAnswer(f"{len(descriptors)} of {count} descriptors arrived")
    return tuple(descriptors)


def poison(device: OpenDevice, arrays: Iterable[Any]) -> None:
    """Set every bit of `arrays`: that is NaN in a float of any format, and -1 or the largest number in an integer.

    A device fills its own arrays. On a GPU, host memory is overwritten by the processor and then by the device, so that
    the processor's caches do not hold its lines."""
    for array in arrays:
        bits = array.view(f"i{min(array.itemsize, 8)}")
        if not (device.traits.is_gpu and isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size):
            bits.fill(-1)
            continue
        device.synchronize()
        bits.fill(-1)  # so that a copy which does nothing leaves nothing of an earlier one
        bits = bits.reshape(-1)
        part = device.xp.full(min(bits.size, _PART_BYTES // bits.itemsize), -1, bits.dtype)
        for first in range(0, bits.size, part.size):
            rest = bits[first : first + part.size]
            device.copy(rest, part[: rest.size])
        device.synchronize()


def random_words(seed: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Return the known words `first`, `first` + 1, … of `seed`: NumPy, uint64, shape (count,).

    For one seed, no word occurs twice. A device computes the same words."""
    x = np.arange(first, first + count, dtype=np.uint64)
    x *= _GOLDEN
    x += np.uint64(seed % 2**64)
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


@dataclass(frozen=True, slots=True)
class WordKernels:
    """The kernels that fill and compare words on one device, and the counter of wrong words, which they share."""

    device: OpenDevice
    fill: Kernel
    count_wrong: Kernel
    wrong: Any

    @classmethod
    def of(cls, bench: Bench) -> WordKernels:
        """Load both kernels, and allocate the counter."""
        fill, count_wrong = (bench.kernel("known_words.cu", name) for name in ("fill_words", "count_wrong_words"))
        return cls(bench.device, fill, count_wrong, bench.xp.zeros(1, np.uint64))


class Words:
    """`count` words of 64 bits that follow from `seed`: `random_words` on the host, and the same words on a device.

    Arrays are contiguous memory that the device reaches, of any type of element, with at most `count` words."""

    def __init__(self, bench: Bench, kernels: WordKernels | None, count: int, seed: int) -> None:
        """`Bench.words` creates it; without `kernels` the host computes the words."""
        self._bench, self._kernels, self.count, self.seed = bench, kernels, count, seed

    @cached_property
    def array(self) -> Any:
        """New memory of the device that holds the words: uint8, shape (8 · count,)."""
        array = self._bench.xp.empty(self.count * _WORD_BYTES, np.uint8)
        self.fill(array)
        return array

    def fill(self, array: Any) -> None:
        """Write the words to `array`; on a GPU this queues one kernel."""
        if self._kernels is None:
            elements = array.reshape(-1).view(np.uint64)
            for first in range(0, elements.size, _PART_WORDS):
                part = elements[first : first + _PART_WORDS]
                part[:] = random_words(self.seed, first, part.size)
        else:
            grid, args = self._launch(array)
            self._kernels.fill(grid, (_THREADS,), args)

    def redraw(self, *arrays: Any) -> None:
        """Take the words of another seed, and write them to `arrays`; a second call takes the first ones again."""
        self.seed ^= _OTHER_SEED
        for array in arrays:
            self.fill(array)

    def wrong(self, array: Any) -> int:
        """Return how many words of `array` differ from the known ones, after the device's work."""
        if self._kernels is None:
            elements = array.reshape(-1).view(np.uint64)
            wrong = 0
            for first in range(0, elements.size, _PART_WORDS):
                part = elements[first : first + _PART_WORDS]
                wrong += int(np.count_nonzero(part != random_words(self.seed, first, part.size)))
            return wrong
        counter = self._kernels.wrong
        counter.fill(0)
        grid, args = self._launch(array)
        self._kernels.count_wrong(grid, (_THREADS,), (*args, counter))
        return int(self._bench.device.to_host(counter)[0])

    def _launch(self, array: Any) -> tuple[tuple[int], tuple[Any, np.uint64, np.uint64]]:
        count = int(array.nbytes) // _WORD_BYTES
        blocks = max(1, min(_MOST_BLOCKS, -(-count // _THREADS)))
        return (blocks,), (array, np.uint64(count), np.uint64(self.seed % 2**64))


@dataclass(slots=True)
class Bench:
    """The inputs of a case: the open device, the target of its parameters, its ranks and its seed.

    `package` is the package whose folder holds the suite's kernels. `rank` is the number of this process among `world`
    ranks, and `exchange` passes values between them. `node_host` is the address of this node for the others, empty for
    a case on one node. `peers` has the device of every rank, and `devices` every device of the case: one rank of a case
    with two devices gets memory of the second one by `device.peer_memory(devices[1], nbytes)`."""

    open_device: OpenDevice
    case: Case
    target: Target
    package: str
    seed: int = 0
    rank: int = 0
    world: int = 1
    peers: tuple[Device, ...] = ()
    devices: tuple[Device, ...] = ()
    exchange: Exchange = _exchange_alone
    node_host: str = ""
    word_kernels: WordKernels | None = None
    helpers: list[Helper] = field(default_factory=list)

    @classmethod
    def untimed(cls, case: Case, target: Target, package: str, seed: int = 0) -> Bench:
        """Return a Bench whose device is opened in this process, for a program that a case starts.

        `package` is the name of the package whose folder holds the suite's kernels. If the backend can open a device
        without preparing its clock, it does, and `device` cannot time. Raises UsageError or BrokenPlugin if the backend
        cannot be loaded."""
        backend: Backend = plugins.load("backends", target.device.backend)
        open_device = backend.open_untimed if isinstance(backend, OpensUntimed) else backend.open
        return cls(open_device(target.device), case, target, package, seed)

    @property
    def device(self) -> OpenDevice:
        """The open device."""
        return self.open_device

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""
        return self.open_device.xp

    @property
    def traits(self) -> Traits:
        """The properties and capabilities of the device."""
        return self.open_device.traits

    @property
    def rng(self) -> np.random.Generator:
        """A new random generator, seeded by the run's seed and the case's id: the data are the same every time."""
        return np.random.default_rng([self.seed, zlib.crc32(self.case.id.encode())])

    def barrier(self) -> None:
        """Wait until every rank has called this. Raises PeerDied if a rank has ended."""
        self.exchange(None)

    def copies(self, nbytes: int) -> int:
        """Return how many buffers of `nbytes` bytes must be used in turn so that none is still in the last-level cache.

        It is four times the size of the cache over `nbytes`, rounded up, plus 1: while one buffer is in use, the others
        together are at least four times as large as the cache."""
        return -(-4 * max(self.target.device.cache_bytes, 1) // nbytes) + 1

    def need(self, nbytes: float) -> None:
        """Raise Skip if the device has less than `nbytes` bytes of free memory; call it before allocating."""
        free_bytes = self.open_device.free_bytes()
        if free_bytes < nbytes:
            raise Skip(f"needs {units.round_size(nbytes)} of memory, {units.round_size(free_bytes)} are free")

    def poison(self, *arrays: Any) -> None:
        """Overwrite `arrays` as the engine overwrites the `outputs` of a stage, for a `Task.poison` that does more."""
        poison(self.open_device, arrays)

    def words(self, count: int, seed: int) -> Words:
        """Return `count` known words of 64 bits that follow from `seed`: the same on the host and on every device.

        `words.array` is new memory that holds them, `words.fill(array)` writes them to other memory,
        `words.redraw(array)` writes others, and `words.wrong(array)` counts the words of an array that differ. The
        first call on a GPU loads both kernels and allocates a counter, so call it while there is free memory."""
        if self.traits.is_gpu and (self.word_kernels is None or self.word_kernels.device is not self.open_device):
            self.word_kernels = WordKernels.of(self)
        return Words(self, self.word_kernels, count, seed)

    def shared_memory(self, nbytes: int) -> SharedBuffer:
        """Return host memory of `nbytes` that all ranks map: an anonymous file, of which nothing is left behind.

        Rank 0 allocates it and hands its handle to the others. Every rank must call it."""
        memory = self.open_device.shared_memory("memfd")
        own = memory.allocate(nbytes) if self.rank == 0 else None
        handle = self.hand_over(memory.export(own) if own else None)
        shared = own or memory.open(handle, nbytes)
        handle.close()
        return shared

    def hand_over(self, handle: Handle | None, source: int = 0) -> Handle:
        """Return the handle of rank `source` in every rank; every rank must call it, and the other ranks pass None.

        Descriptors of the handle go over a local socket (unix(7), SCM_RIGHTS)."""
        if self.rank != source:
            data, address, count = self.exchange(None)[source]
            return Handle(data, _receive_descriptors(address, count))
        assert handle is not None
        if not handle.descriptors:
            self.exchange((handle.data, "", 0))
            return handle
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            address = f"\0gpubench-{os.getpid()}-{id(handle)}"  # an abstract address leaves no file
            listener.bind(address)
            listener.listen(self.world)
            listener.settimeout(_PATIENCE_S)
            self.exchange((handle.data, address, len(handle.descriptors)))
            for _ in range(self.world - 1):
                connection, _ = listener.accept()
                with connection:
                    socket.send_fds(connection, [b"x"], list(handle.descriptors))
        return handle

    def sockets(self, count: int = 1) -> list[socket.socket]:
        """Return this rank's ends of `count` local streams between ranks 0 and 1; both must call it, and no other."""
        pairs = [socket.socketpair() for _ in range(count)] if self.rank == 0 else []
        handle = self.hand_over(Handle(descriptors=tuple(end.fileno() for _, end in pairs)) if pairs else None)
        for _, other_end in pairs:
            other_end.close()
        return [end for end, _ in pairs] or [socket.socket(fileno=number) for number in handle.descriptors]

    def board(
        self, *slots: str, room_bytes: int = 0, limit_s: float = 20.0, has_beats: bool = False, is_shared: bool = True
    ) -> Board:
        """Return a board of numbers in host memory that all ranks map; every rank must call it at the same time.

        Each rank has an unsigned 64-bit number in each of the `slots`: `board.post(slot, value)` writes this rank's
        number, and `board.read(rank, slot)` reads any. `board.wait_for(slot, value, ranks)` waits until these ranks
        have posted at least `value`, `board.meet()` for all ranks, and `board.wait(is_over)` for anything. A wait takes
        at most `limit_s` seconds and then raises StalledError; the end of another rank's process raises PeerDied.
        `board.room` has `room_bytes` bytes for data (uint8). `board.row(slot)` and `board.address(slot)` are for loops
        and for kernels, which reach the memory after `board.register()`. Call `board.close()` in the task's `close`.

        With `has_beats` every rank posts heartbeats, and a wait raises RankLostError once a rank has been silent for
        0.4 s. With `is_shared=False` the board serves threads of this process alone; on a GPU it lies in page-locked
        memory, which kernels reach. In both cases waits sleep for 20 µs between looks."""
        head_bytes = Board.head_bytes(slots, self.world if is_shared else 1)
        if not is_shared:
            array = self.open_device.pinned(head_bytes + room_bytes)
            array[:] = 0
            return Board(self.open_device, array, slots, limit_s=limit_s)
        memory = self.shared_memory(head_bytes + room_bytes)
        board = Board(self.open_device, memory.array, slots, self.rank, self.world, limit_s, memory.close)
        if has_beats:
            board.start_heart()
        self.barrier()  # no rank looks for a heartbeat before the first one is written
        board.expect_owned()
        return board

    def helper(
        self,
        function: Callable[..., object],
        name: str = "the helper",
        *,
        environment: Mapping[str, str | None] = MappingProxyType({}),
        prelude: str = "",
        launcher: Sequence[str] = (),
    ) -> Helper:
        """Start a supervised child process, a fresh Python interpreter that calls `function` for each question.

        `function` stands at the top level of a module. `helper.ask(limit_s, *args)` returns `function(*args)`; a class
        is created once in the helper, and `ask(limit_s, "method", *args)` calls a method. Arguments and results are
        pickled. `tell` and `answer` are the two halves of `ask`. An answer that takes longer than `limit_s` seconds
        ends the helper. HelperEndedError says how it ended, with the last line that it printed; errors of gpubench,
        such as Skip or WrongAnswer, pass to the caller. `with` or `helper.end()` ends the helper and its process group,
        and the end of the case does so whatever happens.

        `name` is for error messages. `environment` sets variables, and removes a variable whose value is None.
        `prelude` is a line of Python that runs before gpubench is imported, in the module `__main__`; the interpreter
        starts at `helper.started_s` of `time.monotonic`. `launcher` is the command that starts Python in place of
        `sys.executable -P`, such as mpirun. Raises SuiteError if the helper could not import `function`."""
        helper = Helper(function, name, environment, prelude, launcher)
        self.helpers.append(helper)
        return helper

    def end_helpers(self) -> None:
        """End every helper; gpubench calls it at the end of a case."""
        while self.helpers:
            self.helpers.pop().end()

    def kernel(self, file: str, name: str, **defines: str | int) -> Kernel:
        """Return the kernel `name`, compiled from the .cu file `file` with the macros `defines` and their values.

        The text of `prelude.cuh`, if that file exists, is put in front, and a line `#include "NAME.cuh"` is replaced by
        that file's text. All are searched in the suite's package and then in the package above it, so that several
        suites can share them. Raises FileNotFoundError if `file` is in neither."""
        has_prelude = self._find_source("prelude.cuh").is_file()
        source = "".join(map(self._source_of, ("prelude.cuh", file) if has_prelude else (file,)))
        return self.open_device.kernel(source, name, defines)

    def compile(self, file: str, name: str, variants: Iterable[Mapping[str, str | int]]) -> None:
        """Compile the kernel `name` of `file` once for each set of macros in `variants`, in parallel threads.

        A later call of `kernel` with the same macros then returns at once. Raises the error of the first variant that
        cannot be compiled."""
        with ThreadPoolExecutor(thread_name_prefix="gpubench-compile") as threads:
            for compiled in [threads.submit(self.kernel, file, name, **defines) for defines in variants]:
                compiled.result()

    def _source_of(self, file: str) -> str:
        text = self._find_source(file).read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda found: self._source_of(found[1]), text)

    def _find_source(self, file: str) -> Traversable:
        """Return the path of `file` in the suite's package, else in the package above it, else beside this module."""
        packages = (self.package, self.package.rpartition(".")[0], __package__)
        own, *others = (resources.files(package) / file for package in packages if package)
        return next((place for place in (own, *others) if place.is_file()), own)
