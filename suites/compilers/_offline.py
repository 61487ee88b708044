"""Compile for GPUs that this machine does not have, by NVRTC and hipRTC, whose functions correspond, through ctypes."""

import ctypes
import ctypes.util
import dataclasses
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from gpubench.api import suite as gb

_NVIDIA_OPTIONS = ("--std=c++17",)
_AMD_OPTIONS = ("-DHIP_ENABLE_WARP_SYNC_BUILTINS",)
_HIPRTC = ("libhiprtc.so.7", "libhiprtc.so.6")


class OfflineCompiler:
    """NVRTC or hipRTC, which compile source text to machine code for an architecture.

    `prefix` begins the names of the library's functions, and `code` is the middle of the names that give machine
    code."""

    def __init__(self, handle: ctypes.CDLL, prefix: str, code: str, options: Sequence[str]) -> None:
        self._handle, self._prefix, self._code, self._options = handle, prefix, code, options

    def _call(self, name: str, *arguments: Any) -> int:
        """Call a function of the library by its name without the prefix, and return its status."""
        return int(getattr(self._handle, self._prefix + name)(*arguments))

    def _text(self, program: c_void_p, kind: str) -> bytes:
        """Return the log (`kind` is ProgramLog) or the machine code of a compiled program."""
        size = c_size_t()
        self._call(f"Get{kind}Size", program, byref(size))
        room = ctypes.create_string_buffer(max(size.value, 1))
        self._call(f"Get{kind}", program, room)
        return room.raw[: size.value]

    @property
    def version(self) -> str:
        """The name of the library and its version, such as `NVRTC 13.0`."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", byref(major), byref(minor))
        return f"{self._prefix.upper().replace('HIPRTC', 'hipRTC')} {major.value}.{minor.value}"

    def compile(self, source: str, arch: str, defines: Mapping[str, str | int]) -> bytes:
        """Return the machine code of `source` for the architecture `arch`, such as sm_90 or gfx942.

        `defines` are macros by name. Raises RuntimeError with the compiler's log if the source has errors."""
        arguments = [
            f"--gpu-architecture={arch}",
            *self._options,
            *(f"-D{name}={value}" for name, value in defines.items()),
        ]
        program = c_void_p()
        self._call("CreateProgram", byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            options = (c_char_p * len(arguments))(*map(str.encode, arguments))
            if self._call("CompileProgram", program, len(arguments), options):
                raise RuntimeError(f"not compiled for {arch}: {self._text(program, 'ProgramLog').decode()[:500]}")
            return self._text(program, self._code)
        finally:
            self._call("DestroyProgram", byref(program))


def nvrtc() -> OfflineCompiler:
    """Return NVRTC from NVIDIA's wheels, or else from the system; raises Unavailable if neither has it."""
    for path in _wheels("libnvrtc-builtins.so.*"):  # the library itself looks for it in the system's folders alone
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    wheels = [str(path) for path in _wheels("libnvrtc.so.*") if "alt" not in path.name]
    name = next(iter(wheels), ctypes.util.find_library("nvrtc"))
    if not name:
        raise gb.Unavailable("NVRTC is not installed", "pip install nvidia-cuda-nvrtc")
    return OfflineCompiler(ctypes.CDLL(name), "nvrtc", "CUBIN", _NVIDIA_OPTIONS)


def hiprtc() -> OfflineCompiler:
    """Return hipRTC from the system's ROCm, which ROCM_PATH may name; raises Unavailable if it is not installed."""
    for name in (*_HIPRTC, *(f"{root}/lib/{name}" for root in sorted(_rocm_roots()) for name in _HIPRTC)):
        try:
            return OfflineCompiler(ctypes.CDLL(name), "hiprtc", "Code", _AMD_OPTIONS)
        except OSError:
            continue
    raise gb.Unavailable(
        "hipRTC is not installed", "install AMD's package hip-runtime-amd, or name the folder in ROCM_PATH"
    )


def _rocm_roots() -> list[str]:
    """Return the folders in which ROCm may be installed; ROCM_PATH alone if it is set."""
    named = os.environ.get("ROCM_PATH")
    return [named] if named else [str(path) for path in Path("/opt").glob("rocm*")]


def _wheels(pattern: str) -> Iterator[Path]:
    """Yield the files that match `pattern` in the folders `lib` of NVIDIA's wheels; none without such wheels."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob(f"*/lib/{pattern}"))


def _no_launch(*_: Any) -> None:
    """Raise Skip in place of a launch."""
    raise gb.Skip("the kernel was compiled for a GPU that this machine does not have")


class OfflineDevice:
    """The host's memory with the traits of a GPU of the architecture `arch`; its kernels are compiled and never run.

    `code` has the machine code of all kernels so far, and `seconds` the time of compiling them."""

    def __init__(self, bench: gb.Bench, arch: str, compiler: OfflineCompiler) -> None:
        self._host, self._arch, self._compiler = bench.device, arch, compiler
        amd = gb.Architecture.parse(arch).vendor == "amd"
        self.traits = dataclasses.replace(
            bench.traits,
            vendor="amd" if amd else "nvidia",
            arch=arch,
            kernels="hip" if amd else "cuda",
            warp=64 if amd else 32,
            is_gpu=True,
        )
        self.seconds = 0.0
        self.code = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def kernel(self, source: str, name: str, defines: Mapping[str, str | int]) -> Any:
        """Compile `source`, add its code and seconds to `code` and `seconds`, and return a launch that raises Skip.

        `defines` are macros by name. The whole source is compiled, whichever kernel `name` names."""
        del name
        begun = time.perf_counter()
        self.code += self._compiler.compile(source, self._arch, defines)
        self.seconds += time.perf_counter() - begun
        return _no_launch
