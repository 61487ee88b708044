"""Read AMD's libraries in a separate process, because they print, raise any exception, and may end the process.

A library that does not load or start ends the process; its last line of output says why."""

import ctypes
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from ._amd_sysfs import valid

# Cards differ: MI200 gives an average, MI300 a current value; newer releases choose by themselves.
_POWERS = ("socket_power", "current_socket_power", "average_socket_power")
_DEBIAN = "/usr/lib/python3/dist-packages"  # Debian's package amd-smi installs the binding here


class Library(Protocol):
    """One of AMD's libraries after its start; `version` is its name and version."""

    version: str

    def read(self, pci: str, name: str) -> float | None:
        """Return one counter of the GPU with that PCI address, in the counter's unit; None for a missing value."""

    def processes(self, pci: str) -> list[tuple[int, float | None]]:
        """Return the id of each process on the GPU with that PCI address, with its bytes of memory; None: unknown."""


class AmdSmi:
    """The Python binding that comes with ROCm; it must be of the same release as its library."""

    def __init__(self) -> None:
        """Import and start the library, and note the handle of each GPU by its PCI address."""
        sys.path += [str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "share/amd_smi"), _DEBIAN]
        self._smi = smi = importlib.import_module("amdsmi")
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        self._handles = {str(smi.amdsmi_get_gpu_device_bdf(handle)).lower(): handle for handle in handles}
        self.version = f"amdsmi {getattr(smi, '__version__', '')}".strip()

    def read(self, pci: str, name: str) -> float | None:
        """Return the counter `name` of the GPU at the PCI address `pci`, in the counter's unit.

        The result is None if the GPU is unknown, or if the GPU or this release of the library does not have the
        counter."""
        handle = self._handles.get(pci)
        if handle is None or name not in self._READERS:
            return None
        reader, scale = self._READERS[name]
        try:
            return valid(name, reader(self._smi, handle), scale)
        except (
            self._smi.AmdSmiException,
            AttributeError,
            KeyError,
            TypeError,
        ):  # this card or this release does not have the value
            return None

    def processes(self, pci: str) -> list[tuple[int, float | None]]:
        """Return the id of each process on the GPU at the PCI address `pci`, with its bytes of memory, None if unknown.

        The list is empty if the GPU is unknown or the library does not list processes."""
        handle = self._handles.get(pci)
        try:
            listed = self._smi.amdsmi_get_gpu_process_list(handle) if handle is not None else []
            return [(int(process["pid"]), _memory_of(process)) for process in listed]
        except (self._smi.AmdSmiException, AttributeError, KeyError, TypeError, ValueError):  # another release
            return []

    _READERS: Mapping[str, tuple[Callable[[Any, Any], object], float]] = {
        "amd.power": (lambda smi, gpu: _first_valid(smi.amdsmi_get_power_info(gpu), *_POWERS), 1.0),
        "amd.clock.gfx": (lambda smi, gpu: _clock(smi, gpu, smi.AmdSmiClkType.GFX), 1e6),
        "amd.clock.memory": (lambda smi, gpu: _clock(smi, gpu, smi.AmdSmiClkType.MEM), 1e6),
        "amd.temperature.hotspot": (lambda smi, gpu: _temperature(smi, gpu, smi.AmdSmiTemperatureType.HOTSPOT), 1.0),
        "amd.temperature.memory": (lambda smi, gpu: _temperature(smi, gpu, smi.AmdSmiTemperatureType.VRAM), 1.0),
        "amd.utilization.gfx": (lambda smi, gpu: smi.amdsmi_get_gpu_activity(gpu)["gfx_activity"], 1.0),
        "amd.utilization.memory": (lambda smi, gpu: smi.amdsmi_get_gpu_activity(gpu)["umc_activity"], 1.0),
        "amd.memory.used": (lambda smi, gpu: smi.amdsmi_get_gpu_memory_usage(gpu, smi.AmdSmiMemoryType.VRAM), 1.0),
        "amd.energy": (lambda smi, gpu: _energy(smi.amdsmi_get_energy_count(gpu)), 1e-6),
        "amd.pcie.replays": (lambda smi, gpu: smi.amdsmi_get_gpu_pci_replay_counter(gpu), 1.0),
    }


def _first_valid(values: Mapping[str, object], *keys: str) -> object:
    """Return the first valid number of watts that `values` has under one of `keys`, tried in order, or None."""
    return next((values[key] for key in keys if valid("amd.power", values.get(key)) is not None), None)


def _memory_of(process: Mapping[str, Any]) -> float | None:
    return valid("amd.memory.used", process.get("memory_usage", {}).get("vram_mem"))


def _clock(smi: Any, gpu: Any, kind: Any) -> object:
    clocks = smi.amdsmi_get_clock_info(gpu, kind)
    return clocks.get("clk", clocks.get("cur_clk"))


def _temperature(smi: Any, gpu: Any, place: Any) -> object:
    return smi.amdsmi_get_temp_metric(gpu, place, smi.AmdSmiTemperatureMetric.CURRENT)


def _energy(count: Mapping[str, Any]) -> object:
    """Return the energy since the driver was loaded, in microjoules, from the library's `count`."""
    steps = valid("amd.energy", count.get("energy_accumulator", count.get("power")))
    return None if steps is None else steps * count["counter_resolution"]


# pyrsmi calls these functions with a handle, which is a pointer, and declares no argument types.
_WITH_HANDLE = (
    "amdsmi_get_processor_handles",
    "amdsmi_get_gpu_device_bdf",
    "amdsmi_get_power_info",
    "amdsmi_get_gpu_activity",
    "amdsmi_get_gpu_memory_usage",
)


class Rsmi:
    """pyrsmi from the Python package index, which has no temperatures, clocks or energy.

    A call that fails returns -1, and the library must be loaded explicitly."""

    def __init__(self) -> None:
        """Import and start the library, and note the index of each GPU by its PCI address."""
        sys.modules["amdsmi"] = None  # type: ignore[assignment] # an import of it raises ImportError
        self._smi = smi = importlib.import_module("pyrsmi.rocml")
        smi._load_rocm_library()  # noqa: SLF001 - no public function loads it before the first call
        for name in _WITH_HANDLE:
            getattr(smi.rocm_lib, name).argtypes = [ctypes.c_void_p]  # ctypes passes further arguments unchecked
        smi.smi_initialize()
        self._indices = {_address(smi.smi_get_device_pci_id(gpu)): gpu for gpu in range(smi.smi_get_device_count())}
        if not self._indices:
            sys.exit("pyrsmi finds no GPU")
        self.version = f"pyrsmi {importlib.metadata.version('pyrsmi')}"

    def read(self, pci: str, name: str) -> float | None:
        """Return the counter `name` of the GPU at the PCI address `pci`, in the counter's unit.

        The result is None if the GPU is unknown or the library does not have the counter."""
        index = self._indices.get(pci)
        if index is None or name not in self._READERS:
            return None
        try:
            return valid(name, getattr(self._smi, self._READERS[name])(index))
        except (AttributeError, TypeError):  # pyrsmi raises these if the library does not have a function
            return None

    def processes(self, pci: str) -> list[tuple[int, float | None]]:
        """Return an empty list: pyrsmi reports which processes use any GPU, not which of them use this one."""
        del pci
        return []

    _READERS: Mapping[str, str] = {
        "amd.power": "smi_get_device_average_power",
        "amd.utilization.gfx": "smi_get_device_utilization",
        "amd.utilization.memory": "smi_get_device_memory_busy",
        "amd.memory.used": "smi_get_device_memory_used",
    }


def _address(bdf: int) -> str:
    """Return a PCI address as text, from its packed number (amdsmi.h, amdsmi_bdf_t)."""
    return f"{bdf >> 16:04x}:{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}"


LIBRARIES: Mapping[str, Callable[[], Library]] = {"amdsmi": AmdSmi, "pyrsmi": Rsmi}


def answer(library: Library, pci: str, names: Sequence[str]) -> dict[str, float | None]:
    """Return the values of these counters of one GPU, each in its unit; None for a missing value."""
    return {name: library.read(pci, name) for name in names}


def serve(library: Library, questions: TextIO, answers: TextIO) -> None:
    """Write the library's version, then answer each line of `questions` with a line of `answers`, until they end.

    A question is a PCI address and the names of counters, or null for the processes; questions and answers are JSON."""
    answers.write(json.dumps(library.version) + "\n")
    answers.flush()
    for line in questions:
        pci, names = json.loads(line)
        result = library.processes(pci) if names is None else answer(library, pci, names)
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def main() -> None:
    """Run the child process with the library that the first argument names, until standard input ends.

    It answers on standard output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(LIBRARIES[sys.argv[1]](), sys.stdin, answers)


if __name__ == "__main__":
    main()
