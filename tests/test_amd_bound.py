"""What bounds a case on an AMD GPU, and the monitor's line: from counters that the collector reads on a simulated /sys.

Nothing here was measured: the files are written by _fake_sysfs.py, and the times of the cases are made up.
"""

import _fake_sysfs as fake
import _make as make
import pytest

from gpubench import plugins
from gpubench.analysis.summary import Summary, case_counters
from gpubench.model import Device
from gpubench.tools.monitor import live

AMD = plugins.load("collectors", "amd")
MOMENTS = (10.05, 10.2, 10.4, 10.6, 10.8)
BUSY = {"gpu_busy_percent": 99}


def gpu(kind):
    model = fake.MODELS[kind]
    clock = (("clock.sm_hz", str(model.gfx_mhz * 10**6)),)
    return Device("rocm:0", "cupy", model.product, fake.ARCH[kind], pci=fake.pci(0), units=model.units, details=clock)


class SimulatedAmdMachine:
    def __init__(self, root, kind):
        """Write the files of a machine of this kind, and open its counters."""
        self.device = gpu(kind)
        self._revision = 6 if kind == "mi300x" else 3
        self._root = fake.build(root, kind, count=1, revision=self._revision)
        self._source = type(AMD)(self._root, libraries=()).open([self.device])
        missing = self._source.unsupported(self.device)
        self.counters = tuple(counter for counter in AMD.counters if counter.name not in missing)

    def read(self, files, **table):
        folder = fake.folder(self._root)
        (folder / "gpu_metrics").write_bytes(fake.gpu_metrics(self._revision, **table))
        for name, value in files.items():
            fake._write(folder / name, value)
        clock_hz = table.get("gfx_mhz", 2100) * 10**6
        fake._write(next(folder.glob("hwmon/*")) / "freq1_input", clock_hz)
        return self._source.read(self.device, [counter.name for counter in self.counters])

    def samples(self, files, tables):
        rows = [self.read(files, **table) for table in tables]
        columns = tuple((counter.name, tuple(row[counter.name] for row in rows)) for counter in self.counters)
        return make.Samples("amd", "rocm:0", MOMENTS, columns)

    def bound(self, files, tables, **series):
        """What bounds a case whose calls fill the second in which the counters are read."""
        timing = make.timing(*[1e-3] * 900, warmup_s=0.1, calls=1, **series)
        result = make.result(timing, window=(10.0, 11.0), devices=("rocm:0",))
        sampled = [self.samples(files, tables)]
        run = make.run(result, counters=self.counters, sampled=sampled, facts=make.facts(self.device))
        return case_counters(Summary(run), run.results[0])


@pytest.fixture
def mi300x(tmp_path):
    return SimulatedAmdMachine(tmp_path / "mi300x", "mi300x")


@pytest.fixture
def mi250x(tmp_path):
    return SimulatedAmdMachine(tmp_path / "mi250x", "mi250x")


def evidence_of(counters):
    """Return the counters or peaks that the bound of a case rests on."""
    return [use.by for use in counters.bound.evidence]


def test_a_stream_on_an_mi300x_is_bound_by_memory_by_the_firmwares_counter(mi300x):
    result = mi300x.bound(BUSY, [{"dram": 88}] * 5, moved=4.4e9, limit="dram")
    assert result.bound.label == "DRAM"
    assert result.bound.text == "DRAM (amd.dram 88.0 %, share of dram peak (data sheet) 83.0 %)"


def test_the_busy_time_of_an_mi250xs_memory_is_not_taken_for_a_share_of_bandwidth(mi250x):
    """Its firmware reports the utilisation of the memory's clock domain, which is no measure of the bytes moved."""
    assert "amd.dram" not in [counter.name for counter in mi250x.counters]
    result = mi250x.bound({**BUSY, "mem_busy_percent": 97}, [{}] * 5)
    assert result.bound.label == "latency"
    result = mi250x.bound(BUSY, [{}] * 5, moved=1.2e9, limit="dram")
    assert evidence_of(result) == ["share of dram peak (data sheet)"]


@pytest.mark.parametrize("kind", fake.MODELS)
def test_a_gpu_that_waits_is_bound_by_the_host_and_a_chain_by_latency(tmp_path, kind):
    machine = SimulatedAmdMachine(tmp_path, kind)
    assert machine.bound({"gpu_busy_percent": 12}, [{"dram": 3}] * 5).bound.label == "host"
    assert machine.bound(BUSY, [{"dram": 3}] * 5, quantity="item", items=1.0).bound.label == "latency"


def test_throttling_by_heat_is_reported_with_its_duration(mi300x):
    counts = [(0, 0, 5, 0, 0), (0, 0, 5, 0, 0), (0, 0, 9, 0, 0), (0, 0, 9, 0, 7), (0, 0, 9, 0, 7)]
    result = mi300x.bound(BUSY, [{"residencies": count} for count in counts])
    assert {reason.name: reason.seconds for reason in result.throttled} == pytest.approx(
        {"thermal (GPU)": 0.4, "thermal (memory)": 0.2}
    )


def monitor_line(machine, tables):
    """Return the monitor's line after these readings."""
    latest = live.Latest(machine.counters, [make.device("rocm:0")])
    latest.add([machine.samples(BUSY, tables)])
    (monitor_line,) = live.lines(latest)
    return monitor_line


def test_products_at_the_package_limit_are_bound_by_power(mi300x, mi250x):
    tables = [{"residencies": (0, count, 0, 0, 0), "gfx_mhz": 1400, "dram": 20} for count in (1, 9, 30, 44, 60)]
    result = mi300x.bound(BUSY, tables)
    assert result.bound.label == "power"
    assert evidence_of(result) == ["samples under the power cap", "mean clock over nominal clock"]
    assert [(reason.name, reason.share) for reason in result.throttled] == [("power cap (PPT0)", 1.0)]
    result = mi250x.bound(BUSY, [{"throttle": 1, "gfx_mhz": 1200}] * 4 + [{"gfx_mhz": 1200}])
    assert (result.bound.label, result.throttled[0].share) == ("power", 0.8)


def test_the_monitor_shows_the_measures_of_an_mi300x_and_an_mi250x(mi300x, mi250x):
    counts = [{"residencies": (0, count, 0, 0, 0), "gfx_mhz": 1800, "dram": 61} for count in range(5)]
    values = "busy 99 %, power 638.0 W, memory 11.50 GiB, DRAM 61 %, clock 1.800 GHz, temp 61 °C"
    assert monitor_line(mi300x, counts) == f"rocm:0 {values}, throttle reasons power cap (PPT0)"
    values = "busy 99 %, power 412.0 W, memory 11.50 GiB, clock 1.500 GHz, temp 61 °C"
    line = monitor_line(mi250x, [{"throttle": 1 << 36, "gfx_mhz": 1500}] * 5)
    assert line == f"rocm:0 {values}, throttle reasons thermal (hotspot)"
