"""AMD's hipRTC and its disassembler by ctypes. Needs no GPU, and no root.

The libraries are those of the folder that `ci/rocm.sh` unpacks Debian's newer packages into (named by
GPUBENCH_ROCM_ROOT), run by that folder's own loader and Python; else the system's (Debian: libamdhip64-5,
libhiprtc-builtins5). The compiler may end the process that it runs in, so tests call it in a child:
`python _hiprtc.py ARCH` compiles the source on standard input and prints a JSON object.
"""

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_NAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.5")
_COMGR = ("libamd_comgr.so.3", "libamd_comgr.so.2")
ARCHS = ("gfx90a", "gfx942", "gfx950")
HOW = "no hipRTC here: `bash ci/rocm.sh` fetches one, or apt-get install libamdhip64-5 libhiprtc-builtins5"


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly: `operands` of a branch is the address that it goes to."""

    address: int
    name: str
    operands: str


@dataclass(frozen=True)
class Compiled:
    """The result of a compilation: `status` is 0 if it succeeded, or minus the signal that killed hipRTC.

    `kernels` has the instructions of each kernel.
    """

    status: int
    log: str
    kernels: dict[str, list[Instruction]] = field(default_factory=dict)


def root():
    """Return the folder of unpacked packages; None if there is none."""
    named = os.environ.get("GPUBENCH_ROCM_ROOT", "")
    return Path(named) if named and Path(named, "usr/bin/python3").exists() else None


def command():
    """Return the command of the Python that loads hipRTC: that of the unpacked packages, else this one."""
    here = root()
    if here is None:
        return [sys.executable]
    loader, libraries = here / "usr/lib64/ld-linux-x86-64.so.2", here / "usr/lib/x86_64-linux-gnu"
    return [str(loader), "--library-path", str(libraries), str(here / "usr/bin/python3")]


def _load_first(names):
    """Return the first of these libraries that loads; None if none does."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def library():
    """Return the library that has hipRTC, as this process's environment finds it; None if there is none."""
    return _load_first(_NAMES)


@functools.cache
def version():
    """Return the version of hipRTC, as `6.4.43484`; empty without hipRTC."""
    child = subprocess.run(
        [*command(), str(Path(__file__))], capture_output=True, text=True, timeout=60, check=False, env=_environment()
    )
    return child.stdout.strip() if child.returncode == 0 else ""


def archs():
    """Return the architectures to compile for; hipRTC 5.2 aborts on those after gfx90a."""
    return ARCHS if version() and int(version().partition(".")[0]) >= 6 else ARCHS[:1] if version() else ()


def _environment():
    """Return this process's environment without the variables of Python and of the loader."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}


def built(source, arch):
    """Compile the source for one architecture and disassemble it, in a child process."""
    arguments = [*command(), str(Path(__file__)), arch]
    child = subprocess.run(
        arguments, input=source, capture_output=True, text=True, timeout=100, check=False, env=_environment()
    )
    if child.returncode:
        return Compiled(child.returncode, child.stdout + child.stderr)
    answer = json.loads(child.stdout.splitlines()[-1])
    return Compiled(answer["status"], answer["log"], kernels_of(answer["text"]))


def compiled(source, arch):
    """Return the status of hipRTC (0: compiled) and its log."""
    answer = built(source, arch)
    return answer.status, answer.log


_LINE = re.compile(r"^\s+(\w+)(.*?)\s*//\s*([0-9A-F]+):")
_TARGET = re.compile(r"^\s*(\d+)\b")


def kernels_of(text):
    """Return the instructions of each function of a disassembly.

    The operand of a branch, a number of words from the next instruction, becomes an address.
    """
    kernels: dict[str, list[Instruction]] = {}
    for line in text.splitlines():
        label = re.match(r"^(?:[0-9a-f]+ )?<?(\w+)>?:", line)
        if label and not label[1].startswith(("L", "BB")):
            kernels[label[1]] = []
        match = _LINE.match(line)
        if not match or not kernels:
            continue
        name, operands, address = match[1], match[2].strip(), int(match[3], 16)
        target = _TARGET.match(operands) if name.startswith(("s_cbranch", "s_branch")) else None
        if target:
            away = int(target[1]) - (1 << 16 if int(target[1]) >= 1 << 15 else 0)
            operands = str(address + 4 + 4 * away)
        kernels[next(reversed(kernels))].append(Instruction(address, name, operands))
    return kernels


def loops(instructions):
    """Return the instructions of each loop, from the target of a backward branch to the branch; loops may be nested."""
    bodies = []
    for branch in instructions:
        if branch.name.startswith(("s_cbranch", "s_branch")) and branch.operands.isdecimal():
            target = int(branch.operands)
            if target <= branch.address:
                bodies.append(
                    [instruction for instruction in instructions if target <= instruction.address <= branch.address]
                )
    return bodies


class _Handle(ctypes.Structure):
    _fields_ = (("handle", ctypes.c_uint64),)


def _disassemble(code, arch):
    """Return the disassembly of a code object by AMD's comgr (amd_comgr.h of 2.x and 3.0; action numbers differ)."""
    comgr = _load_first(_COMGR)
    assert comgr is not None
    major, minor = ctypes.c_size_t(), ctypes.c_size_t()
    comgr.amd_comgr_get_version(ctypes.byref(major), ctypes.byref(minor))
    disassemble, executable, source = 10 if major.value >= 3 else 12, 8, 1
    data, given, made, action, text = (_Handle() for _ in range(5))
    size, count = ctypes.c_size_t(), ctypes.c_size_t()
    steps = (
        comgr.amd_comgr_create_data(executable, ctypes.byref(data)),
        comgr.amd_comgr_set_data(data, ctypes.c_size_t(len(code)), code),
        comgr.amd_comgr_set_data_name(data, b"kernel.co"),
        comgr.amd_comgr_create_data_set(ctypes.byref(given)),
        comgr.amd_comgr_create_data_set(ctypes.byref(made)),
        comgr.amd_comgr_data_set_add(given, data),
        comgr.amd_comgr_create_action_info(ctypes.byref(action)),
        comgr.amd_comgr_action_info_set_isa_name(action, b"amdgcn-amd-amdhsa--" + arch.encode()),
        comgr.amd_comgr_do_action(disassemble, action, given, made),
        comgr.amd_comgr_action_data_count(made, source, ctypes.byref(count)),
        comgr.amd_comgr_action_data_get_data(made, source, ctypes.c_size_t(0), ctypes.byref(text)),
        comgr.amd_comgr_get_data(text, ctypes.byref(size), None),
    )
    assert not any(steps), f"comgr {major.value}.{minor.value} answers {steps}"
    room = ctypes.create_string_buffer(size.value)
    comgr.amd_comgr_get_data(text, ctypes.byref(size), room)
    return room.raw.decode(errors="replace")


def _compile(rtc, source, arch):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert rtc.hiprtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    options = (f"--gpu-architecture={arch}".encode(), b"-DHIP_ENABLE_WARP_SYNC_BUILTINS")
    status = rtc.hiprtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    rtc.hiprtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    rtc.hiprtcGetProgramLog(program, log)
    text = ""
    if status == 0:
        rtc.hiprtcGetCodeSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        rtc.hiprtcGetCode(program, code)
        text = _disassemble(code.raw, arch)
    return {"status": status, "log": log.value.decode(errors="replace"), "text": text}


def main():
    """Print hipRTC's version, or with an architecture the result of a compilation as JSON."""
    rtc = library()
    if rtc is None:
        return 1
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(_compile(rtc, sys.stdin.read(), sys.argv[1])))
        return 0
    match = re.search(r"lib(?:hiprtc|amdhip64)\.so\.([\d.]+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    sys.stdout.write(match[1] if match else "")  # hiprtcVersion returns 9.0 in every release
    return 0


if __name__ == "__main__":
    sys.exit(main())
