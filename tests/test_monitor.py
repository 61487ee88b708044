"""Live monitoring: the newest values on a line and in the form of Prometheus."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import _make as make
import pytest
from _command import gpubench

from gpubench import plugins
from gpubench.model import Measure, Samples
from gpubench.tools.monitor import live

GPUBENCH = Path(sys.executable).parent / "gpubench"
EVENTS = make.counter("nvml.event_reasons", "bit mask", "event", 0.1, "nvidia-smi")
GPU = make.device(name='odd "name"\\')
BUSY = make.counter("nvml.utilization.gpu", "%", "window", 0.1, 'a "quoted" command')


def latest(*chunks):
    """Return the newest values after these chunks of samples."""
    values = live.Latest((make.POWER, make.ENERGY, EVENTS, BUSY), [GPU])
    values.add(chunks)
    return values


def test_the_newest_value_is_shown_and_of_a_cumulative_counter_its_rate():
    values = latest(
        make.samples((0.0, 1.0), power=(100.0, 200.0), energy=(5.0, 50.0)),
        make.samples((3.0,), power=(300.0,), energy=(350.0,)),
    )
    assert values.window("cuda:0").mean(Measure.BOARD_POWER).value == 300.0
    assert values.window("cuda:0").rate(Measure.ENERGY).value == 150.0
    assert values.window("cuda:1").mean(Measure.BOARD_POWER) is None


FLOPS = {"work": make.Work(flops=1e12), "quantity": "flops"}
DRAM = make.counter("gpm.dram", "%", "window")


@pytest.mark.parametrize(
    ("busy", "watts", "dram", "limit", "is_hung"),
    [
        (100.0, 118.0, 0.1, "700.0", True),
        (100.0, 118.0, None, "700.0", True),  # a GPU without this counter is judged by the others
        (100.0, 118.0, 12.0, "700.0", False),  # a small kernel that reads memory
        (100.0, 450.0, 0.1, "700.0", False),
        (70.0, 118.0, 0.1, "700.0", False),
        (100.0, 118.0, 0.1, "0", False),  # without a power limit nothing is known
    ],
)
def test_a_busy_gpu_near_idle_power_without_memory_traffic_looks_hung_after_30_seconds(
    busy, watts, dram, limit, is_hung
):
    gpu = make.device(details=(("power.limit_w", limit),))
    values = live.Latest((make.POWER, BUSY, DRAM), [gpu])
    values.add([make.samples((0.0,), power=(watts,), **{"utilization.gpu": (busy,)})])
    values.add([Samples("gpm", "cuda:0", (0.0,), (("gpm.dram", (dram,)),))])
    watch = live.StuckWatch(values)
    assert watch.look(1000.0) == watch.look(1029.0) == []
    lines = watch.look(1030.0)
    traffic = "unknown" if dram is None else "0.1 %"
    named = [f"cuda:0 looks hung for 30 s: busy 100 %, 118 W of 700 W, memory traffic {traffic}"]
    assert lines == (named if is_hung else [])
    values.add([make.samples((1.0,), power=(300.0,))])
    assert watch.look(1031.0) == []
    values.add([make.samples((2.0,), power=(watts,))])
    assert watch.look(1032.0) == [], "the time begins again"


def test_a_missing_value_is_not_replaced_by_an_earlier_one():
    values = latest(make.samples((0.0,), power=(100.0,)), make.samples((1.0,), power=(None,)))
    assert values.window("cuda:0").mean(Measure.BOARD_POWER) is None
    assert set(live.row(values, "cuda:0").values()) == {"cuda:0", ""}


def test_the_log_has_one_line_per_device_also_of_a_gpu_without_activity():
    values = latest(
        make.samples((0.0,), power=(651.2,), event_reasons=(4.0,)), make.samples((0.0,), **{"utilization.gpu": (98.0,)})
    )
    assert [*live.lines(values)] == ["cuda:0 busy 98 %, power 651.2 W, throttle reasons power cap"]
    values = live.Latest((make.counter("nvml.clock.sm", "Hz", "gauge"),), [GPU])
    values.add([make.samples((0.0,), **{"clock.sm": (1.98e9,)})])
    assert [*live.lines(values)] == ["cuda:0 clock 1.980 GHz"]


def test_an_amd_gpu_has_its_busy_time_clock_temperature_and_reasons():
    counters = tuple(plugins.load("collectors", "amd").counters)
    values = {"amd.power": 750.0, "amd.clock.gfx": 2.1e9, "amd.temperature.hotspot": 71.0, "amd.utilization.gfx": 97.0}
    columns = tuple((name, (value,)) for name, value in {**values, "amd.throttle": float(1 | 1 << 36)}.items())
    newest = live.Latest(counters, [make.device("rocm:0"), make.device("host")])
    newest.add([Samples("amd", "rocm:0", (0.0,), columns)])
    reasons = "throttle reasons power cap (PPT0), thermal (hotspot)"
    assert [*live.lines(newest)] == [
        f"rocm:0 busy 97 %, power 750.0 W, clock 2.100 GHz, temp 71 °C, {reasons}",
        "host no values",
    ]


def test_seconds_of_a_power_violation_are_not_shown_as_watts():
    values = live.Latest((make.counter("nvml.violation.power", "s", "cumulative"), make.POWER))
    values.add([make.samples((0.0, 1.0), **{"violation.power": (7.0, 8.0)}, power=(100.0, 200.0))])
    assert live.row(values, "cuda:0")["power"] == "200.0 W"


def test_clocks_set_by_the_user_are_no_throttle_reason_but_an_unknown_bit_is_one():
    values = latest(make.samples((0.0,), event_reasons=(float(0x1 | 0x2 | 0x10 | 0x100 | 0x400),)))
    assert live.row(values, "cuda:0")["throttle reasons"] == "bit 10"


def test_prometheus_gets_base_units_labels_and_events():
    values = latest(
        make.samples((0.0,), power=(651.5,), energy=(1e6,), event_reasons=(5.0,)),
        make.samples((0.0,), **{"utilization.gpu": (98.0,)}),
    )
    text = live.prometheus(values)
    model = 'device="cuda:0",model="odd \\"name\\"\\\\"'
    assert f"gpubench_nvml_power_watts{{{model}}} 651.5\n" in text
    assert f"gpubench_nvml_energy_joules_total{{{model}}} 1000000.0\n" in text
    assert "# TYPE gpubench_nvml_energy_joules_total counter\n" in text
    assert f"gpubench_nvml_utilization_gpu_ratio{{{model}}} 0.98\n" in text
    assert f'gpubench_nvml_event_reasons{{{model},event="power cap"}} 1\n' in text
    assert_is_exposition(text)


def test_openmetrics_names_the_family_of_a_counter_without_total_and_has_an_end():
    text = live.prometheus(latest(make.samples((0.0,), energy=(1e6,))), openmetrics=True)
    assert "# TYPE gpubench_nvml_energy_joules counter\n" in text
    assert 'gpubench_nvml_energy_joules_total{device="cuda:0"' in text
    assert text.endswith("\n# EOF\n")
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    (family,) = parser.text_string_to_metric_families(text)
    assert [sample.value for sample in family.samples] == [1e6]


def test_the_dashboard_shows_metrics_that_the_monitor_and_the_report_have():
    collectors = [plugins.load("collectors", name) for name in plugins.names("collectors")]
    known = {live.metric_name(counter) for collector in collectors for counter in collector.counters}
    runs = [make.run(make.result(make.timing(1.0, moved=1.0))), make.run(make.result(make.timing(1.0, **FLOPS)))]
    reported = "".join(plugins.load("reports", "prom").render(run) for run in runs)
    known |= set(re.findall(r"^# TYPE (\S+)", reported, re.MULTILINE)) | {"gpubench_operations_per_second_median"}
    dashboard = (Path(__file__).parents[1] / "ci/grafana.json").read_text()
    panels = json.loads(dashboard)["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"gpubench_\w+", text)}
    assert (len(panels), sorted(used - known)) == (18, [])
    assert {variable for text in expressions for variable in re.findall(r"\$(\w+)", text)} == {
        *("device", "case", "__rate_interval")
    }
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "no panel lies on another"


def assert_is_exposition(text):
    sample = r'[a-z_][a-z0-9_]*\{[a-z]+="([^"\\]|\\.)*"(,[a-z]+="([^"\\]|\\.)*")*\} [-+0-9.e]+'
    wrong = [line for line in text.splitlines() if not re.fullmatch(rf"# (HELP|TYPE) \S+ .*|{sample}", line)]
    assert wrong == []


def monitor(*arguments):
    return gpubench("monitor", *arguments)


@pytest.mark.slow
def test_without_a_terminal_each_device_has_a_line_per_interval():
    done = monitor("--count", "2", "--interval", "0.2", "--device", "host")
    assert done.returncode == 0
    first, _ = done.stdout.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d host cores .*memory free [\d.]+ GiB, load ", first)
    assert "\x1b" not in done.stdout


def test_prometheus_is_printed_once():
    done = monitor("--prometheus")
    assert done.returncode == 0
    assert 'gpubench_host_memory_available_bytes{device="host"' in done.stdout
    assert_is_exposition(done.stdout)


@pytest.mark.parametrize("wrong", ["nine", "1.2.3.4:", "127.0.0.1:99999"])
def test_an_invalid_address_is_refused(wrong):
    done = monitor("--listen", wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[ADDRESS:]PORT" in done.stderr


def test_the_endpoint_answers_on_this_machine_alone_until_it_is_interrupted():
    command = [GPUBENCH, "monitor", "--listen", "0"]
    settings = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "COLUMNS": "200"}}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job of a script ignores the signal
    with subprocess.Popen(command, **settings, preexec_fn=heard) as running:
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", running.stderr.readline())[0]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert_is_exposition(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("metrics", "other"), timeout=10)
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130, "as docs/commands.md says"
