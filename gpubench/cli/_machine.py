"""Show a machine in the terminal: its devices, what is missing, their health, and their counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpubench.base import units
from gpubench.cli import _print

if TYPE_CHECKING:
    from gpubench.measuring.health import Health
    from gpubench.measuring.sampler import DeviceCounter
    from gpubench.model import Device, Facts, UnavailablePart

Part = Table | Text | Padding
_INDENT = 4
_UNITS = {"cuda": "SMs", "rocm": "CUs", "host": "cores"}


def machine(
    facts: Facts, healths: Sequence[Health], available: Sequence[DeviceCounter], not_sampled: Sequence[UnavailablePart]
) -> list[Part]:
    """Return the texts and tables of `gpubench doctor`, beginning with a line that says whether a GPU can be measured.

    The section on health is left out if `healths` is empty. `available` has every counter of the devices; the reason of
    an available counter is empty. `not_sampled` are the collectors that read none of the devices."""
    parts: list[Part] = [_print.plain(_verdict(facts, healths), "bold")]
    if facts.absent:
        parts += [*_heading_parts("unavailable"), *_unavailable_parts(facts.absent)]
    if through := [f"{name} is {state}" for name, state in facts.host if state.startswith("interposed: ")]:
        parts += [
            *_heading_parts("libraries between programs and the driver"),
            *(_print.plain(state, "yellow") for state in through),
        ]
    parts += [*_heading_parts("devices"), *(part for device in facts.devices for part in _device_parts(device))]
    if healths:
        parts += [*_heading_parts("health"), *(part for health in healths for part in _health_parts(health))]
    parts += [*_heading_parts("counters"), *_counter_parts(available, not_sampled)]
    parts += [*_heading_parts("host"), _pairs_part(units.fact(*pair) for pair in facts.host)]
    parts += [*_heading_parts("versions"), _pairs_part(facts.versions)]
    return parts


def counters(available: Sequence[DeviceCounter]) -> list[Part]:
    """Return a table of every counter of the devices, with its unit, period, availability and the vendor's command.

    An entry of `available` whose reason is not empty is unavailable."""
    heads = ("device", "counter", "unit", "kind", "period", "available", "vendor command")
    rows = [
        (
            *(
                entry.device,
                entry.counter.name,
                entry.counter.unit,
                entry.counter.kind,
                f"{entry.counter.period_s:g} s",
            ),
            *(f"no: {entry.reason}" if entry.reason else "yes", entry.counter.source),
        )
        for entry in available
    ]
    table = _print.table(heads, rows)
    for column in table.columns[:5]:
        column.no_wrap = True
    return [table]


def _verdict(facts: Facts, healths: Sequence[Health]) -> str:
    gpus = [device for device in facts.devices if device.backend != "host"]
    if not gpus:
        return "no GPU is usable: `gpubench run` measures the host processor"
    sick = [health.device for health in healths if health.severity == "sick"]
    names = ", ".join(dict.fromkeys(device.name for device in gpus))
    answer = f"ready to measure {len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}: {names}"
    return f"{answer}; unhealthy: {', '.join(sick)}" if sick else answer


def _heading_parts(title: str) -> list[Part]:
    return [Text(""), _print.plain(title, "italic")]


def _indented(text: str, style: str = "", depth: int = 1) -> Padding:
    return Padding(_print.plain(text, style), (0, 0, 0, _INDENT * depth), expand=False)


def _unavailable_parts(unavailable: Sequence[UnavailablePart]) -> Iterator[Part]:
    for part in unavailable:
        yield _print.plain(f"{part.what}: {part.reason}", "yellow")
        if part.how:
            yield _indented(part.how)


def _device_parts(device: Device) -> Iterator[Part]:
    kind = _UNITS.get(device.id.partition(":")[0], "cores")
    facts = [
        device.name,
        device.arch,
        f"{device.units} {kind}" if device.units else "",
        units.round_size(device.memory_bytes) if device.memory_bytes else "",
        f"last-level cache {units.brief_size(device.cache_bytes)}" if device.cache_bytes else "",
        f"reaches {', '.join(device.peers)}" if device.peers else "",
    ]
    yield _print.plain(f"{device.id}: {', '.join(fact for fact in facts if fact)}")
    if device.details:
        yield _pairs_part(units.fact(*pair) for pair in device.details)


def _pairs_part(facts: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Padding:
    return _indented(", ".join(f"{name} {text}" for name, text in facts))


def _health_parts(health: Health) -> Iterator[Part]:
    """Yield the lines on one device's health: its state, bad findings with advice and command, unavailable readings."""
    if not health.findings:
        yield _print.plain(f"{health.device}: unavailable: {health.unavailable}", "yellow")
        return
    unavailable, bad = health.of("unavailable"), [*health.of("sick"), *health.of("warning")]
    read = len(health.findings) - len(unavailable)
    state = {"ok": "healthy", "warning": "usable, with warnings"}.get(health.severity, health.severity)
    yield _print.plain(f"{health.device}: {state} ({read} of {len(health.findings)} readings are available)")
    for finding in bad:
        style = "bold red" if finding.severity == "sick" else "yellow"
        yield _indented(f"{finding.severity}: {finding.text}", style)
        if finding.advice:
            yield _indented(finding.advice, depth=2)
        if finding.command:
            yield _indented(f"$ {finding.command}", depth=2)
    for finding in unavailable:
        yield _indented(f"unavailable: {finding.text}", "dim")


def _counter_parts(entries: Sequence[DeviceCounter], not_sampled: Sequence[UnavailablePart]) -> Iterator[Part]:
    for device in dict.fromkeys(entry.device for entry in entries):
        of_device = [entry for entry in entries if entry.device == device]
        available = [entry for entry in of_device if not entry.reason]
        yield _print.plain(f"{device}: {len(available)} of {len(of_device)} counters are available")
        for entry in of_device:
            if entry.reason:
                yield _indented(f"{entry.counter.name} is unavailable: {entry.reason}", "dim")
    reasons: dict[str, list[str]] = {}
    for part in not_sampled:
        reasons.setdefault(f"{part.reason}; {part.how}" if part.how else part.reason, []).append(part.what)
    for reason, names in reasons.items():
        yield _print.plain(f"not sampled: {', '.join(names)}: {reason}", "dim")
    yield _print.plain("every counter: gpubench doctor --counters", "dim")
