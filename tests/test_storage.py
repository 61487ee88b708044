"""Reading files: the page cache, the content of a read, and files and disks that misbehave."""

import ctypes
import mmap
import os
import types
from pathlib import Path

import numpy as np
import pytest
from _grid_device import bench as grid_bench
from _modules import room_module, suite_modules

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Untrustworthy, WrongAnswer
from gpubench.measuring.data_files import data_files
from gpubench.model import Case, Facts

SUITE = plugins.load("suites", "storage")
FILES = room_module("suites", "_files")
CUFILE, READERS, SOURCES = suite_modules("storage", "_read", "_readers", "_sources")
(HOST,) = plugins.load("backends", "host").devices()
SIZE = 2**20 + 4096 + 100  # not a whole number of blocks


def bench(file="made", path="direct", cache="cold", size=SIZE, block=2**18, depth=3, data=()):
    params = (("path", path), ("file", file), ("cache", cache), ("size_bytes", size))
    case = Case("storage", "read", (*params, ("block_bytes", block), ("depth", depth)))
    return Bench.untimed(case, Target(Facts((HOST,)), HOST, data=tuple(data)), SUITE.package, 1)


def call(task):
    """Call the first stage of the task and return its seconds."""
    return next(iter(task.stages.values())).call()


@pytest.fixture
def task():
    """Yield a function that builds tasks, which are closed at the end of the test."""
    built = []

    def build(**options):
        built.append(SUITE.build(bench(**options)))
        return built[-1]

    yield build
    for opened_task in built:
        opened_task.close()


@pytest.fixture
def users_file(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())  # pages that are not yet on the disk cannot be dropped
    return path, data_files([path])


def test_a_read_gives_every_byte_and_only_a_buffered_one_leaves_its_pages_in_the_cache(task):
    cached = {}
    for path in ("buffered", "direct"):
        built = task(path=path)
        assert call(built) > 0
        cached[path] = built.check()["cached pages"].value
    assert cached == {"buffered": -(-SIZE // mmap.PAGESIZE), "direct": 0}


def test_a_file_is_dropped_from_the_cache_and_warmed_alone_and_mapped_pages_are_not_called_cold(users_file):
    path, _ = users_file
    with path.open("rb") as file:
        FILES.read_into_page_cache(file.fileno(), SIZE)
        resident, pages = FILES.resident_pages(file.fileno(), SIZE)
        assert resident == pages
        FILES.drop_from_page_cache(file.fileno(), SIZE)
        assert FILES.resident_pages(file.fileno(), SIZE) == (0, pages)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            assert mapping[0] >= 0
            with pytest.raises(Untrustworthy, match="stay in the page cache") as caught:
                FILES.drop_from_page_cache(file.fileno(), SIZE)
    assert caught.value.cause == "page-cache"


@pytest.mark.parametrize("during", [False, True], ids=["between two reads", "in the middle of a read"])
def test_a_file_that_is_written_to_while_it_is_measured_makes_the_case_invalid(task, users_file, during):
    path, data = users_file
    built = task(file=path.name, data=data)
    reader = built.close.__self__._reader
    read = reader.read

    def another_program_writes():
        with path.open("r+b") as file:
            file.write(b"other bytes")
            os.fsync(file.fileno())

    if during:
        reader.read = lambda: (another_program_writes(), read())[1]
    else:
        call(built)
        another_program_writes()
    with pytest.raises(Untrustworthy, match=r"weights\.bin was written to") as caught:
        call(built)
    assert caught.value.cause == "changed"


def test_a_file_that_shrinks_grows_goes_or_is_replaced_is_named(task, users_file):
    path, data = users_file
    content = path.read_bytes()
    for change, message in (
        (lambda: os.truncate(path, 5000), "has 5000"),
        (lambda: os.truncate(path, SIZE + 1), f"has {SIZE + 1}"),
        (path.unlink, "removed"),
        (lambda: (path.unlink(), path.write_bytes(content)), "replaced by another file"),
    ):
        path.write_bytes(content)
        built = task(file=path.name, data=data, path="buffered", cache="warm")
        change()
        with pytest.raises(Untrustworthy, match=message):
            built.stages[""].call()


def test_content_that_changes_without_a_new_time_is_found_by_comparison(task, users_file):
    path, data = users_file
    built = task(file=path.name, data=data)
    times = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(4242)
        file.write(bytes([content[4242] ^ 1]))
        os.fsync(file.fileno())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    expected, seen = f"{content[4242]:#04x}", f"{content[4242] ^ 1:#04x}"
    with pytest.raises(WrongAnswer, match=f"1 of {SIZE} bytes .* first at 4242: expected {expected}, seen {seen}"):
        call(built)


def test_a_file_that_changed_since_the_plan_is_not_read_and_cufile_is_for_gpus(users_file):
    path, data = users_file
    path.write_bytes(b"short")
    with pytest.raises(Untrustworthy, match="no longer has"):
        SUITE.build(bench(file=path.name, data=data))
    with pytest.raises(Skip, match="not of host"):
        SUITE.build(bench(path="cufile"))


def test_a_file_in_memory_is_skipped_and_named():
    shared = Path("/dev/shm/gpubench-test-storage")
    shared.write_bytes(b"in memory")
    try:
        with pytest.raises(Skip, match="is on tmpfs, in memory"):
            SUITE.build(bench(file=shared.name, data=data_files([shared])))
    finally:
        shared.unlink()


def test_a_file_system_without_o_direct_is_skipped():
    descriptor = os.open("/proc/version", os.O_RDONLY)  # procfs refuses the flag
    source = SOURCES.Source(descriptor, np.zeros(1, np.uint8), "version", Path("/proc"))
    with pytest.raises(Skip, match="does not support O_DIRECT"):
        READERS._opened(source, is_direct=True)
    source.close()


def test_a_read_that_leaves_pages_in_the_cache_is_not_called_direct(task):
    built = task(path="direct")
    call(built)
    reading = built.close.__self__
    os.close(reading._reader._file)
    reading._reader._file = reading._source.reopened(0)  # behaves as a file system that ignores O_DIRECT
    with pytest.raises(Untrustworthy, match="does not really support O_DIRECT"):
        call(built)


def test_a_disk_that_fills_while_the_file_is_made_skips_the_case(tmp_path, monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(FILES.tempfile, "TemporaryFile", lambda **_: os.fdopen(os.dup(full), "wb"))
    with pytest.raises(Skip, match="No space left on device; set TMPDIR"):
        FILES.make_file(np.ones(10, np.uint8), tmp_path)
    os.close(full)


class AddressedCufileArray(np.ndarray):
    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)


class SimulatedCufile:
    """The binding of cuFile in its compatibility mode: reads by POSIX calls, copied to an address."""

    cuFileError = RuntimeError  # noqa: N815 - the name in the binding
    FileHandleType = types.SimpleNamespace(OPAQUE_FD=1)

    def __init__(self):
        self.reads = 0
        self.registered = set()

    def Descr(self):  # noqa: N802
        descriptor = types.SimpleNamespace(type=0, handle=types.SimpleNamespace(fd=-1))
        descriptor.ptr = descriptor
        return descriptor

    def StatsLevel3(self):  # noqa: N802
        counts = {name: np.zeros(16, np.int64) for name in CUFILE._KINDS}
        level = types.SimpleNamespace(per_gpu_stats=types.SimpleNamespace(**counts))
        level.ptr = level
        return level

    def get_stats_l3(self, stats):
        stats.per_gpu_stats.n_posix_reads[0] = self.reads

    def handle_register(self, describing):
        self.registered.add(describing.handle.fd)
        return describing.handle.fd

    def handle_deregister(self, handle):
        self.registered.remove(handle)

    def buf_register(self, address, nbytes, flags):
        self.registered.add(address)

    def buf_deregister(self, address):
        self.registered.remove(address)

    def read(self, handle, address, size, offset, place):
        """Read part of a file through an aligned buffer; return the number of bytes."""
        with mmap.mmap(-1, -(-size // 4096) * 4096) as bounce:
            count = min(os.preadv(handle, [bounce], offset), size)
            ctypes.memmove(address + place, bounce[:count], count)
        self.reads += 1
        return count


@pytest.fixture
def paper(monkeypatch):
    """Return a bench whose device claims to be a GPU in host memory, with a simulated cuFile."""
    library = SimulatedCufile()
    monkeypatch.setattr(CUFILE, "_library", lambda: library)
    made = grid_bench(SUITE, "nvidia")
    device = types.SimpleNamespace(use=lambda: None)
    addressed = types.SimpleNamespace(**{name: getattr(np, name) for name in ("asarray", "invert", "uint8")})
    addressed.empty = lambda *shape: np.empty(*shape).view(AddressedCufileArray)
    addressed.cuda = types.SimpleNamespace(Device=lambda: device)
    made.open_device.xp = addressed
    made.library = library
    return made


def read_on(made, path, depth=3):
    params = {"path": path, "file": "made", "cache": "cold", "size_bytes": SIZE, "block_bytes": 2**18, "depth": depth}
    return SUITE.definitions["read"].build(made, **params)


@pytest.mark.parametrize("path", ["buffered", "direct"])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_every_block_is_copied_to_its_place_on_a_gpu(paper, path, depth):
    task = read_on(paper, path, depth)
    assert call(task) > 0
    assert call(task) > 0
    task.close()


def test_a_file_that_ends_early_ends_a_read_into_a_gpu(paper):
    task = read_on(paper, "direct")
    reader = task.close.__self__._reader
    os.truncate(f"/proc/self/fd/{task.close.__self__._source.descriptor}", 300_000)
    assert reader.read() == 300_000
    with pytest.raises(Untrustworthy, match=f"had {SIZE} bytes and has 300000"):
        call(task)
    task.close()


def test_cufile_puts_every_block_in_its_place_and_the_labels_name_its_mode(paper):
    task = read_on(paper, "cufile")
    assert call(task) > 0
    assert task.labels == ("cufile-compatibility",)
    assert task.check()["reads by POSIX"].value == paper.library.reads == 2 * 5
    task.close()
    assert paper.library.registered == set(), "what was registered is let go"


def test_cufile_that_leaves_a_byte_out_is_found(paper, monkeypatch):
    task = read_on(paper, "cufile")
    original_read = paper.library.read
    monkeypatch.setattr(paper.library, "read", lambda *at: original_read(*at[:2], at[2] - 1, *at[3:]) + 1)
    with pytest.raises(WrongAnswer, match=f"5 of {SIZE} bytes differ .* first at 262143"):
        call(task)
    task.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_cufile_does_not_take_is_a_skip_that_names_the_missing_database_of_disks(
    paper, monkeypatch, tmp_path, is_there
):
    def refuse(_):
        raise SimulatedCufile.cuFileError("HANDLE_NOT_REGISTERED (5027)")

    monkeypatch.setattr(paper.library, "handle_register", refuse)
    monkeypatch.setattr(CUFILE, "_UDEV", str(tmp_path if is_there else tmp_path / "udev"))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(Skip, match=r"does not read from this file system: HANDLE_NOT_REGISTERED \(5027\)") as caught:
        read_on(paper, "cufile")
    assert ("a container has to mount it" in str(caught.value)) is not is_there
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


@pytest.mark.parametrize(
    ("nvfs", "posix", "is_direct", "text", "labels"),
    [
        (4, 0, True, "directly", ()),
        (4, 1, False, "", ("cufile-compatibility",)),
        (0, 4, False, "compatibility mode", ("cufile-compatibility",)),
        (0, 0, False, "is unknown", ("cufile-unproven",)),
    ],
)
def test_cufile_is_called_direct_only_if_no_read_was_by_posix_calls(nvfs, posix, is_direct, text, labels):
    kinds = {"n_nvfs_reads": nvfs, "n_p2p_reads": 0, "n_posix_reads": posix}
    assert CUFILE.is_really_direct(kinds) is is_direct
    assert text in CUFILE.path_taken(kinds)
    assert CUFILE.labels_of(kinds) == labels


def test_the_files_of_the_user_replace_the_generated_one_and_of_a_long_one_the_beginning_is_read(task, users_file):
    path, data = users_file
    for files, expected in (((), {"made"}), (data, {path.name})):
        cases = SUITE.cases(Target(Facts((HOST,)), HOST, "full", tuple(files)))
        assert {dict(case.params)["file"] for case in cases} == expected
    for size in (SIZE, 2**18):
        assert call(task(file=path.name, data=data, size=size)) > 0
