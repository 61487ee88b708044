"""Build NVIDIA's library without a driver from tests/_fake_nvml.c; it answers what a file states."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def build(folder):
    """Compile the library; the folder that LD_LIBRARY_PATH has to name."""
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", str(HERE / "_fake_nvml.c"), "-o"]
    subprocess.run([*command, str(folder / "libnvidia-ml.so.1")], check=True)
    return folder


def environment(library, state, *paths):
    """Return the variables under which NVML is this library and a card of tests/card is there."""
    modules = [str(path) for path in (HERE / "card", *paths)]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(state),
        "PYTHONPATH": os.pathsep.join(modules),
        "GPUBENCH_HISTORY": "off",
    }


def write(state, **answers):
    """Write the file of answers; `ecc_volatile=3` answers for `ecc.volatile`."""
    lines = [f"{name.replace('_', '.')} {answer}\n" for name, answer in answers.items()]
    state.write_text("".join(lines))
    return state
