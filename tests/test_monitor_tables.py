"""The tables of `monitor`: devices and processes, in every terminal, and a quiet end."""

import itertools
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path

import _fake_nvml as fake
import _make as make
import pytest
from _command import terminal_lines
from rich.cells import cell_len

from gpubench.cli import monitor
from gpubench.model import Samples
from gpubench.tools.monitor import collectives, live, processes

GPUBENCH = Path(sys.executable).parent / "gpubench"
GIB = 2**30
H200 = make.device()
HOST = make.device("host", "EPYC")
COUNTERS = {
    "nvml.utilization.gpu": ("%", "window", 98.0),
    "nvml.memory.used": ("B", "gauge", 45.0 * GIB),
    "nvml.power": ("W", "gauge", 651.0),
    "nvml.temperature": ("°C", "gauge", 71.0),
    "nvml.clock.sm": ("Hz", "gauge", 1.695e9),
    "nvml.event_reasons": ("bit mask", "event", 4.0),
}
HOST_COUNTERS = {
    "host.cpu.busy": ("core·s", "cumulative", (10.0, 13.5)),
    "host.memory.available": ("B", "gauge", (48.0 * GIB,) * 2),
    "host.load": ("processes", "gauge", (3.25,) * 2),
}


def latest(*devices):
    declared = [make.counter(name, unit, kind) for name, (unit, kind, _) in {**COUNTERS, **HOST_COUNTERS}.items()]
    newest = live.Latest(declared, devices)
    for device in devices:
        if device == HOST:
            columns = tuple((name, values) for name, (_, _, values) in HOST_COUNTERS.items())
            newest.add([Samples("host", "host", (0.0, 1.0), columns)])
        else:
            columns = tuple((name, (value,)) for name, (_, _, value) in COUNTERS.items())
            newest.add([Samples("nvml", device.id, (0.0,), columns)])
    return newest


def process(pid=4242, memory="3.000 GiB", user="ada", command="python train.py --epochs 3"):
    return {"process": str(pid), "device": "cuda:0", "memory": memory, "user": user, "command": command}


def drawn(width, height=40, devices=(H200, HOST), processes=()):
    """Return the lines of the tables in a terminal of this size."""
    values = latest(*devices)
    rows = [live.row(values, device.id) for device in devices]
    return terminal_lines(monitor.tables(rows, list(processes), width, height), width)


@pytest.mark.parametrize(("width", "missing"), [(140, set()), (80, set()), (60, {"temp"}), (40, {"memory", "temp"})])
def test_a_narrow_terminal_lacks_columns_but_never_the_throttle_reasons(width, missing):
    lines = drawn(width)
    assert max(map(cell_len, lines)) <= width
    row = dict(zip(re.split(r" {2,}", lines[0]), re.split(r" {2,}", lines[1]), strict=True))
    values = {"device": "cuda:0", "busy": "98 %", "power": "651.0 W", "memory": "45.00 GiB", "temp": "71 °C"}
    assert {name: row.get(name) for name in values} == {**values, **dict.fromkeys(missing)}
    assert next(reversed(row.items())) in (("throttle reasons", "power cap"), ("throttle reaso…", "power cap"))
    assert re.split(r" {2,}", lines[3]) == ["host", "cores", "memory free", "load"]
    assert re.split(r" {2,}", lines[4]) == ["host", "3.5", "48.00 GiB", "3.2"]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_processes_have_their_numbers_whole_and_as_much_of_the_command_as_there_is_room_for(width):
    long = process(4194304, "139.5 GiB", "a-long-user-name", "python " * 30)
    lines = drawn(width, processes=[process(), long])
    assert max(map(cell_len, lines)) <= width
    user = " +ada" if width >= 60 else ""
    assert re.fullmatch(rf"4242 +cuda:0 +3\.000 GiB{user} +python.*", lines[-2])
    assert re.match(r"4194304 +cuda:0 +139\.5 GiB", lines[-1])
    assert lines[-1].endswith("…") or width == 140


@pytest.mark.parametrize("name", ["x" * 200, "训练" * 60, "שלום " * 30, "a\x1b[31mred\nnew"], ids=range(4))
def test_a_long_or_hostile_command_breaks_no_line(name):
    lines = drawn(80, processes=[process(command=name)])
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) == len(drawn(80, processes=[process()]))
    assert "\x1b" not in "".join(lines)


def test_in_a_low_terminal_the_processes_fill_the_lines_that_the_devices_leave():
    gpus = tuple(make.device(f"cuda:{number}") for number in range(8))
    lines = drawn(80, height=20, devices=(*gpus, HOST), processes=[process(pid) for pid in range(30)])
    assert len(lines) == 20
    assert [line.split()[0] for line in lines[1:9]] == [f"cuda:{number}" for number in range(8)]
    assert lines[-1] == "and 25 more processes"
    for width, height in ((1, 1), (10, 3), (20, 8), (400, 100)):
        assert max(map(cell_len, drawn(width, height, processes=[process(pid) for pid in range(30)]))) <= width


def screen(width, height, until, environment):
    """What `monitor` writes on a terminal, its exit status, and whether the terminal is as before.

    Ctrl-C is sent as soon as the text `until` was written.
    """
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    before = termios.tcgetattr(terminal)
    running = subprocess.Popen(
        [GPUBENCH, "monitor", "--interval", "0.3"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )
    written, deadline, is_sent = b"", time.monotonic() + 30.0, False
    while time.monotonic() < deadline and running.poll() is None:
        if select.select([controller], [], [], 0.1)[0]:
            written += os.read(controller, 65536)
        if not is_sent and until.encode() in written:
            os.write(controller, b"\x03")
            is_sent = True
    status = running.wait(20)
    while select.select([controller], [], [], 0)[0]:
        written += os.read(controller, 65536)
    restored = termios.tcgetattr(terminal) == before
    os.close(controller)
    os.close(terminal)
    return written.decode(), status, restored


def terminal(**variables):
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**inherited, "TERM": "xterm-256color", **variables}


@pytest.mark.slow
def test_ctrl_c_ends_the_monitor_quietly_and_restores_the_terminal():
    written, status, restored = screen(80, 24, "load", terminal())
    assert (status, restored) == (130, True)
    assert written.endswith("\x1b[?25h\x1b[?1049l"), "the cursor is shown and the screen before is back"
    assert "Traceback" not in written


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_a_dumb_terminal_gets_lines_and_one_without_colour_gets_none(variables):
    written, status, _ = screen(80, 24, "load", terminal(**variables))
    assert status == 130
    if variables.get("TERM") == "dumb":
        assert "\x1b" not in written
        assert re.search(r"^\d\d:\d\d:\d\d host cores ", written, re.MULTILINE)
    else:
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", written)
        assert "memory free" in written


@pytest.mark.slow
def test_a_gpu_of_a_driver_is_shown_with_its_processes(tmp_path):
    counters_of_process = {"process_first": os.getpid(), "process_memory": 3 * 2**28, "processes": 1}
    answers = {"busy": 98, "memory": 805306368, "field_186": 651000, "temperature": 71, "reasons": 4}
    state = fake.write(tmp_path / "state", **answers, **counters_of_process)
    variables = fake.environment(fake.build(tmp_path), state)
    written, status, _ = screen(120, 30, "python", terminal(**variables))
    assert status == 130
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.rpartition("\x1b[H")[2])
    assert re.search(r"card:0 +98 % +651.0 W +768.0 MiB +.*1.980 GHz +71 °C +power cap", last)
    assert re.search(rf"{os.getpid()} +card:0 +768\.0 MiB +\w+ +\S*python", last)


@pytest.mark.slow
def test_a_driver_that_crashes_while_it_lists_processes_leaves_the_list_empty(tmp_path, monkeypatch):
    card = make.device("card:0", "NVIDIA pretended", uuid="GPU-0")
    state = fake.write(tmp_path / "state", processes=1, process_first=os.getpid(), process_memory=2**20)
    for name, value in fake.environment(fake.build(tmp_path), state).items():
        monkeypatch.setenv(name, value)
    newest = processes.listed([card])
    (row,) = next_rows(newest, 1)
    assert (row["device"], row["process"], row["memory"]) == ("card:0", str(os.getpid()), "1.000 MiB")
    assert "python" in row["command"]
    fake.write(state, processes="crash")
    assert next_rows(newest, 0) == []
    newest.close()


def next_rows(newest, count):
    """Return the newest rows as soon as there are this many, within 30 s."""
    deadline = time.monotonic() + 30
    while len(rows := next(newest)) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return rows


def test_the_page_shows_the_tables_and_the_lines_of_the_monitor_and_no_gpu_starts_no_process(monkeypatch):
    monkeypatch.setattr(processes, "Child", None)
    assert [*itertools.islice(processes.listed([HOST]), 2)] == [[], []]
    page = (Path(__file__).parents[1] / "docs/monitoring.md").read_text()
    example = "".join(f"    {line}".rstrip() + "\n" for line in drawn(78, processes=[process()]))
    assert example in page, "\n" + example
    for line in live.lines(latest(H200, HOST)):
        assert f"    12:31:07 {line}\n" in page


def test_the_rates_of_links_stand_in_both_directions_and_only_where_both_have_values():
    link, bus = ("nvml.nvlink.tx", "nvml.nvlink.rx"), ("nvml.pcie.tx", "nvml.pcie.rx")
    declared = [make.counter(name, "B", "cumulative") for name in link] + [
        make.counter(name, "B/s", "window") for name in bus
    ]
    newest = live.Latest(declared, [H200])
    sent, received = ((name, (0.0, rate)) for name, rate in zip(link, (4e11, 2e11), strict=True))
    newest.add(
        [Samples("nvml", H200.id, (0.0, 2.0), (sent, received)), Samples("nvml", H200.id, (2.0,), ((bus[0], (5e9,)),))]
    )
    row = live.row(newest, H200.id)
    assert row["NVLink out, in"] == "200.0 GB/s, 100.0 GB/s"
    assert row["PCIe out, in"] == ""
    newest.add([Samples("nvml", H200.id, (2.0,), ((bus[1], (1e9,)),))])
    assert live.row(newest, H200.id)["PCIe out, in"] == "5.000 GB/s, 1.000 GB/s"


def answering(answer, monkeypatch):
    """Start a service that speaks as NCCL's RAS does, for one client."""
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{listener.getsockname()[1]}")

    def serve():
        with listener, listener.accept()[0] as client:
            assert client.recv(2**10) == b"TIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def communicator(*begun, size=None):
    ranks = [
        {"rank": rank, "collective_counts": {"AllReduce": count, "Broadcast": 1}} for rank, count in enumerate(begun)
    ]
    return {"hash": "0x514e98cf4e44862b", "size": size or len(begun), "ranks": ranks}


def test_collectives_that_some_ranks_have_not_begun_are_in_flight(monkeypatch):
    status = json.dumps({"nccl_version": "2.28.9", "communicators": [communicator(9, 8, 9), communicator(2, size=2)]})
    thread = answering(b"OK\nOK\n" + status.encode(), monkeypatch)
    first, second = collectives.rows()
    thread.join()
    assert list(first.values()) == ["0x514e98cf4e44862b", "3 of 3", "10", "1", "1"]
    assert list(second.values()) == ["0x514e98cf4e44862b", "1 of 2", "3", "0", ""]
    (line,) = live.texts([second])
    assert line == "0x514e98cf4e44862b ranks 1 of 2, collectives begun 3, in flight 0"
    shown = terminal_lines(monitor.tables([live.row(latest(H200), H200.id), first], [], 120, 40), 120)
    assert "ranks behind" in "\n".join(shown)


@pytest.mark.parametrize(
    "answer", [b"", b"OK\nERROR unknown format\n", b'{"communicators": [{"ranks": 1}]}', b'{"a" 1}', b"{}"]
)
def test_a_service_that_answers_something_else_shows_no_communicators(answer, monkeypatch):
    thread = answering(answer, monkeypatch)
    assert collectives.rows() == []
    thread.join()
    assert collectives.rows() == []  # nobody listens any more
