"""`gpubench doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.cli import _options as options

if TYPE_CHECKING:
    from gpubench.model import Device


def doctor(json: options.Json = False) -> None:
    """Say which devices, libraries and counters are here, what is missing and how to get it."""
    import typer

    from gpubench import inventory
    from gpubench.cli import _print

    facts = inventory.facts()
    if json:
        typer.echo(inventory.to_json(facts))
        return
    out = _print.out()
    rows = [_device(device) for device in facts.devices]
    out.print(
        _print.table(
            ("device", "name", "architecture", "memory", "last-level cache", "units", "settings"), rows, "devices"
        )
    )
    out.print("", _print.table(("library", "version"), facts.versions, "versions"), sep="\n")
    out.print("", _print.table(("host", ""), facts.host, "host"), sep="\n")
    if facts.absent:
        rows = [(absent.what, absent.reason, absent.how) for absent in facts.absent]
        out.print("", _print.table(("missing", "because", "how to get it"), rows, "missing"), sep="\n")
    else:
        out.print("", "nothing is missing", sep="\n")


def _device(device: Device) -> tuple[object, ...]:
    from gpubench import units

    details = ", ".join(f"{name}={value}" for name, value in device.details)
    memory, cache = units.round_size(device.memory_bytes), units.round_size(device.cache_bytes)
    return (device.id, device.name, device.arch, memory, cache, device.units, details)
