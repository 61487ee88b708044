"""Between processes: the plan on each machine, skips with reasons, kernels that compile, bounded waits."""

import errno
import operator
from functools import partial

import _grid
import _make as make
import _nvrtc
import numpy as np
import pytest
from _earlier import check_in_turn, expect_found, with_earlier_answers
from _modules import opened, room_module, suite_module
from _thread_ranks import together

from gpubench import plugins
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.model import Case, Settings

H200 = {"memory_bytes": 150 * 10**9, "cache_bytes": 60 * 2**20, "units": 132}
ONE = make.facts(make.device(**H200))
TWO = make.facts(make.device(peers=("cuda:1",), **H200), make.device("cuda:1", peers=("cuda:0",), **H200))


part = partial(suite_module, "ipc")
HOST = plugins.load("backends", "host")


def jobs(facts, suite, tier="quick", device="cuda:0"):
    return planning.make(facts, Settings((suite,), (device,), tier)).jobs


@pytest.mark.parametrize("file", ["copies.cu", "ipc/signals.cu", "collectives/collectives.cu"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.skipif(_nvrtc.library() is None, reason="NVRTC is not here: pip install nvidia-cuda-nvrtc")
def test_kernels_compile_for_nvidia(file, arch):
    source = _grid.source(file)
    for defines in ((), ("-DADDS=1", "-DFLIGHT=1")):
        status, log = _nvrtc.compiled(source, (f"--gpu-architecture={arch}", "-std=c++17", *defines))
        assert status == 0, log


def test_the_plan_skips_only_what_lacks_a_device_or_memory():
    plan = planning.make(ONE, Settings(("ipc", "p2p", "collectives"), ("cuda:0",), "quick"))
    (message,) = planning.skip_messages(plan)
    assert message.endswith("cases will be skipped: needs 2 devices with access to each other's memory; 1 available")
    able = {job.case.name for job in plan.jobs if not planning.missing_devices(job)}
    assert {"pull", "push", "load", "store", "staged", "mapping", "within", "refused"} <= able
    assert not able & {"both", "signal", "barrier", "mesh", "all_reduce", "read", "write", "latency"}
    assert (
        planning.skip_messages(planning.make(TWO, Settings(("ipc", "p2p", "collectives"), ("cuda:0",), "quick"))) == []
    )
    spins = ("signal", "barrier", "both")
    assert all(job.case.devices == job.case.ranks for job in jobs(TWO, "ipc", "full") if job.case.name in spins)
    small = make.facts(make.device(memory_bytes=2 * 2**30, cache_bytes=2**22, units=20))
    sizes = {job.case.param("size_bytes") for job in jobs(small, "ipc") if job.case.name == "pull"}
    assert max(sizes) == 2**24


def test_each_device_has_a_row_with_its_peers_in_the_matrix():
    row = [job for job in jobs(TWO, "p2p", device="cuda:1") if job.case.name == "read"]
    assert {(job.case.param("device"), job.case.param("peer")) for job in row} == {("cuda:1", "cuda:0")}
    assert {job.key[1] for job in row} == {("cuda:1", "cuda:0")}


@pytest.mark.parametrize(
    ("size_bytes", "chunk"), [(8, 8), (2**18, 2**18), (2**20, 2**18), (2**24, 2**21), (2**30, 2**24)]
)
def test_copies_through_the_host_are_divided_into_chunks_that_can_overlap(size_bytes, chunk):
    assert part("_staged").chunk_of(size_bytes) == chunk


@pytest.mark.parametrize(
    ("number", "scope", "mend"),
    [
        (errno.EPERM, "2", "kernel.yama.ptrace_scope=1"),
        (errno.EPERM, "1", "SYS_PTRACE"),
        (errno.EPERM, "", "seccomp"),
        (errno.ENOSYS, "0", "CONFIG_CROSS_MEMORY_ATTACH"),
    ],
)
def test_a_refused_read_of_another_process_names_the_setting_that_permits_it(number, scope, mend):
    refusal_error = part("_messages").refusal_error(number, scope)
    assert isinstance(refusal_error, Unavailable)
    assert errno.errorcode[number] in refusal_error.problem
    assert mend in refusal_error.remedy


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        ("cudaErrorNotSupported: operation not supported", "MIG"),
        ("cudaErrorInvalidDevice: invalid device ordinal", "CUDA_VISIBLE_DEVICES"),
        ("[Errno 13] Permission denied: '/proc/1/fd/3'", "--pid=host"),
        ("cudaErrorInvalidValue: invalid argument", ""),
    ],
)
def test_a_refused_handle_names_a_setting_only_where_one_is_the_cause(error, mend):
    assert mend in room_module("suites", "_between").remedy_for(error)
    assert bool(room_module("suites", "_between").remedy_for(error)) is bool(mend)


def test_an_exclusive_gpu_is_refused_before_a_second_process_opens_it():
    bench = type("B", (), {"target": type("T", (), {"device": make.device(details=(("compute_mode", "3"),))})})
    with pytest.raises(Unavailable, match="nvidia-smi -c 0"):
        room_module("suites", "_between").need_shared_gpu(bench)


@pytest.mark.parametrize(("scope", "message"), [("0", "0"), ("1", "1"), ("3", "3: no process may read")])
def test_doctor_names_the_restriction_by_yama(scope, message):
    assert inventory.ptrace_text(scope).startswith(message)
    assert inventory.shared_memory_text(2**34) == "16.00 GiB in /dev/shm"
    assert "--shm-size" in inventory.shared_memory_text(2**26), "too little for NCCL"


class FlagPages:
    """Two flags in this process, as two ranks see them."""

    def __init__(self):
        self.words = np.zeros(64, np.uint64)
        self.address = self.words.ctypes.data

    def volley(self, flags, rank, rounds, looks):
        took = np.zeros(rounds, np.int64)
        own_flag, peer_flag = self.address + 128 * (1 - rank), self.address + 128 * rank
        return flags.ping_pong(own_flag, peer_flag, rank == 0, 0, looks, took), took


@pytest.fixture(scope="module")
def flags():
    pytest.importorskip("numba")
    return room_module("suites", "_host_flags")


def test_waiting_for_an_unanswered_flag_ends_after_the_given_number_of_polls(flags):
    assert FlagPages().volley(flags, 0, 4, 1000)[0] == 1
    words, took = np.zeros(16, np.uint64), np.zeros(50, np.int64)
    assert flags.all_meet(words.ctypes.data, 128, 0, 1, 0, 10, took) == 0, "a barrier of one rank does not wait"
    assert words[0] == 50
    assert (took >= 0).all()
    assert flags.look_seconds() > 0


def test_a_pattern_differs_at_every_word_and_with_the_seed():
    common = room_module("suites", "_between")
    first, second = (common.pattern(8192, seed).view(np.uint64) for seed in (0, 1))
    assert len(set(first.tolist())) == 1024
    assert (first != second).all()
    host = Bench(opened(), Case("ipc", "pull"), target=None, package="")
    spoiled = common.pattern(64, 0)
    spoiled[9] += 1
    with pytest.raises(WrongAnswer, match="1 of 8 words of 64B read differ from the data written"):
        common.expect_pattern(host, spoiled, 0, "read")


def test_a_case_that_does_not_fit_is_skipped_with_the_needed_bytes():
    device = type("D", (), {"free_bytes": staticmethod(lambda: 2**20)})
    bench = Bench(device, Case("ipc", "pull"), target=None, package="")
    with pytest.raises(Skip, match=r"needs 4.000 MiB of memory, 1.000 MiB are free"):
        bench.need(2**22)


SAME = {"path": "same", "size_bytes": 2**16}
RECEIVERS = {  # a case, its parameters, and the array that no stage declares
    "pull": ("_mapped", SAME, "_local"),
    "load": ("_mapped", SAME, "_local"),
    "push": ("_mapped", SAME, "_kept.array"),
    "store": ("_mapped", SAME, "_kept.array"),
    "first_touch": ("_mapped", SAME, "_local"),
    "single": ("_single", SAME | {"way": "pull", "size_bytes": 8}, "_local"),
    "socket_": ("_messages", {"size_bytes": 2**16}, ""),
    "pipe": ("_messages", {"size_bytes": 2**16}, ""),
    "direct": ("_messages", {"size_bytes": 2**16}, ""),
}


@pytest.mark.parametrize("name", RECEIVERS)
def test_an_earlier_copy_is_found_because_the_other_process_has_other_words_in_each_check(name):
    module, params, place = RECEIVERS[name]
    sender, receiver = together(2, lambda bench: getattr(part(module), name)(bench, **params))
    partner = getattr(receiver.check, "__self__", None)
    expect_found(receiver, HOST.open(HOST.devices()[0]), *([operator.attrgetter(place)(partner)] if place else []))
    receiver.close()
    sender.close()


def test_an_earlier_copy_through_the_host_is_found_by_the_rank_that_receives_it():
    def body(bench):
        bench.open_device.register = lambda _: lambda: None
        task = part("_staged").staged(bench, "same", 2**20)
        check_in_turn(task, bench.open_device)
        if bench.rank == 0:
            check_in_turn(task, bench.open_device)
            return
        with pytest.raises(WrongAnswer):
            check_in_turn(with_earlier_answers(task), bench.open_device)
        task.stages[""].call()  # the third message of the other rank

    together(2, body)
