"""How far a pytest session that measures is, told past pytest's capture: meanwhile nothing else is to be seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest


class Progress:
    """Tells what is measured while no test ends: one line that changes on a terminal, elsewhere one line in all.

    It is silent with `-q`, and where pytest has no terminal reporter.
    """

    def __init__(self, config: pytest.Config | None = None) -> None:
        is_quiet = config is None or config.option.verbose < 0
        self._reporter = None if config is None or is_quiet else config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager") if config else None

    def say(self, words: str, is_last: bool = True) -> None:
        """Print a line; one that is not the last is replaced by the next, on a terminal."""
        if self._reporter is None:
            return
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            _write(self._reporter, f"gpubench: {words}", is_last)

    def through(self, words: str, count: int) -> Iterator[int]:
        """Yield the numbers of `count` processes, and tell before each how many are done and the time left."""
        start = time.monotonic()
        is_terminal = self._reporter is not None and self._reporter.isatty
        for done in range(count):
            if is_terminal:
                left = f", about {(time.monotonic() - start) / done * (count - done):.0f} s left" if done else ""
                self.say(f"{words}: process {done + 1} of {count}{left}", is_last=False)
            elif not done:
                self.say(f"{words}: {count} {'process' if count == 1 else 'processes'}")
            yield done
        if is_terminal and count:
            self.say(f"{words}: {count} done in {time.monotonic() - start:.0f} s")


def _write(reporter: Any, line: str, is_last: bool) -> None:
    """Write a line past pytest's own; pytest gives plugins its reporter without a public type."""
    reporter.ensure_newline()
    if is_last and not reporter.isatty:
        reporter.write_line(line)
    else:
        reporter.rewrite(line, erase=True)
        if is_last:
            reporter.write_line("")
        reporter.flush()
