"""Send compressed messages through MPI, between two processes that mpirun starts (mpi4py), by codecs of the host.

The case starts the processes once and asks for one message after another: it writes a line of JSON and reads a line.
This file is also the program of both processes."""

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
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
_END_S = 10.0  # time limit for the processes to end by themselves
# permits mpirun to run as root, as in a container
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class MpiPair:
    """The two processes of mpirun, as the case sees them: a message or a half of it at a time.

    `sent_bytes` is the number of bytes of a compressed message as it travels."""

    def __init__(self, message: Message, codec: str, depth: int) -> None:
        """Write the source of the message to a file, start both processes, and wait until they are ready."""
        if importlib.util.find_spec("mpi4py") is None or (launcher := shutil.which("mpirun")) is None:
            raise gb.Skip(f"needs mpi4py and mpirun: {_HOW}")
        self.depth = depth
        with tempfile.NamedTemporaryFile(delete=False) as file:
            message.source.tofile(file)
        self._path = Path(file.name)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", __name__]  # mpi4py ends both processes if one fails
        command = [launcher, "-n", "2", *program]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
            env={**_AS_ROOT, **os.environ},
        )
        cut = (message.cut.total, message.cut.block, message.cut.chunk)
        self.sent_bytes = self._ask({"source": file.name, "cut": cut, "codec": codec, "depth": depth})

    def _ask(self, question: object) -> float:
        """Send a request as a line of JSON, and return the number that rank 0 answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the processes have ended; the answer that is read below says why
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        try:
            reply = json.loads(answer)
        except ValueError as error:
            raise RuntimeError(f"the processes of mpirun have ended: {self._error_output()}") from error
        if isinstance(reply, str):
            raise gb.WrongAnswer(reply)
        return float(reply)

    def _error_output(self) -> str:
        """Return the last 500 characters that both processes have written to standard error."""
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()

    def message(self, content: Content, depth: int) -> float:
        """Return the seconds of a message, compressed (`coded`) or `raw`, with `depth` blocks in flight.

        The receiver then compares all of its bytes."""
        return self._ask(["message", content, depth])

    def compress(self) -> float:
        """Return the seconds in which rank 0 compresses every block; nothing is sent."""
        return self._ask(["compress"])

    def decompress(self) -> float:
        """Return the seconds in which rank 1 restores every block, all of which lie ready."""
        return self._ask(["decompress"])

    def close(self) -> None:
        """Ask the processes to end, kill mpirun if they have not within 10 s, and remove the file."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
        self._path.unlink()


def task(message: Message, codec: MessageCodec, depth: int) -> gb.Task:
    """Return the task of a message between two processes of MPI, with a codec of the host in each.

    `depth` is the most blocks in flight. Raises Skip without mpi4py or mpirun."""
    pair = MpiPair(message, codec.name, depth)
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


def answer(world: Any, transfer: Transfer, work: str, *args: Any) -> float | str:
    """Call the method `work` of `transfer` with `args` on this rank, and return its seconds on the rank that is timed.

    Rank 0 times `compress`, and rank 1 any other work."""
    result: float | str
    try:
        result = getattr(transfer, work)(*args)
    except gb.WrongAnswer as error:
        result = str(error)
    meeting = world.Ibarrier()
    while not meeting.Test():  # MPI waits by spinning, which would take a core from the rank that works
        time.sleep(_LOOK_S)
    results = world.allgather(result)
    errors = [error for error in results if isinstance(error, str)]
    return errors[0] if errors else float(results[0 if work == "compress" else 1])


def main() -> None:
    """Run the loop of a rank until standard input ends; rank 0 reads the requests and writes the answers."""
    mpi = importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    transfer: Transfer | None = None
    while True:
        question = world.bcast(sys.stdin.readline() if world.rank == 0 else None)
        if not question:
            return
        request = json.loads(question)
        if transfer is None:
            transfer, sent_bytes = open_transfer(mpi, request)
            reply: float | str = sent_bytes
        else:
            reply = answer(world, transfer, *request)
        if world.rank == 0:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
