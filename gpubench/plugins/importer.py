"""The shape of an importer: a reader of another tool's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpubench.model import Device, Result, SuiteInfo


@dataclass(frozen=True, slots=True)
class Imported:
    """What another tool's output says. What it does not say is absent: no device is guessed, no size, no unit.

    Of several results of one case each is one more replicate. `left_out` are figures whose unit or direction
    nobody states, in words.
    """

    suite: SuiteInfo
    devices: tuple[Device, ...]
    results: tuple[Result, ...]
    versions: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()


class Importer(Protocol):
    """A reader of another tool's output: pure functions of its text."""

    @property
    def summary(self) -> str:
        """One sentence for `import --tools`."""

    def accepts(self, text: str) -> bool:
        """Whether this is such an output, by what stands in it; never raises."""

    def read(self, text: str) -> Imported:
        """What the output says; raises errors.BadOutput where it is damaged or newer than what is known."""
