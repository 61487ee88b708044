"""Every kernel of the bandwidth suite compiles, for NVIDIA by NVRTC and for AMD by hipRTC, where these are here."""

import _grid
import _hiprtc
import _nvrtc
import pytest

SOURCES = [
    ("stream.cu", {"REAL": "float", "WIDTH": 16}),
    ("stream.cu", {"REAL": "float", "WIDTH": 8}),
    ("stream.cu", {"REAL": "float", "WIDTH": 4}),
    ("stream.cu", {"REAL": "double", "WIDTH": 16}),
    ("../gpubench/authoring/known_words.cu", {}),
    ("bandwidth/cache.cu", {}),
    ("bandwidth/access.cu", {"WRITES": 0}),
    ("bandwidth/access.cu", {"WRITES": 1}),
    ("bandwidth/engines.cu", {}),
    ("bandwidth/blocks.cu", {}),
]


def test_every_kernel_file_of_the_suite_is_compiled_here() -> None:
    files = {f"bandwidth/{path.name}" for path in (_grid.SUITES / "bandwidth").glob("*.cu")}
    assert {"stream.cu", "../gpubench/authoring/known_words.cu", *files} == {file for file, _ in SOURCES}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("file", "defines"), SOURCES)
def test_every_kernel_of_the_suite_compiles_for_nvidia(file: str, defines: dict[str, str | int], arch: str) -> None:
    if _nvrtc.library() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    options = [f"--gpu-architecture={arch}", *(f"-D{name}={value}" for name, value in defines.items())]
    status, log = _nvrtc.compiled(_grid.source(file), options)
    assert status == 0, log


@pytest.mark.slow
@pytest.mark.parametrize(("file", "defines"), SOURCES)
def test_every_kernel_of_the_suite_compiles_for_amd(file: str, defines: dict[str, str | int]) -> None:
    if _hiprtc.library() is None:
        pytest.skip("no hipRTC here (Debian: libamdhip64-5, libhiprtc-builtins5)")
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    status, log = _hiprtc.compiled(macros + _grid.source(file), "gfx90a")
    assert status == 0, log
