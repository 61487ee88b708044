"""Small buffers of every kind, and streams as an attacker or a bad disk would produce them."""

import numpy as np

SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 255, 256, 257, 1023, 1024, 4095, 4096)
MOST = 4096


def buffers(rng, count):
    """Return `count` buffers of 0 to 4096 bytes: random bytes, zeros, runs, words, counters, and a few with noise."""
    kinds = (_random, _zeros, _runs, _words, _counter, _noisy)
    sizes = [SIZES[i] if i < len(SIZES) else int(rng.integers(0, MOST + 1)) for i in range(count)]
    return [kinds[i % len(kinds)](rng, sizes[i // len(kinds) % len(sizes)]) for i in range(count)]


def _random(rng, size):
    return rng.bytes(size)


def _zeros(rng, size):
    return bytes(size)


def _runs(rng, size):
    return b"".join(bytes([rng.integers(256)]) * int(rng.integers(1, 200)) for _ in range(size // 50 + 1))[:size]


def _words(rng, size):
    words = (b"the ", b"quick ", b"brown ", b"fox ", b"jumps ", b"over ")
    return b"".join(words[i] for i in rng.integers(0, len(words), size // 4 + 1).tolist())[:size]


def _counter(rng, size):
    return (int(rng.integers(1000)) + np.arange(size // 4 + 1, dtype=np.int32)).tobytes()[:size]


def _noisy(rng, size):
    """Return text in which about one byte in 30 has a flipped bit."""
    text = bytearray(_words(rng, size))
    for place in rng.integers(0, max(size, 1), size // 30).tolist():
        text[place] ^= 1 << int(rng.integers(8))
    return bytes(text)


def mutated(rng, stream, others, kind=None):
    """Return a corrupted, cut, grown, exchanged or invented stream: in the way `kind` of KINDS, or in a random one."""
    change = KINDS[kind or tuple(KINDS)[int(rng.integers(len(KINDS)))]]
    return change(rng, bytearray(stream), others)


def _place(rng, stream):
    return int(rng.integers(len(stream))) if stream else 0


def _bit(rng, stream, others):
    if stream:
        stream[_place(rng, stream)] ^= 1 << int(rng.integers(8))
    return bytes(stream)


def _bytes(rng, stream, others):
    """Return the stream with one to eight bytes overwritten at random."""
    for _ in range(int(rng.integers(1, 9)) if stream else 0):
        stream[_place(rng, stream)] = int(rng.integers(256))
    return bytes(stream)


def _cut(rng, stream, others):
    return bytes(stream[: _place(rng, stream)])


def _grown(rng, stream, others):
    return bytes(stream) + rng.bytes(int(rng.integers(1, 40)))


def _extreme(rng, stream, others):
    """Return the stream with huge lengths and offsets."""
    start = _place(rng, stream[:32])
    return (bytes(stream[:start]) + b"\xff" * int(rng.integers(1, 9)) + bytes(stream[start:]))[: len(stream)]


def _zeroed(rng, stream, others):
    """Return the stream with up to sixteen bytes in a row set to zero."""
    start = _place(rng, stream)
    end = min(len(stream), start + int(rng.integers(1, 17)))
    return bytes(stream[:start]) + bytes(end - start) + bytes(stream[end:])


def _moved(rng, stream, others):
    start = _place(rng, stream)
    return bytes(stream[start:] + stream[:start])


def _other(rng, stream, others):
    """Return the stream of another chunk, or this one with the end of another."""
    donor = others[int(rng.integers(len(others)))]
    cut = min(len(donor), _place(rng, stream))
    return bytes(stream[:cut]) + donor[cut:]


def _made_up(rng, stream, others):
    return rng.bytes(len(stream))


KINDS = {
    "bit": _bit,
    "bytes": _bytes,
    "cut": _cut,
    "grown": _grown,
    "extreme": _extreme,
    "zeroed": _zeroed,
    "moved": _moved,
    "other": _other,
    "made up": _made_up,
    "empty": lambda rng, stream, others: b"",
}
