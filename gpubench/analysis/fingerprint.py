"""Describe the settings of devices that change their figures; results are comparable only if these are the same.

Model, number of compute units, driver, clocks, ECC, MIG and power limit change a figure without a change of code. The
board, its id and its host are not part of the fingerprint: two H200 in the same state have the same one.

Look up how much the medians of a case deviate between processes: from replicates of a run, or from recordings.

The 95 % interval of one process does not predict the next process: of the recorded ones, 52 % hold another process's
median. The reproducibility of a single process is therefore taken from recordings of its model of GPU, if any."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpubench.base import units
from gpubench.knowledge.data_sheets import RecordedDeviation, recorded_deviation
from gpubench.model import Device, Facts

_DIGITS = 12  # hexadecimal digits of the hash: 48 bits are enough for the few fingerprints of a history
# name → the details of a device with its value; a new entry makes every baseline incomparable
_DETAILS = {
    "clocks": ("clock.application_hz", "clock.sm_most_hz"),
    "power limit": ("power.limit_w",),
    "ECC": ("ecc",),
    "MIG": ("mig",),
}
_UNITS = {"clocks": "Hz", "power limit": "W"}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The settings of devices as pairs of a name and a value; results with unequal fingerprints are not comparable.

    Both are texts. Unknown values are left out; the model comes first."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        """The first twelve hexadecimal digits of its SHA-256: equal for equal fingerprints on any machine."""
        text = "\n".join(f"{name}={value}" for name, value in self.pairs)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def text(self) -> str:
        """The model, then every other known value: `NVIDIA H200, 132 compute units, driver nvidia 580, …`."""
        (_, model), *further_pairs = self.pairs
        named = [(name, _text(name, value)) for name, value in further_pairs]
        parts = (f"{text} compute units" if name == "units" else f"{name} {text}" for name, text in named)
        return ", ".join([model, *parts])

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Return each value of this fingerprint that `other` has otherwise: `driver nvidia 580 instead of nvidia 575`.

        A value that one of them lacks is `unknown` there. The result is empty if both are equal."""
        here, there = dict(self.pairs), dict(other.pairs)
        return tuple(
            f"{name} {_text(name, here.get(name, 'unknown'))} instead of {_text(name, there.get(name, 'unknown'))}"
            for name in dict.fromkeys([*here, *there])
            if here.get(name) != there.get(name)
        )


def _text(name: str, value: str) -> str:
    """Return the value of the fingerprint's pair `name` as text for people: clocks and power limits get units."""
    unit = _UNITS.get(name)
    if unit is None:
        return value
    try:
        return "/".join(units.quantity(float(part), unit, 4) for part in value.split("/"))
    except ValueError:
        return value


def fingerprint(facts: Facts, device_ids: Sequence[str]) -> Fingerprint:
    """Return the fingerprint of devices on the machine of `facts`; the ids come from `Result.devices`, for example.

    Raises KeyError if an id is not in the facts."""
    by_device = [dict(_pairs(facts.device(device_id), facts)) for device_id in device_ids]
    names = dict.fromkeys(name for pairs in by_device for name in pairs)
    joined = {name: _joined([pairs.get(name, "unknown") for pairs in by_device]) for name in names}
    return Fingerprint((*joined.items(), *([("devices", str(len(by_device)))] if len(by_device) > 1 else [])))


def _joined(values: Sequence[str]) -> str:
    """Return the common value of several devices, or the value of each joined by ` + `."""
    return values[0] if len(set(values)) == 1 else " + ".join(values)


def _pairs(device: Device, facts: Facts) -> list[tuple[str, str]]:
    """Return the pairs of name and value of one device without empty values; the model is kept even if it is empty."""
    details = dict(device.details)
    values = {"model": device.name, "units": str(device.units), "driver": _driver(device, facts)}
    for name, keys in _DETAILS.items():
        values[name] = "/".join(details[key] for key in keys if key in details)
    return [(name, value) for name, value in values.items() if value or name == "model"]


def _driver(device: Device, facts: Facts) -> str:
    """Return vendor and major version of the device's driver, such as `nvidia 580`."""
    if device.backend == "host":
        return ""
    drivers = {name: value for name, value in facts.versions if name.endswith(".driver") and value}
    name = next((name for name in drivers if not name.startswith("cuda.")), "cuda.driver")
    major = re.match(r"\d+", drivers.get(name, ""))
    return f"{name.removesuffix('.driver')} {major[0]}" if major else ""


LEAST_PROCESSES = 3  # the standard deviation of two medians is accurate to a factor of two at best
_FINE = 0.01  # smaller deviations have one more digit, because most bandwidths agree within 0.1 %


@dataclass(frozen=True, slots=True)
class Reproducibility:
    """The standard deviation of the medians of `processes` processes over their mean, a fraction, with its source.

    `recorded` is None if this run measured it."""

    RECORD: ClassVar[str] = "between=deviation processes source"
    deviation: float
    processes: int
    recorded: RecordedDeviation | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the value comes from recordings of other runs."""
        return self.recorded is not None

    @property
    def source(self) -> str:
        """Where it was measured: `this run`, or the model, the date and the recordings."""
        return self.recorded.text if self.recorded else "this run"

    @property
    def text(self) -> str:
        """`0.03 %`, or `1.8 % recorded` where another run measured it."""
        return units.percent(self.deviation, 2 if self.deviation < _FINE else 1) + (" recorded" * self.is_recorded)


def relative_deviation(medians: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) of medians over the size of their mean, a fraction.

    It is NaN for fewer than two medians and for a mean of 0."""
    if len(medians) < 2:
        return math.nan
    values = np.asarray(medians, dtype=float)
    return float(values.std(ddof=1) / abs(values.mean())) if values.mean() else math.nan


def reproducibility(medians: Sequence[float], case_id: str, models: Collection[str]) -> Reproducibility | None:
    """Return the reproducibility of a case, from at least three replicates of this run, else from a shipped recording.

    `medians` are the medians of all ok replicates, and `models` the names of the devices of the case."""
    deviation = relative_deviation(medians)
    if len(medians) >= LEAST_PROCESSES and math.isfinite(deviation):
        return Reproducibility(deviation, len(medians))
    recorded = recorded_deviation(next(iter(models)), case_id) if len(models) == 1 else None
    return Reproducibility(recorded.percent / 100, recorded.processes, recorded) if recorded else None


def recorded_sources_text(deviations: Iterable[Reproducibility | None]) -> str:
    """Return a sentence that says where the `recorded` values of a table come from; empty if none is recorded.

    `deviations` are the values of the table, None for a missing one."""
    recordings: dict[tuple[str, str], set[str]] = {}
    for deviation in deviations:
        if deviation and deviation.recorded:
            recordings.setdefault((deviation.recorded.model, deviation.recorded.date), set()).update(
                deviation.recorded.recordings
            )
    if not recordings:
        return ""
    sources = "; ".join(f"{model}, {date}: {', '.join(sorted(names))}" for (model, date), names in recordings.items())
    return f"recorded: taken from recordings that gpubench ships, not measured by this run ({sources})"
