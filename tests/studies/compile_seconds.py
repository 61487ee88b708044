"""The seconds to compile of the suite `compilers` beside those of the same compile by hand.

Five times in turn, Numba compiles a softmax in a fresh interpreter with an empty cache: once as the suite does it and
once by a program without gpubench. Two medians that differ by more than 10 % end with the exit status 1. It needs two
free cores: bash ci/study.sh compile_seconds
"""

import os
import statistics
import subprocess
import sys
import textwrap

from test_compilers_build import BUILD, PROVIDERS, built, order

BY_HAND = textwrap.dedent(
    f"""
    import importlib, time, numpy as np, numba
    module = importlib.import_module({PROVIDERS + "numba"!r})
    x, out = np.ones((64, 128), np.float32), np.empty((64, 128), np.float32)
    softmax = module._loaded(importlib.import_module(module.__package__ + "._rows").softmax_numba)
    begun = time.monotonic()
    loop = numba.njit(parallel=True, cache=True)(softmax)
    loop(x, out)
    called = time.monotonic()
    loop(x, out)
    print(2 * called - begun - time.monotonic())
    """
)


def by_hand() -> float:
    with BUILD.Caches() as caches:
        environment = {**os.environ, **caches.environment}
        command = [sys.executable, "-P", "-c", BY_HAND]
        return float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def ours() -> float:
    with BUILD.Caches() as caches:
        return float(built(order("numba"), caches, 60).seconds["compile"])


def main() -> None:
    pairs = [(by_hand(), ours()) for _ in range(5)]
    hand_s, ours_s = (statistics.median(values) for values in zip(*pairs, strict=True))
    sys.stdout.write(f"by hand {hand_s:.3f} s, by the suite {ours_s:.3f} s: {100 * (ours_s / hand_s - 1):+.1f} %\n")
    sys.exit(abs(ours_s / hand_s - 1) > 0.1)


if __name__ == "__main__":
    main()
