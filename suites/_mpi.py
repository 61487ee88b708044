"""Start two MPI processes for a case, which both do what rank 0 is asked for."""

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from typing import Any

from gpubench.api import suite as gb

# permits mpirun to run as root, as in a container
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def pair(bench: gb.Bench, rank: type["MpiRank"]) -> Any:
    """Return the helper that asks rank 0 of a pair; raises Skip without mpi4py or mpirun."""
    mpirun = shutil.which("mpirun")
    if importlib.util.find_spec("mpi4py") is None or mpirun is None:
        raise gb.Skip(f"needs mpi4py and an mpirun on the PATH: {gb.installation.packages('mpi4py')}")
    launcher = (mpirun, "-n", "2", sys.executable, "-P", "-m", "mpi4py")  # mpi4py ends both if one fails
    return bench.helper(rank, "the pair of MPI processes", environment=_AS_ROOT, launcher=launcher)


class MpiRank:
    """One of the two processes: rank 0 serves the case, and rank 1 follows rank 0 until the end."""

    done: Callable[..., Any]  # a subclass's work, on both ranks

    def __init__(self) -> None:
        self.mpi = importlib.import_module("mpi4py.MPI")
        self.world = self.mpi.COMM_WORLD
        while self.world.rank:
            self.answer("end")

    def answer(self, work: str, *args: Any) -> Any:
        """Return what rank 0 answers; `end` ends both processes, as not every mpirun closes standard input."""
        work, args = self.world.bcast((work, args))
        return sys.exit() if work == "end" else self.done(work, *args)
