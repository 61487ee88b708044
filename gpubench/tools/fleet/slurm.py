"""Start a fleet by `srun`: one process per node, and a board in the fleet's folder, which the nodes share."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import Unavailable, UsageError
from gpubench.tools.fleet.board import Board, new_board
from gpubench.tools.fleet.member import MEMBER

_GRACE_S = 20.0  # time for srun to end its processes


@dataclass(slots=True)
class SlurmLaunch:
    """The processes of one `srun`, which may first have to wait for nodes that other jobs use.

    `world` is 0 and `hosts` is empty, because only the nodes know them."""

    board: Board
    process: subprocess.Popen[bytes]
    launcher: str = "slurm"
    world: int = 0
    hosts: tuple[str, ...] = ()
    may_queue: bool = True

    def poll(self) -> None:
        """Check whether srun has ended."""
        self.process.poll()

    def reason_of_end(self, rank: int) -> str:
        """Return why all ranks have ended, once srun has ended; empty before, because each node reports its own end."""
        del rank
        status = self.process.returncode
        return "" if status is None else f"srun ended with exit status {status}"


def check_options(options: Sequence[str]) -> None:
    """Raise UsageError if `options` begin with no option: srun would run that argument as a program."""
    if options and not options[0].startswith("-"):
        raise UsageError(f"{options[0]!r} is no option of srun; write srun's options last, as in: --slurm -- --nodes=4")


@contextlib.contextmanager
def slurm_launch(folder: Path, options: Sequence[str]) -> Iterator[SlurmLaunch]:
    """Start one node on each machine by `srun` with these options, and yield the launch.

    The output of srun goes to standard error. At the end of the context the board is removed, and srun is ended."""
    check_options(options)
    srun = shutil.which("srun")
    if srun is None:
        raise Unavailable(
            "srun is not installed", "start gpubench on a machine of the Slurm cluster, or use --on or --from-env"
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
                yield SlurmLaunch(board, process)
            finally:
                board.remove()  # members that still measure end when the board is gone
                _end_srun(process)
    finally:
        board.remove()


def _end_srun(process: subprocess.Popen[bytes]) -> None:
    """Wait up to 20 s for srun to end, then send SIGTERM to its process group, and SIGKILL after 20 s more."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return
