"""Check every element of C = A·B in the time of a few matrix-vector products.

C·x is compared with A·(B·x) for random x of ± 1 (Freivalds, IFIP Congress 1977). A wrong element is missed only if
another one in its row cancels it, which at most half of all x do."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .formats import Precision

SIGN_BLOCK = 256  # columns of C that one vector x covers
_CHUNK = 2**24  # elements that are widened to double precision at once
# Tolerance as a multiple of an element's bound; with random signs, errors add up like their squares (Khintchine).
_SLACK = 2.0


def sign_blocks(rng: np.random.Generator, n: int) -> Any:
    """Return random X, a NumPy array of doubles (n, blocks): column b is ± 1 in the rows of block b and 0 elsewhere.

    A block has SIGN_BLOCK rows, the last one perhaps fewer."""
    signs = np.zeros((n, -(-n // SIGN_BLOCK)))
    signs[np.arange(n), np.arange(n) // SIGN_BLOCK] = rng.choice((-1.0, 1.0), n)
    return signs


def expect_product(precision: Precision, k: int, c_x: Any, a_b_x: Any, c_norms: Any, terms: Any) -> None:
    """Raise WrongAnswer if C·X (`c_x`) differs from A·(B·X) (`a_b_x`) by more than twice `element_bound`."""
    off = np.abs(c_x - a_b_x)
    # A library that splits K rounds partial sums. Even where C is near 0 these are as large as in other rows.
    typical_norms = np.sqrt(np.mean(np.square(c_norms), axis=0))
    allowed = _SLACK * element_bound(precision, k, np.maximum(c_norms, typical_norms), terms)
    wrong = int(np.count_nonzero(~(off <= allowed)))
    gb.expect(wrong == 0, f"{wrong} of {off.size} sums over {SIGN_BLOCK} elements of C are wrong")


def element_bound(precision: Precision, k: int, sizes: Any, terms: Any) -> Any:
    """Return the largest error of elements of C that rounding explains, as an array like `sizes`.

    It is (2·narrow + 6·√k·sums)·|R| + (i + 8·sums)·|A|·|B|, with i = 2·narrow for TF32, whose inputs are rounded, else
    0. `sizes` are |R|, the sizes of the elements, and `terms` the sizes |A|·|B| of their terms; each element is a sum
    of k products. The errors of the sums grow as a random walk: by √k for terms of one sign, by a constant for terms of
    both (Higham & Mary, SIAM J. on Scientific Computing 41, 2019)."""
    inputs = 2 * precision.narrow if precision.rounds_inputs else 0.0
    stored = 2 * precision.narrow + 6 * math.sqrt(k) * precision.sums
    return stored * np.abs(sizes) + (inputs + 8 * precision.sums) * terms


def expect_host_product(precision: Precision, a: Any, b: Any, c: Any, rng: np.random.Generator) -> None:
    """Raise WrongAnswer if an element of C (m × n) differs from A (m × k) · B (k × n) by more than rounding explains.

    a, b and c are NumPy arrays; `rng` draws the signs."""
    signs = sign_blocks(rng, c.shape[1])
    b_x, b_norms = np.empty((b.shape[0], signs.shape[1])), np.empty(signs.shape[1])
    for block, columns in enumerate(_slices(c.shape[1], SIGN_BLOCK)):
        wide = b[:, columns].astype(float)
        b_x[:, block] = wide @ signs[columns, block]
        b_norms[block] = np.linalg.norm(wide)
    for rows in _slices(len(a), max(1, _CHUNK // max(a.shape[1], c.shape[1]))):
        wide_a, wide_c = a[rows].astype(float), c[rows].astype(float)
        starts = np.arange(0, c.shape[1], SIGN_BLOCK)
        c_norms = np.sqrt(np.add.reduceat(wide_c * wide_c, starts, axis=1))
        terms = np.linalg.norm(wide_a, axis=1)[:, None] * b_norms
        expect_product(precision, a.shape[1], wide_c @ signs, wide_a @ b_x, c_norms, terms)


def _slices(count: int, most: int) -> Iterator[slice]:
    """Yield slices of at most `most` elements that cover `count` elements."""
    for first in range(0, count, most):
        yield slice(first, min(first + most, count))
