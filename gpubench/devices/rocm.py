"""Find what prevents the use of an AMD GPU of this machine, and how to fix it, from a probe of the machine's files.

Nothing of ROCm is loaded, so that this works where ROCm itself would end the process."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubench import DISTRIBUTION
from gpubench.model import UnavailablePart

_VENDOR = "0x1002"
_CLASSES = ("0x03", "0x12")  # PCI: display controllers and processing accelerators
# The libraries that CuPy's wheel for ROCm 7 is linked to (its NEEDED entries) or loads, without version numbers.
NEEDED = (
    "libamdhip64",
    "libhiprtc",
    "libhipblas",
    "librocblas",
    "librocsolver",
    "librocfft",
    "libhipfft",
    "libhiprand",
    "libhipsparse",
    "librccl",
    "libroctx64",
    "libroctracer64",
)
_WHEEL = re.compile(r"cupy-rocm-(\d+)-\d+|amd-cupy")
_CUDA_WHEEL = re.compile(r"cupy(-cuda\w+)?")


@dataclass(frozen=True, slots=True)
class Install:
    """One ROCm: its folder, its version (empty if unknown), and what CuPy needs and is missing."""

    path: str
    version: str
    missing_libraries: tuple[str, ...] = ()
    has_thrust: bool = True
    has_hipcc: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts that the files of a machine give about ROCm and about AMD GPUs, by their PCI addresses."""

    gpus: tuple[str, ...] = ()
    driverless: tuple[str, ...] = ()
    has_kfd: bool = False
    closed: tuple[str, ...] = ()
    installs: tuple[Install, ...] = ()
    chosen: str = ""
    wheels: Mapping[str, str] | None = None
    has_nvidia: bool = False
    override: str = ""
    hipcc: str = ""


def probe(
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
    wheels: Mapping[str, str] | None = None,
    may_open: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK),
) -> Probe:
    """Return the facts about ROCm from the files below `root`, from `environment` and from the installed wheels."""
    cards = [path for path in sorted((root / "sys/bus/pci/devices").glob("*")) if _is_amd_gpu(path)]
    nodes = [root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))] if cards else []
    return Probe(
        gpus=tuple(path.name for path in cards),
        driverless=tuple(path.name for path in cards if not (path / "driver").exists()),
        has_kfd=(root / "dev/kfd").exists(),
        closed=tuple(f"/{path.relative_to(root)}" for path in nodes if path.exists() and not may_open(path)),
        installs=_find_installs(root),
        chosen=environment.get("ROCM_PATH") or environment.get("ROCM_HOME", ""),
        wheels={} if wheels is None else wheels,
        has_nvidia=(root / "proc/driver/nvidia/version").exists(),
        override=environment.get("HSA_OVERRIDE_GFX_VERSION", ""),
        hipcc=_find_program("hipcc", root, environment.get("PATH", os.defpath)),
    )


def _find_program(program: str, root: Path, path: str) -> str:
    """Return the first path of `program` in the folders of `path`, a PATH variable; empty if none has it."""
    folders = [folder for folder in path.split(os.pathsep) if folder.startswith("/")]
    return next((f"{folder}/{program}" for folder in folders if _is_readable(root / folder.lstrip("/") / program)), "")


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK)  # False in a folder of another user too, where Path.exists raises


def _read_text(path: Path) -> str:
    """Return the content of a file without blanks at its ends; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_amd_gpu(path: Path) -> bool:
    return _read_text(path / "vendor") == _VENDOR and _read_text(path / "class").startswith(_CLASSES)


def _find_installs(root: Path) -> tuple[Install, ...]:
    """Return every ROCm below `root`: each folder /opt/rocm*, and /usr if it has libraries of ROCm."""
    folders = {path.resolve(): path for path in sorted((root / "opt").glob("rocm*"), reverse=True) if path.is_dir()}
    folders |= {root / "usr": root / "usr"} if _libraries(root / "usr") else {}
    return tuple(_read_install(root, path) for path in sorted(folders.values()))


def _read_install(root: Path, path: Path) -> Install:
    """Return the ROCm in the folder `path`: its version, and which parts are missing that CuPy needs."""
    libraries = _libraries(path)
    version = re.match(r"[\d.]+", _read_text(path / ".info/version")) or re.search(r"[\d.]*\d$", path.resolve().name)
    missing_libraries = tuple(name for name in NEEDED if name not in libraries)
    thrust, hipcc = (_is_readable(path / inner) for inner in ("include/thrust/version.h", "bin/hipcc"))
    return Install(f"/{path.relative_to(root)}", version[0] if version else "", missing_libraries, thrust, hipcc)


def _libraries(path: Path) -> set[str]:
    """Return the libraries of `NEEDED` in the ROCm folder `path`, without version numbers (`libamdhip64`)."""
    folders = [path / "lib", path / "lib64", *path.glob("lib/*-linux-gnu")]
    names = {name.name.split(".so")[0] for folder in folders for name in folder.glob("lib*.so*")}
    return names & set(NEEDED)


def findings(machine: Probe) -> tuple[UnavailablePart, ...]:
    """Return every obstacle with its fix; empty if there is no AMD GPU and no wheel for one."""
    if not (machine.gpus or any(map(_WHEEL.match, machine.wheels or {}))):
        return ()
    return tuple(
        UnavailablePart("rocm", problem, fix)
        for problem, fix in (*_machine_problems(machine), *_rocm_problems(machine), *_python_problems(machine))
    )


Problem = tuple[str, str]


def _machine_problems(machine: Probe) -> Iterator[Problem]:
    """Yield each problem of GPUs, driver and permissions, as a clause and a fix; only the first if there is no GPU."""
    if not machine.gpus:
        yield "no AMD GPU is on the PCI bus", "in a container, pass the devices: --device /dev/kfd --device /dev/dri"
        return
    if machine.driverless:
        yield f"no driver runs {', '.join(machine.driverless)}", "modprobe amdgpu; AMD's package is amdgpu-dkms"
    elif not machine.has_kfd:
        yield (
            "there is no /dev/kfd, which ROCm opens first",
            "in a container: --device /dev/kfd --device /dev/dri --group-add render",
        )
    if machine.closed:
        yield (
            f"no permission for {', '.join(machine.closed)}",
            "sudo usermod -aG render,video $USER, then log in again (in a container: --group-add render)",
        )
    if machine.override:
        yield (
            f"HSA_OVERRIDE_GFX_VERSION={machine.override} makes ROCm treat the GPU as another model",
            "unset HSA_OVERRIDE_GFX_VERSION, unless the GPU is unsupported without it",
        )


def _used_install(machine: Probe) -> Install | None:
    """Return the ROCm that programs would use: the chosen one, else /opt/rocm, else the first; None without any."""
    for path in (machine.chosen.rstrip("/"), "/opt/rocm"):
        for install in machine.installs:
            if install.path == path:
                return install
    return machine.installs[0] if machine.installs else None


def _rocm_problems(machine: Probe) -> Iterator[Problem]:
    """Yield each problem of the installed ROCm, as a clause and a fix; only the first if no ROCm is installed."""
    used = _used_install(machine)
    if used is None:
        yield (
            "no ROCm is under /opt or /usr",
            "install AMD's package rocm, version 7, as its guide says",
        )
        return
    if machine.chosen and used.path != machine.chosen.rstrip("/"):
        yield f"ROCM_PATH is {machine.chosen}, but ROCm is not there", f"unset ROCM_PATH, or set it to {used.path}"
    if len(machine.installs) > 1:
        listed = ", ".join(f"{install.path} ({install.version or 'unknown version'})" for install in machine.installs)
        yield (
            f"several ROCm installations: {listed}; {used.path} is used",
            f"choose one with ROCM_PATH and LD_LIBRARY_PATH, for example {used.path}/lib",
        )
    if used.missing_libraries:
        yield (
            f"incomplete ROCm: {used.path} is missing {', '.join(used.missing_libraries)}",
            "install AMD's complete package rocm",
        )
    elif not used.has_thrust:
        yield (
            f"{used.path} is missing the rocThrust headers, which CuPy's kernels include",
            "install rocthrust-dev (rocthrust-devel)",
        )
    if not machine.hipcc and used.has_hipcc:
        yield (
            f"hipcc is in {used.path}/bin, which is not on the path: CuPy asks it for the folders of ROCm's headers",
            f"export PATH={used.path}/bin:$PATH",
        )
    elif not machine.hipcc:
        yield (
            f"{used.path} is missing hipcc, which CuPy asks for the folders of ROCm's headers",
            "install hipcc, or AMD's complete package rocm",
        )


def _python_problems(machine: Probe) -> Iterator[Problem]:
    """Yield each problem of the installed Python packages with this machine and this ROCm, as a clause and a fix."""
    wheels, used = machine.wheels or {}, _used_install(machine)
    rocm = [name for name in wheels if _WHEEL.fullmatch(name)]
    cuda = [name for name in wheels if _CUDA_WHEEL.fullmatch(name)]
    if rocm and cuda:
        yield (
            f"{' and '.join(sorted([*rocm, *cuda]))} overwrite each other: both install the package cupy",
            "pip uninstall both, then install one; use a second environment for the other",
        )
    elif machine.has_nvidia and machine.gpus and (rocm or cuda):
        yield (
            f"NVIDIA and AMD GPUs in one machine: {(rocm or cuda)[0]} supports only one kind",
            f"a second environment with '{DISTRIBUTION}[{'cuda13' if rocm else 'rocm7'}]' measures the others",
        )
    for name in rocm:
        wanted = _WHEEL.fullmatch(name)
        major = wanted[1] if wanted else None
        if used and major and used.version and used.version.split(".")[0] != major:
            yield (
                f"{name} is for ROCm {major}, {used.path} is {used.version}",
                f"install ROCm {major} beside it and set ROCM_PATH, or the wheel of ROCm {used.version.split('.')[0]}",
            )
    if used and "amdsmi" in wheels and used.version and _release(wheels["amdsmi"]) != _release(used.version):
        yield (
            f"the wheel amdsmi {wheels['amdsmi']} is not of the same release as {used.path} ({used.version})",
            f"pip uninstall amdsmi: {used.path}/share/amd_smi has the right one",
        )


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
