"""The picture of `monitor`: bars, a minute of history and processes, in every terminal, and a quiet end."""

import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import _fake_nvml as fake
import _make as make
import pytest
from rich.cells import cell_len
from rich.console import Console

from gpubench.cli import _monitor
from gpubench.model import Samples
from gpubench.tools.monitor import gauges, live
from gpubench.tools.monitor.processes import ProcessList, RunningProcess

GPUBENCH = Path(sys.executable).parent / "gpubench"
GIB = 2**30
H200 = make.device(
    memory_bytes=140 * GIB, details=(("power.limit_w", "700.0"), ("clock.sm_most_hz", "1980000000")), uuid="GPU-0"
)
HOST = make.device("host", "EPYC", memory_bytes=64 * GIB, units=16)
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


def latest(*gpus):
    """Return the newest values of these GPUs and of the host, all GPUs alike."""
    declared = [make.counter(name, unit, kind) for name, (unit, kind, _) in {**COUNTERS, **HOST_COUNTERS}.items()]
    newest = live.Latest(declared)
    for device in gpus:
        columns = tuple((name, (value,)) for name, (_, _, value) in COUNTERS.items())
        newest.add([Samples("nvml", device.id, (0.0,), columns)])
    columns = tuple((name, values) for name, (_, _, values) in HOST_COUNTERS.items())
    newest.add([Samples("host", "host", (0.0, 1.0), columns)])
    return newest


def drawn(width, height=40, devices=(H200, HOST), processes=(), file=None):
    """Return the lines of the picture in a terminal of this size."""
    gpus = [device for device in devices if device.backend != "host"]
    console = Console(file=file or io.StringIO(), width=width, height=height, force_terminal=False, emoji=False)
    console.print(_monitor.Picture(devices).render(latest(*gpus), processes, console, 100.0))
    console.file.seek(0)
    return [line.rstrip() for line in console.file.read().splitlines()]


def process(pid=4242, **fields):
    return replace(RunningProcess("cuda:0", pid, 3.0 * GIB, "ada", "python train.py --epochs 3"), **fields)


def test_a_gpu_shows_utilisation_memory_power_temperature_and_clock_relative_to_their_limits():
    by_label = {gauge.label: (gauge.text, gauge.fraction) for gauge in gauges.gauges(latest(H200), H200)}
    assert by_label == {
        "busy": ("98 %", 0.98),
        "memory": ("45.0 / 140 GiB", pytest.approx(45 / 140)),
        "power": ("651 / 700 W", pytest.approx(0.93)),
        "temp": ("71 °C", 0.71),
        "clock": ("1.70 / 1.98 GHz", pytest.approx(1.695 / 1.98)),
    }


def test_the_host_has_its_cores_memory_and_load():
    by_label = {gauge.label: (gauge.text, gauge.fraction) for gauge in gauges.gauges(latest(), HOST)}
    assert by_label == {
        "cores": ("3.5 / 16", pytest.approx(3.5 / 16)),
        "memory": ("16.0 / 64.0 GiB", 0.25),
        "load": ("3.2 / 16", pytest.approx(3.25 / 16)),
    }


def test_a_value_whose_limit_is_unknown_has_no_fraction():
    by_label = {gauge.label: gauge for gauge in gauges.gauges(latest(H200), replace(H200, memory_bytes=0, details=()))}
    assert [(by_label[name].text, by_label[name].fraction) for name in ("memory", "power", "clock")] == [
        ("45.00 GiB", None),
        ("651 W", None),
        ("1.70 GHz", None),
    ]


def gauge(value, limit=100.0):
    return gauges.Gauge("busy", "", value, value / limit if limit else None)


def test_the_history_holds_a_minute_in_equal_parts():
    recent = gauges.Recent()
    for at in range(130):
        recent.add(float(at), "cuda:0", [gauge(float(at % 10))])
    assert recent.fractions(129.0, "cuda:0", "busy", 6) == pytest.approx([0.045] * 6, abs=0.006)
    assert recent.fractions(129.0, "cuda:1", "busy", 3) == [None] * 3


def test_a_part_of_the_minute_without_an_update_repeats_the_last_value():
    recent = gauges.Recent()
    recent.add(70.0, "cuda:0", [gauge(20.0)])
    recent.add(100.0, "cuda:0", [gauge(80.0)])
    assert recent.fractions(100.0, "cuda:0", "busy", 6) == [None, None, None, 0.2, 0.2, 0.8]


def test_the_history_of_a_value_without_a_limit_is_relative_to_its_maximum():
    recent = gauges.Recent()
    for at, value in ((50.0, 200.0), (100.0, 400.0)):
        recent.add(at, "cuda:0", [gauge(value, 0.0)])
    assert recent.fractions(100.0, "cuda:0", "busy", 2)[-1] == 1.0


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_every_device_has_its_bars_and_values_in_a_terminal_of_any_size(width):
    lines = drawn(width, processes=[process(), process(7, memory_bytes=None, user="", command="")])
    text = "\n".join(lines)
    assert max(map(cell_len, lines)) <= width
    for value in ("98 %", "45.0 / 140 GiB", "651 / 700 W", "71 °C", "1.70 / 1.98 GHz", "3.5 / 16", "power cap"):
        assert value in text
    busy = next(line for line in lines if line.startswith("busy"))
    assert re.search(r"█.* 98 % +█$", busy), "a bar, the value, and the newest of the history"
    assert re.search(r"4242 +cuda:0 +3\.000 GiB", text)
    assert re.search(r" 7 +cuda:0 +unknown", text)
    assert ("python train.py" in text) == (width >= 60)


@pytest.mark.parametrize("name", ["x" * 200, "训练" * 60, "שלום " * 30, "a\x1b[31mred\nnew"], ids=range(4))
def test_a_long_or_hostile_name_breaks_no_line(name):
    lines = drawn(80, devices=(replace(H200, name=name), HOST), processes=[process(command=name, user=name)])
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) == len(drawn(80, processes=[process()]))
    assert "\x1b" not in "".join(lines)


def test_a_long_command_leaves_the_numbers_beside_it_whole():
    long = process(pid=4194304, memory_bytes=139.5 * GIB, command="python " * 30, user="a-long-user-name")
    assert re.search(r"4194304 +cuda:0 +139\.5 GiB +a-long-user… +python", "\n".join(drawn(80, processes=[long])))


def test_in_a_low_terminal_each_device_is_a_line():
    gpus = tuple(replace(H200, id=f"cuda:{number}") for number in range(8))
    lines = drawn(80, height=20, devices=(*gpus, HOST), processes=[process(pid) for pid in range(30)])
    assert len(lines) <= 20
    assert [line.split()[0] for line in lines[1:9]] == [f"cuda:{number}" for number in range(8)]
    assert any(re.fullmatch(r"and \d+ more processes", line) for line in lines)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (10, 3), (20, 8), (400, 100)])
def test_no_terminal_is_too_small_or_too_large(width, height):
    lines = drawn(width, height, processes=[process(pid) for pid in range(30)])
    assert max(map(cell_len, lines)) <= width


def test_a_terminal_without_block_characters_gets_ascii():
    lines = drawn(80, devices=(replace(HOST, name="EPYC"),), file=io.TextIOWrapper(io.BytesIO(), "ascii", newline="\n"))
    assert "".join(lines).isascii()
    assert any("###" in line for line in lines)


def screen(width, height, key, until, environment):
    """What `monitor` writes on a terminal, its exit status, and whether the terminal is as before.

    The key is sent as soon as the text `until` was written.
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
            os.write(controller, key)
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
@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_q_and_ctrl_c_end_the_monitor_quietly_and_restore_the_terminal(key):
    written, status, restored = screen(80, 24, key, "load", terminal())
    assert (status, restored) == (0, True)
    assert written.endswith("\x1b[?25h\x1b[?1049l"), "the cursor is shown and the screen before is back"
    assert "Traceback" not in written


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_a_dumb_terminal_gets_lines_and_one_without_colour_gets_none(variables):
    written, status, _ = screen(80, 24, b"\x03", "load", terminal(**variables))
    assert status == 0
    if variables.get("TERM") == "dumb":
        assert "\x1b" not in written
        assert re.search(r"^\d\d:\d\d:\d\d host cores ", written, re.MULTILINE)
    else:
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", written)
        assert "█" in written


@pytest.mark.slow
def test_a_gpu_of_a_driver_is_drawn_with_its_processes(tmp_path):
    counters_of_process = {"process_first": os.getpid(), "process_memory": 3 * 2**28, "processes": 1}
    answers = {"busy": 98, "memory": 805306368, "field_186": 651000, "temperature": 71, "reasons": 4}
    state = fake.write(tmp_path / "state", **answers, **counters_of_process)
    variables = fake.environment(fake.build(tmp_path), state)
    written, status, _ = screen(100, 30, b"q", "768.0 MiB", terminal(**variables))
    assert status == 0
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.rpartition("\x1b[H")[2])
    for value in (
        "NVIDIA pretended",
        "98 %",
        "0.750 / 1.00 GiB",
        "651 / 700 W",
        "71 °C",
        "1.98 / 1.98 GHz",
        "power cap",
    ):
        assert value in last
    assert re.search(rf"{os.getpid()} +card:0 +768\.0 MiB +\w+ +\S*python", last)


@pytest.mark.slow
def test_a_driver_that_crashes_while_it_lists_processes_leaves_the_list_empty(tmp_path, monkeypatch):
    card = make.device("card:0", "NVIDIA pretended", uuid="GPU-0")
    state = fake.write(tmp_path / "state", processes=1, process_first=os.getpid(), process_memory=2**20)
    for name, value in fake.environment(fake.build(tmp_path), state).items():
        monkeypatch.setenv(name, value)
    listed = ProcessList([card])
    assert update_until(lambda: listed.newest, listed)
    (process,) = listed.newest
    assert (process.device, process.pid, process.memory_bytes) == ("card:0", os.getpid(), 2.0**20)
    assert "python" in process.command
    fake.write(state, processes="crash")
    assert update_until(lambda: not listed.newest, listed)
    listed.close()


def update_until(is_so, listed):
    """Update the listing until a condition holds, for at most 30 s; return whether it holds."""
    deadline = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
        listed.update()
    return is_so()


def test_a_machine_without_a_gpu_starts_no_process_to_list_any():
    listed = ProcessList([HOST])
    listed.update()
    assert (listed.newest, listed._child) == ((), None)


def example():
    """Return the picture of docs/monitoring.md: a program that began to compute half a minute ago."""
    console = Console(file=io.StringIO(), width=78, height=40, force_terminal=False, emoji=False)
    picture = _monitor.Picture((H200, HOST))
    for second in range(0, 61, 2):
        load = min(1.0, max(0.0, (second - 24) / 12))  # share of the range by which the values rise
        values = {
            "nvml.utilization.gpu": 98.0 * (load > 0),
            "nvml.memory.used": 45.0 * GIB * (second >= 20),
            "nvml.power": 120.0 + 531.0 * load,
            "nvml.temperature": 38.0 + 33.0 * load,
            "nvml.clock.sm": 1.98e9 - 0.285e9 * load,
            "nvml.event_reasons": 4.0 * (load == 1.0),
        }
        newest = latest()
        newest.add([Samples("nvml", H200.id, (0.0,), tuple((name, (value,)) for name, value in values.items()))])
        drawing = picture.render(newest, (process(),), console, 100.0 + second)
    console.print(drawing)
    console.file.seek(0)
    return "".join(f"    {line}".rstrip() + "\n" for line in console.file.read().splitlines())


def test_the_page_shows_the_picture_and_the_lines_of_the_monitor():
    page = (Path(__file__).parents[1] / "docs/monitoring.md").read_text()
    assert example() in page, "\n" + example()
    for line in live.lines(latest(H200), ["cuda:0", "host"]):
        assert f"    12:31:07 {line}\n" in page
