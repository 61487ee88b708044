"""Arrange matrices as NVIDIA's matrix instructions read them, in the registers of a warp and in shared memory.

Source: PTX ISA, "Matrix Fragments for mma" and "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
Instructions"."""

from typing import Any

import numpy as np

ROW_BYTES = 128  # bytes per row of a matrix in shared memory: the width of its swizzle
_EIGHT = 8  # rows of a core matrix
_CHUNK_BYTES = 16  # bytes that the swizzle moves as a unit
_FLOAT8 = {-2: 0xC0, -1: 0xB8, 1: 0x38, 2: 0x40}  # e4m3: 4 exponent bits with a bias of 7, and 3 bits of fraction
_STORAGE = {"float16": "float16", "float32": "float32", "tf32": "float32", "float64": "float64", "int8": "int8"}


def drawn(rng: np.random.Generator, rows: int, cols: int) -> Any:
    """Return a random NumPy integer matrix of shape (rows, cols) with the elements ±1 and ±2.

    Products of such numbers, and sums of a few of them, are exact in every format."""
    return rng.choice((-2, -1, 1, 2), (rows, cols))


def encoded(numbers: Any, dtype: str) -> Any:
    """Return an integer array with its numbers in the format `dtype`: a NumPy array of the same shape.

    `tf32` is float32."""
    if dtype == "float8_e4m3":
        return np.vectorize(_FLOAT8.get, otypes=[np.uint8])(numbers)
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(_STORAGE.get(dtype, dtype))


def operand_words(elements: Any, word_bytes: int) -> Any:
    """Return the matrix A, or B transposed, as the registers of a warp hold it: words of `word_bytes`, (registers, 32).

    `elements` is a NumPy matrix of a multiple of 8 rows, each of a multiple of four words."""
    rows, cols = elements.shape
    a_word = word_bytes // elements.itemsize
    parts = elements.reshape(rows // _EIGHT, _EIGHT, cols // (4 * a_word), 4, a_word)
    return np.ascontiguousarray(parts.transpose(2, 0, 1, 3, 4)).view(f"V{word_bytes}").reshape(-1, 32)


def sum_words(elements: Any) -> Any:
    """Return the matrix C as the registers of a warp hold it, of shape (registers, 32).

    `elements` is a NumPy matrix of multiples of 8 rows and columns."""
    rows, cols = elements.shape
    parts = elements.reshape(rows // _EIGHT, _EIGHT, cols // _EIGHT, 4, 2)
    if elements.itemsize == 2:
        pairs = np.ascontiguousarray(parts.transpose(2, 0, 1, 3, 4))
        return pairs.view(np.uint32).reshape(-1, 32)
    return np.ascontiguousarray(parts.transpose(2, 0, 4, 1, 3)).reshape(-1, 32)


def swizzled(elements: Any) -> Any:
    """Return the bytes of `elements`, a NumPy matrix with rows of 128 bytes, as they lie in shared memory.

    The result is uint8 of shape (rows, 128)."""
    rows = len(elements)
    chunks = np.ascontiguousarray(elements).view(np.uint8).reshape(rows, -1, _CHUNK_BYTES)
    places = np.arange(chunks.shape[1]) ^ (np.arange(rows) % _EIGHT)[:, None]
    image = np.empty_like(chunks)
    np.put_along_axis(image, places[:, :, None], chunks, axis=1)
    return image.reshape(rows, ROW_BYTES)
