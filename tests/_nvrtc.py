"""NVRTC by ctypes, wherever it is found: pip's wheels, or the system's library path. Needs no GPU."""

import ctypes
import ctypes.util
import functools
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None; its own helper library must be loaded before it is used."""
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    for path in itertools.chain.from_iterable(folder.glob("*/lib/libnvrtc-builtins.so.*") for folder in folders):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    found = itertools.chain.from_iterable(folder.glob("*/lib/libnvrtc.so.*") for folder in folders)
    name = next((str(path) for path in found if "alt" not in path.name), ctypes.util.find_library("nvrtc"))
    return ctypes.CDLL(name) if name else None


def compiled(source: str, options: Sequence[str]) -> tuple[int, str]:
    """NVRTC's status (0: compiled) and its log."""
    nvrtc = library()
    assert nvrtc is not None
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()
