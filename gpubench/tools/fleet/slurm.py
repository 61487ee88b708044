"""A fleet that `srun` starts: one process per node, and a board in the fleet's folder, which the nodes share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import Missing, UsageError
from gpubench.tools.fleet.board import Board, new_board
from gpubench.tools.fleet.member import MEMBER

_GRACE_S = 20.0  # in which srun ends its processes


@dataclass(slots=True)
class SlurmCrew:
    """The processes that one `srun` started; it may first wait for nodes that other jobs use."""

    board: Board
    process: subprocess.Popen[bytes]
    launcher: str = "slurm"
    world: int = 0
    hosts: tuple[str, ...] = ()
    may_queue: bool = True

    def pulse(self) -> None:
        """Ask whether srun has ended."""
        self.process.poll()

    def end_of(self, rank: int) -> str:
        """Return why every rank has ended, once srun itself has; a single process leaves a word on the board."""
        del rank
        status = self.process.returncode
        return "" if status is None else f"srun ended with exit status {status}"


def check_options(options: Sequence[str]) -> None:
    """Raise UsageError for options of srun that are no options: a program among them would run instead of gpubench."""
    if options and not options[0].startswith("-"):
        raise UsageError(f"{options[0]!r} is no option of srun; they stand at the end, as in: --slurm -- --nodes=4")


@contextlib.contextmanager
def slurm_crew(folder: Path, options: Sequence[str]) -> Iterator[SlurmCrew]:
    """Start one process on each node by `srun` with these options; what it prints goes to standard error."""
    check_options(options)
    srun = shutil.which("srun")
    if srun is None:
        raise Missing(
            "srun is not there", "start gpubench on a machine of the Slurm cluster, or use --on or --from-env"
        )
    board = new_board(folder.resolve())
    fixed = ["--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    try:
        with subprocess.Popen(
            [srun, *fixed, *options, *MEMBER, str(board.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                yield SlurmCrew(board, process)
            finally:
                board.remove()  # which ends the members that still measure
                _end(process)
    finally:
        board.remove()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let srun end with its processes; end it where it does not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return
