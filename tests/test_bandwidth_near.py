"""Working sets, parts of cache lines, sums in shared memory, strides and random order, on the host."""

from typing import Any

import _make as make
import numpy as np
import pytest
from _bandwidth import MIB, assert_checked, bench_of, build, sibling

from gpubench.authoring.axes import Target
from gpubench.base.errors import WrongAnswer


@pytest.mark.parametrize("kernel", ["read", "write", "copy"])
def test_passes_over_a_working_set_are_checked(kernel: str) -> None:
    assert_checked(build("working_set", kernel=kernel, size_bytes=MIB))


def test_a_pass_that_is_left_out_is_found() -> None:
    task, host = build("working_set", kernel="copy", size_bytes=MIB), sibling("_host")
    call = task.stages[""].call
    call()
    names = call.__code__.co_freevars  # type: ignore[attr-defined]
    bound = {name: cell.cell_contents for name, cell in zip(names, call.__closure__, strict=True)}  # type: ignore[attr-defined]
    host._copy(bound["there"], bound["back"], bound["passes"] - 2)
    with pytest.raises(WrongAnswer, match="turns are not a whole number of calls"):
        task.check()


def test_every_pass_is_counted() -> None:
    read, copy = (build("working_set", kernel=kernel, size_bytes=MIB).stages[""].work for kernel in ("read", "copy"))
    assert read.moved == read.payload >= 2**27
    assert copy.moved == 2 * copy.payload
    assert read.moved % MIB == copy.moved % MIB == 0


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(("name", "params"), [("strided", {"stride_bytes": 32}), ("random", {"chunk_bytes": 32})])
def test_accesses_to_parts_of_lines_are_checked(name: str, params: dict[str, Any], access: str) -> None:
    assert_checked(build(name, access=access, **params, size_bytes=4 * MIB))


@pytest.mark.parametrize(
    ("stride", "payload", "sectors"), [(4, 1, 1), (16, 1 / 4, 1), (64, 1 / 16, 1), (256, 1 / 64, 1 / 4)]
)
def test_a_strided_access_requests_words_and_moves_whole_sectors(stride: int, payload: float, sectors: float) -> None:
    task = build("strided", access="read", stride_bytes=stride, size_bytes=4 * MIB)
    stage = task.stages[""]
    assert stage.work.payload == payload * 4 * MIB
    assert stage.also["sectors"].payload == sectors * 4 * MIB  # 64 bytes, the host's line size
    stage.call()
    assert task.check()["used"].value == payload / sectors  # type: ignore[union-attr]


@pytest.mark.parametrize(("chunk", "used"), [(4, 1 / 16), (64, 1), (128, 1)])
def test_a_chunk_in_random_order_moves_whole_sectors(chunk: int, used: float) -> None:
    stage = build("random", access="read", chunk_bytes=chunk, size_bytes=4 * MIB).stages[""]
    assert stage.work.payload / stage.also["sectors"].payload == used


@pytest.mark.parametrize("bits", [1, 2, 9, 16])
def test_the_random_order_visits_every_chunk_once_and_equals_that_of_the_kernel(bits: int) -> None:
    pytest.importorskip("numba")
    build("random", access="read", chunk_bytes=32, size_bytes=MIB)
    host = sibling("_host")
    order = host._permuted_places(2**bits, bits, 12345)
    assert sorted(order.tolist()) == list(range(2**bits))
    kernel = [host._permuted(np.uint64(t), np.uint64(bits), np.uint64(12345)) for t in range(2**bits)]
    assert kernel == order.tolist()


def test_the_random_order_has_no_fixed_stride() -> None:
    build("random", access="read", chunk_bytes=32, size_bytes=MIB)
    order = sibling("_host")._permuted_places(2**16, 16, 7).astype(np.int64)
    assert len(np.unique(np.diff(order))) > 2**13
    assert abs(np.corrcoef(np.arange(2**16), order)[0, 1]) < 0.05


def simulated(access: str, words: np.ndarray, width: int, passes: int) -> list[int]:
    """Return the sums that bandwidth_cache.cu leaves in shared memory, computed thread by thread in Python."""
    threads, lanes = 1024, width // 4
    outputs = []
    for thread in range(threads):
        mine = []
        for turn in range(4):
            at = (turn * threads + (thread if access == "read" else thread ^ 1)) * lanes
            word = [int(x) for x in words[at : at + lanes]]
            total = [0] * lanes
            for _ in range(passes):
                total = [(5 * x + y) % 2**32 for x, y in zip(total, word, strict=True)]
            mine.append(total if access == "read" else word)
        bits = 0
        for word in mine:
            folded = 0
            for lane, value in enumerate(word):
                folded ^= value << (32 * (lane % 2))
            bits = ((bits << 1 | bits >> 63) % 2**64) ^ folded
        outputs.append(bits)
    return outputs


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("access", ["read", "write"])
def test_the_expected_sums_of_shared_memory_are_those_that_its_kernel_computes(access: str, width: int) -> None:
    """Of the other input, the words in reverse order, they differ in almost every thread."""
    words = np.random.default_rng(1).integers(2**32, size=1024 * 4 * width // 4, dtype=np.uint32)
    expected = sibling("_cache")._expected(access, words, width, 7)
    assert expected.tolist() == simulated(access, words, width, 7)
    assert np.mean(expected != sibling("_cache")._expected(access, words[::-1], width, 7)) > 0.99


def target_of(units: int, arch: str = "sm_90") -> Target:
    device = make.device(arch=arch, units=units)
    return Target(make.facts(device), device, "full")


@pytest.mark.parametrize(("units", "size"), [(132, 2**21), (132, 2**24), (108, 2**25), (1, 2**20), (132, 2**28)])
@pytest.mark.parametrize(("cached", "arch"), [(True, "sm_90"), (False, "sm_90"), (False, "sm_89"), (False, "sm_75")])
def test_a_sweep_reads_every_vector_of_its_working_set(units: int, size: int, cached: bool, arch: str) -> None:
    vectors, tile, turns, hop, blocks = sibling("_cache").layout(target_of(units, arch), size, cached)
    tiles = vectors // tile
    assert tiles >= 64
    assert tile % 1024 == 0
    first = np.arange(blocks)[:, None] + hop * np.arange(turns)
    assert set((first % tiles).ravel()) == set(range(tiles))
    assert turns * blocks * tile >= max(vectors, 2**28)


def test_beyond_the_cache_almost_every_tile_is_read_again_only_after_all_others() -> None:
    vectors, tile, turns, hop, blocks = sibling("_cache").layout(target_of(132), 2**28, False)
    order = ((hop * np.arange(turns)[:, None] + np.arange(blocks)) % (vectors // tile)).ravel()
    places = np.argsort(order, kind="stable")
    gaps = np.diff(places)[np.diff(order[places]) == 0]
    assert np.mean(gaps < vectors // tile - 1) < 0.002


def test_the_host_has_a_working_set_in_each_cache_and_one_in_memory() -> None:
    at, bench = sibling("_cache"), bench_of("working_set", {})
    sets = at._set_sizes(bench.target).quick
    assert list(sets) == sorted(set(sets))
    assert sets[-1] >= 4 * bench.target.device.cache_bytes
