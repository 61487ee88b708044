"""Start the nodes of a fleet by Ray or srun, or join the nodes of a job that torchrun, mpirun or srun has started.

Each node runs `serve`: it reports, measures when an order comes, and puts the run file on the board. A launch gives the
coordinator a board and says which nodes have ended. A Ray cluster must require a token; Ray pickles what tasks and
actors exchange, so the fleet sends only bytes and checks them like the files of a shared folder."""

import contextlib
import importlib.util
import itertools
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpubench import __version__
from gpubench.base import installation
from gpubench.base.clean import one_line
from gpubench.base.errors import FileError, GpubenchError, Terminated, Unavailable, UsageError
from gpubench.measuring import inventory, keeper, nodes
from gpubench.measuring.channel import encoded
from gpubench.tools.fleet import board as boards

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
    """Puts the node's report on the board about once per second, and watches the launcher's heartbeat."""

    def __init__(self, board: boards.Board, rank: int, report: boards.NodeReport) -> None:
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
            raise boards.BoardGone(self.problem)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()


def serve(
    board: boards.Board,
    rank: int,
    world: int,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] = os.environ,
    host: str = "",
) -> None:
    """Work as one node of a fleet: report, and carry out the order of each turn until an order without suites comes."""
    host = (host or environment.get("SLURMD_NODENAME") or platform.node())[:255]
    rack, address = rack_of(environment), own_address(environment)
    report = boards.NodeReport(0, __version__, world, host, machine_id(), rack, address)
    board.put(boards.WORLD, str(world).encode())
    heartbeat = NodeHeartbeat(board, rank, report)
    heartbeat.send_report(phase="looks for devices")
    heartbeat.start()
    end_reason = "its process ended"
    try:
        devices = [device for device in inventory.facts().devices if device.backend != "host"]
        gpus = tuple(boards.SeenGpu(device.id, device.uuid or device.pci or device.id) for device in devices)
        heartbeat.send_report(gpus=gpus, is_ready=True, phase="waits")
        for turn in itertools.count():
            while (data := board.get(boards.order_key(rank, turn))) is None:
                heartbeat.check()
                time.sleep(_TICK_S)
            order = boards.decode(boards.NodeOrder, data)
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
    order: boards.NodeOrder, program: Sequence[str], board: boards.Board, heartbeat: NodeHeartbeat, rank: int, turn: int
) -> boards.MeasurementEnd:
    begin, gone = time.monotonic(), None
    with tempfile.TemporaryDirectory(prefix="gpubench-fleet-") as folder:
        out = Path(folder, "run.jsonl.gz")
        variables = {}
        if place := order.place:  # with these variables the run joins the other nodes
            variables = {nodes.RANK: str(place.rank), nodes.NODES: str(place.size)}
            variables |= {nodes.ADDRESS: place.address, nodes.SECRET: place.secret}
        with supervised_child([*program, *order.arguments(str(out))], variables) as child:
            try:
                last_line, is_timed_out = _follow(child, heartbeat, begin + order.time_limit_s)
            except boards.BoardGone as error:
                gone, last_line, is_timed_out = error, "", False
        data = out.read_bytes() if out.exists() and out.stat().st_size <= boards.MOST_BYTES else b""
        if out.exists() and not data:
            last_line = "its run file is empty or larger than 256 MiB"
    if data and gone is None:
        try:
            board.put(boards.run_key(rank, turn), data)
        except boards.BoardGone as error:  # its disk is full, or the launcher has ended
            gone = error
    if data and gone:
        kept = Path(tempfile.mkdtemp(prefix=boards.KEPT), out.name)
        kept.write_bytes(data)
        raise boards.BoardGone(f"{gone}; this node's run file is kept: {kept}") from gone
    if gone:
        raise gone
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    return boards.MeasurementEnd(turn, status, time.monotonic() - begin, last_line, is_timed_out, bool(data))


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


SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_VARIABLES = (  # rank and number of processes: torchrun, Open MPI, other launchers of MPI (PMI), srun
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    SLURM,
)
_RENDEZVOUS = "meet"
_RENDEZVOUS_S = 120.0
_TOKEN = re.compile(rb"[0-9a-f]{32}")
_SRUN_GRACE_S = 20.0  # time for srun to end its processes
_HEAD = "node:__internal_head__"  # a resource that Ray gives to the head node alone
_UNMASKED = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}  # each node sees all its GPUs: nccl#1749
_LOCAL = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", **_UNMASKED}
_ANSWER_S = 30.0
_STORE_BYTES = 2**28  # shared memory of each local node of Ray


@dataclass(slots=True)
class FleetLaunch:
    """The nodes that a launcher started, by rank, and their board; `world` is 0 if only the nodes know it."""

    board: boards.Board
    launcher: str = ""
    world: int = 0
    hosts: tuple[str, ...] = ()
    may_queue: bool = False

    def poll(self) -> None:
        """Do the launcher's periodic work; the coordinator calls this several times per second."""

    def reason_of_end(self, rank: int) -> str:
        """Return why the process of a rank has ended; empty while it runs or if the launcher does not know."""
        del rank
        return ""


class JobRank(NamedTuple):
    """The rank of this process in its job, and the number of processes in the job."""

    rank: int
    world: int


def job_rank(environment: Mapping[str, str], variables: Sequence[tuple[str, str]] = _VARIABLES) -> JobRank:
    """Return the rank of this process in its job, by the first pair of `variables` that the environment sets."""
    for rank, world in variables:
        if rank in environment and world in environment:
            texts = environment[rank], environment[world]
            if all(re.fullmatch(r"\d{1,6}", text) for text in texts) and int(texts[0]) < int(texts[1]):
                return JobRank(int(texts[0]), int(texts[1]))
            raise UsageError(f"{rank}={texts[0]} and {world}={texts[1]} are not a rank and a number of processes")
    raise UsageError(
        "--from-env finds no rank in the environment; start it by torchrun --no-python, mpirun or srun, as in: "
        "mpirun -n 2 gpubench fleet run headline --from-env -o DIR"
    )


@dataclass(slots=True, kw_only=True)
class EnvironmentLaunch(FleetLaunch):
    """A job as its rank 0 sees it: rank 0 knows the other processes only by what they write on the board.

    They ask in the folder `rendezvous` for the random name of the board's folder, each with a random token, and accept
    only an answer that repeats it, so that files of an earlier job are not taken for an answer."""

    board: boards.FolderBoard
    rendezvous: boards.FolderBoard
    launcher: str = "environment"

    def poll(self) -> None:
        """Answer each process that asks for the board and has not reported: its token, then the board's name."""
        for rank in range(self.world):
            with contextlib.suppress(boards.BadValue):  # a process that asks in such a way gets no answer
                token = self.rendezvous.get(f"ask.{rank}")
                if token and _TOKEN.fullmatch(token) and self.board.get(boards.report_key(rank)) is None:
                    answer = token + self.board.folder.name.encode()
                    if self.rendezvous.get(f"answer.{rank}") != answer:
                        self.rendezvous.put(f"answer.{rank}", answer)


@contextlib.contextmanager
def environment_launch(folder: Path, job: JobRank) -> Iterator[EnvironmentLaunch]:
    """Make a board in `folder`, start the node of rank 0 in a child process, and yield the launch of rank 0."""
    board = boards.new_board(folder)
    rendezvous = boards.FolderBoard(boards.private_folder(folder / boards.FOLDER / _RENDEZVOUS))
    try:
        with supervised_child([*MEMBER, str(board.folder), str(job.rank), str(job.world)]):
            yield EnvironmentLaunch(board=board, rendezvous=rendezvous, world=job.world)
    finally:
        rendezvous.remove()
        board.remove()


def find_board(folder: Path, job: JobRank) -> boards.FolderBoard:
    """Wait for rank 0 to name the board that it made in `folder`, and return that board; each other rank calls this."""
    rendezvous = boards.FolderBoard(folder / boards.FOLDER / _RENDEZVOUS)
    token = secrets.token_hex(16).encode()
    deadline = time.monotonic() + _RENDEZVOUS_S
    while time.monotonic() < deadline:
        with contextlib.suppress(boards.BoardGone):  # rank 0 has not made the folder yet
            if rendezvous.get(f"ask.{job.rank}") != token:
                rendezvous.put(f"ask.{job.rank}", token)
            answer = rendezvous.get(f"answer.{job.rank}") or b""
            name = answer.removeprefix(token)
            if name != answer and _TOKEN.fullmatch(name):
                return boards.FolderBoard(folder / boards.FOLDER / name.decode())
        time.sleep(_TICK_S)
    raise UsageError(
        f"rank 0 has not answered in {folder} for {_RENDEZVOUS_S:.0f} s; is this folder shared by all nodes, "
        "and used by no other fleet?"
    )


@dataclass(slots=True, kw_only=True)
class SlurmLaunch(FleetLaunch):
    """The processes of one `srun`, which may first have to wait for nodes; only the nodes know number and hosts."""

    process: subprocess.Popen[bytes]
    launcher: str = "slurm"
    may_queue: bool = True

    def reason_of_end(self, rank: int) -> str:
        """Return why all ranks have ended, once srun has ended; before, each node reports its own end."""
        del rank
        status = self.process.poll()
        return "" if status is None else f"srun ended with exit status {status}"


@contextlib.contextmanager
def slurm_launch(folder: Path, options: Sequence[str]) -> Iterator[SlurmLaunch]:
    """Start one node on each machine by `srun` with these options, and yield the launch; all nodes share `folder`."""
    if options and not options[0].startswith("-"):
        raise UsageError(f"{options[0]!r} is no option of srun; write srun's options last, as in: --slurm -- --nodes=4")
    srun = shutil.which("srun")
    if srun is None:
        raise Unavailable(
            "srun is not installed", "start gpubench on a machine of the Slurm cluster, or use --on or --from-env"
        )
    board = boards.new_board(folder.resolve())
    fixed = ["--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    try:
        with subprocess.Popen(
            [srun, *fixed, *options, *MEMBER, str(board.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                yield SlurmLaunch(board=board, process=process)
            finally:
                board.remove()  # members that still measure end when the board is gone
                for number in (0, signal.SIGTERM, signal.SIGKILL):
                    if number:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_SRUN_GRACE_S)
                        break
    finally:
        board.remove()


class BytesByKey:
    """The Ray actor that holds the values of the board."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        boards.check_entry(key, value)
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)


class RayBoard:
    """A board whose values a Ray actor holds, a `BytesByKey`; it counts as gone if it does not answer in 30 s."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def put(self, key: str, value: bytes) -> None:
        boards.check_entry(key, value)
        self._call(self._actor.put, key, value)

    def get(self, key: str) -> bytes | None:
        value = self._call(self._actor.get, key)
        if value is not None and not isinstance(value, bytes):
            raise boards.BadValue(f"{key} on the board is not bytes")
        return value

    def _call(self, method: Any, *arguments: object) -> object:
        import ray

        try:
            return ray.get(method.remote(*arguments), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ConnectionError) as error:
            reason = one_line(str(error).partition("\n")[0])[:300]
            raise boards.BoardGone(f"Ray's board does not answer: {reason}") from error


def ray_member(actor: Any, rank: int, world: int, host: str) -> None:
    """Work as the node of a Ray task until the launcher dismisses it; raises as `launchers.serve` does."""
    serve(RayBoard(actor), rank, world, host=host)


def requires_token() -> bool:
    """Return whether the Ray cluster that runs this function requires a token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


@dataclass(slots=True, kw_only=True)
class RayLaunch(FleetLaunch):
    """The tasks on the nodes of a Ray cluster, by rank; `tasks` are Ray's references to their results."""

    tasks: Sequence[Any]
    launcher: str = "ray"
    end_reasons: dict[int, str] = field(default_factory=dict)

    def poll(self) -> None:
        """Ask Ray, without waiting, which tasks have ended, and record the reasons: the error as one line."""
        import ray

        running = {task: rank for rank, task in enumerate(self.tasks) if rank not in self.end_reasons}
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
        for task in ready:
            self.end_reasons[running[task]] = "its task is done"
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                last_line = str(error).strip().splitlines()[-1]
                self.end_reasons[running[task]] = one_line(f"{type(error).__name__}: {last_line}")[:500]

    def reason_of_end(self, rank: int) -> str:
        return self.end_reasons.get(rank, "")


@contextlib.contextmanager
def ray_launch(on: str) -> Iterator[RayLaunch]:
    """Start one task per node of a running cluster (`ray://HOST:PORT`), or of a new local one (`ray:local:N`)."""
    local = re.fullmatch(r"ray:local:([1-9]\d{0,2})", on)
    if not local and not re.fullmatch(r"ray://[^/\s]+:\d+", on):
        raise UsageError(f"--on {on}: neither ray://HOST:PORT nor ray:local:N, as in ray:local:4")
    if importlib.util.find_spec("ray") is None:
        raise Unavailable("Ray is not installed", f"here and on each node: {installation.with_extra('fleet')}")
    with contextlib.ExitStack() as stack:
        if local:  # before the import: Ray reads these variables once
            stack.enter_context(_environment_variables({**_LOCAL, "RAY_AUTH_TOKEN": secrets.token_hex(32)}))
        import ray

        try:
            address = stack.enter_context(_local_cluster(int(local[1]))) if local else on
            _connect(ray, address)
            stack.callback(ray.shutdown)
            token_check = ray.remote(requires_token).options(num_cpus=0)
            is_safe = ray.get(token_check.remote(), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            advice = "; if it requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH" * (not local)
            raise UsageError(f"cannot use the Ray cluster {on}: {one_line(str(error))[:500]}{advice}") from error
        if not is_safe:
            raise UsageError(
                f"the Ray cluster {on} requires no token, so anybody on its network can run programs on it: start all "
                "of its nodes with RAY_AUTH_MODE=token"
            )
        yield _start_tasks(ray)


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, again if its head gave up on the server for this client: a loaded one does after 30 s."""
    for is_last in (False, True):
        try:
            with warnings.catch_warnings(action="ignore"):  # of a time-out, which is an error as well
                ray.init(address=address, log_to_driver=False, logging_level="error")
            return
        except ConnectionError as error:
            if is_last or "Initialization failure from server" not in str(error):
                raise


@contextlib.contextmanager
def _local_cluster(count: int) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(wait=False, **options)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def _environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def _start_tasks(ray: Any) -> RayLaunch:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(BytesByKey).options(num_cpus=0, resources={_HEAD: 0.001}).remote()
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))
    task = ray.remote(max_calls=1, max_retries=0, num_cpus=0)(ray_member)
    tasks = [
        task.options(
            num_gpus=node["Resources"].get("GPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            runtime_env={"env_vars": _UNMASKED},
        ).remote(actor, rank, len(nodes), node["NodeManagerHostname"])
        for rank, node in enumerate(nodes)
    ]
    hosts = tuple(node["NodeManagerHostname"] for node in nodes)
    return RayLaunch(board=RayBoard(actor), world=len(nodes), hosts=hosts, tasks=tasks)
