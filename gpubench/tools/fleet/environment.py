"""Measure a fleet that torchrun, mpirun or srun has started: its processes find each other through a shared folder.

Each process knows its rank from its environment, but not the random name of the job's board. It writes a random token
into the folder, and accepts the name of the board only from an answer that repeats this token. So files that an earlier
job left in the same folder are never mistaken for an answer."""

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.tools.fleet.board import FOLDER, BadValue, Board, BoardGone, FolderBoard, new_board, private_folder
from gpubench.tools.fleet.member import MEMBER, supervised_child
from gpubench.tools.fleet.messages import report_key

SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_VARIABLES = (  # rank and number of processes: torchrun, Open MPI, other launchers of MPI (PMI), srun
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    SLURM,
)
_RENDEZVOUS = "meet"
_RENDEZVOUS_S = 120.0
_TICK_S = 0.2
_TOKEN = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class JobRank:
    """The rank of this process in its job, and the number of processes in the job."""

    rank: int
    world: int


def job_rank(environment: Mapping[str, str], variables: Sequence[tuple[str, str]] = _VARIABLES) -> JobRank:
    """Return the rank of this process in its job, and the number of processes, from variables of the environment.

    Raises UsageError if no pair is set, or if the values are not a rank and a number of processes."""
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


@dataclass(slots=True)
class EnvironmentLaunch:
    """A job as its rank 0 sees it: rank 0 knows the other processes only by what they write on the board.

    `rendezvous` is the folder in which the other processes ask for `name`, the name of the board's folder."""

    board: Board
    rendezvous: FolderBoard
    name: str
    world: int
    launcher: str = "environment"
    hosts: tuple[str, ...] = ()
    may_queue: bool = False

    def reason_of_end(self, rank: int) -> str:
        """Return an empty text: an ended process is known only by its last report, or because its reports stop."""
        del rank
        return ""

    def poll(self) -> None:
        """Answer each process that asks for the board: write its random token, followed by the name of the board."""
        for rank in range(self.world):
            with contextlib.suppress(BadValue):  # a process that asks in such a way gets no answer
                self._answer(rank)

    def _answer(self, rank: int) -> None:
        """Answer the process of a rank, unless it has reported: another job may use the same folder by mistake."""
        token = self.rendezvous.get(f"ask.{rank}")
        if token and _TOKEN.fullmatch(token) and self.board.get(report_key(rank)) is None:
            answer = token + self.name.encode()
            if self.rendezvous.get(f"answer.{rank}") != answer:
                self.rendezvous.put(f"answer.{rank}", answer)


@contextlib.contextmanager
def environment_launch(folder: Path, job: JobRank) -> Iterator[EnvironmentLaunch]:
    """Make a board in `folder`, start the node of rank 0 in a child process, and yield the launch; rank 0 calls this.

    At the end of the context the child is ended and the board removed. Raises FileError if the board cannot be made."""
    board = new_board(folder)
    rendezvous = FolderBoard(private_folder(folder / FOLDER / _RENDEZVOUS))
    launch = EnvironmentLaunch(board, rendezvous, board.folder.name, job.world)
    try:
        with supervised_child([*MEMBER, str(board.folder), str(job.rank), str(job.world)]):
            yield launch
    finally:
        rendezvous.remove()
        board.remove()


def find_board(folder: Path, job: JobRank) -> FolderBoard:
    """Wait for rank 0 to name the board that it made in `folder`, and return that board; each other rank calls this.

    Raises UsageError if rank 0 does not answer within 120 s."""
    rendezvous = FolderBoard(folder / FOLDER / _RENDEZVOUS)
    token = secrets.token_hex(16).encode()
    deadline = time.monotonic() + _RENDEZVOUS_S
    while time.monotonic() < deadline:
        with contextlib.suppress(BoardGone):  # rank 0 has not made the folder yet
            if rendezvous.get(f"ask.{job.rank}") != token:
                rendezvous.put(f"ask.{job.rank}", token)
            answer = rendezvous.get(f"answer.{job.rank}") or b""
            name = answer.removeprefix(token)
            if name != answer and _TOKEN.fullmatch(name):
                return FolderBoard(folder / FOLDER / name.decode())
        time.sleep(_TICK_S)
    raise UsageError(
        f"rank 0 has not answered in {folder} for {_RENDEZVOUS_S:.0f} s; is this folder shared by all nodes, "
        "and used by no other fleet?"
    )
