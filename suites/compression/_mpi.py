"""Compress before sending through MPI: two processes that mpirun starts, each with a codec of the host (mpi4py).

The case starts them once and asks for one message after another: a line of JSON in, a line out. This file is also what
they run. Blocks go in order by MPI_Send and MPI_Recv out of and into host memory; the clock is the receiver's.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.api.suite import Bench, Skip, Task, WrongAnswer

from ._codecs_host import open_codec
from ._ends import HostBytes, HostDecoder, HostEncoder, PlainDecoder, PlainEncoder
from ._lanes import Crew, Cut, Lanes, Side, Turnstile
from ._send import Codec, Data, ends_on_host, observed, stages_of
from ._ways import Still

_HOW = "pip install mpi4py, and an MPI whose mpirun is on the PATH"
_TAGS = 2**15 - 1  # of a message; MPI promises no more (MPI 4.1, §3.2.3)
_LOOK_S = 1e-3
_END_S = 10.0  # until the processes have ended by themselves
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as in a container


class Pair:
    """The two processes, asked for messages one at a time."""

    def __init__(self, data: Data, codec: str, flight: int) -> None:
        if importlib.util.find_spec("mpi4py") is None or (launcher := shutil.which("mpirun")) is None:
            raise Skip(f"needs mpi4py and mpirun: {_HOW}")
        self.flight = flight
        with tempfile.NamedTemporaryFile(delete=False) as file:
            data.source.tofile(file)
        self._path = Path(file.name)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", __name__]  # mpi4py ends both where one fails
        command = [launcher, "-n", "2", *program]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**_AS_ROOT, **os.environ},
        )
        cut = (data.cut.total, data.cut.block, data.cut.chunk)
        self.moved = self._ask({"source": file.name, "cut": cut, "codec": codec, "flight": flight})

    def _ask(self, question: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # they have ended: what they said last follows
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise RuntimeError(f"the processes of mpirun have ended: {self._said()}") from error
        if isinstance(found, str):
            raise WrongAnswer(found)
        return float(found)

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()

    def message(self, name: str, flight: int) -> float:
        """Seconds of a message, which was compared."""
        return self._ask(["message", name, flight])

    def compress(self) -> float:
        """Seconds of the sender's end alone."""
        return self._ask(["compress", "coded", self.flight])

    def decompress(self) -> float:
        """Seconds of the receiver's end alone."""
        return self._ask(["decompress", "coded", self.flight])

    def close(self) -> None:
        """Let the processes end, or end them."""
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


def send(bench: Bench, data: Data, codec: Codec, flight: int) -> Task:
    """A message between two processes of MPI, with a codec of the host at both ends."""
    del bench
    pair = Pair(data, codec.name, flight)
    ratio = data.cut.total / pair.moved
    notes = {
        "codec": codec.words,
        "corpus": data.words,
        "link": "MPI_Send and MPI_Recv between two processes on this machine",
        "ends": ends_on_host(flight),
    }
    return Task(stages_of(pair, data.cut.total), lambda: observed(ratio), close=pair.close, notes=notes)


# What the two processes run.


class Messages(Still):
    """Blocks in order between ranks 0 and 1."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._turns = Turnstile()

    def begin(self) -> None:
        """The next block is the first."""
        self._turns.reset()

    def deliver(self, index: int, packed: Any) -> None:
        """Send a block."""
        with self._turns.turn(index):
            self._mpi.COMM_WORLD.Send([packed, self._mpi.BYTE], 1, index % _TAGS)

    def fetch(self, index: int, room: Any) -> Any:
        """Receive it."""
        status = self._mpi.Status()
        with self._turns.turn(index):
            self._mpi.COMM_WORLD.Recv([room, self._mpi.BYTE], 0, index % _TAGS, status)
        return room[: status.Get_count(self._mpi.BYTE)]


class Rank:
    """One of the two, with the ends that it needs."""

    def __init__(self, mpi: Any, plan: dict[str, Any]) -> None:
        self._world, self._flight = mpi.COMM_WORLD, int(plan["flight"])
        self._way, self._cut = Messages(mpi), Cut(*plan["cut"])
        self._lanes, self._crew = Lanes(self._flight), Crew(1, self._flight)
        source, target = np.fromfile(plan["source"], np.uint8), np.empty(self._cut.total, np.uint8)
        codec = open_codec(plan["codec"])
        coded = HostEncoder(codec, self._cut, source, self._lanes)
        self._encoders: dict[str, Any] = {"coded": coded, "raw": PlainEncoder(self._cut, source)}
        self._decoders: dict[str, Any] = {
            "coded": HostDecoder(codec, self._cut, source, target, self._lanes),
            "raw": PlainDecoder(HostBytes(), self._cut, source, target),
        }
        self._stored = [coded.encode(0, index).copy() for index in range(self._cut.count)]
        self.moved = sum(int(packed.size) for packed in self._stored)

    def message(self, name: str, flight: int) -> float:
        """A message; its seconds, of rank 1."""
        way, encoder, decoder = self._way, self._encoders[name], self._decoders[name]
        way.begin()

        def write(lane: int, index: int) -> None:
            way.deliver(index, encoder.encode(lane, index))

        def read(lane: int, index: int) -> None:
            decoder.decode(lane, index, way.fetch(index, decoder.room(lane, index)))

        decoder.poison()
        self._world.Barrier()
        step = read if self._world.rank else write
        seconds = self._crew.run(self._cut.count, flight, Side(self._lanes, step))
        if self._world.rank:
            decoder.check()
        return seconds

    def compress(self, name: str, flight: int) -> float:
        """The sender's end alone; the other rank is still."""
        if self._world.rank:
            return 0.0
        return self._crew.run(self._cut.count, flight, Side(self._lanes, self._encoders[name].encode))

    def decompress(self, name: str, flight: int) -> float:
        """The receiver's end alone, compared."""
        if not self._world.rank:
            return 0.0
        decoder = self._decoders[name]
        decoder.poison()

        def decode(lane: int, index: int) -> None:
            decoder.decode(lane, index, self._stored[index])

        seconds = self._crew.run(self._cut.count, flight, Side(self._lanes, decode))
        decoder.check()
        return seconds

    def answer(self, what: str, name: str, flight: int) -> float | str:
        """What rank 0 says: the seconds of the rank that had the work, or what is wrong with it."""
        found: float | str
        try:
            found = getattr(self, what)(name, flight)
        except WrongAnswer as error:
            found = str(error)
        meeting = self._world.Ibarrier()
        while not meeting.Test():  # MPI waits by spinning, which would take a core from the rank that works
            time.sleep(_LOOK_S)
        both = self._world.allgather(found)
        wrong = [each for each in both if isinstance(each, str)]
        return wrong[0] if wrong else float(both[0 if what == "compress" else 1])


def main() -> None:
    """The loop of both ranks: rank 0 reads what is asked, and answers."""
    mpi = importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    rank: Rank | None = None
    while True:
        question = world.bcast(sys.stdin.readline() if world.rank == 0 else None)
        if not question:
            return
        asked = json.loads(question)
        if rank is None:
            rank = Rank(mpi, asked)
            answer: float | str = rank.moved
        else:
            answer = rank.answer(*asked)
        if world.rank == 0:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
