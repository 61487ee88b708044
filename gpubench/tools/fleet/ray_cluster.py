"""Start a fleet on a Ray cluster: one task per node with all of its GPUs, and an actor on the head node as the board.

The cluster must require a token. Ray pickles the values that tasks and actors exchange; the fleet sends only bytes, and
checks them like the files of a shared folder."""

import contextlib
import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubench import DISTRIBUTION
from gpubench.base.clean import one_line
from gpubench.base.errors import Unavailable, UsageError
from gpubench.tools.fleet.board import BadValue, Board, BoardGone, check_entry
from gpubench.tools.fleet.member import serve

_HEAD = "node:__internal_head__"  # a resource that Ray gives to the head node alone
_UNMASKED = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}  # each node sees all its GPUs: nccl#1749
_LOCAL = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", **_UNMASKED}
_ANSWER_S = 30.0
_STORE_BYTES = 2**28  # shared memory of each local node


class BytesByKey:
    """The Ray actor that holds the values of the board."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key. Raises ValueError if the key is malformed or the value larger than MOST_BYTES."""
        check_entry(key, value)
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it has none yet."""
        return self._values.get(key)


class RayBoard:
    """A board whose values a Ray actor holds; `actor` is Ray's handle of a `BytesByKey`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key.

        Raises BoardGone if the actor does not answer within 30 s, and ValueError if the key is malformed or the
        value larger than MOST_BYTES."""
        check_entry(key, value)
        self._call(self._actor.put, key, value)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if the key has no value yet.

        Raises BoardGone if the actor does not answer within 30 s, and BadValue if its answer is not bytes."""
        value = self._call(self._actor.get, key)
        if value is not None and not isinstance(value, bytes):
            raise BadValue(f"{key} on the board is not bytes")
        return value

    def _call(self, method: Any, *arguments: object) -> object:
        """Call a method of the actor (Ray's handle of it), and return its answer."""
        import ray

        try:
            return ray.get(method.remote(*arguments), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise BoardGone(f"Ray's board does not answer: {one_line(str(error))}") from error


def ray_member(actor: Any, rank: int, world: int, host: str) -> None:
    """Work as the node of a Ray task until the launcher dismisses it; raises as `member.serve` does.

    `actor` is Ray's handle of the board's `BytesByKey`, `world` the number of nodes, and `host` the node's host
    name."""
    serve(RayBoard(actor), rank, world, host=host)


def requires_token() -> bool:
    """Return whether the Ray cluster that runs this function requires a token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


@dataclass(slots=True)
class RayLaunch:
    """The tasks on the nodes of a Ray cluster, by rank; `tasks` are Ray's references to their results.

    `end_reasons` has, by rank, the reason for each task that has ended."""

    board: Board
    world: int
    hosts: tuple[str, ...]
    tasks: Sequence[Any]
    launcher: str = "ray"
    may_queue: bool = False
    end_reasons: dict[int, str] = field(default_factory=dict)

    def poll(self) -> None:
        """Ask Ray, without waiting, which tasks have ended, and record the reasons."""
        import ray

        running = {task: rank for rank, task in enumerate(self.tasks) if rank not in self.end_reasons}
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
        for task in ready:
            self.end_reasons[running[task]] = _end_reason(task)

    def reason_of_end(self, rank: int) -> str:
        """Return Ray's reason why a task has ended; empty while it runs."""
        return self.end_reasons.get(rank, "")


def _end_reason(task: Any) -> str:
    """Return why a Ray task has ended: its error as one line of at most 500 characters, or `its task is done`."""
    import ray

    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        return one_line(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")[:500]
    return "its task is done"


@contextlib.contextmanager
def ray_launch(on: str) -> Iterator[RayLaunch]:
    """Start one task per node of a running cluster (`ray://HOST:PORT`), or of a new local one (`ray:local:N`).

    Yields the launch; leaving the context disconnects from the cluster, and ends a local one."""
    local = re.fullmatch(r"ray:local:([1-9]\d{0,2})", on)
    if not local and not re.fullmatch(r"ray://[^/\s]+:\d+", on):
        raise UsageError(f"--on {on}: neither ray://HOST:PORT nor ray:local:N, as in ray:local:4")
    if importlib.util.find_spec("ray") is None:
        raise Unavailable("Ray is not installed", f"run pip install '{DISTRIBUTION}[fleet]' here and on each node")
    with contextlib.ExitStack() as stack:
        if local:  # before the import: Ray reads these variables once
            stack.enter_context(_environment_variables({**_LOCAL, "RAY_AUTH_TOKEN": secrets.token_hex(32)}))
        import ray

        try:
            address = stack.enter_context(_local_cluster(int(local[1]))) if local else on
            ray.init(address=address, log_to_driver=False, logging_level="error")
            stack.callback(ray.shutdown)
            token_check = ray.remote(requires_token).options(num_cpus=0)
            is_safe = ray.get(token_check.remote(), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(f"cannot use the Ray cluster {on}: {one_line(str(error))}") from error
        if not is_safe:
            raise UsageError(
                f"the Ray cluster {on} requires no token, so anybody on its network can run programs on it: start all "
                "of its nodes with RAY_AUTH_MODE=token"
            )
        yield _start_tasks(ray)


@contextlib.contextmanager
def _local_cluster(count: int) -> Iterator[str]:
    """Start a Ray cluster of `count` nodes on this machine, yield its address, and end it with the context."""
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
    """Set environment variables of this process during the context, and restore their former values after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start_tasks(ray: Any) -> RayLaunch:
    """Start the board on the head node and one task on each node that is alive, and return the launch."""
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
    return RayLaunch(RayBoard(actor), len(nodes), tuple(node["NodeManagerHostname"] for node in nodes), tasks)
