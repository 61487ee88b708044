"""Copies of many blocks: layout, ways, checks that can fail, and the compiled loop that calls C by an address."""

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import pytest
from _bandwidth import H200, SUITE, assert_checked, build, ids, sibling
from _grid import needs_compiler
from _grid_device import bench
from _modules import suite_module

from gpubench import plugins
from gpubench.base.errors import Skip, SuiteError, WrongAnswer

POINT: dict[str, Any] = {"block_bytes": 1024, "count": 48, "order": "shuffled"}
BLOCKS, SUBMIT = sibling("_blocks"), sibling("_submit")


def on_paper(way, direction, **params):
    return BLOCKS.blocks(bench(SUITE), way, direction, **(POINT | params))


def compiled():
    """Return the module with the compiled loop over blocks, or skip the test without numba."""
    pytest.importorskip("numba")

    return suite_module("bandwidth", "_submit_loop")


@needs_compiler
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("way", ["kernel", "merged"])
def test_the_kernels_bring_every_block_to_its_place(way, direction):
    for order in ("shuffled", "ordered"):
        assert_checked(on_paper(way, direction, order=order))
    assert_checked(on_paper(way, direction, block_bytes=16, count=1))


@needs_compiler
def test_two_blocks_that_change_places_are_found():
    task = on_paper("kernel", "h2d")
    call = task.stages[""].call
    call()
    task.check()
    pool = next(cell.cell_contents[0] for cell in call.__closure__ if isinstance(cell.cell_contents, tuple))
    rows = pool.reshape(POINT["count"], -1)
    rows[[3, 4]] = rows[[4, 3]]
    with pytest.raises(WrongAnswer, match="256 of 6144 words are wrong"):
        task.check()


@pytest.mark.parametrize("direction", ["scatter", "gather"])
@pytest.mark.parametrize("way", ["loop", "kernel", "merged"])
def test_the_host_copies_blocks_and_checks_each(way, direction):
    assert_checked(build("blocks", way=way, direction=direction, **POINT))


def test_a_case_has_its_payload_its_link_and_no_gate_around_its_submission():
    task = on_paper("kernel", "d2h")
    first, queued = task.stages[""], task.stages["queued"]
    assert (first.work.payload, first.quantity, first.limit) == (48 * 1024, "payload", "link.d2h")
    assert (first.waits, first.max_calls) == (True, 1)
    assert (queued.waits, queued.work) == (False, first.work)


def test_the_addresses_of_shuffled_blocks_are_a_permutation_and_pair_with_the_packed_ones():
    layout = BLOCKS.BlockLayout.of(bench(SUITE), 1024, 64, "shuffled")
    packed, pool = layout.addresses(4096, 2**20)
    assert packed.tolist() == list(range(4096, 4096 + 64 * 1024, 1024))
    assert pool.tolist() == [2**20 + 1024 * place for place in layout.places]
    assert sorted(layout.places) == list(range(64))
    assert list(layout.places) != list(range(64))
    np.testing.assert_array_equal(layout.places[layout.inverse], np.arange(64))


@pytest.mark.parametrize(("block_bytes", "count"), [(1024, 0), (1024, -1), (8, 4), (1536, 4), (0, 4)])
def test_zero_blocks_and_odd_block_sizes_are_refused_with_a_message(block_bytes, count):
    with pytest.raises(SuiteError, match=f"{count} blocks of {block_bytes} bytes: needs one or more, and blocks of 16"):
        build("blocks", **(POINT | {"way": "loop", "direction": "gather", "block_bytes": block_bytes, "count": count}))


def test_the_driver_of_nvidia_is_not_called_on_another_vendors_gpu():
    with pytest.raises(Skip, match="the way batch calls CUDA's driver"):
        on_paper("batch", "h2d")


def test_the_compiled_loop_hands_every_block_to_a_c_function_and_stops_at_an_error():
    seen: list[tuple[int, ...]] = []
    word = ctypes.c_uint64

    @ctypes.CFUNCTYPE(ctypes.c_int, word, word, word, word)
    def copy(*args):
        seen.append(args)
        return 0 if len(seen) != 5 else 700

    copies = SUBMIT.BlockCopies(np.arange(8, dtype=np.uint64) + 2**63, np.arange(8, dtype=np.uint64), 4096)
    call = compiled().one_by_one(ctypes.cast(copy, ctypes.c_void_p).value, copies, 77)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        call()
    assert seen == [(2**63 + i, i, 4096, 77) for i in range(5)]
    seen[:] = [()] * 5
    call()
    assert len(seen) == 13


def test_a_batch_is_one_call_with_c_arrays_of_every_block():
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    seen: list[Any] = []

    def read(at, count):
        return list((ctypes.c_uint64 * count).from_address(at))

    @ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer)
    def batch(*args):
        targets, sources, sizes, count, attributes, firsts, number, failed, stream = args
        order = ctypes.c_int.from_address(attributes).value
        seen.append((read(targets, count), read(sources, count), read(sizes, count), order, read(firsts, number)))
        ctypes.c_size_t.from_address(failed).value = 2
        return 0 if stream == 77 else 1

    copies = SUBMIT.BlockCopies(np.array([9, 8, 7], np.uint64), np.array([1, 2, 3], np.uint64), 4096)
    address = ctypes.cast(batch, pointer).value
    SUBMIT.as_a_batch(address, copies, 77)()
    assert seen == [([9, 8, 7], [1, 2, 3], [4096] * 3, 1, [0])]
    with pytest.raises(RuntimeError, match="refused copy 2: CUDA error 1"):
        SUBMIT.as_a_batch(address, copies, 78)()


def test_the_attributes_of_a_copy_are_as_long_as_cuda_h_declares_them():
    assert ctypes.sizeof(SUBMIT._CopyAttributes) == 24


def test_without_the_drivers_library_the_case_is_skipped_with_a_message():
    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has the driver's library")
    with pytest.raises(Skip, match=r"needs the driver's library libcuda\.so\.1"):
        SUBMIT.driver_function("cuMemcpyAsync")


def test_quick_measures_each_way_and_full_a_map_of_sizes_and_numbers():
    def points(tier, device=H200):
        return [case.partition("[")[2] for case in ids(device, tier) if case.startswith("bandwidth/blocks[")]

    assert points("quick") == [
        f"way={way},direction=h2d,block=16KiB,count=256,order=shuffled]"
        for way in ("binding", "batch", "kernel", "merged")
    ]
    full = points("full")
    assert len(full) == 4 * 2 * 5 * (5 + 1) + 2 * 5
    assert {"way=batch,direction=d2h,block=1KiB,count=4096,order=shuffled]"} <= set(full)
    assert len(points("full", plugins.load("backends", "host").devices()[0])) == 3 * 2 * 5 * 2
