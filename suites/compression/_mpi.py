"""Send compressed messages through MPI, between two processes that mpirun starts (mpi4py), by codecs of the host.

The case starts the processes once, as one helper, and asks for one message after another."""

import importlib
import importlib.util
import shutil
import sys
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from ._blocks import Cut
from ._codecs_bytes import HostBytes
from ._codecs_host import open_codec
from ._coders import HostDecoder, HostEncoder, RawDecoder, RawEncoder
from ._links import Link
from ._message import Message, MessageCodec
from ._pipeline import InFlight, InOrder, Slots
from ._transfer import (
    Content,
    Halves,
    Receiver,
    Sender,
    Transfer,
    bytes_of_blocks,
    host_payers,
    observed,
    packed_blocks,
    stages_of,
)

_HOW = "pip install mpi4py, and an MPI whose mpirun is on the PATH"
_TAGS = 2**15 - 1  # the largest message tag; MPI guarantees no more (MPI 4.1, §3.2.3)
_LOOK_S = 1e-3
_LIMIT_S = 60.0  # for one message, or for the start of both processes and their first compression
_END_S = 10.0  # time limit for the processes to end by themselves
_END = "end"
# permits mpirun to run as root, as in a container
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class MpiPair:
    """The two processes of mpirun, as the case sees them: a message or a half of it at a time.

    `sent_bytes` is the number of bytes of a compressed message as it travels."""

    def __init__(self, bench: gb.Bench, message: Message, codec: str, depth: int) -> None:
        """Start both processes, let them read the source of the message from a file, and wait until they are ready."""
        if importlib.util.find_spec("mpi4py") is None or (mpirun := shutil.which("mpirun")) is None:
            raise gb.Skip(f"needs mpi4py and mpirun: {_HOW}")
        self.depth = depth
        launcher = (mpirun, "-n", "2", sys.executable, "-P", "-m", "mpi4py")  # mpi4py ends both if one fails
        self._helper = bench.helper(MpiRank, "the pair of MPI processes", environment=_AS_ROOT, launcher=launcher)
        cut = (message.cut.total, message.cut.block, message.cut.chunk)
        with tempfile.NamedTemporaryFile() as file:
            message.source.tofile(file)
            plan = {"source": file.name, "cut": cut, "codec": codec, "depth": depth}
            self.sent_bytes = float(self._helper.ask(_LIMIT_S, "answer", "open", plan))

    def message(self, content: Content, depth: int) -> float:
        """Return the seconds of a message, compressed (`coded`) or `raw`, with `depth` blocks in flight.

        The receiver then compares all of its bytes."""
        return float(self._helper.ask(_LIMIT_S, "answer", "message", content, depth))

    def compress(self) -> float:
        """Return the seconds in which rank 0 compresses every block; nothing is sent."""
        return float(self._helper.ask(_LIMIT_S, "answer", "compress"))

    def decompress(self) -> float:
        """Return the seconds in which rank 1 restores every block, all of which lie ready."""
        return float(self._helper.ask(_LIMIT_S, "answer", "decompress"))

    def close(self) -> None:
        """Ask the processes to end, and kill mpirun if they have not within 10 s."""
        self._helper.tell("answer", _END)
        self._helper.end(_END_S)


def task(bench: gb.Bench, message: Message, codec: MessageCodec, depth: int) -> gb.Task:
    """Return the task of a message between two processes of MPI, with a codec of the host in each.

    `depth` is the most blocks in flight. Raises Skip without mpi4py or mpirun."""
    pair = MpiPair(bench, message, codec.name, depth)
    notes = {
        "codec": codec.description,
        "corpus": message.description,
        "link": "MPI_Send and MPI_Recv between two processes on this machine",
        "ends": host_payers(depth),
    }
    check = partial(observed, message.cut.total, pair.sent_bytes)
    return gb.Task(stages_of(pair, message.cut.total), check, close=pair.close, notes=notes)


# Code of the two processes.


class MpiLink(Link):
    """A link from rank 0 to rank 1, over which blocks go in order."""

    def __init__(self, mpi: Any, depth: int) -> None:
        self._mpi = mpi
        self._passed = InOrder()
        self._arrived = [0] * depth  # bytes of the block in each slot

    def begin(self) -> None:
        self._passed.reset()

    def send(self, block: InFlight, packed: Any) -> None:
        with self._passed.turn(block.index):
            self._mpi.COMM_WORLD.Send([packed, self._mpi.BYTE], 1, block.index % _TAGS)

    def receive(self, block: InFlight, room: Any) -> None:
        """Receive the block into `room`, a NumPy array of dtype uint8, after all blocks before it."""
        status = self._mpi.Status()
        with self._passed.turn(block.index):
            self._mpi.COMM_WORLD.Recv([room, self._mpi.BYTE], 0, block.index % _TAGS, status)
        self._arrived[block.slot] = status.Get_count(self._mpi.BYTE)

    def copy_in(self, block: InFlight, room: Any) -> Any:
        return room[: self._arrived[block.slot]]


def open_transfer(mpi: Any, plan: dict[str, Any]) -> tuple[Transfer, int]:
    """Return this rank's half of the transfer, and the bytes of a compressed message as it travels.

    `mpi` is the module mpi4py.MPI."""
    depth, cut = int(plan["depth"]), Cut(*plan["cut"])
    world, slots, link = mpi.COMM_WORLD, Slots(depth), MpiLink(mpi, depth)
    source, target = np.fromfile(plan["source"], np.uint8), np.empty(cut.total, np.uint8)
    codec = open_codec(plan["codec"])
    encoder = HostEncoder(codec, cut, depth, source)
    blocks = packed_blocks(encoder, slots, cut)
    halves: dict[Content, Halves]
    if world.rank == 0:
        halves = {
            "coded": Halves(Sender(slots, cut.count, link, encoder), None),
            "raw": Halves(Sender(slots, cut.count, link, RawEncoder(cut, source)), None),
        }
    else:
        message = Message(source, target, cut, HostBytes())
        halves = {
            "coded": Halves(None, Receiver(slots, cut.count, link, HostDecoder(codec, cut, depth, target), message)),
            "raw": Halves(None, Receiver(slots, cut.count, link, RawDecoder(cut, target), message)),
        }

    def meet() -> float:
        world.Barrier()
        return time.perf_counter()

    return Transfer(halves, depth, blocks, meet=meet), bytes_of_blocks(blocks)


class MpiRank:
    """One of the two processes: rank 0 serves the case, and rank 1 follows rank 0 until the end."""

    def __init__(self) -> None:
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        while self._world.rank:
            self.answer(_END)

    def answer(self, work: str, *args: Any) -> float:
        """Do on both ranks the work that rank 0 is asked for, and return its answer; `end` ends both processes.

        `open` prepares the transfer and returns the bytes of a compressed message as it travels. Any other work is a
        method of Transfer, whose seconds are returned: rank 0 times `compress`, and rank 1 the others."""
        work, args = self._world.bcast((work, args))
        if work == _END:
            sys.exit()  # not every mpirun passes on the end of standard input
        if work == "open":
            self._transfer, sent_bytes = open_transfer(self._mpi, *args)
            return sent_bytes
        result: float | str
        try:
            result = getattr(self._transfer, work)(*args)
        except gb.WrongAnswer as error:
            result = str(error)
        meeting = self._world.Ibarrier()
        while not meeting.Test():  # MPI waits by spinning, which would take a core from the rank that works
            time.sleep(_LOOK_S)
        results = self._world.allgather(result)
        errors = [error for error in results if isinstance(error, str)]
        if errors and self._world.rank == 0:
            raise gb.WrongAnswer(errors[0])
        return 0.0 if errors else float(results[0 if work == "compress" else 1])
