"""Print the progress of a measuring pytest session past pytest's capture, because no test ends for a long time."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest


class Progress:
    """Prints the progress while no test ends: one changing line on a terminal, elsewhere a single line."""

    def __init__(self, config: pytest.Config | None = None) -> None:
        is_quiet = config is None or config.option.verbose < 0
        self._reporter = None if config is None or is_quiet else config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager") if config else None

    def say(self, text: str, is_last: bool = True) -> None:
        """Print a line `gpubench: TEXT`; on a terminal, a line that is not the last is replaced by the next one."""
        if self._reporter is None:
            return
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            _write(self._reporter, f"gpubench: {text}", is_last)

    def count_processes(self, text: str, count: int) -> Iterator[int]:
        """Yield the numbers from 0 to `count` − 1, one per process, and print `text` with the time left before each."""
        start = time.monotonic()
        is_terminal = self._reporter is not None and self._reporter.isatty
        for done in range(count):
            if is_terminal:
                left = f", about {(time.monotonic() - start) / done * (count - done):.0f} s left" if done else ""
                self.say(f"{text}: process {done + 1} of {count}{left}", is_last=False)
            elif not done:
                self.say(f"{text}: {count} {'process' if count == 1 else 'processes'}")
            yield done
        if is_terminal and count:
            self.say(f"{text}: {count} done in {time.monotonic() - start:.0f} s")


def _write(reporter: Any, line: str, is_last: bool) -> None:
    """Write a line past pytest's output; on a terminal, a line that is not the last is replaced by the next."""
    reporter.ensure_newline()
    if is_last and not reporter.isatty:
        reporter.write_line(line)
    else:
        reporter.rewrite(line, erase=True)
        if is_last:
            reporter.write_line("")
        reporter.flush()
