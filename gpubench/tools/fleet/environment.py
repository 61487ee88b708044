"""A fleet that torchrun, mpirun or srun has started: the processes find each other through a shared folder.

Each process knows its rank from its environment, but not the random name of the job's board. It writes a random token
into the folder, and accepts the name of the board only from an answer that repeats this token. So files that an earlier
job left in the same folder are never mistaken for an answer.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.tools.fleet.board import FOLDER, Board, BoardGone, FolderBoard, new_board, private_folder
from gpubench.tools.fleet.member import MEMBER, kept

SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_VARIABLES = (  # rank and number of processes: torchrun, Open MPI, other launchers of MPI (PMI), srun
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    SLURM,
)
_MEET = "meet"
_MEET_S = 120.0
_TICK_S = 0.2
_WORD = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of this process and the number of processes."""

    rank: int
    world: int


def place_of(environment: Mapping[str, str], variables: Sequence[tuple[str, str]] = _VARIABLES) -> Place:
    """Return the rank and the number of processes from the environment. Raises UsageError if they are missing."""
    for rank, world in variables:
        if rank in environment and world in environment:
            texts = environment[rank], environment[world]
            if all(re.fullmatch(r"\d{1,6}", text) for text in texts) and int(texts[0]) < int(texts[1]):
                return Place(int(texts[0]), int(texts[1]))
            raise UsageError(f"{rank}={texts[0]} and {world}={texts[1]} are not a rank and a number of processes")
    raise UsageError(
        "--from-env finds no rank in the environment; start it by torchrun --no-python, mpirun or srun, as in: "
        "mpirun -n 2 gpubench fleet run headline --from-env -o DIR"
    )


@dataclass(slots=True)
class EnvironmentCrew:
    """The processes of a job as rank 0 sees them, which knows only what they write on the board."""

    board: Board
    meeting: FolderBoard
    name: str
    world: int
    launcher: str = "environment"
    hosts: tuple[str, ...] = ()
    may_queue: bool = False

    def end_of(self, rank: int) -> str:
        """Return an empty text: an ended process is known only by its last report, or because its reports stop."""
        del rank
        return ""

    def pulse(self) -> None:
        """Answer the processes that ask for the name of the board."""
        for rank in range(self.world):
            word = self.meeting.get(f"ask.{rank}")
            if word and _WORD.fullmatch(word):
                answer = word + self.name.encode()
                if self.meeting.get(f"answer.{rank}") != answer:
                    self.meeting.put(f"answer.{rank}", answer)


@contextlib.contextmanager
def environment_crew(folder: Path, place: Place) -> Iterator[EnvironmentCrew]:
    """Yield the crew of a job in which this process has rank 0; its own node runs in a child process."""
    board = new_board(folder)
    meeting = FolderBoard(private_folder(folder / FOLDER / _MEET))
    crew = EnvironmentCrew(board, meeting, board.folder.name, place.world)
    try:
        with kept([*MEMBER, str(board.folder), str(place.rank), str(place.world)]):
            yield crew
    finally:
        meeting.remove()
        board.remove()


def find_board(folder: Path, place: Place) -> FolderBoard:
    """Return the board that rank 0 of this job made. Raises UsageError if rank 0 does not answer within 120 s."""
    meeting = FolderBoard(folder / FOLDER / _MEET)
    word = secrets.token_hex(16).encode()
    deadline = time.monotonic() + _MEET_S
    while time.monotonic() < deadline:
        with contextlib.suppress(BoardGone):  # rank 0 has not made the folder yet
            if meeting.get(f"ask.{place.rank}") != word:
                meeting.put(f"ask.{place.rank}", word)
            answer = meeting.get(f"answer.{place.rank}") or b""
            name = answer.removeprefix(word)
            if name != answer and _WORD.fullmatch(name):
                return FolderBoard(folder / FOLDER / name.decode())
        time.sleep(_TICK_S)
    raise UsageError(f"rank 0 has not answered in {folder} for {_MEET_S:.0f} s; is this folder shared by all nodes?")
