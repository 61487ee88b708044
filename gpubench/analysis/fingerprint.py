"""A device's fingerprint: what must be the same before two results are compared.

Model, size, driver, clocks, ECC, MIG and power limit change a figure with no change of code. Which board of a
model it was, its id and its host are not part of it: two H200 in the same state have one fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.base import units
from gpubench.model import Device, Facts

_DIGITS = 12  # of the hash: 48 bits, of which a history holds a handful
# name → the detail that a collector or backend describes it by; a new one makes every baseline a stranger's
_DETAILS = {
    "clocks": ("clock.application_hz", "clock.sm_most_hz"),
    "power limit": ("power.limit_w",),
    "ECC": ("ecc",),
    "MIG": ("mig",),
}
_UNITS = {"clocks": "Hz", "power limit": "W"}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Pairs of a name and a value in words; what nobody could read is left out. Equal or not comparable."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for it: equal for equal fingerprints, everywhere."""
        text = "\n".join(f"{name}={value}" for name, value in self.pairs)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def words(self) -> str:
        """`NVIDIA H200, 132 compute units, driver nvidia 580, …`: the model first, then what else is known."""
        (_, model), *others = self.pairs
        named = [(name, _text(name, value)) for name, value in others]
        parts = (f"{text} compute units" if name == "units" else f"{name} {text}" for name, text in named)
        return ", ".join([model, *parts])

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """What `other` has differently, in words: `driver nvidia 580, there nvidia 575`; nothing where equal."""
        here, there = dict(self.pairs), dict(other.pairs)
        return tuple(
            f"{name} {_text(name, here.get(name, 'unknown'))}, there {_text(name, there.get(name, 'unknown'))}"
            for name in dict.fromkeys([*here, *there])
            if here.get(name) != there.get(name)
        )


def _text(name: str, value: str) -> str:
    """Return a value for people: clocks and the power limit with their units, everything else as it is."""
    unit = _UNITS.get(name)
    if unit is None:
        return value
    try:
        return "/".join(units.quantity(float(part), unit, 4) for part in value.split("/"))
    except ValueError:
        return value


def fingerprint(facts: Facts, device_ids: Sequence[str]) -> Fingerprint:
    """The fingerprint of the devices of a result (`Result.devices`, `Settings.devices`) on the machine of `facts`.

    Several equal devices are one with a count; where they differ, each value stands for each. KeyError where
    an id is not in the facts.
    """
    each = [dict(_pairs(facts.device(device_id), facts)) for device_id in device_ids]
    names = dict.fromkeys(name for pairs in each for name in pairs)
    joined = {name: _joined([pairs.get(name, "unknown") for pairs in each]) for name in names}
    return Fingerprint((*joined.items(), *([("devices", str(len(each)))] if len(each) > 1 else [])))


def _joined(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else " + ".join(values)


def _pairs(device: Device, facts: Facts) -> list[tuple[str, str]]:
    details = dict(device.details)
    found = {"model": device.name, "units": str(device.units), "driver": _driver(device, facts)}
    for name, keys in _DETAILS.items():
        found[name] = "/".join(details[key] for key in keys if key in details)
    return [(name, value) for name, value in found.items() if value or name == "model"]


def _driver(device: Device, facts: Facts) -> str:
    """`nvidia 580`: the major version of the vendor's driver, else of the one that its runtime names."""
    if device.backend == "host":
        return ""
    known = {name: value for name, value in facts.versions if name.endswith(".driver") and value}
    name = next((name for name in known if not name.startswith("cuda.")), "cuda.driver")
    major = re.match(r"\d+", known.get(name, ""))
    return f"{name.removesuffix('.driver')} {major[0]}" if major else ""
