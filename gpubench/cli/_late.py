"""Import modules of gpubench that are loaded when a command first uses them, so that `--help` stays fast."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader

_CORE = __name__.partition(".")[0]


class _LateFinder:
    """Finds gpubench's modules as Python does; a module found here runs when one of its attributes is first read."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        del target
        spec = PathFinder.find_spec(name, path) if name.startswith(f"{_CORE}.") else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def late() -> Iterator[None]:
    """Load the modules that are imported within the context when an attribute of them is first read.

    Import whole modules there: a name that is taken out of a module loads it, and a module in a package loads the
    package."""
    sys.meta_path.insert(0, _LateFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_LateFinder)
