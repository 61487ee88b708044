"""Define the interface of an importer, which reads the output of another tool."""

from dataclasses import dataclass
from typing import Protocol

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
