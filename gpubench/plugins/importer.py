"""Define the interface of an importer, which reads the output of another tool."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gpubench.model import Device, Result, SuiteInfo


@dataclass(frozen=True, slots=True)
class Imported:
    """The content of another tool's output. Unavailable facts stay missing: no device, size or unit is guessed.

    If the output has several results of one case, each is another replicate. `left_out` describes figures whose unit or
    direction is unknown."""

    suite: SuiteInfo
    devices: tuple[Device, ...]
    results: tuple[Result, ...]
    versions: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()


@runtime_checkable
class Importer(Protocol):
    """A reader of another tool's output: pure functions of its text."""

    @property
    def summary(self) -> str:
        """One sentence for `import --tools`."""

    def accepts(self, text: str) -> bool:
        """Return whether the text is an output of this tool, by its content; never raises."""

    def read(self, text: str) -> Imported:
        """Return the content of the output.

        Raises errors.BadOutput if the text is damaged or newer than the known versions."""


@runtime_checkable
class StreamImporter(Protocol):
    """A reader of an output that may be larger than memory: `accepts` gets its first piece alone."""

    @property
    def summary(self) -> str:
        """One sentence for `import --tools`."""

    def accepts(self, text: str) -> bool:
        """Return whether the text is the begin of an output of this tool; never raises."""

    def read_chunks(self, chunks: Iterable[str]) -> Imported:
        """Return the content of the output, given in pieces; raises errors.BadOutput like `Importer.read`."""
