"""Find out whether libcuda and libnvidia-ml in this process are the driver's own, or another library interposes.

A preloaded library defines the driver's functions or `dlsym` (HAMi), a library has the name libcuda.so.1 (LUPINE,
rCUDA), or cuGetProcAddress is another. Each way shows in a function's address and in the file mapped there."""

import ctypes
import functools
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LABEL = "interposed"
_LIBRARIES = {
    "libcuda.so.1": ("cuInit", "cuMemAlloc_v2", "cuMemGetInfo_v2", "cuLaunchKernel"),
    "libnvidia-ml.so.1": ("nvmlInit_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"),
}
_LOOKED_UP = (b"cuMemAlloc", b"cuLaunchKernel")
_CUDA_VERSION = 12_000
_MODULE_VERSIONS = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))
_VERSION = re.compile(r"\b\d{3,4}\.\d{2,3}(?:\.\d{2,3})?\b")
_VERSIONED = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}\.\d+(?:\.\d+)?)")
# Device nodes of a kernel whose driver serves GPUs: Linux and gVisor, WSL, Tegra.
_DEVICE_NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/nvmap"))
_PRELOAD_FILE = Path("/etc/ld.so.preload")


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """One of the driver's libraries in this process; `origin` is a clause that says where its functions come from."""

    name: str
    origin: str
    is_interposed: bool


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that is mapped at the addresses from `start` up to `end`."""

    start: int
    end: int
    path: str


def driver_version() -> str:
    """Return the version of the NVIDIA driver in the kernel (`580.65.06`); empty if the kernel does not report it."""
    for place in _MODULE_VERSIONS:
        try:
            match = _VERSION.search(place.read_text(encoding="utf-8"))
        except OSError:
            continue
        if match:
            return match[0]
    return ""


def has_driver() -> bool:
    """Return whether the kernel has an NVIDIA driver; a library that works without one forwards its calls."""
    return bool(driver_version()) or any(node.exists() for node in _DEVICE_NODES)


def libraries(version: str | None = None, is_served: bool | None = None) -> tuple[DriverLibrary, ...]:
    """Return the driver's libraries, libcuda and libnvidia-ml, that this process has already loaded."""
    kernel_version = driver_version() if version is None else version
    served = has_driver() if is_served is None else is_served
    loaded = []
    for name, functions in _LIBRARIES.items():
        try:
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        files: dict[str, list[str]] = {}
        mapped = _mapped_files()
        for function, address in _addresses(library, functions):
            files.setdefault(_file_of(address, mapped), []).append(function)
        loaded.append(_driver_library(name, files, kernel_version, served))
    return tuple(loaded)


@functools.cache
def labels() -> tuple[str, ...]:
    """Return the label of results that go through an interposed library; empty if no library is interposed.

    The first answer is kept."""
    return (LABEL,) if any(library.is_interposed for library in libraries()) else ()


def facts() -> dict[str, str]:
    """Return the entries of the inventory: the origin of each loaded driver library, and the list `preloaded`."""
    origins = {library.name.partition(".")[0]: library.origin for library in libraries()}
    by_file = _PRELOAD_FILE.read_text(encoding="utf-8", errors="replace") if _PRELOAD_FILE.is_file() else ""
    preloaded = [*os.environ.get("LD_PRELOAD", "").replace(":", " ").split(), *by_file.split()]
    return {**origins, **({"preloaded": ", ".join(preloaded)} if preloaded else {})}


def _mapped_files() -> list[MappedFile]:
    files = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, *rest = line.split(maxsplit=5)
        if len(rest) == 5 and rest[4].startswith("/"):
            start, end = (int(part, 16) for part in addresses.split("-"))
            files.append(MappedFile(start, end, rest[4]))
    return files


def _file_of(address: int, mapped: Sequence[MappedFile]) -> str:
    return next((mapping.path for mapping in mapped if mapping.start <= address < mapping.end), "")


def _addresses(library: ctypes.CDLL, functions: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the name and the address of each of `functions` that is found in `library`, and then among all symbols."""
    for scope in (library, ctypes.CDLL(None)):
        for function in functions:
            if hasattr(scope, function):
                yield function, _address(getattr(scope, function))
    if hasattr(library, "cuGetProcAddress"):
        for symbol in _LOOKED_UP:
            place = ctypes.c_void_p()
            status = library.cuGetProcAddress(symbol, ctypes.byref(place), _CUDA_VERSION, ctypes.c_uint64(0))
            if status == 0 and place.value:
                yield f"{symbol.decode()} by cuGetProcAddress", place.value


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _driver_library(name: str, files: dict[str, list[str]], version: str, is_served: bool) -> DriverLibrary:
    """Return the library `name` with the verdict on whether it is the driver's own."""
    stem = name.partition(".")[0]
    foreign = {path: names for path, names in files.items() if not Path(path).name.startswith(f"{stem}.so")}
    if foreign:
        parts = (
            f"{', '.join(dict.fromkeys(names))} in {path or 'memory of no file'}" for path, names in foreign.items()
        )
        return DriverLibrary(name, f"interposed: {'; '.join(parts)}", True)
    if not is_served:
        return DriverLibrary(name, f"interposed: {', '.join(files)} is loaded, but the kernel has no driver", True)
    for path in files:
        own = _version_of(Path(path), version)
        if version and own is None:
            return DriverLibrary(name, f"interposed: {path} is not of driver {version}", True)
        if version and own != version:
            origin = f"version {own}, but the kernel's driver is {version} (forward compatibility?): {path}"
            return DriverLibrary(name, origin, False)
    paths = ", ".join(files)
    return DriverLibrary(name, f"the driver's own ({version}): {paths}" if version else f"unverified: {paths}", False)


def _version_of(path: Path, version: str) -> str | None:
    """Return the version in the name of the file `path`, or `version` if the file contains that text; else None."""
    named = _VERSIONED.fullmatch(path.resolve().name)
    if named:
        return named[1]
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return version if version and contents.find(version.encode()) >= 0 else None
    except (OSError, ValueError):  # the file was removed meanwhile, or is empty
        return None
