"""Encode and check the messages between a launcher and its nodes, which are JSON on the board.

A node is not trusted: its messages have a limited size and a strict schema. They contain durations and counts but no
times of day, because the clocks of nodes can differ by hours."""

from dataclasses import dataclass
from typing import Annotated, TypeVar

import pydantic
from annotated_types import MaxLen

from gpubench.base.errors import FileError
from gpubench.measuring.channel import BadMessage, decoded
from gpubench.model.limits import Count, Many, Seconds, Word
from gpubench.model.run import Tier
from gpubench.model.schema import Strict

Brief = Annotated[str, MaxLen(2000)]
_MOST_BYTES = 2**20
LAUNCHER = "launcher"  # the key of the launcher's heartbeat
WORLD = "world"  # the key of the number of nodes
MOST_NODES = 10**5
Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class SeenGpu(Strict):
    """A GPU that a node sees: the id by which it is measured there, and its UUID."""

    id: Word
    uuid: Brief


@dataclass(frozen=True, slots=True)
class MeasurementEnd(Strict):
    """How the measurement of a turn ended; `last_line` is the last line that it printed to standard error."""

    turn: Count
    exit_status: int  # 128 + n if signal n ended it
    seconds: Seconds
    last_line: Brief = ""
    is_timed_out: bool = False
    has_file: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport(Strict):
    """The report that a node writes about once per second; `beat` increases while the node lives."""

    beat: Count
    version: Word
    world: Annotated[int, pydantic.Field(ge=1, le=MOST_NODES)]
    host: Annotated[str, MaxLen(255)]
    machine: Annotated[str, MaxLen(100)]  # the id of the running kernel, which all nodes on one machine share
    rack: Brief = ""
    address: Brief = ""  # other nodes reach this node by it
    gpus: Annotated[Many[SeenGpu], MaxLen(1000)] = ()
    is_ready: bool = False
    phase: Brief = "started"
    ended: MeasurementEnd | None = None
    end_reason: Brief = ""


@dataclass(frozen=True, slots=True)
class PairPlace(Strict):
    """The place of a node in a group that measures together: its number, the group's size, the address, the secret."""

    rank: Count
    size: Count
    address: Brief  # HOST:PORT of the node with number 0
    secret: Annotated[str, MaxLen(100)]


@dataclass(frozen=True, slots=True)
class NodeOrder(Strict):
    """The order to a node for one turn, as arguments of `gpubench run`; an order without suites dismisses the node."""

    suites: Many[Brief] = ()
    devices: Many[Word] = ()
    tier: Tier = "quick"
    filters: Many[Brief] = ()
    replicates: Annotated[int, pydantic.Field(ge=1, le=1000)] = 1
    time_limit_s: Seconds = 600.0
    place: PairPlace | None = None

    def arguments(self, out: str) -> list[str]:
        """Return the arguments with which `gpubench` measures this order into the run file `out`.

        No text of the order can be taken for another option."""
        devices = [f"--device={value}" for value in self.devices or ("all",)]
        filters = [f"--filter={value}" for value in self.filters]
        options = [f"--tier={self.tier}", f"--replicates={self.replicates}", f"--out={out}"]
        return ["run", *devices, *filters, *options, "--", *self.suites]


def decode(kind: type[Message], data: bytes) -> Message:
    """Return the message of class `kind` that `channel.encoded` has encoded. Raises FileError for any other bytes."""
    if len(data) > _MOST_BYTES:
        raise FileError(f"a message of {len(data)} bytes is larger than {_MOST_BYTES} bytes")
    try:
        return decoded(data, {kind.__name__.encode(): kind})
    except BadMessage as error:
        raise FileError(str(error)) from error


def decode_world(data: bytes) -> int:
    """Return the number of nodes from the value of the key WORLD."""
    if data.isdigit() and len(data) <= 6 and 1 <= int(data) <= MOST_NODES:
        return int(data)
    raise FileError(f"not a number of nodes: {data[:20]!r}")


def report_key(rank: int) -> str:
    return f"report.{rank}"


def order_key(rank: int, turn: int) -> str:
    return f"order.{rank}.{turn}"


def run_key(rank: int, turn: int) -> str:
    """Return the key of the run file that a node measured in a turn."""
    return f"run.{rank}.{turn}"
