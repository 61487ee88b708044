"""Small values for tests: every field that a test does not name has a plain default."""

import dataclasses
import functools
import typing

from gpubench import plugins
from gpubench.model import (
    SCHEMA,
    Case,
    Counter,
    Device,
    Facts,
    Manifest,
    Result,
    Run,
    Samples,
    Series,
    SeriesMode,
    Settings,
    SuiteInfo,
    Work,
)
from gpubench.tools.profile import traced


@functools.cache
def _declared():
    counters = {counter.name: counter for counter in traced.COUNTERS}
    for name in ("amd", "cupti", "gpm", "host", "nvml"):
        counters |= {counter.name: counter for counter in plugins.load("collectors", name).counters}
    return counters


def counter(name, unit, kind, period_s=0.1, source=""):
    """Return a counter with the measure and the bits of the built-in counter of that name."""
    declared = _declared()[name]
    return Counter(name, unit, kind, period_s, source, declared.measures, declared.bits)


H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, units=132)
POWER = counter("nvml.power", "W", "gauge", 0.1, "nvidia-smi --query-gpu=power.draw.instant")
ENERGY = counter("nvml.energy", "J", "cumulative", 0.1, "nvidia-smi -q -d POWER")


def device(device_id="cuda:0", name="NVIDIA H200", **fields):
    """Return a device; its id names the backend."""
    return Device(device_id, device_id.partition(":")[0], name, fields.pop("arch", "sm_90"), **fields)


def facts(*devices, **fields):
    """Return an inventory of these devices, by default of one H200."""
    return Facts(devices or (device(),), **fields)


def manifest(**fields):
    plain = Manifest(
        schema=SCHEMA,
        gpubench="0.1.0",
        facts=facts(),
        settings=Settings(suites=("bandwidth",), devices=("cuda:0",)),
        suites=(SuiteInfo("bandwidth", "sustained memory bandwidth"),),
        counters=(POWER, ENERGY),
        argv=("gpubench", "run"),
        started="2026-01-02T03:04:05+00:00",
        started_at=100.0,
    )
    return dataclasses.replace(plain, **fields)


def case(name="triad", suite="bandwidth", version=1, **params):
    """Return a case of these parameters, in the order given."""
    return Case(suite, name, tuple(params.items()), version)


def timing(*seconds, name="hot", moved=0.0, items=0.0, **fields):
    """Return a series of times; with `moved` bytes it is judged as a rate, with `items` as time per item."""
    quantity = "moved" if moved else "item" if items else "value"
    fields = {"work": Work(moved=moved, items=items), "quantity": quantity, **fields}
    series_name = labelled(name)
    if series_name.get("mode") == "host" and not fields.get("stop"):
        series_name["role"] = "derived"  # the host's time is derived from the same calls as the device's
    return Series(unit="s", values=seconds, **{**series_name, **fields})


def labelled(label):
    """Return the fields of the series that tables show under a label: `hot`, `compress.cold`, `early`, `ratio`."""
    stage, _, word = label.rpartition(".")
    if word in typing.get_args(SeriesMode):
        return {"name": "", "stage": stage, "mode": word, "role": "primary"}
    if word == "early":
        return {"name": "", "stage": stage, "mode": "hot", "role": "early"}
    return {"name": label, "role": "observed"}


def result(*series, of=None, devices=("cuda:0",), **fields):
    """Return a result, `ok` unless another status is given; without series, it was timed once at 1 ms."""
    fields = {"status": "ok", **fields}
    measured = series or ((timing(1e-3),) if fields["status"] == "ok" else ())
    return Result(of or case(), tuple(devices), series=measured, **fields)


def samples(at, device_id="cuda:0", **columns):
    """Return a chunk of the collector `nvml`; a column `power` is its counter `nvml.power`."""
    named = tuple((f"nvml.{name}", tuple(values)) for name, values in columns.items())
    return Samples("nvml", device_id, tuple(at), named)


def run(*results, sampled=(), **fields):
    """Return a complete run of these results; `fields` are the manifest's."""
    return Run(manifest(**fields), results, tuple(sampled))
