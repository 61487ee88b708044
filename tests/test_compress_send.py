"""Messages compressed and moved: bit for bit over every link of the host and, on paper, of a GPU; and faults."""

import ctypes
import dataclasses
import errno
import os
import socket
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import _codec_device as device_of
import _grid
import _grid_device
import numpy as np
import pytest
from _modules import shared_modules, suite_module
from hypothesis import given
from hypothesis import strategies as st

from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.devices.native import nvcomp
from gpubench.measuring import plan as planning
from gpubench.model import DataFile, Device, Facts

SUITE = planning.load_suite("compression")
CHUNK, BLOCK = 2**10, 2**13
GPU = Device("cuda:0", "cupy", "GPU in host memory", "sm_90", memory_bytes=2**34)


part = partial(suite_module, "compression")


files = shared_modules("_files")[0]
messages, send, shared = part("_message"), part("_send"), part("_shared")


class PaperStream:
    """A stream on which everything has already finished."""

    ptr = 7

    def use(self):
        pass

    def synchronize(self):
        pass


def memcpy(target, source, size, kind, stream):
    assert (stream, kind in (1, 2, 4)) == (7, True)
    ctypes.memmove(target, source, size)


CUDA = types.SimpleNamespace(
    get_current_stream=PaperStream,
    Stream=lambda non_blocking: PaperStream(),
    Device=lambda ordinal: PaperStream(),
    runtime=types.SimpleNamespace(getDevice=lambda: 0, memcpyAsync=memcpy),
)
ARRAYS = types.SimpleNamespace(**{**vars(device_of.ARRAYS), "cuda": CUDA})


class CopyingPaperGpu(device_of.GpuInHostMemory):
    """A GPU in host memory whose copies take place at once."""

    xp = ARRAYS

    def copy(self, target, source):
        target[...] = source


_TURN = threading.Lock()  # there is only one grid on paper, so kernels of several threads take turns


class SerialPaperBench(_grid_device.PaperBench):
    """A bench on paper whose kernels run one at a time, as several threads launch them."""

    def kernel(self, file, name, **defines):
        """Return a launch that waits until every other kernel has ended."""
        run = super().kernel(file, name, **defines)

        def call(*args):
            with _TURN:
                run(*args)

        return call


@pytest.fixture
def gpu(host, monkeypatch):
    """Return a GPU in host memory with codecs of zlib in place of nvCOMP's."""
    if _grid.COMPILER is None:
        pytest.skip("no g++ here: apt-get install g++")
    monkeypatch.setattr(nvcomp, "load", lambda: nvcomp.NvcompLibrary(device_of.Functions()))
    return CopyingPaperGpu(host, GPU)


def noise(size):
    return np.random.default_rng(5).bytes(size)


def bench_of(opened, tmp_path, content):
    """Return a bench with these bytes as its only data."""
    path = tmp_path / "mine.bin"
    path.write_bytes(content)
    target = Target(Facts((opened.device,)), opened.device, "full", (DataFile("mine.bin", str(path), len(content)),))
    case = next(iter(SUITE.cases(target)))
    return (SerialPaperBench if opened.device is GPU else Bench)(opened, case, target, SUITE.package)


def message_of(opened, tmp_path, content, codec="lz4"):
    """Return the bench, and a message of these bytes."""
    bench = bench_of(opened, tmp_path, content)
    message = messages.Message.drawn(bench, "data:mine.bin", codec, len(content), BLOCK)
    return bench, dataclasses.replace(message, chunk_bytes=CHUNK)


def transfers_of(opened, tmp_path, content, link, codec="lz4"):
    """Return the transfers of these bytes; `link` returns the link for the compressed and for the raw blocks."""
    bench, message = message_of(opened, tmp_path, content, codec)
    transfers = messages.Transfers(message, 2)
    transfers.over(link(bench, transfers.packed), link(bench, transfers.raw))
    return transfers


def task_of(opened, tmp_path, link, content, codec="lz4", depth=2):
    """Return the task that sends `content` over `link`, with `depth` blocks in flight."""
    bench, message = message_of(opened, tmp_path, content, codec)
    return send.in_this_process(bench, link, message, codec, depth)


def run(task):
    """Call each stage once; return their seconds and what the check observed."""
    try:
        seconds = {name: stage.call() for name, stage in task.stages.items()}
        return seconds, task.check()
    finally:
        task.close()


SAMPLE = (b"abcde fgh " * 900 + noise(700)) * 5
HOST_LINKS = ["copy", "socket", "save", "load"]
GPU_LINKS = ["d2h", "h2d", "socket", "save", "load"]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("link", HOST_LINKS)
def test_a_message_arrives_bit_for_bit_over_every_link_of_the_host(host, tmp_path, link, depth):
    seconds, observed = run(task_of(host, tmp_path, link, SAMPLE, depth=depth))
    assert list(seconds)[:3] == ["overlapped", "staged", "raw"]
    assert min(seconds.values()) > 0
    assert observed["ratio"].value > 3


@pytest.mark.parametrize("codec", ["zstd-1", "zlib-1"])
@pytest.mark.parametrize("size", [1, CHUNK, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12345])
def test_messages_of_any_size_arrive(host, tmp_path, codec, size):
    run(task_of(host, tmp_path, "socket", noise(size), codec))


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("link", GPU_LINKS)
def test_a_message_arrives_bit_for_bit_over_every_link_of_a_gpu_on_paper(gpu, tmp_path, link, depth):
    seconds, observed = run(task_of(gpu, tmp_path, link, SAMPLE[: 5 * BLOCK - 100], depth=depth))
    assert min(seconds.values()) > 0
    assert observed["ratio"].value > 2
    paid = {"d2h": {"compress"}, "h2d": {"decompress"}, "socket": {"compress", "decompress"}}
    assert paid.get(link, set()) <= set(seconds)


@pytest.mark.gpu
@pytest.mark.parametrize("codec", nvcomp.ALGORITHMS)
@pytest.mark.parametrize("link", GPU_LINKS)
def test_a_message_arrives_bit_for_bit_over_every_link_of_a_gpu(real_gpu, tmp_path, link, codec):
    _, observed = run(task_of(real_gpu, tmp_path, link, (SAMPLE * 9)[:-3], codec, depth=3))
    assert observed["ratio"].value > 0.5
    real_gpu.release()


def test_loading_on_a_gpu_is_compared_with_a_codec_of_the_host_and_a_copy(gpu, tmp_path):
    task = task_of(gpu, tmp_path, "load", SAMPLE[: 5 * BLOCK - 100])
    assert "host_codec" in task.stages
    assert "LZ4" in task.notes["host codec"]
    run(task)


def test_only_the_sides_that_pay_are_timed_and_noted(host, tmp_path):
    for link, ends_words, absent in (
        ("save", "write", "decompress"),
        ("load", "read", "compress"),
        ("copy", "shared", "none"),
    ):
        task = task_of(host, tmp_path, link, SAMPLE)
        assert (task.notes["ends"], absent in task.stages) == (ends_words, False)
        run(task)


class PaperDriver:
    """A driver whose words are written at once, and awaited by the calling thread."""

    bindings = types.SimpleNamespace(CUstream=int)
    waits = True

    def __call__(self, call, stream, address, count, flags):
        assert (stream, flags) == (7, 0)
        word = ctypes.c_uint32.from_address(address)
        if call == "cuStreamWriteValue32":
            word.value = count
        while self.waits and word.value < count:
            time.sleep(0)


@pytest.mark.parametrize("depth", [1, 3])
def test_blocks_that_words_hand_over_arrive_and_one_that_comes_too_early_is_found(gpu, tmp_path, monkeypatch, depth):
    monkeypatch.setattr(shared.lib, "Driver", PaperDriver)
    bench, message = message_of(gpu, tmp_path, SAMPLE[: 5 * BLOCK - 100])
    rooms, words, ends = (
        ARRAYS.zeros((depth, message.max_packed_bytes // 256 * 256 + 256), np.uint8),
        ARRAYS.zeros(2 * shared.WORDS_BYTES, np.uint8),
        socket.socketpair(),
    )
    ready = words.ctypes.data
    ranks = []
    for rank, end in enumerate(ends):
        place = dataclasses.replace(bench, rank=rank)
        own = dataclasses.replace(message, rooms=[] if rank else list(rooms), target=message.target.copy())
        link = shared.StreamWords(place, end, rooms, ready, ready + shared.WORDS_BYTES)
        ranks.append(messages.Transfers(own, depth, rank))
        ranks[-1].over(link, messages.Stored())
    with ThreadPoolExecutor(2) as pool:
        for way in ("overlapped", "staged", "overlapped"):
            done = [pool.submit(transfers.send, way) for transfers in ranks]
            assert min(each.result() for each in done) > 0
    monkeypatch.setattr(PaperDriver, "waits", False)
    rooms[:] = 0
    with pytest.raises(WrongAnswer):
        ranks[1].send("overlapped")
    for transfers, end in zip(ranks, ends, strict=True):
        transfers.close()
        end.close()


# Faults.


def corrupting(link, index, place):
    """Make a link flip one bit of the block `index` in transit, and return it."""
    take = link.receive

    def receive(block, room):
        arrived = take(block, room)
        if block.index == index and arrived.size:
            arrived[place % arrived.size] ^= 0x10
        return arrived

    link.receive = receive
    return link


@pytest.mark.parametrize("codec", ["lz4", "zstd-1"])
@pytest.mark.parametrize("place", [0, 7, 40, 8 * BLOCK // CHUNK + 3, -1, 1000, 2222])
@pytest.mark.parametrize("name", ["overlapped", "raw"])
def test_a_bit_that_flips_in_transit_is_never_accepted(host, tmp_path, codec, place, name):
    packed = []

    def link(bench, blocks):
        packed.append(blocks[3])
        return corrupting(send.Loopback(), 3, place)

    transfers = transfers_of(host, tmp_path, noise(4 * BLOCK), link, codec=codec)
    # noise does not shrink: codecs store it, so nearly every bit of a block matters
    if name == "raw" or not _is_unused(packed[0], place):
        with pytest.raises(WrongAnswer):
            transfers.send(name)
    transfers.close()


def pinned(bench, blocks):
    return send.PinnedMemory(bench, len(blocks), 2 * BLOCK, "receiver")


def _is_unused(packed, place):
    """Return whether a byte of a packed block is padding between two chunks."""
    offsets, sizes = packed[: 16 * (BLOCK // CHUNK)].view(np.uint64).reshape(2, -1)
    at = place % packed.size
    return at >= 16 * (BLOCK // CHUNK) and not ((offsets <= at) & (at < offsets + sizes)).any()


@pytest.mark.parametrize("place", [0, 7, 40, 70, 127, 128 + 5, 3000])
def test_a_bit_that_flips_on_its_way_to_a_gpu_is_never_accepted(gpu, tmp_path, place):
    def link(bench, blocks):
        return corrupting(pinned(bench, blocks), 3, place)

    transfers = transfers_of(gpu, tmp_path, noise(4 * BLOCK), link)
    with pytest.raises(WrongAnswer):
        transfers.send("overlapped")
    transfers.close()


def test_a_block_that_is_longer_than_its_buffer_is_refused(host, tmp_path):
    bench, _ = message_of(host, tmp_path, SAMPLE)
    with pytest.raises(WrongAnswer, match="a block grew to 9 bytes; its buffer holds 8"):
        messages.queue_copy(bench, np.zeros(8, np.uint8), np.zeros(9, np.uint8))


@given(st.lists(st.integers(0, 3 * CHUNK), min_size=1, max_size=40), st.data())
def test_a_table_that_points_outside_its_block_is_refused_on_host_and_device(sizes, data):
    if _grid.COMPILER is None:
        pytest.skip("no g++ here: apt-get install g++")
    packed = messages.pack(np.zeros(sum(sizes) + 64 * len(sizes), np.uint8), [bytes(size) for size in sizes]).copy()
    entry = data.draw(st.integers(0, 2 * len(sizes) - 1))
    packed.view(np.uint64)[entry] = data.draw(st.integers(packed.size + 1, 2**64 - 1))
    with pytest.raises(WrongAnswer):
        messages.read_table(packed, len(sizes))
    found_sizes, pointers = np.zeros(len(sizes), np.uint64), np.zeros(len(sizes), np.uint64)
    args = (packed, np.uint64(packed.size), np.uint32(len(sizes)), found_sizes, pointers)
    _grid.kernel("compression/compress.cu", "unpack")((1,), (64,), args)
    base = packed.ctypes.data
    assert (pointers >= base).all()
    assert all(int(p) + int(size) <= base + packed.size for p, size in zip(pointers, found_sizes, strict=True))
    assert found_sizes[entry % len(sizes)] == 0


@given(st.lists(st.integers(0, 600), min_size=1, max_size=600))
def test_the_kernels_pack_blocks_as_the_host_does(sizes):
    if _grid.COMPILER is None:
        pytest.skip("no g++ here: apt-get install g++")
    stride, count = 768, len(sizes)
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, count * stride, np.uint8)
    chunks = [memory[index * stride :][:size].tobytes() for index, size in enumerate(sizes)]
    expected = messages.pack(np.zeros(count * (stride + 32), np.uint8), chunks)
    packed, total = np.zeros(expected.size + 64, np.uint8), np.zeros(1, np.uint64)
    table = (np.array(sizes, np.uint64), np.uint32(count), packed, np.uint64(total.ctypes.data))
    _grid.kernel("compression/compress.cu", "place")((1,), (256,), table)
    _grid.kernel("compression/compress.cu", "pack")(
        (count,), (32,), (memory, np.uint64(stride), np.uint32(count), packed)
    )
    assert total[0] == expected.size
    places, lengths = expected[: 16 * count].view(np.uint64).reshape(2, count)
    assert packed[: 16 * count].tobytes() == expected[: 16 * count].tobytes()
    for place, length, chunk in zip(places.tolist(), lengths.tolist(), chunks, strict=True):
        assert packed[place : place + length].tobytes() == chunk


def test_a_block_that_declares_more_bytes_than_allowed_is_refused():
    near, far = socket.socketpair()
    with near, far:
        send.tell(near, 0, 0, 2**40)
        link = object.__new__(send.Loopback)
        link._receiving = far
        with pytest.raises(WrongAnswer, match=r"a block declares 1099511627776 bytes; the maximum is 100"):
            link.receive(messages.InFlight(0, 0), np.zeros(100, np.uint8))


@pytest.mark.parametrize("are_streams", [False, True])
def test_a_connection_that_ends_during_a_block_leaves_no_side_waiting(host, tmp_path, monkeypatch, are_streams):
    monkeypatch.setattr(messages.Slots, "are_streams", are_streams)
    transfers = transfers_of(host, tmp_path, SAMPLE, lambda *_: send.Loopback())
    encode = messages.HostBlocks.encode

    def failing(blocks, block):
        if block.index == 3:
            raise WrongAnswer("the fourth block")
        return encode(blocks, block)

    monkeypatch.setattr(messages.HostBlocks, "encode", failing)
    with pytest.raises(WrongAnswer, match="the fourth block"):
        transfers.send("overlapped")
    transfers.close()


def test_a_disk_that_is_full_is_a_skip_that_names_it(host, tmp_path):
    full = os.open("/dev/full", os.O_RDWR)

    def link(*_):
        file = send.FileLink(1, tmp_path, "sender")
        os.dup2(full, file.descriptor)
        file.begin = lambda: None
        return file

    transfers = transfers_of(host, tmp_path, SAMPLE, link)
    with pytest.raises(Skip, match=r"cannot write a file in .*: No space left on device; set TMPDIR to another"):
        transfers.send("overlapped")
    transfers.close()
    os.close(full)


@pytest.mark.parametrize(
    ("nbytes", "folder", "message"),
    [
        (2**50, ".", r"needs 1024 TiB in .*, .* are free; set TMPDIR to another folder"),
        (1, "gone", "No such file or directory"),
    ],
)
def test_too_little_disk_space_and_a_missing_folder_are_skips_that_say_so(tmp_path, nbytes, folder, message):
    with pytest.raises(Skip, match=message):
        send.FileLink(nbytes, tmp_path / folder, "sender")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_a_skip_that_says_why(tmp_path, monkeypatch, error):
    def refuse(dir):  # noqa: A002 - the name that tempfile has
        raise OSError(error, os.strerror(error), str(dir))

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(Skip, match=f"cannot write a file in {tmp_path}: {os.strerror(error)}; set TMPDIR"):
        send.FileLink(1, tmp_path, "sender")


def test_a_file_that_was_cut_short_is_a_wrong_answer(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"123")
    with path.open("rb") as file, pytest.raises(WrongAnswer, match="the file ends 2 bytes before its block does"):
        files.read_all(file.fileno(), np.zeros(5, np.uint8), 0)


def test_too_little_memory_is_a_skip(gpu, tmp_path):
    with pytest.raises(Skip, match=r"needs .* of memory"):
        task_of(dataclasses.replace(gpu, free=2**20), tmp_path, "d2h", SAMPLE)


# The pipeline.


@given(st.integers(1, 10_000), st.integers(1, 3000), st.integers(1, 700))
def test_a_message_is_cut_into_all_of_its_bytes(total, block, chunk):
    message = messages.Message(np.zeros(total, np.uint8), None, None, block, chunk)
    ends = [0, *(span.stop for span in message.spans)]
    assert ends[-1] == total
    assert [span.start for span in message.spans] == ends[:-1]
    assert max(-(-(span.stop - span.start) // chunk) for span in message.spans) == message.max_chunks


def run_chain(steps, count, depth, schedule="a thread per slot", parts=1):
    """Take blocks through the steps in threads; raise the error of the first thread that failed."""
    slots = messages.Slots(depth)
    slots.are_streams = schedule != "a thread per slot"  # so that the order of each schedule matters
    coder = types.SimpleNamespace(blocks=range(count), slots=slots)
    chain = messages.Chain(coder, steps, parts, schedule)
    link = types.SimpleNamespace(chains=lambda *_: [chain], meet=lambda: 0.0, stop=lambda: None, finish=lambda: None)
    transfers = types.SimpleNamespace(_threads=ThreadPoolExecutor(max(depth, 3)))
    try:
        messages.Transfers._run(transfers, link, depth, None, None)
    finally:
        transfers._threads.shutdown()


def test_one_block_in_flight_is_staged_and_several_overlap():
    under_way, most = set(), []
    lock = threading.Lock()
    together = threading.Barrier(4)

    def steps(block, _):
        with lock:
            under_way.add(block.index)
            most.append(len(under_way))
        if depth == 4:
            together.wait(timeout=10)
        with lock:
            under_way.remove(block.index)
        yield

    for depth in (1, 4):
        most.clear()
        run_chain(steps, 8, depth)
        assert max(most) == depth


def test_an_error_in_a_slot_releases_those_that_wait_for_it_and_is_raised():
    def first_fails(block, turns):
        def call():
            if block.index == 0:
                raise WrongAnswer("the first")
            raise AssertionError("nobody passes before the first")

        turns.passing(block.slot, call)
        yield

    with pytest.raises(WrongAnswer, match="the first"):
        run_chain(first_fails, 3, 3, "a thread per part")


PARTS = ("queue", "encode", "send")


@pytest.mark.parametrize("schedule", ["a thread per slot", "one thread", "a thread per part"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8])
def test_in_each_schedule_every_block_goes_through_every_step_in_order_and_no_slot_holds_two(schedule, depth):
    said, lock = [], threading.Lock()

    def steps(block, _):
        for word in PARTS:
            with lock:
                said.append((word, block.index, block.slot))
            if word != PARTS[-1]:
                yield

    run_chain(steps, 20, depth, schedule, 3)
    assert sorted(said) == sorted((word, index, index % depth) for word in PARTS for index in range(20))
    place = {(word, index): at for at, (word, index, _) in enumerate(said)}
    for index in range(20):
        assert place["queue", index] < place["encode", index] < place["send", index]
        if index + depth < 20:  # a slot is written again only after its block is finished
            assert place["send", index] < place["queue", index + depth]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8])
def test_with_a_thread_per_part_blocks_go_in_order_and_the_next_is_encoded_while_one_is_sent(depth):
    said, ahead = [], threading.Event()

    def steps(block, _):
        said.append(("queue", block.index))
        yield
        said.append(("encode", block.index))
        if block.index == 1:
            ahead.set()
        yield
        if block.index == 0 and depth > 1:
            assert ahead.wait(timeout=10)  # the next one is encoded while this one is still being sent
        said.append(("send", block.index))

    run_chain(steps, 20, depth, "a thread per part", 3)
    for word in PARTS:
        assert [index for said_step, index in said if said_step == word] == list(range(20))


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_with_a_thread_per_part_an_error_in_one_step_ends_the_others(bad):
    def steps(block, _):
        for part in range(3):
            if block.index == 5 and part == bad:
                raise WrongAnswer("the fifth")
            yield

    with pytest.raises(WrongAnswer, match="the fifth"):
        run_chain(steps, 50, 3, "a thread per part", 3)


@pytest.mark.parametrize("schedule", ["a thread per slot", "a thread per part"])
def test_over_a_link_in_order_blocks_pass_one_at_a_time_by_their_indices_with_any_threads(schedule, monkeypatch):
    passed = []

    def steps(block, turns):
        turns.passing(block.slot, passed.append, block.index)
        yield

    chain = messages.Chain(
        types.SimpleNamespace(blocks=range(30), slots=messages.Slots(4)), steps, 1, "a thread per part"
    )
    chain.coder.slots.are_streams = schedule == "a thread per part"
    with ThreadPoolExecutor(4) as threads:
        for job in [threads.submit(job) for job in chain.jobs(4)]:
            job.result()
    assert passed == list(range(30))
