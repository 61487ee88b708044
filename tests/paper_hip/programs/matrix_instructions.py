"""AMD's matrix instructions on the paper GPU against NumPy, where each lane has the elements that AMD documents.

Sources: "AMD matrix cores" (the matrix instruction calculator) and the CDNA 3 ISA, "Dense Matrix Layouts".
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

import cupy
import numpy as np

from gpubench import plugins

MFMA = importlib.import_module("._mma", plugins.load("suites", "tensor").package).MFMA
_KERNEL = """
typedef {element} Word;
typedef Word In __attribute__((ext_vector_type({count})));
typedef {sum} Sum;
typedef Sum Out __attribute__((ext_vector_type({sums})));
extern "C" __global__ void once(const Word* a, const Word* b, Sum* c) {{
    const int lane = threadIdx.x;
    In x, y;
    Out z;
    for (int i = 0; i < {count}; ++i) x[i] = a[lane * {count} + i], y[i] = b[lane * {count} + i];
    for (int i = 0; i < {sums}; ++i) z[i] = c[lane * {sums} + i];
    z = __builtin_amdgcn_{name}({x}, {y}, z, 0, 0, 0);
    for (int i = 0; i < {sums}; ++i) c[lane * {sums} + i] = z[i];
}}
"""


def stored(numbers: Any, dtype: str) -> Any:
    """Return whole numbers in a format that NumPy may lack."""
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(dtype)


def wrong_sums(form: Any, rng: np.random.Generator) -> int:
    """Return how many sums of one instruction differ from the product of the matrices."""
    m, n, k = form.shape
    count, sums, is_double = m * k // 64, m * n // 64, form.dtype == "float64"
    a, b, c = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n)), rng.integers(-9, 9, (m, n))
    lanes = np.arange(64)
    rows, inner = lanes % m, (lanes // m * count)[:, None] + np.arange(count)
    step = 64 // m  # lanes that share a row of A each hold a different part of the inner elements
    places = np.arange(sums)
    if is_double:
        below = 4 * places[None, :] + (lanes // n)[:, None]
    else:
        below = 4 * step * (places // 4)[None, :] + 4 * (lanes // n)[:, None] + (places % 4)[None, :]
    of_a, of_b = stored(a[rows[:, None], inner], form.dtype), stored(b[inner, rows[:, None]], form.dtype)
    of_c = c[below, (lanes % n)[:, None]].astype(form.sum_dtype)
    source = _KERNEL.format(
        element={"float16": "_Float16", "bfloat16": "short", "float64": "double", "int8": "signed char"}[form.dtype],
        sum={"float32": "float", "float64": "double", "int32": "int"}[form.sum_dtype],
        count=count,
        sums=sums,
        name=f"mfma_{form.sums.replace('s32', 'i32')}_{m}x{n}x{k}{form.inputs}",
        x={"float64": "x[0]", "int8": "*(int*)&x"}.get(form.dtype, "x"),
        y={"float64": "y[0]", "int8": "*(int*)&y"}.get(form.dtype, "y"),
    )
    kernel = cupy.RawModule(code=source).get_function("once")
    words = cupy.asarray(np.ascontiguousarray(of_c))
    kernel((1,), (64,), (cupy.asarray(of_a), cupy.asarray(of_b), words))
    expected = (c + a @ b)[below, (lanes % n)[:, None]]
    return int(np.count_nonzero(cupy.asnumpy(words) != expected))


def main() -> None:
    """Print each instruction and the number of its wrong sums in two draws."""
    rng = np.random.default_rng(0)
    on_paper = [(name, form) for name, form in MFMA.items() if form.since.name == "gfx90a"]
    for (name, form), _ in itertools.product(on_paper, range(2)):
        sys.stdout.write(f"{' '.join(name)} {wrong_sums(form, rng)}\n")


if __name__ == "__main__":
    main()
