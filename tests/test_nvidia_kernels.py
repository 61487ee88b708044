"""Every kernel of every suite compiles for NVIDIA's GPUs, by NVRTC where it is here; the builds are those for AMD."""

import _nvrtc
import pytest
from test_amd_kernels import ALL, FILES, PRELUDE

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100")
FROM_SM_80 = ("skinny.cu", "compilers/layout.cu")
BUILDS = [
    (file, macros, arch)
    for file, macros in ALL
    for arch in ARCHS[file in FROM_SM_80 :]
    if not file.startswith(("tensor/instructions_mma", "tensor/hgemm"))  # test_tensor_*.py have those of NVIDIA
]
pytestmark = pytest.mark.slow


@pytest.mark.skipif(_nvrtc.library() is None, reason="no NVRTC here: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize(("file", "macros", "arch"), BUILDS)
def test_every_kernel_of_every_suite_compiles_for_nvidia(file, macros, arch):
    path, macros = FILES[file], {**macros, **({"LANES": 32} if "LANES" in macros else {})}
    options = [f"--gpu-architecture={arch}", *(f"-D{name}={value}" for name, value in macros.items())]
    prelude = PRELUDE.read_text() if PRELUDE.parent in path.parents else ""
    status, log = _nvrtc.compiled(prelude + path.read_text(), options)
    assert status == 0, log
