"""Take the inventory of the machine, in a child process because vendor libraries may print or abort.

`python -P -m gpubench.measuring.inventory` prints the facts as one JSON document on its standard output."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from gpubench import __version__, plugins
from gpubench.base import errors, files, units
from gpubench.devices import interposed, rocm
from gpubench.measuring import boundary
from gpubench.model import Device, Facts, UnavailablePart
from gpubench.model.disk import as_file_errors
from gpubench.plugins.backend import Backend
from gpubench.plugins.collector import Collector, ReportsSettings, ReportsVersions

T = TypeVar("T")
_TIMEOUT_S = 120
_SHM = Path("/dev/shm")
_SHM_LEAST = 2**29  # bytes; Docker's default is 64 MiB, and NCCL takes about 10 MB per rank
_NUMA = Path("/sys/devices/system/node/has_memory")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_NOTHING: Mapping[str, str] = {}
_LIBRARIES = (
    "numpy",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-libnvcomp-cu12",
    "nvidia-libnvcomp-cu13",
)


def facts(timeout_s: float = _TIMEOUT_S) -> Facts:
    """Return the inventory of this machine, taken in a child process within `timeout_s` seconds.

    Raises DeviceError if the process ends with an error or does not end in time."""
    command = [sys.executable, "-P", "-m", "gpubench.measuring.inventory"]
    try:
        child = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise errors.DeviceError(
            f"the search for devices did not end within {timeout_s:g} s; check the driver (nvidia-smi)"
        ) from error
    if child.returncode:
        tail = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise errors.DeviceError(f"the search for devices ended with status {child.returncode}: {tail[0]}")
    return from_json(child.stdout.strip().splitlines()[-1])


def from_json(text: str | bytes) -> Facts:
    """Return the facts that `text`, the JSON of `to_json`, holds.

    Raises FileError that names the wrong field if it is no inventory."""
    try:
        return pydantic.TypeAdapter(Facts).validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise errors.FileError(
            f"not an inventory of gpubench: {first['msg']} at {'.'.join(map(str, first['loc']))}"
        ) from error


def from_file(path: Path) -> Facts:
    """Return the facts in a file that `doctor --json` wrote.

    Raises FileError if it cannot be read or is no inventory."""
    with as_file_errors(path), os.fdopen(files.open_to_read(path), "rb") as file:
        return from_json(file.read())


def to_json(inventory: Facts) -> str:
    """Return the facts as one line of JSON."""
    return json.dumps(asdict(inventory), ensure_ascii=False)


def read_machine() -> Facts:
    """Return the facts of this machine, read in this process: the devices with their details, the host, and versions.

    Whatever raises or is not installed becomes an UnavailablePart of the facts."""
    unavailable: list[UnavailablePart] = []
    versions = {"gpubench": __version__, "python": platform.python_version(), **_library_versions()}
    devices = _find_devices(unavailable, versions)
    for name in plugins.names("collectors"):
        collector: Collector | None = _ask(name, unavailable, partial(plugins.load, "collectors", name), None)
        if collector is not None:
            devices = _add_details(name, collector, devices, unavailable, versions)
    unavailable += rocm.findings(rocm.probe(wheels=_gpu_wheels()))
    return Facts(tuple(devices), _host(), tuple(versions.items()), tuple(unavailable))


def _gpu_wheels() -> dict[str, str]:
    versions = ((distribution.metadata["Name"] or "", distribution.version) for distribution in distributions())
    return {name.lower(): number for name, number in versions if name.lower().startswith(("cupy", "amd"))}


def _find_devices(unavailable: list[UnavailablePart], versions: dict[str, str]) -> list[Device]:
    backend_devices: list[Device] = []
    for name in plugins.names("backends"):
        backend: Backend | None = _ask(name, unavailable, partial(plugins.load, "backends", name), None)
        if backend is None or not backend.listed:
            continue
        devices: Sequence[Device] = _ask(name, unavailable, backend.devices, ())
        backend_devices += devices
        if devices:
            versions.update(_ask(name, unavailable, backend.versions, _NOTHING))
    return sorted(backend_devices, key=lambda device: device.backend == "host")


def _add_details(
    name: str,
    collector: Collector,
    devices: Sequence[Device],
    unavailable: list[UnavailablePart],
    versions: dict[str, str],
) -> list[Device]:
    """Return the devices with the details that the collector `name` adds, such as the power limit."""
    accepted = [device for device in devices if _ask(name, unavailable, partial(collector.accepts, device), False)]
    if not accepted:
        return list(devices)
    if isinstance(collector, ReportsVersions):
        new_versions = _ask(name, unavailable, lambda: boundary.pairs(collector.versions()), _NOTHING)
        versions.update({name: number for name, number in new_versions.items() if name not in versions})
    described = []
    for device in devices:
        details = _NOTHING
        if device in accepted and isinstance(collector, ReportsSettings):
            details = _ask(name, unavailable, partial(_settings, collector, device), _NOTHING)
        earlier_details = dict(device.details)  # the first collector to report a detail wins
        new = tuple((name, value) for name, value in details.items() if name not in earlier_details)
        described.append(replace(device, details=(*device.details, *new)))
    return described


def _settings(collector: ReportsSettings, device: Device) -> Mapping[str, str]:
    return boundary.pairs(collector.describe(device))


def _ask(name: str, unavailable: list[UnavailablePart], ask: Callable[[], T], default: T) -> T:
    """Return what `ask` returns; if it raises, add the reason to `unavailable` under `name` and return `default`."""
    try:
        return plugins.call_library(name, ask)
    except errors.Unavailable as error:
        unavailable.append(UnavailablePart(name, error.problem, error.remedy))
        return default


def _library_versions() -> dict[str, str]:
    versions = {}
    for distribution in _LIBRARIES:
        try:
            versions[distribution] = version(distribution)
        except PackageNotFoundError:
            continue
    return versions


def _host() -> tuple[tuple[str, str], ...]:
    uname = platform.uname()
    described: dict[str, Any] = {
        "system": f"{uname.system} {uname.release}",
        "machine": uname.machine,
        "hostname": uname.node,
        "cpus": len(os.sched_getaffinity(0)),
        **({"numa": _NUMA.read_text(encoding="utf-8").strip()} if _NUMA.exists() else {}),
        **_sharing_limits(),
        **interposed.facts(),
    }
    return tuple((name, str(value)) for name, value in described.items())


def _sharing_limits() -> dict[str, str]:
    limits = {}
    if _SHM.is_dir():
        room = os.statvfs(_SHM)
        limits["shared memory"] = shared_memory_text(room.f_frsize * room.f_blocks)
    if _YAMA.exists():
        limits["ptrace scope"] = ptrace_text(_YAMA.read_text().strip())
    return limits


def shared_memory_text(nbytes: int) -> str:
    """Return the size of /dev/shm, `nbytes` bytes, as text; below 512 MiB with advice, as NCCL may need more."""
    size = f"{units.round_size(nbytes)} in {_SHM}"
    return (
        size
        if nbytes >= _SHM_LEAST
        else f"{size}, which may be too little for NCCL: docker run --shm-size=1g, or --ipc=host"
    )


def ptrace_text(scope: str) -> str:
    """Return Yama's ptrace scope as text; from 2 on with advice, because no process may then read another's memory."""
    mend = "sysctl kernel.yama.ptrace_scope=1, or the capability SYS_PTRACE"
    return scope if scope in ("0", "1") else f"{scope}: no process may read another's memory; {mend}"


def main() -> None:
    """Print the inventory as one line of JSON; anything that libraries print goes to standard error."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer.write(to_json(read_machine()) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()
