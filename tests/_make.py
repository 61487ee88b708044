"""Small values for tests: every field that a test does not name has a plain default."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Sequence
from typing import Any

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
def _declared() -> dict[str, Counter]:
    """Return every counter of the built-in collectors by its name."""
    counters = {counter.name: counter for counter in traced.COUNTERS}
    for name in ("amd", "cupti", "gpm", "host", "nvml"):
        counters |= {counter.name: counter for counter in plugins.load("collectors", name).counters}
    return counters


def counter(name: str, unit: str, kind: str, period_s: float = 0.1, source: str = "") -> Counter:
    """Return a counter with the measure and the bits of the built-in counter of that name."""
    declared = _declared()[name]
    return Counter(name, unit, kind, period_s, source, declared.measures, declared.bits)


H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, units=132)
POWER = counter("nvml.power", "W", "gauge", 0.1, "nvidia-smi --query-gpu=power.draw.instant")
ENERGY = counter("nvml.energy", "J", "cumulative", 0.1, "nvidia-smi -q -d POWER")


def device(device_id: str = "cuda:0", name: str = "NVIDIA H200", **fields: Any) -> Device:
    """Return a device; its id names the backend."""
    return Device(device_id, device_id.partition(":")[0], name, fields.pop("arch", "sm_90"), **fields)


def facts(*devices: Device, **fields: Any) -> Facts:
    """Return an inventory of these devices, by default of one H200."""
    return Facts(devices or (device(),), **fields)


def manifest(**fields: Any) -> Manifest:
    """Return the manifest of a run of suite `bandwidth` on `cuda:0`."""
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


def case(name: str = "triad", suite: str = "bandwidth", version: int = 1, **params: str | int | float) -> Case:
    """Return a case of these parameters, in the order given."""
    return Case(suite, name, tuple(params.items()), version)


def timing(*seconds: float, name: str = "hot", moved: float = 0.0, items: float = 0.0, **fields: Any) -> Series:
    """Return a series of times; with `moved` bytes it is judged as a rate, with `items` as time per item."""
    quantity = "moved" if moved else "item" if items else "value"
    fields = {"work": Work(moved=moved, items=items), "quantity": quantity, **fields}
    series_name = labelled(name)
    if series_name.get("mode") == "host" and not fields.get("stop"):
        series_name["role"] = "derived"  # the host's time is derived from the same calls as the device's
    return Series(unit="s", values=seconds, **{**series_name, **fields})


def labelled(label: str) -> dict[str, Any]:
    """Return the fields of the series that tables show under a label: `hot`, `compress.cold`, `early`, `ratio`."""
    stage, _, word = label.rpartition(".")
    if word in typing.get_args(SeriesMode):
        return {"name": "", "stage": stage, "mode": word, "role": "primary"}
    if word == "early":
        return {"name": "", "stage": stage, "mode": "hot", "role": "early"}
    return {"name": label, "role": "observed"}


def result(*series: Series, of: Case | None = None, devices: Sequence[str] = ("cuda:0",), **fields: Any) -> Result:
    """Return a result, `ok` unless another status is given; without series, it was timed once at 1 ms."""
    fields = {"status": "ok", **fields}
    measured = series or ((timing(1e-3),) if fields["status"] == "ok" else ())
    return Result(of or case(), tuple(devices), series=measured, **fields)


def samples(at: Sequence[float], device_id: str = "cuda:0", **columns: Sequence[float | None]) -> Samples:
    """Return a chunk of the collector `nvml`; a column `power` is its counter `nvml.power`."""
    named = tuple((f"nvml.{name}", tuple(values)) for name, values in columns.items())
    return Samples("nvml", device_id, tuple(at), named)


def run(*results: Result, sampled: Iterable[Samples] = (), **fields: Any) -> Run:
    """Return a complete run of these results; `fields` are the manifest's."""
    return Run(manifest(**fields), results, tuple(sampled))
