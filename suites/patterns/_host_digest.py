"""The digest of a chunk on the host, compiled by numba; it runs outside Python's lock. Importing imports numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

HELD_WORDS = 512  # stay in the first cache for all rounds; the loops over them use vectors


def _digest_of(words: Any, factor: Any, term: Any, rounds: Any) -> Any:
    held, mine = np.empty(HELD_WORDS, np.uint32), np.zeros(HELD_WORDS, np.uint32)
    places = np.arange(HELD_WORDS).astype(np.uint32)
    for first in range(0, words.size, HELD_WORDS):
        part, offset = words[first : first + HELD_WORDS], np.uint32(first)
        for place in range(HELD_WORDS):
            held[place] = part[place] ^ (places[place] + offset)
        for _ in range(rounds):
            for place in range(HELD_WORDS):
                held[place] = held[place] * factor + term
        for place in range(HELD_WORDS):
            mine[place] ^= held[place]
    digest = np.uint32(0)
    for place in range(HELD_WORDS):
        digest ^= mine[place]
    return digest


digest: Any = numba.njit(cache=True, nogil=True)(_digest_of)  # of whole groups of HELD_WORDS words, uint32
