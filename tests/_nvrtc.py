"""NVRTC by ctypes, from pip's wheels or from the system's library path. Needs no GPU."""

import ctypes
import ctypes.util
import functools
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path


@functools.cache
def library():
    """Return NVRTC, or None; its helper library is loaded first."""
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    for path in itertools.chain.from_iterable(folder.glob("*/lib/libnvrtc-builtins.so.*") for folder in folders):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    paths = itertools.chain.from_iterable(folder.glob("*/lib/libnvrtc.so.*") for folder in folders)
    name = next((str(path) for path in paths if "alt" not in path.name), ctypes.util.find_library("nvrtc"))
    return ctypes.CDLL(name) if name else None


def compiled(source, options):
    """Return NVRTC's status (0: compiled) and its log."""
    status, log, _ = built(source, options)
    return status, log


def built(source, options, nvrtc=None):
    """Return the status of NVRTC, its log, and the machine code if the options name a real architecture (`sm_90`)."""
    nvrtc = nvrtc or library()
    assert nvrtc is not None
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    pointers = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), pointers)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    size.value = 0
    if status == 0:
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(max(1, size.value))
    if size.value:
        nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode(), code.raw[: size.value]


@functools.cache
def disassembler():
    """Return the path of nvdisasm from a toolkit or pip's wheels; empty without one."""
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    paths = itertools.chain.from_iterable(folder.glob("*/bin/nvdisasm") for folder in folders)
    return shutil.which("nvdisasm") or next((str(path) for path in paths), "")


def disassembled(code, kernel=""):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    if not kernel:
        return text
    _, _, rest = text.partition(f".section\t.text.{kernel},")
    return rest.partition(".section")[0]


def opcodes(code):
    """Return the number of times that machine code has each instruction, by name without predicates and operands."""
    text = disassembled(code)
    return Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.MULTILINE))
