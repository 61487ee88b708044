"""List the devices, host, versions and settings of a run, in the units that people read."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api import report as gb

from ._texts import device_text

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Facts under a title; an item of `facts` is a name and a text, which is empty if the fact is unknown."""

    title: str
    facts: Pairs


def environment(run: gb.Run) -> Iterator[Group]:
    """Yield the facts of a run in groups: one for each device, then `Host`, `Versions`, `Unavailable` and `Settings`.

    `Unavailable` gives for each missing library the reason and the remedy."""
    facts = run.manifest.facts
    for device in facts.devices:
        yield Group(device_text(device), tuple(_device(device)))
    yield Group("Host", tuple(gb.units.fact(*pair) for pair in facts.host))
    yield Group("Versions", (("gpubench", run.manifest.gpubench), *facts.versions))
    yield Group("Unavailable", tuple((part.what, f"{part.reason}; {part.how}") for part in facts.absent))
    yield Group("Settings", tuple(_settings(run)))


def environment_text(run: gb.Run) -> str:
    """Return the environment in one line: `Linux 6.18, Python 3.12.3, 2 devices, 15 versions`."""
    facts = run.manifest.facts
    versions = dict(facts.versions)
    names = [dict(facts.host).get("system", ""), f"Python {versions['python']}" if "python" in versions else ""]
    counts = [_count(len(facts.devices), "device"), _count(len(versions) + 1, "version")]
    return ", ".join(part for part in (*names, *counts) if part)


def _count(number: int, word: str) -> str:
    """Return a number with its noun in the singular or plural: `2 devices`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _device(device: gb.Device) -> Iterator[tuple[str, str]]:
    """Yield the facts of a device as pairs of a name and a text; an unknown fact has an empty text."""
    yield "backend", device.backend
    yield "last-level cache", gb.units.brief_size(device.cache_bytes) if device.cache_bytes else ""
    yield "PCI", device.pci
    yield "UUID", device.uuid
    yield "data types", ", ".join(device.dtypes)
    yield "reaches", ", ".join(device.peers)
    for name, text in device.details:
        yield gb.units.fact(name, text)


def _settings(run: gb.Run) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run as pairs of a name and a text; an unused setting has an empty text or `none`."""
    settings = run.manifest.settings
    yield "suites", ", ".join(settings.suites)
    yield "devices", ", ".join(settings.devices)
    yield "tier", settings.tier
    yield "filters", ", ".join(settings.filters) or "none"
    yield "cases", "the representative cases of each suite" if settings.headline else ""
    yield "replicates", str(settings.replicates)
    yield "seed", str(settings.seed)
    for file in settings.data:
        yield "data", f"{file.label}: {file.path}, {gb.units.round_size(file.bytes)}"
    yield "command", " ".join(run.manifest.argv)
    yield "schema", run.manifest.schema
    yield "started", run.manifest.started
