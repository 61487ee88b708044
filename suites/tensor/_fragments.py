"""How matrices lie in the registers of a warp and in shared memory, as the matrix instructions of NVIDIA read them.

Source: PTX ISA, "Matrix Fragments for mma" and "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROW_BYTES = 128  # bytes per row of a matrix in shared memory: the width of its swizzle
_EIGHT = 8  # rows of a core matrix
_CHUNK_BYTES = 16  # bytes that the swizzle moves as a unit
_FLOAT8 = {-2: 0xC0, -1: 0xB8, 1: 0x38, 2: 0x40}  # e4m3: 4 exponent bits with a bias of 7, and 3 bits of fraction
_STORAGE = {"float16": "float16", "float32": "float32", "tf32": "float32", "float64": "float64", "int8": "int8"}


def drawn(rng: np.random.Generator, rows: int, cols: int) -> Any:
    """Return a matrix of the numbers ± 1 and ± 2, whose products and sums are exact in every format."""
    return rng.choice((-2, -1, 1, 2), (rows, cols))


def encoded(numbers: Any, dtype: str) -> Any:
    """Return integers as the bits of a format, in an array of that width."""
    if dtype == "float8_e4m3":
        return np.vectorize(_FLOAT8.get, otypes=[np.uint8])(numbers)
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(_STORAGE.get(dtype, dtype))


def operand_words(elements: Any, word_bytes: int) -> Any:
    """Return the words of A, or of B transposed, in the registers of a warp: of shape (registers, 32).

    Of each eight rows a lane has row lane / 4, and of it the word lane % 4; registers go down the rows, then along.
    """
    rows, cols = elements.shape
    a_word = word_bytes // elements.itemsize
    parts = elements.reshape(rows // _EIGHT, _EIGHT, cols // (4 * a_word), 4, a_word)
    return np.ascontiguousarray(parts.transpose(2, 0, 1, 3, 4)).view(f"V{word_bytes}").reshape(-1, 32)


def sum_words(elements: Any) -> Any:
    """Return the words of C in the registers of a warp, of shape (registers, 32), 16-bit sums in pairs.

    A lane has two neighbouring columns of each eight, in row lane / 4 of each eight; registers go down, then along.
    """
    rows, cols = elements.shape
    parts = elements.reshape(rows // _EIGHT, _EIGHT, cols // _EIGHT, 4, 2)
    if elements.itemsize == 2:
        pairs = np.ascontiguousarray(parts.transpose(2, 0, 1, 3, 4))
        return pairs.view(np.uint32).reshape(-1, 32)
    return np.ascontiguousarray(parts.transpose(2, 0, 4, 1, 3)).reshape(-1, 32)


def swizzled(elements: Any) -> Any:
    """Return the bytes of a matrix with rows of 128 bytes as they lie in shared memory, of shape (rows, 128).

    Chunk c of 16 bytes of row r lies at chunk c ^ (r % 8), so that equal chunks of eight rows are in different banks.
    """
    rows = len(elements)
    chunks = np.ascontiguousarray(elements).view(np.uint8).reshape(rows, -1, _CHUNK_BYTES)
    places = np.arange(chunks.shape[1]) ^ (np.arange(rows) % _EIGHT)[:, None]
    image = np.empty_like(chunks)
    np.put_along_axis(image, places[:, :, None], chunks, axis=1)
    return image.reshape(rows, ROW_BYTES)
