"""Judge whether a device is healthy: pure functions of raw readings and a table of rules, each with its source.

A collector reads numbers (`plugins.collector.HealthReading`); `measuring.examination` asks it in a child process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubench.base.errors import Unavailable
from gpubench.measuring import boundary
from gpubench.plugins.collector import HealthReading, HealthSign

Severity = Literal["ok", "warning", "sick", "unavailable"]
_WORST: tuple[Severity, ...] = ("sick", "warning", "ok")
_MOST_COUNT = 2.0**32 - 2  # drivers return 2³²−1 and 2⁶⁴−1 for an unknown number
_MOST_READINGS = 200  # the most readings of one device


@dataclass(frozen=True, slots=True)
class HealthRule:
    """The meaning of a reading above 0: `severity` is how bad it is before a run, `rise` how bad a growth in a run is.

    `name` says what is counted, and `advice` what to do."""

    name: str
    severity: Severity
    rise: Severity
    advice: str
    source: str
    most: float = _MOST_COUNT


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One reading, judged: `name` says what was read, and `shown` is the value as text.

    `value` is 0 if the reading is healthy and None if it is unavailable."""

    sign: HealthSign
    name: str
    value: float | None
    shown: str
    severity: Severity
    advice: str = ""
    command: str = ""

    @property
    def text(self) -> str:
        """Return the finding in a line: `uncorrected ECC errors since the driver was loaded: 3`."""
        return f"{self.name}: {self.shown}"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one device; if there are no findings, `unavailable` says why."""

    device: str
    findings: tuple[HealthFinding, ...]
    unavailable: str = ""

    @property
    def severity(self) -> Severity:
        """Return the worst severity among the findings, or `unavailable` if no reading has a value."""
        severities = {finding.severity for finding in self.findings}
        return next((severity for severity in _WORST if severity in severities), "unavailable")

    def of(self, severity: Severity) -> tuple[HealthFinding, ...]:
        """Return the findings of that severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)


_MEMORY = "NVIDIA, GPU Memory Error Management"
_PAGES = "NVIDIA, Dynamic Page Retirement"
_DEBUG = "NVIDIA, GPU Debug Guidelines"
_XIDS = "NVIDIA, Xid Errors"
_NVML = "NVIDIA, NVML API Reference Guide"
_RAS = "Linux kernel, AMDGPU RAS Support"
_DCGM = "NVIDIA, DCGM: Health Monitoring"

_RESET = "Stop the programs on the device and reset it. If the errors come back, have the device replaced."
_REMAP = "Stop the programs on the device and reset it: the reset replaces the bad memory."
_REPLACE = "Do not use the device. Run the vendor's diagnosis and have the device replaced."
_HISTORY = "The device had such errors before. Nothing needs to be done unless more of them appear."
_LOST = "Read the kernel log and restart the machine. If the device is lost again, have it replaced."
_COOLING = "Check the temperature, the fans and the power supply of the machine."
_LINK = "Check the cable, bridge or tray of the link, then reset the devices on both sides."
_SLOT = "Reseat the device and check the slot, the riser and the firmware settings."
_LOG = "Look the numbers up in the vendor's list of errors. Reset the device if they are recent."
_SHARED = "Stop the other programs or measure another device: they take time and memory from each other."

RULES: Mapping[HealthSign, HealthRule] = {
    HealthSign.LOST: HealthRule("the driver lost the device", "sick", "sick", _LOST, _DEBUG, 1),
    HealthSign.RECOVERY: HealthRule("the driver asks for a recovery", "sick", "sick", _RESET, _NVML, 1),
    HealthSign.ECC_UNCORRECTED: HealthRule(
        "uncorrected ECC errors since the driver was loaded", "sick", "sick", _RESET, f"{_MEMORY}; {_RAS}"
    ),
    HealthSign.ECC_UNCORRECTED_LIFETIME: HealthRule(
        "uncorrected ECC errors in the life of the device", "warning", "sick", _HISTORY, _MEMORY
    ),
    HealthSign.REMAP_PENDING: HealthRule("a memory row waits to be remapped", "sick", "sick", _REMAP, _MEMORY, 1),
    HealthSign.REMAP_FAILURE: HealthRule("a memory row cannot be remapped", "sick", "sick", _REPLACE, _MEMORY, 1),
    HealthSign.ROWS_REMAPPED: HealthRule(
        "memory rows remapped after uncorrected errors", "ok", "sick", _REMAP, _MEMORY
    ),
    HealthSign.PAGES_PENDING: HealthRule(
        "memory pages wait to be retired", "sick", "sick", _REMAP, f"{_PAGES}; {_RAS}"
    ),
    HealthSign.PAGES_RETIRED: HealthRule(
        "memory pages retired after uncorrected errors", "warning", "sick", _HISTORY, f"{_PAGES}; {_RAS}"
    ),
    HealthSign.INFOROM: HealthRule("corrupted InfoROM", "sick", "sick", _REPLACE, _NVML, 1),
    HealthSign.HARDWARE_EVENTS: HealthRule("driver errors that point to the hardware", "warning", "sick", _LOG, _XIDS),
    HealthSign.PROGRAM_EVENTS: HealthRule("driver errors that programs cause", "ok", "warning", _LOG, _XIDS),
    HealthSign.HARDWARE_SLOWDOWN: HealthRule("hardware slowdown", "sick", "ok", _COOLING, _DEBUG, 1),
    HealthSign.HARDWARE_THERMAL: HealthRule("thermal slowdown by the hardware", "sick", "ok", _COOLING, _DEBUG, 1),
    HealthSign.POWER_BRAKE: HealthRule("power brake", "sick", "ok", _COOLING, _DEBUG, 1),
    HealthSign.PROCESSES: HealthRule(
        "programs that compute on the device", "warning", "ok", _SHARED, f"{_NVML}; Linux kernel, kfd_process.c"
    ),
    HealthSign.BUSY: HealthRule("the device is busy", "ok", "ok", "", _NVML, 1),
    HealthSign.PCIE_WIDTH: HealthRule("PCIe link", "warning", "sick", _SLOT, _DEBUG, 64),
    HealthSign.PCIE_WIDTH_MOST: HealthRule("PCIe lanes", "ok", "ok", "", _DEBUG, 64),
    HealthSign.PCIE_GENERATION: HealthRule("PCIe generation", "warning", "ok", _SLOT, _DEBUG, 16),
    HealthSign.PCIE_GENERATION_MOST: HealthRule("highest PCIe generation", "ok", "ok", "", _DEBUG, 16),
    HealthSign.PCIE_REPLAYS: HealthRule("PCIe replays", "ok", "warning", _SLOT, _DCGM),
    HealthSign.LINKS_DOWN: HealthRule("links to other devices that are down", "warning", "sick", _LINK, _DCGM, 1024),
    HealthSign.LINK_REPLAYS: HealthRule("replays on the links to other devices", "ok", "sick", _LINK, _DCGM),
    HealthSign.LINK_RECOVERIES: HealthRule("recoveries of links to other devices", "warning", "sick", _LINK, _DCGM),
    HealthSign.LINK_CRC_ERRORS: HealthRule("CRC errors on the links to other devices", "ok", "sick", _LINK, _DCGM),
}
_SLOWDOWNS = (HealthSign.HARDWARE_SLOWDOWN, HealthSign.HARDWARE_THERMAL, HealthSign.POWER_BRAKE)
# Readings that are judged together with another one, and readings that only help to judge others.
_PAIRED = {
    HealthSign.PCIE_WIDTH: HealthSign.PCIE_WIDTH_MOST,
    HealthSign.PCIE_GENERATION: HealthSign.PCIE_GENERATION_MOST,
}
_HELPERS = (HealthSign.BUSY, *_PAIRED.values())


def checked(readings: object) -> tuple[HealthReading, ...]:
    """Return the first 200 readings of a source, one for each sign; of two with the same sign, the first counts.

    A number that its sign cannot have becomes unavailable, with the reason."""
    if isinstance(readings, str) or not isinstance(readings, Iterable):
        raise Unavailable(f"`read` returns a sequence of HealthReading, not {boundary.text(readings)[:80]}", "")
    by_sign: dict[HealthSign, HealthReading] = {}
    for count, reading in enumerate(readings):
        if count == _MOST_READINGS:
            break
        if not isinstance(reading, HealthReading) or not isinstance(reading.sign, HealthSign):
            raise Unavailable(f"`read` returns HealthReading with a HealthSign, not {boundary.text(reading)[:80]}", "")
        by_sign.setdefault(reading.sign, _checked_reading(reading))
    return tuple(by_sign.values())


def _checked_reading(reading: HealthReading) -> HealthReading:
    """Return a reading with clean texts; a value that its sign cannot have becomes None, with the reason as text."""
    message, command = boundary.text(reading.note), boundary.text(reading.command)
    if reading.value is None:
        return HealthReading(reading.sign, None, message or "the driver does not report it", command)
    try:
        value = boundary.number(reading.value)
    except ValueError as error:
        return HealthReading(reading.sign, None, f"the driver reported a value that is {error}", command)
    if not 0 <= value <= RULES[reading.sign].most:
        return HealthReading(reading.sign, None, f"the driver reported the impossible value {value:.10g}", command)
    return HealthReading(reading.sign, value, message, command)


def judge(device: str, readings: Sequence[HealthReading]) -> Health:
    """Return the health of the device with the id `device` by `RULES`, from all its checked readings."""
    by_sign = {reading.sign: reading for reading in readings}
    return Health(
        device, tuple(_judge_reading(reading, by_sign) for reading in readings if reading.sign not in _HELPERS)
    )


def _judge_reading(reading: HealthReading, by_sign: Mapping[HealthSign, HealthReading]) -> HealthFinding:
    """Return the finding on one reading by its rule in `RULES`; it is `unavailable` if the reading has no value."""
    rule = RULES[reading.sign]
    if reading.value is None:
        return HealthFinding(reading.sign, rule.name, None, reading.note, "unavailable", command=reading.command)
    if reading.sign in _PAIRED:
        return _pcie_finding(reading, by_sign)
    busy = _value(by_sign, HealthSign.BUSY)
    is_idle = busy == 0 or reading.sign not in _SLOWDOWNS  # under load the watch reports a slowdown
    severity: Severity = "ok" if not reading.value else rule.severity if is_idle else "warning"
    value_text = f"{reading.value:g}" if rule.most > 1 else "yes" if reading.value else "no"
    if reading.note:
        value_text += f" ({reading.note})"
    return _finding(reading, reading.value, value_text, severity)


def _pcie_finding(reading: HealthReading, by_sign: Mapping[HealthSign, HealthReading]) -> HealthFinding:
    now, most = reading.value or 0.0, _value(by_sign, _PAIRED[reading.sign])
    if most is None:
        return _finding(reading, 0.0, f"{now:g}; the highest value is unavailable", "ok")
    missing = max(most - now, 0.0)
    if reading.sign is HealthSign.PCIE_WIDTH:
        return _finding(reading, missing, f"{now:g} of {most:g} lanes", "warning" if missing else "ok")
    if missing and _value(by_sign, HealthSign.BUSY) != 1:  # an idle device saves power with a slow link
        return _finding(reading, 0.0, f"{now:g} of {most:g} at idle; it rises under load", "ok")
    return _finding(reading, missing, f"{now:g} of {most:g}", "warning" if missing else "ok")


def _value(by_sign: Mapping[HealthSign, HealthReading], sign: HealthSign) -> float | None:
    return by_sign[sign].value if sign in by_sign else None


def _finding(reading: HealthReading, value: float, value_text: str, severity: Severity) -> HealthFinding:
    """Return the finding on a reading; `value` is 0 if it is healthy, and `value_text` is shown."""
    rule = RULES[reading.sign]
    advice = "" if severity == "ok" else rule.advice
    return HealthFinding(reading.sign, rule.name, value, value_text, severity, advice, reading.command)


def risen(before: Health, after: Health) -> Health:
    """Return the errors that appeared between two readings of a device, as a health of the device.

    A value that fell, as after a reset, is no error."""
    earlier_findings = {finding.sign: finding for finding in before.findings}
    findings = []
    for finding in after.findings:
        earlier = earlier_findings.get(finding.sign)
        rule = RULES[finding.sign]
        if finding.sign is HealthSign.LOST and earlier is None and before.findings:
            earlier = HealthFinding(finding.sign, rule.name, 0.0, "no", "ok")
        if earlier is None or earlier.value is None or finding.value is None or rule.rise == "ok":
            continue
        if finding.value > earlier.value:
            value_text = f"{finding.shown}, before the run {earlier.shown}"
            findings.append(
                HealthFinding(
                    finding.sign, rule.name, finding.value, value_text, rule.rise, rule.advice, finding.command
                )
            )
    return Health(after.device, tuple(findings), after.unavailable)
