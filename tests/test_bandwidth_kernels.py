"""Every kernel of the bandwidth suite compiles, for NVIDIA by NVRTC and for AMD by hipRTC, where these are here."""

from importlib import resources

import _hiprtc
import _nvrtc
import pytest
from _bandwidth import SUITE

SOURCES = [
    ("bandwidth.cu", {"REAL": "float", "WIDTH": 16}),
    ("bandwidth.cu", {"REAL": "float", "WIDTH": 8}),
    ("bandwidth.cu", {"REAL": "float", "WIDTH": 4}),
    ("bandwidth.cu", {"REAL": "double", "WIDTH": 16}),
    ("bandwidth_words.cu", {}),
    ("bandwidth_cache.cu", {}),
    ("bandwidth_access.cu", {"WRITES": 0}),
    ("bandwidth_access.cu", {"WRITES": 1}),
    ("bandwidth_engines.cu", {}),
]


def source_of(file: str) -> str:
    folder = resources.files(SUITE.package)
    return (folder / "prelude.cuh").read_text() + (folder / file).read_text()


def test_no_kernel_of_the_suite_is_left_out() -> None:
    files = {path.name for path in resources.files(SUITE.package).iterdir() if path.name.startswith("bandwidth")}
    assert {file for file in files if file.endswith(".cu")} == {file for file, _ in SOURCES}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("file", "defines"), SOURCES)
def test_it_compiles_for_nvidia(file: str, defines: dict[str, str | int], arch: str) -> None:
    if _nvrtc.library() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    options = [f"--gpu-architecture={arch}", *(f"-D{name}={value}" for name, value in defines.items())]
    status, log = _nvrtc.compiled(source_of(file), options)
    assert status == 0, log


@pytest.mark.slow
@pytest.mark.parametrize(("file", "defines"), SOURCES)
def test_it_compiles_for_amd(file: str, defines: dict[str, str | int]) -> None:
    if _hiprtc.library() is None:
        pytest.skip("no hipRTC here (Debian: libamdhip64-5, libhiprtc-builtins5)")
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    status, log = _hiprtc.compiled(macros + source_of(file), "gfx90a")
    assert status == 0, log
