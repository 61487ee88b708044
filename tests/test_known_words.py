"""Known words are the same on the host and on every device, and every wrong one is counted."""

import re
from pathlib import Path

import _grid
import numpy as np
import pytest
from _grid_device import bench as paper_bench
from _modules import bench_on, opened

from gpubench import plugins
from gpubench.api.suite import random_words

SUITE = plugins.load("suites", "ipc")
KERNELS = Path(_grid.HERE).parent / "gpubench" / "authoring" / "known_words.cu"
LARGE = 3 * 2**16 + 5


def splitmix(seed, i):
    """Return word `i` of a seed by Python's integers, as the paper defines the finaliser."""
    x = (seed + i * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.skipif(not _grid.COMPILER, reason="needs g++"))])
def bench(request):
    if request.param == "gpu":
        return paper_bench(SUITE)
    return bench_on(opened(), SUITE, "pull")


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5, 2**64 - 1])
def test_word_i_is_that_of_splitmix64_from_any_first_word_on(seed):
    assert random_words(seed, 0, 100).tolist() == [splitmix(seed, i) for i in range(100)]
    assert random_words(seed, 10**12, 3).tolist() == [splitmix(seed, 10**12 + i) for i in range(3)]


@pytest.mark.parametrize("count", [0, 1, 255, 257, LARGE])
def test_a_device_writes_the_words_that_the_host_computes(bench, count):
    words = bench.words(count, 2**63 + 5)
    assert words.array.dtype == np.uint8
    assert (words.array.view(np.uint64) == random_words(2**63 + 5, 0, count)).all()
    assert words.wrong(words.array) == 0


@pytest.mark.parametrize("wrong", [[0], [LARGE - 1], [2**16 - 1, 2**16, 2**17]])
def test_every_wrong_word_is_counted_each_time(bench, wrong):
    words = bench.words(LARGE, 3)
    words.array.view(np.uint64)[wrong] ^= np.uint64(1) << np.uint64(63)
    assert [words.wrong(words.array) for _ in range(2)] == 2 * [len(wrong)]
    assert bench.words(LARGE, 3).wrong(words.array) == len(wrong)
    assert bench.words(LARGE, 4).wrong(words.array) == LARGE, "another seed has other words at every place"


def test_memory_of_another_type_takes_words_of_any_seed(bench):
    array = np.zeros((32, 4), np.float32)
    words = bench.words(array.nbytes // 8, 1)
    assert words.wrong(array) == words.count
    words.fill(array)
    assert words.wrong(array) == 0
    assert bench.words(10**6, 1).wrong(array[:3]) == 0, "a shorter array holds the first words"
    words, other = bench.words(300, 2**64 - 1), np.zeros(2400, np.uint8)
    first = words.array.copy()
    words.redraw(words.array, other)
    assert words.wrong(first) == 300
    assert words.wrong(other) == words.wrong(words.array) == 0
    words.redraw(other)
    assert (other == first).all()
    assert words.wrong(words.array) == 300


def test_the_prelude_of_the_suites_has_the_same_words():
    texts = ((_grid.SUITES / "prelude.cuh").read_text(), KERNELS.read_text(), (_grid.HERE / "_grid.h").read_text())
    bodies = [re.search(r"u64 x = seed.*?return x \^ \(x >> 31\);", text, re.DOTALL).group() for text in texts]
    assert len(set(bodies)) == 1
