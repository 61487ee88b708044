"""The speed of the kernels of the suite `compilers` on a GPU, beside Triton's and the same kernel driven by hand.

A kernel of ours that is more than 3 % slower than Triton's, and Triton's by the suite that differs by more than 2 %
from Triton's by hand, end with the exit status 1. It needs a quiet GPU, torch and Triton:
bash ci/study.sh compilers_speed_gpu
"""

import time

import numpy as np
import pytest
from test_compilers_gpu import OPERATORS, PROVIDERS, bench, gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # torch 2.11 uses what it has deprecated
    pytest.mark.filterwarnings("ignore:The .generic. unit for NumPy timedelta:DeprecationWarning"),  # of numba
]
__all__ = ["gpu"]


def rates_in_turn(gpu, workloads):
    """Return GB/s of each workload, which is a call and its bytes: medians of ten batches in turn, after a warm-up.

    One after the other, the first of them would be timed while the clock still rises.
    """

    def batch(name):
        call, moved = workloads[name]
        return float(gpu.time(call, 64 if moved < 2e8 else 24 if moved < 2e9 else 6).device[0])

    warm_up(lambda: [batch(name) for name in workloads])
    rounds = [{name: batch(name) for name in workloads} for _ in range(10)]
    return {
        name: float(moved / np.median([seconds[name] for seconds in rounds]) / 1e9)
        for name, (_, moved) in workloads.items()
    }


def warm_up(work):
    """Work for 0.3 s, so that an idle GPU raises its clock."""
    begin = time.monotonic()
    while time.monotonic() - begin < 0.3:
        work()


SHAPES_OF_ROWS = [(name, cols) for name in OPERATORS.OPERATORS for cols in (4096, 1024, 32768)]
KEPT = [(name, cols) for name, cols in SHAPES_OF_ROWS if cols == 4096 or name not in OPERATORS.POINTWISE]


@pytest.mark.parametrize(("name", "cols"), KEPT)
def test_our_kernel_is_within_3_percent_of_triton_and_the_faster_near_a_copy(gpu, name, cols):
    pytest.importorskip("triton")
    made = OPERATORS.Problem(bench(gpu), name, 32768, cols, "float16")
    built = {by: PROVIDERS.build(bench(gpu), made, by) for by in ("nvrtc", "triton")}
    source = gpu.xp.zeros(2**30, "uint8")
    target = gpu.xp.empty_like(source)
    workloads = {by: (operator.call, made.moved) for by, operator in built.items()}
    rates = rates_in_turn(gpu, workloads | {"copy": (lambda: gpu.copy(target, source), 2 * source.nbytes)})
    assert rates["nvrtc"] > 0.97 * rates["triton"], rates
    assert max(rates["nvrtc"], rates["triton"]) > 0.9 * rates["copy"], rates


def test_triton_is_as_fast_as_the_same_kernel_driven_by_hand(gpu):
    """The hand's way: torch's tensors and events, Triton's own driver, 24 launches in a row."""
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    made = OPERATORS.Problem(bench(gpu), "softmax", 32768, 4096, "float16")
    built = PROVIDERS.build(bench(gpu), made, "triton")
    block, warps = (int(built.notes["configuration"].split()[place]) for place in (0, 3))
    warm_up(lambda: gpu.time(built.call, 24))
    ours = [gpu.time(built.call, 24).device[0] for _ in range(15)]

    triton.runtime.driver.reset_active()
    kernel = triton.jit(OPERATORS.OPERATORS["softmax"].kernels["triton"])
    x = torch.randn(32768, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(x)

    def by_hand():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(24):
            kernel[(32768,)](x, out, 4096, block=block, num_warps=warps)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 24e3

    warm_up(by_hand)
    assert np.median(ours) == pytest.approx(np.median([by_hand() for _ in range(15)]), rel=0.02)


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-n", "0", "-m", "gpu", __file__]))
