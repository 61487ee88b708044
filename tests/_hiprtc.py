"""hipRTC by ctypes, where the system has one (Debian: libamdhip64-5, libhiprtc-builtins5). Needs no GPU.

`python _hiprtc.py ARCH` compiles the source on standard input and prints its log. The compiler may end the
process that it runs in, so tests call it in a child.
"""

import ctypes
import ctypes.util
import subprocess
import sys
from pathlib import Path

_NAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.5")


def library() -> ctypes.CDLL | None:
    """The library that holds hipRTC, or None."""
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compiled(source: str, arch: str) -> tuple[int, str]:
    """hipRTC's status (0: compiled) and its log, from a child process."""
    command = [sys.executable, str(Path(__file__)), arch]
    child = subprocess.run(command, input=source, capture_output=True, text=True, timeout=100, check=False)
    return child.returncode, child.stdout + child.stderr


def main() -> int:
    """The child."""
    rtc = library()
    assert rtc is not None
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert rtc.hiprtcCreateProgram(ctypes.byref(program), sys.stdin.read().encode(), b"kernel.cu", 0, None, None) == 0
    words = (f"--gpu-architecture={sys.argv[1]}".encode(), b"-DHIP_ENABLE_WARP_SYNC_BUILTINS")
    status = rtc.hiprtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    rtc.hiprtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    rtc.hiprtcGetProgramLog(program, log)
    sys.stdout.write(log.value.decode(errors="replace"))
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main())
