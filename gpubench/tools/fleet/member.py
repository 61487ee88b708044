"""Run one node of a fleet: report, measure when an order comes, and put the run file on the board."""

import contextlib
import itertools
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpubench import __version__
from gpubench.base.clean import one_line
from gpubench.base.errors import FileError, GpubenchError, Terminated
from gpubench.measuring import inventory, joining, keeper
from gpubench.measuring.channel import encoded
from gpubench.tools.fleet import board as boards
from gpubench.tools.fleet.board import MOST_BYTES, Board, BoardGone, MeasurementEnd, NodeOrder, NodeReport, SeenGpu

HEARTBEAT_S = 1.0
NODE_HOST = "GPUBENCH_NODE_HOST"  # the address of this node on the network that pairs are to use
DONE = "done"  # the phase of a node whose process is about to end
LAUNCHER_SILENCE_S = 30.0  # a node ends after this time without a heartbeat of the launcher
PROGRAM = (sys.executable, "-P", "-m", "gpubench")
MEMBER = (*PROGRAM, "fleet", "member")  # the hidden command that serves a board in a folder
# The keeper ends the program and all its descendants when this process ends, even by SIGKILL.
_SUPERVISED = (
    "import os, sys; from gpubench.measuring.keeper import keep; keep(0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_TICK_S = 0.25
_GRACE_S = 5.0
_TAIL_BYTES = 4096


class NodeHeartbeat:
    """Puts the node's report on the board about once per second, and watches the launcher's heartbeat.

    `problem` becomes the reason, a clause, when the launcher does not wait for this node any more."""

    def __init__(self, board: Board, rank: int, report: NodeReport) -> None:
        self._board = board
        self._rank = rank
        self._report = report
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._lock = threading.Lock()
        self._last_heartbeat: bytes | None = None
        self._heard_at = time.monotonic()
        self.problem = ""

    def start(self) -> None:
        """Send the report about once per second from now on, until `stop` is called or the launcher is gone."""
        self._thread.start()

    def _beat(self) -> None:
        while not self._ending.wait(HEARTBEAT_S) and not self.problem:
            self.send_report()

    def send_report(self, **fields: object) -> None:
        """Put the report on the board now, with these fields changed; set `problem` if the board is gone."""
        try:
            with self._lock:
                self._report = replace(self._report, beat=self._report.beat + 1, **fields)  # type: ignore[arg-type]
                self._board.put(boards.report_key(self._rank), encoded(self._report))
            if (heartbeat_value := self._board.get(boards.LAUNCHER)) != self._last_heartbeat:
                self._last_heartbeat, self._heard_at = heartbeat_value, time.monotonic()
            if time.monotonic() - self._heard_at > LAUNCHER_SILENCE_S:
                self.problem = f"the launcher has sent nothing for {LAUNCHER_SILENCE_S:.0f} s"
        except FileError as error:
            self.problem = str(error)

    def check(self) -> None:
        """Raise BoardGone once the launcher does not wait for this node any more."""
        if self.problem:
            raise BoardGone(self.problem)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()


def serve(
    board: Board,
    rank: int,
    world: int,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] = os.environ,
    host: str = "",
) -> None:
    """Work as one node of a fleet: report, and carry out the order of each turn until an order without suites comes."""
    host = (host or environment.get("SLURMD_NODENAME") or platform.node())[:255]
    rack, address = rack_of(environment), own_address(environment)
    report = NodeReport(0, __version__, world, host, machine_id(), rack, address)
    board.put(boards.WORLD, str(world).encode())
    heartbeat = NodeHeartbeat(board, rank, report)
    heartbeat.send_report(phase="looks for devices")
    heartbeat.start()
    end_reason = "its process ended"
    try:
        devices = [device for device in inventory.facts().devices if device.backend != "host"]
        gpus = tuple(SeenGpu(device.id, device.uuid or device.pci or device.id) for device in devices)
        heartbeat.send_report(gpus=gpus, is_ready=True, phase="waits")
        for turn in itertools.count():
            while (data := board.get(boards.order_key(rank, turn))) is None:
                heartbeat.check()
                time.sleep(_TICK_S)
            order = boards.decode(NodeOrder, data)
            if not order.suites:
                end_reason = ""
                break
            heartbeat.send_report(phase="starts to measure")
            ended = _measure(order, program, board, heartbeat, rank, turn)
            heartbeat.send_report(ended=ended, phase="waits")
    except GpubenchError as error:
        end_reason = str(error)
        raise
    except (KeyboardInterrupt, Terminated):
        end_reason = "it was ended by a signal"
        raise
    finally:
        heartbeat.stop()
        if not heartbeat.problem:
            last_fields = {"end_reason": one_line(end_reason)[:1000]} if end_reason else {"phase": DONE}
            heartbeat.send_report(**last_fields)


def machine_id() -> str:
    """Return the boot id of the running kernel, which containers on one machine share; without it, the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()[:100]


def rack_of(environment: Mapping[str, str]) -> str:
    """Return the switches above this node as Slurm names them in SLURM_TOPOLOGY_ADDR; empty without that variable."""
    address = environment.get("SLURM_TOPOLOGY_ADDR", "")
    return address.rpartition(".")[0].strip(".")[:200]


def own_address(environment: Mapping[str, str]) -> str:
    """Return the address at which other nodes reach this node: GPUBENCH_NODE_HOST, else the default route's."""
    if configured := environment.get(NODE_HOST):
        return configured[:255]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737); connecting sends nothing
        address: str = probe.getsockname()[0]
        return address
    return "127.0.0.1"


def _measure(
    order: NodeOrder, program: Sequence[str], board: Board, heartbeat: NodeHeartbeat, rank: int, turn: int
) -> MeasurementEnd:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpubench-fleet-") as folder:
        out = Path(folder, "run.jsonl.gz")
        variables = {}
        if place := order.place:  # with these variables the run joins the other nodes
            variables = {joining.RANK: str(place.rank), joining.NODES: str(place.size)}
            variables |= {joining.ADDRESS: place.address, joining.SECRET: place.secret}
        with supervised_child([*program, *order.arguments(str(out))], variables) as child:
            last_line, is_timed_out = _follow(child, heartbeat, begin + order.time_limit_s)
        data = out.read_bytes() if out.exists() and out.stat().st_size <= MOST_BYTES else b""
        if out.exists() and not data:
            last_line = "its run file is empty or larger than 256 MiB"
    if data:
        board.put(boards.run_key(rank, turn), data)
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    return MeasurementEnd(turn, status, time.monotonic() - begin, last_line, is_timed_out, bool(data))


@contextlib.contextmanager
def supervised_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, yield its process, and end the program with all its descendants when the context ends."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _SUPERVISED, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **(environment or {}), keeper.RUNNER: str(os.getpid())},
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                keeper.end_descendants(process.pid)
                process.kill()


def _follow(child: subprocess.Popen[bytes], heartbeat: NodeHeartbeat, deadline: float) -> tuple[str, bool]:
    """Wait until a child ends or `deadline` (monotonic s) has passed, and report its progress as the node's phase."""
    assert child.stderr is not None
    os.set_blocking(child.stderr.fileno(), False)
    tail = b""
    phase = ""
    while True:
        is_over = child.poll() is not None
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(child.stderr.fileno(), _TAIL_BYTES):
                tail = (tail + chunk)[-_TAIL_BYTES:]
        lines = [one_line(line) for line in tail.decode(errors="replace").splitlines() if line.strip()]
        if lines and lines[-1] != phase:
            phase = lines[-1][:500]
            heartbeat.send_report(phase=phase)
        if is_over:
            return phase, False
        if time.monotonic() > deadline:
            return phase, True
        heartbeat.check()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_TICK_S)
