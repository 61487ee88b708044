"""Start fresh interpreters with private caches of all compilers, bound their time, and end them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from gpubench.api import suite as gb

from . import _build_child
from ._build_child import BuildReport, Order

# Each names the folder of a compiler's cache: Triton, torch's Inductor, CuPy, numba, JAX, cuTile, the CUDA driver, and
# programs that follow the XDG Base Directory Specification.
_FOLDERS = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUPY_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
    "CUDA_TILE_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "XDG_CACHE_HOME",
)
# By default JAX caches only code that took at least a second to compile.
_SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


class Caches:
    """Private folders for the caches of all compilers, empty at first and removed at the end of the context.

    `folder` holds them all."""

    def __init__(self, within: Path | None = None) -> None:
        """Create the folders in the folder `within`, or where temporary files go if it is None."""
        try:
            self._holder = tempfile.TemporaryDirectory("", "gpubench-caches-", within, ignore_cleanup_errors=True)
            self.folder = Path(self._holder.name)
            for name in _FOLDERS:
                (self.folder / name.lower()).mkdir()
        except OSError as error:
            raise gb.FileError(
                f"the caches of compilers cannot be written: {error}; set TMPDIR to a writable folder"
            ) from error

    def __enter__(self) -> Caches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.cleanup()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables, by name, that point every compiler to its folder."""
        return {**{name: str(self.folder / name.lower()) for name in _FOLDERS}, **_SETTINGS}


def report_of(bench: gb.Bench, order: Order, caches: Caches, limit_s: float) -> BuildReport:
    """Build `order` in a fresh interpreter that uses these caches, and return the interpreter's report.

    The interpreter and its process group end with this call."""
    name, environment = f"the build by {order.by}", caches.environment
    with bench.helper(_build_child.report_of, name, environment=environment, prelude=_build_child.PRELUDE) as helper:
        report: BuildReport = helper.ask(limit_s, order, str(caches.folder), helper.started_s)
        return replace(report, resident_bytes=max(report.resident_bytes, helper.resident_bytes()))
