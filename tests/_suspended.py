"""Suspend a real process without a GPU: SIGSTOP and SIGCONT replace the calls of a driver's checkpoints."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
from _modules import suite_module

from gpubench.api.libraries import DriverCallError

HELD = suite_module("virtual", "_held")
WORDS = 2**18
FACTOR = np.uint64(0x9E3779B97F4A7C15)
UUID = bytes(range(16))


def state_of(pid):
    """Return the state of the process in /proc: T is stopped; empty if it has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class SignalCheckpoints:
    """The steps by signals; a step in the wrong order is refused as the driver refuses it."""

    def lock(self, pid, limit_ms):
        """Stop the process; raises DriverCallError if it is not stopped within the limit."""
        deadline = time.monotonic() + limit_ms / 1000
        os.kill(pid, signal.SIGSTOP)
        while state_of(pid) != "T":
            if time.monotonic() > deadline:
                raise DriverCallError("CUDA_ERROR_NOT_READY from lock")
            time.sleep(0.001)

    def checkpoint(self, pid):
        self._need_stopped(pid, "checkpoint")

    def restore(self, pid, pairs):
        self._need_stopped(pid, "restore")

    def unlock(self, pid):
        self._need_stopped(pid, "unlock")
        os.kill(pid, signal.SIGCONT)

    def state(self, pid):
        return "CHECKPOINTED" if state_of(pid) == "T" else "RUNNING"

    def uuids(self):
        return [UUID]

    def _need_stopped(self, pid, step):
        if state_of(pid) != "T":
            raise DriverCallError(f"CUDA_ERROR_ILLEGAL_STATE from {step}")


class RefusedCheckpoints(SignalCheckpoints):
    def checkpoint(self, pid):
        raise DriverCallError("CUDA_ERROR_NOT_SUPPORTED from checkpoint")


class HangingCheckpoints(SignalCheckpoints):
    """A driver whose restoring does not end within the limits of the suite."""

    def restore(self, pid, pairs):
        time.sleep(60)


class DyingCheckpoints(SignalCheckpoints):
    """A driver whose checkpoint kills the process that asked for it."""

    def checkpoint(self, pid):
        os.write(1, b"the controller was killed\n")
        os.kill(os.getpid(), signal.SIGKILL)


class RunningCheckpoints(SignalCheckpoints):
    """Steps that report success and do nothing."""

    def lock(self, pid, limit_ms):
        pass

    def checkpoint(self, pid):
        pass


class MemoryHolder:
    """A helper's memory on the host, and a thread that counts while the process runs."""

    def __init__(self):
        self._words = np.arange(WORDS, dtype=np.uint64) * FACTOR
        self._counted, self._wanted = 0, 0
        self._more = threading.Condition()
        threading.Thread(target=self._count_on, daemon=True).start()

    def _count_on(self):
        """Count up to the wanted number, one step per millisecond while the process runs."""
        while True:
            with self._more:
                self._more.wait_for(lambda: self._counted < self._wanted)
                self._counted += 1
                self._more.notify_all()
            time.sleep(0.001)

    def run(self, launches):
        """Ask for `launches` more additions to the counter."""
        with self._more:
            self._wanted += launches
            self._more.notify_all()

    def look(self):
        with self._more:
            self._more.wait_for(lambda: self._counted == self._wanted)
        wrong = np.count_nonzero(self._words != np.arange(WORDS, dtype=np.uint64) * FACTOR)
        return HELD.HeldState(int(wrong), self._counted, UUID)

    def glance(self):
        return self._counted

    def damage(self, word):
        self._words[word] ^= np.uint64(1)

    def crash(self):
        raise ValueError("a broken program")
