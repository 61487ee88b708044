"""Copy and digest the chunks of a pipeline on the host in two loops that numba compiles; importing this imports numba.

A chunk is handed on by two counters in shared memory, how many chunks are filled and how many are free again. A
thread that waits watches the other one's counter: a wake-up by the operating system takes as long as a chunk."""

from typing import Any

import numba
import numpy as np

from .._host_flags import now, post, reaches

# These words stay in the first-level cache for all rounds, and the loops over them use vector instructions.
HELD_WORDS = 512
_LINE_BYTES = 128  # distance of the two counters: two cache lines, because the prefetcher fetches pairs of lines


def _digest_of(chunk: Any, factor: Any, term: Any, rounds: Any) -> Any:
    """Return the digest of `chunk` (uint32, a whole multiple of HELD_WORDS words), a uint32."""
    held, combined = np.empty(HELD_WORDS, np.uint32), np.zeros(HELD_WORDS, np.uint32)
    places = np.arange(HELD_WORDS).astype(np.uint32)
    for first in range(0, chunk.size, HELD_WORDS):
        part, offset = chunk[first : first + HELD_WORDS], np.uint32(first)
        for place in range(HELD_WORDS):
            held[place] = part[place] ^ (places[place] + offset)
        for _ in range(rounds):
            for place in range(HELD_WORDS):
                held[place] = held[place] * factor + term
        for place in range(HELD_WORDS):
            combined[place] ^= held[place]
    digest = np.uint32(0)
    for place in range(HELD_WORDS):
        digest ^= combined[place]
    return digest


digest: Any = numba.njit(cache=True, nogil=True)(_digest_of)  # takes whole groups of HELD_WORDS words, uint32


def _copy_all(chunks: Any, slots: Any, depth: Any, counters: Any, looks: Any, moments: Any) -> Any:
    """Copy each row of `chunks` into row i % `depth` of `slots` once that row is free; return the busy nanoseconds."""
    pair, busy = np.zeros(2, np.int64), 0
    moments[0] = now(pair)
    for chunk in range(chunks.shape[0]):
        if chunk >= depth and not reaches(counters + np.uint64(_LINE_BYTES), np.uint64(chunk - depth + 1), looks):
            return -1
        start = now(pair)
        source, slot = chunks[chunk], slots[chunk % depth]
        for place in range(source.size):
            slot[place] = source[place]
        busy += now(pair) - start
        post(counters, np.uint64(chunk + 1))
    return busy


def _digest_all(slots: Any, digests: Any, depth: Any, counters: Any, looks: Any, moments: Any, numbers: Any) -> Any:
    """Write to `digests` the digest of each chunk once it has arrived in `slots`; return the busy nanoseconds."""
    factor, term, rounds = numbers
    pair, busy = np.zeros(2, np.int64), 0
    for chunk in range(digests.size):
        if not reaches(counters, np.uint64(chunk + 1), looks):
            return -1
        start = now(pair)
        digests[chunk] = digest(slots[chunk % depth], factor, term, rounds)
        busy += now(pair) - start
        post(counters + np.uint64(_LINE_BYTES), np.uint64(chunk + 1))
    moments[1] = now(pair)
    return busy


# Both return the nanoseconds in which they were busy, or -1 if the other thread made no progress within `looks` polls.
# The moments are when copy_all begins and when digest_all ends, so that waking up a thread does not count.
copy_all: Any = numba.njit(cache=True, nogil=True)(_copy_all)
digest_all: Any = numba.njit(cache=True, nogil=True)(_digest_all)
