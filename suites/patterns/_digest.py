"""Compute the expected digests of a pipeline's chunks: a linear congruential generator is applied to every word.

The digest of a chunk is the exclusive or of all words after their rounds. A word is combined with its place first,
so that words in the wrong order give another digest."""

from typing import Any

import numpy as np

FACTOR, TERM = 1664525, 1013904223  # Knuth & Lewis: Numerical Recipes in C, 2nd edition, §7.1
_MODULUS = 2**32


def combined_rounds(rounds: int) -> tuple[int, int]:
    """Return the factor and the term of x → 1664525 · x + 1013904223 (modulo 2^32) applied `rounds` times."""
    factor, term = 1, 0
    step_factor, step_term = FACTOR, TERM
    while rounds:
        if rounds & 1:
            factor, term = factor * step_factor % _MODULUS, (term * step_factor + step_term) % _MODULUS
        step_factor, step_term = step_factor**2 % _MODULUS, (step_factor + 1) * step_term % _MODULUS
        rounds >>= 1
    return factor, term


def expected_digests(chunk_words: Any, rounds: int) -> Any:
    """Return the digest of each chunk: NumPy, uint32, shape (chunks,).

    `chunk_words` is a NumPy array, uint32, shape (chunks, words)."""
    factor, term = (np.uint32(number) for number in combined_rounds(rounds))
    places = np.arange(chunk_words.shape[1], dtype=np.uint32)
    return np.array([np.bitwise_xor.reduce((chunk ^ places) * factor + term) for chunk in chunk_words], np.uint32)
