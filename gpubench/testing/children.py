"""Replicates of a pytest session: the same tests, in a process of their own."""

from __future__ import annotations

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

_RAN = (0, 1, 5)  # pytest's statuses of a session whose tests ran: passed, failed, none there
_TAIL = 4  # lines of a pytest that did not run that say why


@dataclass(frozen=True, slots=True)
class Children:
    """How a replicate is started: pytest's own options, and the plugin's."""

    arguments: tuple[str, ...]
    tier: str
    device: str

    def measure(self, nodes: Sequence[str]) -> Run:
        """What these tests measure in a fresh pytest; UsageError, with its last lines, where that does not run."""
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            out = Path(folder) / "run.jsonl"
            ours = ["--gpubench-out", str(out), "--gpubench-tier", self.tier, "--gpubench-device", self.device]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *nodes, *self.arguments, *ours],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, history.VARIABLE: "off"},
                check=False,
            )
            if done.returncode not in _RAN or not out.exists():
                lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                words = " | ".join(lines[-_TAIL:])
                raise UsageError(f"a replicate's pytest ended with status {done.returncode}: {words}")
            return read_run(out)
