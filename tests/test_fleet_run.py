"""A fleet is measured into a folder, whatever its nodes do: `fleet.json` records the fate of each."""

import contextlib
import dataclasses
import errno
import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import _command as command
import _fleet
import _make as make
import psutil
import pytest
from _fleet import ThreadFleet, run_file

from gpubench.base import installation
from gpubench.base.errors import FileError, UsageError
from gpubench.base.files import write_whole
from gpubench.measuring import inventory
from gpubench.model.fleet import FLEET_FILE, read_fleet
from gpubench.model.store import read_run
from gpubench.tools.fleet import board as boards
from gpubench.tools.fleet import launchers, session
from gpubench.tools.fleet.board import MeasurementEnd, NodeOrder, SeenGpu
from gpubench.tools.fleet.session import new_folder, read_racks

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Replace the inventory by a machine without GPUs, and shorten the steps."""
    monkeypatch.setattr(inventory, "facts", lambda: make.facts(make.device("host", "processor")))
    for module, name, seconds in (
        (launchers, "HEARTBEAT_S", 0.1),
        (launchers, "_TICK_S", 0.02),
        (session, "_TICK_S", 0.02),
        (session, "SILENCE_S", 1.0),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def fleet(tmp_path):
    return lambda world: ThreadFleet(tmp_path / "fleet", world)


def test_each_node_leaves_a_run_file_and_the_record_says_how_long_it_took(fleet, tmp_path):
    three = fleet(3)
    clocks = ("2026-01-02T03:04:05+00:00", "2026-01-02T09:04:05+00:00", "1999-01-02T03:04:05+00:00")
    for rank, started in enumerate(clocks):  # the clocks of the nodes differ by hours
        three.node(rank, run_file(tmp_path / f"{rank}.jsonl.gz", started=started), seconds=0.05)
    nodes = three.measure()
    assert sorted(nodes) == ["gpu-0", "gpu-1", "gpu-2"]  # local nodes that share a host name
    assert {node.status for node in nodes.values()} == {"answered"}
    assert all(0.05 < node.seconds < 10 for node in nodes.values())
    assert {read_run(three.folder / node.file).manifest.started for node in nodes.values()} == set(clocks)
    fleet = read_fleet(three.folder)
    assert (fleet.launcher, fleet.at_once, fleet.nodes) == ("slurm", 3, tuple(nodes.values()))
    assert sorted(path.name for path in three.folder.iterdir()) == [FLEET_FILE, *(node.file for node in fleet.nodes)]


def test_a_truncated_forged_or_unrelated_file_affects_only_its_own_node(fleet, tmp_path):
    good = run_file(tmp_path / "good.jsonl.gz").read_bytes()
    (tmp_path / "torn.jsonl.gz").write_bytes(good[:-20])
    (tmp_path / "garbage.jsonl.gz").write_bytes(b"\x80\x04\x95 a pickle, say")
    (tmp_path / "forged.jsonl.gz").write_bytes(gzip.compress(gzip.decompress(good).replace(b"1.01", b"1.02")))
    run_file(tmp_path / "other.jsonl.gz", filters=("triad",))
    six = fleet(6)
    for rank, name in enumerate(("good", "torn", "garbage", "forged", "other")):
        six.node(rank, tmp_path / f"{name}.jsonl.gz", host=name)
    six.node(5, tmp_path / "good.jsonl.gz", status=6, host="sick")
    nodes = six.measure()
    assert {name: node.status for name, node in nodes.items()} == {
        "good": "answered",
        "torn": "failed",
        "garbage": "refused",
        "forged": "refused",
        "other": "refused",
        "sick": "failed",
    }
    assert nodes["torn"].reason == "its run file is incomplete; the cases in it are kept"
    assert "count and hash" in nodes["forged"].reason
    assert "filters are ('triad',) instead of ()" in nodes["other"].reason
    assert nodes["sick"].reason == "its run ended with exit status 6: bandwidth: 1 ok in 1 s"
    kept = ["good.jsonl.gz", "sick.jsonl.gz", "torn.jsonl.gz"]
    assert sorted(path.name for path in six.folder.iterdir()) == [FLEET_FILE, *kept]
    assert sorted(node.file for node in nodes.values() if node.file) == kept


@pytest.mark.slow
def test_nodes_that_hang_or_never_report_are_not_waited_for(fleet, tmp_path):
    three = fleet(3)
    three.node(0, run_file(tmp_path / "good.jsonl.gz"), host="good")
    three.node(1, tmp_path / "good.jsonl.gz", seconds=60.0, host="hung")
    nodes = three.measure(dataclasses.replace(_fleet.ORDER, time_limit_s=2.0))
    assert {name: node.status for name, node in nodes.items()} == {
        "good": "answered",
        "hung": "timed out",
        "rank-2": "missing",
    }
    assert nodes["hung"].reason == "it was ended after 2 s, at the time limit: bandwidth: 1 ok in 1 s"
    assert nodes["rank-2"].reason.startswith("it sent no report within")


@pytest.mark.slow
def test_a_node_whose_reports_stop_counts_as_dead(fleet, tmp_path):
    two = fleet(2)
    two.says(1, is_ready=True, phase="measures the bandwidth")
    two.node(0, run_file(tmp_path / "good.jsonl.gz"), seconds=2.5, host="gpu0")
    nodes = two.measure()
    assert (nodes["gpu0"].status, nodes["gpu1"].status) == ("answered", "died")
    assert nodes["gpu1"].reason.endswith("it ended during: measures the bandwidth")
    told_at = {name: at for name, outcome, at in two.views if outcome}
    assert told_at["gpu1"] < told_at["gpu0"]


@pytest.mark.slow
def test_a_node_that_reports_again_while_others_measure_is_alive(fleet, tmp_path):
    two = fleet(2)
    two.says(1, is_ready=True)
    two.node(0, run_file(tmp_path / "good.jsonl.gz"), seconds=4.0, host="gpu0")
    threading.Timer(2.5, two.node, (1, tmp_path / "good.jsonl.gz", 0, 0.1, "gpu1")).start()
    nodes = two.measure()
    assert [outcome.status for name, outcome, _ in two.views if name == "gpu1" and outcome] == ["died", "answered"]
    assert {node.status for node in nodes.values()} == {"answered"}


def test_a_node_that_joins_twice_is_one_node(fleet, tmp_path):
    two, good = fleet(2), run_file(tmp_path / "good.jsonl.gz")
    for rank in (0, 1, 1):
        two.node(rank, good, host=f"gpu{rank}")
    assert {name: node.status for name, node in two.measure().items()} == {"gpu0": "answered", "gpu1": "answered"}


def test_a_node_that_reports_its_end_counts_as_dead_at_once(fleet, tmp_path):
    two = fleet(2)
    two.says(1, end_reason="it was ended by a signal")
    two.node(0, run_file(tmp_path / "good.jsonl.gz"), host="gpu0")
    nodes = two.measure()
    assert (nodes["gpu0"].status, nodes["gpu1"].reason) == (
        "answered",
        "it ended during: started: it was ended by a signal",
    )


@pytest.mark.slow
def test_a_killed_launcher_leaves_a_valid_record(fleet, tmp_path):
    """The record is written at each change: it is read here while the second node still measures."""
    good = run_file(tmp_path / "good.jsonl.gz")
    two = fleet(2)
    two.node(0, good, host="gpu0")
    two.node(1, good, seconds=0.8, host="gpu1")
    seen = []
    watch, two.watch = two.watch, lambda views: seen.append(read_fleet(two.folder).nodes) or watch(views)
    two.measure()
    states = [[node.status for node in nodes] for nodes in seen]
    assert ["answered", "missing"] in states
    assert seen[0][1].reason == "the launcher ended before this node had answered"


def test_nodes_that_share_a_machine_measure_a_gpu_each(fleet):
    gpus = tuple(SeenGpu(f"cuda:{number}", f"GPU-{number}") for number in range(3))
    four = fleet(4)
    for rank in range(3):
        four.says(rank, machine="one", gpus=gpus[:2], is_ready=True)
    four.launch.end_reasons = dict.fromkeys(range(4), "it ended")
    four.says(3, machine="two", gpus=(SeenGpu("cuda:0", "GPU-0"),), is_ready=True)  # the same UUID on another machine
    with four.session() as session:
        nodes = {node.name: node for node in session.measure().nodes}
        orders = [four.launch.board.get(boards.order_key(rank, 0)) for rank in range(4)]
    devices = [boards.decode(NodeOrder, order).devices for order in orders if order]
    assert (devices, orders[2]) == ([("cuda:0",), ("cuda:1",), ("cuda:0",)], None)
    assert nodes["gpu2"].reason == "every GPU that it sees is measured as gpu0, gpu1"
    assert {nodes[f"gpu{rank}"].status for rank in (0, 1, 3)} == {"died"}


def test_a_node_without_a_gpu_or_with_another_version_measures_nothing(fleet):
    three = fleet(3)
    three.says(0, gpus=(SeenGpu("cuda:0", "GPU-0"),), is_ready=True)
    three.says(1, is_ready=True)
    three.says(2, gpus=(SeenGpu("cuda:0", "GPU-2"),), is_ready=True, version="0.0.1")
    three.launch.end_reasons = dict.fromkeys(range(3), "it ended")
    nodes = three.measure()
    assert [nodes[f"gpu{rank}"].status for rank in range(3)] == ["died", "failed", "failed"]
    assert nodes["gpu1"].reason.startswith("it sees no GPU, while other nodes have some")
    assert nodes["gpu2"].reason.startswith("it has gpubench 0.0.1, the launcher")


def test_an_invalid_report_affects_only_its_own_node(fleet):
    reports = (b"[1]", b"{}", b"\x80", b'{"beat": 1, "beat": NaN}', b" " * 2**21)
    five = fleet(5)
    for rank, data in enumerate(reports):
        five.launch.board.put(boards.report_key(rank), data)
    nodes = five.measure()
    assert {node.status for node in nodes.values()} == {"refused"}
    assert all(node.reason.startswith("it sent a report that cannot be read") for node in nodes.values())


def test_a_run_file_over_256_mib_or_a_pipe_in_place_of_a_message_affects_only_its_own_node(fleet, tmp_path):
    four = fleet(4)
    on_board = four.launch.board.folder
    four.node(0, run_file(tmp_path / "good.jsonl.gz"), host="gpu0")
    four.says(1, is_ready=True, ended=MeasurementEnd(0, 0, 1.0, has_file=True))
    with (on_board / "run.1.0").open("wb") as large:
        large.truncate(boards.MOST_BYTES + 1)
    os.mkfifo(on_board / "report.2")
    four.says(3, is_ready=True)
    os.mkfifo(on_board / "order.3.0")
    nodes = four.measure()
    assert nodes["gpu0"].status == "answered"
    refusals = [nodes[name] for name in ("gpu1", "rank-2", "gpu3")]
    assert {node.status for node in refusals} == {"refused"}
    assert [node.reason for node in refusals] == [
        "its run file cannot be read: run.1.0 on the board has 268435457 bytes, more than 256 MiB",
        "it sent a report that cannot be read: report.2 on the board is not a file of this user",
        "it cannot be given an order: order.3.0 on the board is not a file",
    ]
    assert read_run(four.folder / nodes["gpu0"].file).complete


def test_racks_come_from_slurm_or_from_a_map_that_names_a_node(fleet, tmp_path):
    assert launchers.rack_of({"SLURM_TOPOLOGY_ADDR": "spine.leaf2.gpu07"}) == "spine.leaf2"
    (tmp_path / "map").write_text("gpu0 rack9  # of the old room\n\nelsewhere rack1\n")
    two = fleet(2)
    for rank in range(2):
        two.says(rank, rack="spine.leaf2", is_ready=True, end_reason="it ends")
    nodes = two.measure(racks=read_racks(tmp_path / "map"))
    assert [nodes["gpu0"].rack, nodes["gpu1"].rack] == ["rack9", "spine.leaf2"]
    three = ThreadFleet(tmp_path / "other", 1)
    three.says(0, is_ready=True)
    with pytest.raises(UsageError, match=r"the map names none of the nodes; a line for one of them is: gpu0 rack1"):
        three.measure(racks={"nobody": "rack1"})


@pytest.mark.parametrize("text", ["gpu0\n", "gpu0 rack1 rack2\n", "gpu0 rack1\ngpu0 rack2\n", "\xff"])
def test_a_map_of_racks_is_read_strictly(tmp_path, text):
    (tmp_path / "map").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"not a"):
        read_racks(tmp_path / "map")


def test_a_board_takes_keys_and_bytes_and_nothing_else(tmp_path):
    board = boards.new_board(tmp_path)
    board.put("report.7", b"once")
    board.put("report.7", b"twice")
    assert (board.get("report.7"), board.get("report.8")) == (b"twice", None)
    assert (tmp_path / boards.FOLDER).stat().st_mode & 0o777 == board.folder.stat().st_mode & 0o777 == 0o700
    for key in ("", "../x", "a/b", ".hidden", "A", "a" * 100, "run.1.2.3.4"):
        with pytest.raises(ValueError, match="not a key"):
            board.put(key, b"")
    (board.folder / "order.1.0").symlink_to("/etc/hostname")
    with pytest.raises(boards.BadValue):
        board.get("order.1.0")
    os.mkfifo(board.folder / "order.2.0")
    for use in (board.get, lambda key: board.put(key, b"")):
        with pytest.raises(boards.BadValue, match="not a file"):
            use("order.2.0")
    board.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(boards.BoardGone):
        board.put("report.7", b"late")


@pytest.mark.parametrize("kind", ["link", "open to the group", "file"])
def test_a_folder_in_the_way_of_a_board_is_refused(tmp_path, kind):
    place = tmp_path / boards.FOLDER
    if kind == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "target")
    elif kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o770)
    with pytest.raises(FileError, match="belongs to you alone"):
        boards.new_board(tmp_path)


def test_a_run_file_that_the_full_disk_of_the_launcher_cannot_take_is_kept(fleet, tmp_path, monkeypatch):
    def write_unless_full(path, data):
        if ".incoming" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, data)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(session, "write_whole", write_unless_full)
    one = fleet(1)
    one.node(0, run_file(tmp_path / "good.jsonl.gz"))
    with pytest.raises(FileError, match=r"No space left on device; run files are kept, not checked: ") as told:
        one.measure()
    kept = Path(str(told.value).rpartition("checked: ")[2]) / "gpu.jsonl.gz"
    assert kept.read_bytes() == (tmp_path / "good.jsonl.gz").read_bytes()
    one.launch.board.remove()


class BusyRay:
    """Ray's door: the head gives up on the first `failures` servers for a client."""

    def __init__(self, failures):
        self.failures, self.calls = failures, 0

    def init(self, **options):
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("Initialization failure from server: Starting Ray client server failed.")


def test_a_head_of_ray_that_gave_up_once_is_asked_again():
    busy, dead = BusyRay(1), BusyRay(9)
    launchers._connect(busy, "ray://127.0.0.1:10001")
    with pytest.raises(ConnectionError):
        launchers._connect(dead, "ray://127.0.0.1:10001")
    assert (busy.calls, dead.calls) == (2, 2)


@pytest.mark.parametrize("problem", ["", "the board was removed while it measured"])
def test_a_run_file_that_the_board_cannot_take_is_kept_on_its_node(tmp_path, monkeypatch, problem):
    """The disk of the board is full; here its folder is gone."""
    monkeypatch.setattr(launchers.tempfile, "tempdir", str(tmp_path))
    board = boards.new_board(tmp_path)
    board.remove()
    text = f"""import sys, time
with open(next(word for word in sys.argv if word.startswith("--out="))[6:], "wb") as out:
    out.write(b"measured")
print("measured", file=sys.stderr, flush=True)
time.sleep({9 * bool(problem)})"""
    program = (sys.executable, "-c", text)
    heartbeat = launchers.NodeHeartbeat(board, 1, boards.NodeReport(0, "1", 2, "host", "", "", ""))
    monkeypatch.setattr(heartbeat, "send_report", lambda **_: setattr(heartbeat, "problem", problem))
    with pytest.raises(boards.BoardGone, match=r"run file is kept: ") as told:
        launchers._measure(NodeOrder(("latency",)), program, board, heartbeat, 1, 0)
    assert Path(str(told.value).rpartition("kept: ")[2]).read_bytes() == b"measured"


def test_no_text_of_an_order_becomes_an_option():
    order = NodeOrder(("--json", "all"), ("cuda:1",), "smoke", ("--resume",), 2)
    assert order.arguments("out.jsonl.gz") == [
        *("run", "--device=cuda:1", "--filter=--resume", "--tier=smoke", "--replicates=2", "--out=out.jsonl.gz"),
        *("--", "--json", "all"),
    ]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
    ],
)
def test_the_rank_comes_from_torchrun_mpirun_or_srun(variables, place):
    rank = launchers.job_rank(variables)
    assert (rank.rank, rank.world) == place


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "x"}, {"RANK": "0"}]
)
def test_an_environment_without_a_rank_is_refused(variables):
    with pytest.raises(UsageError, match="rank"):
        launchers.job_rank(variables)


def test_an_answer_of_an_earlier_job_in_the_same_folder_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_RENDEZVOUS_S", 0.1)
    monkeypatch.setattr(launchers, "_TICK_S", 0.02)
    earlier = boards.new_board(tmp_path)
    meeting = boards.FolderBoard(boards.private_folder(tmp_path / boards.FOLDER / "meet"))
    meeting.put("ask.1", b"0" * 32)
    meeting.put("answer.1", b"0" * 32 + earlier.folder.name.encode())
    with pytest.raises(UsageError, match="rank 0 has not answered"):
        launchers.find_board(tmp_path, launchers.JobRank(1, 2))


def test_a_process_of_another_job_is_not_shown_the_board_of_a_rank_that_has_reported(tmp_path):
    board = boards.new_board(tmp_path)
    meeting = boards.FolderBoard(boards.private_folder(tmp_path / boards.FOLDER / "meet"))
    launch = launchers.EnvironmentLaunch(board=board, rendezvous=meeting, world=2)
    os.mkfifo(meeting.folder / "ask.0")  # costs this process its answer, and nothing else
    meeting.put("ask.1", b"1" * 32)
    launch.poll()
    assert meeting.get("answer.1") == b"1" * 32 + board.folder.name.encode()
    board.put(boards.report_key(1), b"{}")
    meeting.put("ask.1", b"2" * 32)
    launch.poll()
    assert meeting.get("answer.1") == b"1" * 32 + board.folder.name.encode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one launcher"),
        (("--slurm", "--from-env"), "name one launcher"),
        (("--slurm",), "srun is not installed"),
        (("--slurm", "--", "python"), "is no option of srun"),
        (("--on", "ray:local:0"), "neither ray://HOST:PORT nor ray:local:N"),
        (("--on", "ray:local:2", "--", "--nodes=2"), "only --slurm takes options"),
        (("--from-env",), "finds no rank in the environment"),
        (("nosuchsuite", "--slurm"), "nosuchsuite"),
    ],
)
def test_a_wrong_command_gives_an_error_of_one_line_with_the_remedy(tmp_path, arguments, message):
    done = command.gpubench("fleet", "run", "-o", tmp_path / "new", *arguments, PATH="")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_ray_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = command.gpubench("fleet", "run", "latency", "-o", tmp_path / "new", "--on", "ray:local:2")
    expected = f"gpubench: Ray is not installed; here and on each node: {installation.with_extra('fleet')}\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_second_launcher_in_a_folder_is_told_that_another_fleet_uses_it(tmp_path):
    with new_folder(tmp_path / "fleet") as folder:
        refused = pytest.raises(UsageError, match="another fleet uses this folder now; name a new folder with --out")
        with refused, new_folder(folder):
            pass
    with new_folder(folder):  # the first launcher has ended without a fleet
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "make_it"),
    [("gpu07.jsonl.gz", Path.touch), ("pairs.json", Path.mkdir), ("pairs", Path.mkdir), ("fleet.json", Path.mkdir)],
)
def test_a_folder_with_a_run_file_measured_pairs_or_a_fleet_is_refused(tmp_path, name, make_it):
    make_it(tmp_path / name)
    with pytest.raises(UsageError, match=f"holds another fleet \\({name}\\)"), new_folder(tmp_path):
        pass


def test_the_nodes_are_measured_again_at_the_same_time_with_other_filters(fleet, tmp_path):
    two = fleet(2)
    out = run_file(tmp_path / "run.jsonl.gz")
    two.node(0, out, host="gpu0")
    two.node(1, out, host="gpu1")
    with two.session() as session:
        session.measure()
        run_file(tmp_path / "again.jsonl.gz", filters=("triad",))
        shutil.copy(tmp_path / "again.jsonl.gz", out)
        session.measure_again({"gpu0": "control"}, ["triad"])  # the other node measures nothing in this round
        fleet = session.measure_again({"gpu1": "suspect", "gpu0": "control"}, ["triad"])
    two.launch.board.remove()
    assert {(measurement.node, measurement.role, measurement.status) for measurement in fleet.again} == {
        ("gpu0", "control", "answered"),
        ("gpu1", "suspect", "answered"),
    }
    assert read_run(two.folder / "again" / "gpu1.jsonl.gz").manifest.settings.filters == ("triad",)
    assert read_fleet(two.folder) == fleet


class Launched:
    """`gpubench fleet run` in a process of its own, and the lines that it prints, each with its time."""

    def __init__(self, folder, *arguments, suites=("latency",), **variables):
        """Start `gpubench fleet run` and a thread that reads what it prints."""
        command = [sys.executable, "-P", "-m", "gpubench", "fleet", "run", *suites, "-o", folder, *arguments]
        self.folder = folder
        self.lines = []
        self.process = subprocess.Popen(
            list(map(str, command)),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=os.environ | variables,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        """Note each line of standard error with its time."""
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append((line.strip(), time.monotonic()))

    def told(self, text, seconds=60.0):
        """Wait for a line with these words; return its time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line, at in list(self.lines):
                if text in line:
                    return at
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines}")

    def below(self, *arguments):
        """Return the processes below the launcher whose command has all of these words, in the order of their start."""
        pids = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if set(arguments) <= set(process.cmdline()):
                    pids.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(pids, key=lambda process: process.create_time())

    def wait(self, seconds=90.0):
        """Wait for the end and return the exit status and the nodes by name."""
        status = self.process.wait(seconds)
        self.reader.join()
        return status, {node.name: node for node in read_fleet(self.folder).nodes}


@pytest.fixture
def srun(tmp_path):
    """Return the variables of an environment in which srun starts three processes on this machine."""
    (tmp_path / "bin").mkdir()
    shutil.copy(TESTS / "fake_srun", tmp_path / "bin" / "srun")
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAKE_NODES": "3"}


SMOKE = ("--tier", "smoke", "--replicates", "1")


@pytest.mark.slow
def test_a_killed_node_is_reported_within_five_seconds_and_its_processes_end(tmp_path, srun):
    launched = Launched(tmp_path / "fleet", *SMOKE, "--slurm", "--", "--nodes=3", **srun)
    launched.told("gpu1: measures")
    victim = launched.below("member")[1]
    name = victim.environ()["SLURMD_NODENAME"]
    while not (measuring := [process for process in victim.children(recursive=True) if "run" in process.cmdline()]):
        time.sleep(0.05)
    killed_at = time.monotonic()
    victim.kill()
    told_s = launched.told(f"{name}: died", 10.0) - killed_at
    gone, alive = psutil.wait_procs(measuring, 5)
    assert told_s < 5
    assert (alive, len(gone) > 0) == ([], True)
    status, nodes = launched.wait()
    assert status == 4
    assert sorted(node.status for node in nodes.values()) == ["answered", "answered", "died"]
    assert nodes["gpu0"].rack == "spine.rack0"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_nodes_of_an_ended_launcher_end_and_the_record_is_valid(tmp_path, srun, number):
    launched = Launched(tmp_path / "fleet", "--replicates", "5", "--slurm", **srun)
    launched.told("gpu2: measures")
    processes = psutil.Process(launched.process.pid).children(recursive=True)
    launched.process.send_signal(number)
    assert psutil.wait_procs(processes, 60)[1] == []  # its nodes end some time after the launcher was killed
    status, nodes = launched.wait()
    assert status == (128 + number if number == signal.SIGTERM else -number)
    assert {node.status for node in nodes.values()} == {"missing"}


@pytest.mark.slow
def test_of_four_processes_of_this_host_the_slow_one_is_named(tmp_path, srun):
    slow = {"FAKE_NODES": "4", "FAKE_SLOW": "2", "FAKE_CACHE": str(tmp_path / "cache")}
    one_case = (*SMOKE, "--filter", "working_set", "--slurm", "--", "--nodes=4")
    assert Launched(tmp_path / "fleet", *one_case, suites=["bandwidth"], **srun | slow).wait(240)[0] == 0
    judged = command.gpubench("fleet", "judge", tmp_path / "fleet")
    assert judged.returncode == 4  # four are too few for a verdict
    assert re.search(r"the largest difference: gpu2 has [\d.]+ % of the rate of gpu[013] in", judged.stdout)


@pytest.mark.slow
def test_processes_of_a_job_find_each_other_despite_files_of_an_earlier_job(tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    boards.FolderBoard(boards.private_folder(boards.new_board(folder).folder.parent / "meet")).put("ask.1", b"1" * 32)
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in (1, 0)]
    second, first = (Launched(folder, *SMOKE, "--from-env", **rank) for rank in ranks)
    status, nodes = first.wait()
    assert (status, second.wait()[0]) == (0, 0)
    assert [node.status for node in nodes.values()] == ["answered", "answered"]


@pytest.mark.slow
def test_a_ray_cluster_measures_and_a_killed_node_affects_only_itself(tmp_path):
    pytest.importorskip("ray")
    launched = Launched(tmp_path / "fleet", "--replicates", "2", *SMOKE[:2], "--on", "ray:local:4")
    launched.told("measures")
    raylets = [
        process
        for process in psutil.Process(launched.process.pid).children(recursive=True)
        if process.name() == "raylet"
    ]
    victim = max(raylets, key=psutil.Process.create_time)  # the first is the head node
    killed_at = time.monotonic()
    victim.kill()
    told_s = launched.told(": died after") - killed_at
    status, nodes = launched.wait(120)
    assert told_s < 5
    assert status == 4
    assert sorted(node.status for node in nodes.values()) == ["answered"] * 3 + ["died"]


def is_open(port):
    """Return whether something on this machine listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_a_ray_cluster_without_a_token_is_refused(tmp_path, mode):
    pytest.importorskip("ray")
    ray = Path(sys.executable).parent / "ray"
    variables = os.environ | {
        "RAY_AUTH_MODE": mode,
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    start = [ray, "start", "--head", "--block", "--port=6399", "--include-dashboard=false", "--num-cpus=1"]
    head = subprocess.Popen(
        [*start, f"--temp-dir=/tmp/ray-{os.getpid()}"],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not is_open(10001):
            assert head.poll() is None
            time.sleep(0.2)
        for _ in range(3):  # on a loaded machine Ray's client server may give up before the cluster has started
            launched = Launched(tmp_path / "fleet", *SMOKE, "--on", "ray://127.0.0.1:10001", **variables)
            status = launched.process.wait(90)
            launched.reader.join()
            if not any("Starting Ray client server failed" in line for line, _ in launched.lines):
                break
    finally:
        processes = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        head.wait(30)
        for process in psutil.wait_procs(processes, 10)[1]:
            process.kill()
        shutil.rmtree(f"/tmp/ray-{os.getpid()}", ignore_errors=True)
    expected = [line for line, _ in launched.lines]
    if mode == "token":
        assert status == 0, expected
    else:
        assert (status, "requires no token" in expected[-1]) == (2, True), expected


@pytest.mark.gpu
def test_two_processes_of_a_job_measure_a_gpu_each_at_the_same_time(tmp_path):
    """This is `mpirun -n 2 gpubench fleet run headline --from-env` on a machine with two GPUs."""
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    if len(listed.splitlines()) != 2:
        pytest.skip("needs exactly two GPUs")
    folder = tmp_path / "fleet"
    ranks = [{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"} for rank in (1, 0)]
    folder.mkdir()
    second, first = (Launched(folder, *SMOKE, "--from-env", suites=("headline",), **rank) for rank in ranks)
    status, nodes = first.wait(300)
    assert (status, second.wait()[0]) == (0, 0)
    measured = []
    for node in nodes.values():
        run = read_run(folder / node.file)
        (device,) = run.manifest.settings.devices
        measured.append(run.manifest.facts.device(device).uuid)
    assert len(set(measured)) == 2
    assert all(uuid in listed for uuid in measured)
    assert read_fleet(folder).at_once == 2
