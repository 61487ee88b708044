"""The board of a case's ranks: what they share, how long they wait, and that nothing of it is left behind."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _modules import opened
from _thread_ranks import together

from gpubench.api.suite import Board, Handle, PeerDied, RankLostError, StalledError
from gpubench.authoring.board import LINE_BYTES


def test_ranks_read_what_the_others_have_posted_and_meet():
    def body(bench):
        board = bench.board("left", "right", room_bytes=16)
        board.post("left", 10 + bench.rank)
        board.row("right")[bench.rank] = 2**64 - 1 - bench.rank
        board.room.view(np.uint64)[bench.rank % 2] = 7
        board.meet()
        seen = [board.read(rank, "left") for rank in range(3)], list(board.row("right"))
        words = [ctypes.c_uint64.from_address(board.address("left", rank)).value for rank in range(3)]
        distances = {board.address(slot, 2) - board.address(slot) for slot in ("left", "right")}
        board.wait_for("left", 10, range(3))
        board.meet()
        board.close()
        return *seen, words, distances

    posted = [10, 11, 12]
    assert together(3, body) == [(posted, [2**64 - 1 - rank for rank in range(3)], posted, {2 * LINE_BYTES})] * 3


@pytest.mark.parametrize("has_beats", [False, True])
@pytest.mark.parametrize(
    ("wait", "message"),
    [
        (lambda board: board.meet(), "rank 1 made no progress for 0.05 s"),
        (lambda board: board.wait_for("step", 1, [1]), "rank 1 made no progress for 0.05 s"),
        (lambda board: board.wait(lambda: False), r"ranks (0, 1) made no progress for 0.05 s"),
    ],
    ids=["meet", "wait_for", "wait"],
)
def test_a_rank_that_lives_and_makes_no_progress_is_not_waited_for_for_ever(has_beats, wait, message):
    def body(bench):
        board = bench.board("step", limit_s=0.05, has_beats=has_beats)
        text = ""
        if bench.rank == 0:
            with pytest.raises(StalledError) as caught:
                wait(board)
            text = str(caught.value)
            del caught
        bench.barrier()
        board.close()
        return text

    assert together(2, body)[0] == message


def test_a_rank_without_a_heartbeat_is_noticed_within_a_second_and_one_that_works_is_not():
    def body(bench):
        board = bench.board(has_beats=True)
        board.meet()
        delay, oldest_s = 0.0, board.oldest_beat_s()
        if bench.rank == 1:
            board.stop_heart()  # as if the process had died
            bench.barrier()
        else:
            stopped = time.perf_counter()
            with pytest.raises(RankLostError, match="rank 1 has had no heartbeat") as caught:
                board.wait(lambda: False)
            delay = caught.value.noticed_s - stopped
            del caught
            bench.barrier()
        board.close()
        return delay, oldest_s

    (delay, oldest_s), _ = together(2, body)
    assert 0.3 < delay < 10.0, "about half a second on a free machine"
    assert oldest_s < 0.4


def test_the_ranks_that_are_left_meet_although_they_have_met_differently_often():
    def body(bench):
        board = bench.board(has_beats=True)
        if bench.rank == 2:
            board.stop_heart()
        else:
            with pytest.raises(RankLostError):
                board.wait(lambda: False) if bench.rank else board.meet()
        bench.barrier()
        if bench.rank < 2:
            board.regroup((0, 1))
        bench.barrier()
        if bench.rank < 2:
            board.meet()
            board.meet()
        bench.barrier()
        board.close()
        return board.members

    assert together(3, body) == [(0, 1), (0, 1), (0, 1, 2)]


def test_a_board_of_threads_needs_no_other_rank():
    def body(bench):
        board = bench.board("done", room_bytes=64, is_shared=False)
        board.row("done")[0] = 3
        board.wait_for("done", 3, [0])
        board.meet()
        return board.room.size, board.room.any(), board.members

    assert together(1, body) == [(64, False, (0,))]


# Processes of their own, which share a page by the path that is their first argument.
MEMBER = """
import os, sys
from gpubench.authoring.board import Board
from gpubench.plugins import load
host = load("backends", "host")
device = host.open(host.devices()[0])
page = device.open_shared(sys.argv[1].encode(), 4096)
board = Board(device, page.array, ("step",), int(sys.argv[2]), 2, close=page.close)
board.post("step", 1)
print("here", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def page():
    """Return the device of the host, zeroed memory of one page, and a path by which another process maps it."""
    device = opened()
    memory = device.shared_memory("memfd").allocate(4096)
    path = f"/proc/{os.getpid()}/fd/{memory.descriptor}"
    return device, memory, path


def member(path, rank):
    program = [sys.executable, "-P", "-c", MEMBER, path, str(rank)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["exits", "is killed"])
def test_the_end_of_an_awaited_process_is_noticed_at_once(page, how):
    device, memory, path = page
    board = Board(device, memory.array, ("step",), 0, 2, close=memory.close)
    with member(path, 1) as process:
        board.wait_for("step", 1, [1])
        start = time.monotonic()
        process.stdin.close() if how == "exits" else process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerDied) as caught:
            board.wait_for("step", 2, [1])
        assert caught.value.rank == 1
        assert time.monotonic() - start < 20
    with pytest.raises(PeerDied):
        board.meet()
    del caught
    board.close()


def test_two_processes_that_claim_one_rank_are_named_and_the_one_before_notices(page):
    device, memory, path = page
    with member(path, 1) as process:
        assert process.stdout.readline() == "here\n"
        message = f"rank 1 is process {process.pid}, so process {os.getpid()} cannot have it"
        with pytest.raises(RuntimeError, match=message):
            Board(device, memory.array, ("step",), 1, 2)
        process.stdin.close()
    late = Board(device, memory.array, ("step",), 0, 2, close=memory.close)
    late.row("its process")[0] = os.getppid()
    with pytest.raises(RuntimeError, match=f"rank 0 is process {os.getppid()}, so"):
        late.expect_owned()
    late.close()


def test_nothing_of_a_board_is_left_in_shared_memory_or_open():
    def body(bench):
        board = bench.board("step", room_bytes=2**16, has_beats=True)
        board.meet()
        board.close()

    def left():
        maps = Path("/proc/self/maps").read_text()
        names, open_files = ([path.name for path in Path(folder).iterdir()] for folder in ("/dev/shm", "/proc/self/fd"))
        own = sorted(name for name in names if not name.startswith("sem.mp-"))  # semaphores of other tests' processes
        return own, maps.count("memfd:gpubench"), len(open_files)

    together(2, body)
    before = left()
    for _ in range(3):
        together(2, body)
    assert left() == before


def test_streams_join_the_two_ranks_in_one_order():
    def body(bench):
        streams = bench.sockets(2)
        for number, stream in enumerate(streams):
            stream.sendall(bytes([10 * bench.rank + number]))
        received = [stream.recv(1)[0] for stream in streams]
        bench.barrier()
        for stream in streams:
            stream.close()
        return received

    assert together(2, body) == [[10, 11], [0, 1]]


def test_a_handle_reaches_every_rank_with_its_descriptors():
    def body(bench):
        reading, writing = os.pipe() if bench.rank == 1 else (-1, -1)
        handle = bench.hand_over(Handle(b"data", (writing,)) if bench.rank == 1 else None, source=1)
        os.write(handle.descriptors[0], b"x")
        bench.barrier()
        content = os.read(reading, 8) if bench.rank == 1 else b""
        return handle.data, content

    assert together(3, body) == [(b"data", b""), (b"data", b"xxx"), (b"data", b"")]
