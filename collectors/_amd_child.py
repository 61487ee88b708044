"""Run a child process that reads counters through one of AMD's libraries, which may end the process.

The child runs `_amd_libraries`."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from gpubench.api import collector as gb

_MODULE = f"{__package__}._amd_libraries"
_START_S = 10.0
_ANSWER_S = 2.0
_TAIL_BYTES = 8192  # bytes kept of the child's standard error, whose last line is shown


class LibraryChild:
    """A process in which one of AMD's libraries reads counters; `version` is the library's name and version."""

    def __init__(self, library: str, module: str = _MODULE) -> None:
        """Start the process, in which `module` loads `library`, a name in `_amd_libraries.LIBRARIES`."""
        self.library = library
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - held until `close`
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._pending = b""
        self._last_line = ""
        self.version = str(self._answer(_START_S))

    def read(self, pci: str, names: Sequence[str]) -> Mapping[str, float | None]:
        """Return the values of the counters `names` of the GPU at the PCI address `pci`, by name.

        A missing value is None. Each value is in its counter's unit."""
        values: Mapping[str, float | None] = self._ask([pci, list(names)])
        return values

    def processes(self, pci: str) -> Sequence[tuple[int, float | None]]:
        """Return the id of each process on the GPU at the PCI address `pci`, with its bytes of memory, None if unknown.

        Raises Unavailable if the child process has ended or does not answer."""
        processes: Sequence[tuple[int, float | None]] = self._ask([pci, None])
        return processes

    def _ask(self, question: object) -> Any:
        """Send `question`, a value that JSON can hold, to the process, and return its answer."""
        pipe = self._child.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(question).encode() + b"\n")
            pipe.flush()
        except OSError as error:
            raise self._end_with_error() from error
        return self._answer(_ANSWER_S)

    def _answer(self, patience_s: float) -> Any:
        """Return the next answer of the process, a value that JSON can hold."""
        pipe = self._child.stdout
        assert pipe is not None
        while b"\n" not in self._pending:
            ready, _, _ = select.select([pipe], [], [], patience_s)
            chunk = os.read(pipe.fileno(), 65536) if ready else b""
            if not chunk:
                raise self._end_with_error("" if ready else f"no answer within {patience_s:g} s")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _end_with_error(self, reason: str = "") -> gb.Unavailable:
        """End the process, and return the error that the caller raises."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.0 if reason else 1.0)
        status = self._child.poll()
        self.close()
        if not reason:
            killed = status is not None and status < 0
            reason = f"killed by {signal.Signals(-status).name}" if killed and status else f"exit status {status}"
        details = f"{reason}: {self._last_line}" if self._last_line else reason
        return gb.Unavailable(f"{self.library} ended ({details})", f"see `python -m {_MODULE} {self.library}`")

    def close(self) -> None:
        """End the process and close its pipes; a second call does nothing."""
        if not self._stderr.closed:
            self._stderr.seek(max(0, os.fstat(self._stderr.fileno()).st_size - _TAIL_BYTES))
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            self._last_line = lines[-1].strip() if lines else ""
            self._stderr.close()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep the process forever
                self._child.wait(1.0)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
