"""Ask NCCL's RAS service for the communicators of this machine's jobs, and for the collectives that each rank began.

Source: NVIDIA, NCCL User Guide, "RAS": a TCP socket on localhost:28028, or where a setting says, with lines of text as
commands and JSON as answer since NCCL 2.28.7."""

import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from gpubench.base.clean import one_line

_ADDRESS = "localhost:28028"
_ANSWER_S = 1  # RAS waits this long for other processes; the socket waits a second longer
_MOST_BYTES = 2**24  # of an answer: tens of thousands of ranks
_COMMANDS = f"TIMEOUT {_ANSWER_S}\nSET FORMAT json\nVERBOSE STATUS\n"


def rows() -> list[dict[str, str]]:
    """Return each communicator as texts by heading; empty without a job, without RAS, or before NCCL 2.28.7."""
    host, _, port = os.environ.get("NCCL_RAS_ADDR", _ADDRESS).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), _ANSWER_S) as service:
            service.settimeout(_ANSWER_S + 1)
            service.sendall(_COMMANDS.encode())
            answer = _read(service)
        start = answer.find(b"{")
        communicators = json.loads(answer[start:])["communicators"] if start >= 0 else []
        return [_row(communicator) for communicator in communicators]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no service, or an answer of another form
        return []


def _read(service: socket.socket) -> bytes:
    answer = b""
    while len(answer) < _MOST_BYTES and (part := service.recv(2**16)):
        answer += part
    return answer


def _row(communicator: Mapping[str, Any]) -> dict[str, str]:
    """Return a communicator's texts; a rank is behind if it has begun fewer collectives than the one that leads."""
    ranks: Iterable[Mapping[str, Any]] = communicator["ranks"]
    begun = {int(rank["rank"]): sum(map(int, rank["collective_counts"].values())) for rank in ranks}
    most = max(begun.values(), default=0)
    behind = sorted(rank for rank, count in begun.items() if count < most)
    few = ", ".join(map(str, behind[:4])) + ("…" if len(behind) > 4 else "")
    return {
        "communicator": one_line(str(communicator["hash"]))[:18],
        "ranks": f"{len(begun)} of {int(communicator['size'])}",
        "collectives begun": str(most),
        "in flight": str(most - min(begun.values(), default=0)),
        "ranks behind": few,
    }
