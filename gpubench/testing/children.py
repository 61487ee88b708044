"""Start replicates of a pytest session: the same tests in other processes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import UsageError
from gpubench.model import Run
from gpubench.model.store import read_run
from gpubench.tools import history

_RAN = (0, 1, 5)  # pytest's exit statuses of a complete session: all passed, some failed, no tests
_TAIL = 4  # last lines of an incomplete pytest session that are quoted, because they give the reason


@dataclass(frozen=True, slots=True)
class ReplicateStarter:
    """Starts replicates of a session with the same options.

    `arguments` are arguments of pytest itself; `tier` and `device` (an id) are options of the plugin."""

    arguments: tuple[str, ...]
    tier: str
    device: str

    def measure(self, nodes: Sequence[str]) -> Run:
        """Run the tests of these paths and ids (`/path/test_x.py::test_y`) in a new pytest process; return its run.

        It is not added to the history. Raises UsageError with the last lines of the output if the tests did not run,
        and FileError if the run file cannot be read."""
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            out = Path(folder) / "run.jsonl"
            options = ["--gpubench-out", str(out), "--gpubench-tier", self.tier, "--gpubench-device", self.device]
            completed = subprocess.run(
                [sys.executable, "-m", "pytest", *nodes, *self.arguments, *options],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, history.VARIABLE: "off"},
                check=False,
            )
            if completed.returncode not in _RAN or not out.exists():
                lines = [line for line in (completed.stdout + completed.stderr).splitlines() if line.strip()]
                last_lines = " | ".join(lines[-_TAIL:])
                raise UsageError(f"a replicate's pytest ended with status {completed.returncode}: {last_lines}")
            return read_run(out)
