"""Read the health of an NVIDIA GPU from NVML and the kernel log, with commands that show or fix each finding.

gpubench.measuring.health judges the readings. NVML's names are the names in nvml.h."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpubench.api import collector as gb

from ._nvml import handle_of, is_lost, lack_of
from ._nvml_watch import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, event_reasons, field, process_ids

KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192  # one read of /dev/kmsg is one record of at most this size
_MOST_RECORDS = 1_000_000
_BUSY_PERCENT = 20  # an idle GPU shows a few per cent after a program has ended
_DMESG = "sudo dmesg | grep Xid"
_MOST_NUMBERS = 8  # the most Xids or process ids that a text names
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?: GPU-I:(\d+))?[^)]*\): (\d+)")
# The Xids that programs cause by themselves, in most cases (NVIDIA, Xid Errors): an exception or a fault of a kernel, a
# stopped or cleaned-up channel, a fault of the video decoder, an invalid push buffer
_OF_PROGRAMS = frozenset({11, 13, 31, 43, 45, 68, 69})
_ACTIONS = {  # nvmlDeviceGpuRecoveryAction_t
    1: "reset the GPU",
    2: "restart the machine",
    3: "end all peer-to-peer traffic",
    4: "end all peer-to-peer traffic and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus of the GPU",
    7: "restart the machine",
}
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings do not name
# NVML's fields for each link: architectures count in different fields, so the first one with a value is used
_LINK_FIELDS: Mapping[gb.HealthSign, tuple[int, ...]] = {
    gb.HealthSign.LINK_REPLAYS: (161,),  # NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
    gb.HealthSign.LINK_RECOVERIES: (162, 215),  # …_ERROR_DL_RECOVERY, …_COUNT_LINK_RECOVERY_EVENTS
    gb.HealthSign.LINK_CRC_ERRORS: (163,),  # …_ERROR_DL_CRC
}
_LINK_DOWN = 0  # nvmlEnableState_t; 2 is a link that sleeps
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # nvmlValueType_t


class ErrorNumbers(Protocol):
    """The errors of a GPU as the driver's numbers (`Xids`): `read` collects new ones, `take` returns them."""

    def read(self) -> float: ...
    def take(self) -> list[int]: ...


class NvmlHealth:
    """Reads the health of NVIDIA GPUs.

    The first reading of a GPU takes its errors from the kernel log, if this user may read it."""

    def __init__(self, nvml: Any, xids: Callable[[Any, Any, bool], ErrorNumbers], log: Path = KERNEL_LOG) -> None:
        """Prepare to read; `xids` makes the collector of a GPU's errors from pynvml, a handle and whether it is MIG."""
        self._nvml = nvml
        self._make_xids = xids
        self._log = log
        self._gpus: dict[str, Any] = {}
        self._xids: dict[str, ErrorNumbers] = {}
        self._reported: dict[str, list[int]] = {}

    def read(self, device: gb.Device) -> Sequence[gb.HealthReading]:
        """Return the health readings of the device; a GPU that does not answer any more has a single reading, LOST.

        Raises Unavailable if NVML does not know the device."""
        try:
            gpu = self._gpu(device)
            card, lack = CardHealth(self._nvml, gpu, device), lack_of(device)
            readings = (*card.readings(), *self._events(device, gpu))
            return [gb.HealthReading(gb.HealthSign.LOST, 0.0), *(_with_clause(reading, lack) for reading in readings)]
        except LostGpuError as error:
            return [gb.HealthReading(gb.HealthSign.LOST, 1.0, str(error), _DMESG)]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _gpu(self, device: gb.Device) -> Any:
        if device.id not in self._gpus:
            try:
                self._gpus[device.id] = handle_of(self._nvml, device)
            except gb.Unavailable as error:
                if error.__cause__ is not None and is_lost(self._nvml, error.__cause__):
                    raise LostGpuError(str(error.__cause__)) from error
                raise
        return self._gpus[device.id]

    def _events(self, device: gb.Device, gpu: Any) -> list[gb.HealthReading]:
        """Return the number of Xids that the hardware caused and the number that programs caused."""
        reason = ""
        if device.id in self._xids:
            self._xids[device.id].read()
            self._reported[device.id] += self._xids[device.id].take()
        else:
            try:
                own = self._nvml.nvmlDeviceGetGpuInstanceId(gpu) if device.kind == "mig" else None
                self._reported[device.id] = xids_in_log(self._log, device.pci, own)
            except OSError as error:
                reason = f"{self._log}: {error.strerror}"
                self._reported[device.id] = []
            listens = self._listen(device, gpu)
            if reason and not listens:
                return [gb.HealthReading(sign, None, reason, _DMESG) for sign in _EVENTS]
            reason = f"from now on; {reason}" if reason else ""
        return [_xid_reading(sign, chosen(self._reported[device.id]), reason) for sign, chosen in _EVENTS.items()]

    def _listen(self, device: gb.Device, gpu: Any) -> bool:
        try:
            self._xids[device.id] = self._make_xids(self._nvml, gpu, device.kind == "mig")
        except self._nvml.NVMLError as error:
            raise_if_lost(self._nvml, error)
            return False
        return True


class CardHealth:
    """Reads the health of one GPU from NVML alone. Commands name the GPU by its UUID or PCI address."""

    def __init__(self, nvml: Any, gpu: Any, device: gb.Device) -> None:
        """Prepare to read the GPU with NVML's handle `gpu`; `nvml` is the initialised module pynvml."""
        self._nvml = nvml
        self._gpu = gpu
        self._card = device.uuid or device.pci
        self._is_mig = device.kind == "mig"
        self._is_whole = not lack_of(device)
        self._reset = f"sudo nvidia-smi --gpu-reset --id={self._card}"

    def readings(self) -> Iterator[gb.HealthReading]:
        """Yield all readings: recovery, memory errors, InfoROM, slowdowns, processes, PCIe, NVLink.

        A reading that NVML refuses has no value. Raises LostGpuError if the GPU does not answer any more."""
        yield self._recovery()
        uncorrected = (self._gpu, self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        volatile, lifetime = (*uncorrected, self._nvml.NVML_VOLATILE_ECC), (*uncorrected, self._nvml.NVML_AGGREGATE_ECC)
        total = self._nvml.nvmlDeviceGetTotalEccErrors
        memory = [
            self._reading(gb.HealthSign.ECC_UNCORRECTED, self._reset, partial(total, *volatile)),
            self._reading(gb.HealthSign.ECC_UNCORRECTED_LIFETIME, self._show_command("ECC"), partial(total, *lifetime)),
            *self._memory(),
        ]
        without = self._why_no_ecc() if self._is_whole and any(reading.value is None for reading in memory) else ""
        yield from (_with_clause(reading, without) for reading in memory)
        yield self._reading(gb.HealthSign.INFOROM, f"nvidia-smi --query --id={self._card}", self._is_inforom_wrong)
        yield from self._slowdowns()
        yield self._processes()
        yield from self._pcie()
        yield from self._links()

    def _why_no_ecc(self) -> str:
        """Return why the GPU counts no errors of its memory; empty if its ECC is on."""
        try:
            return "" if self._nvml.nvmlDeviceGetEccMode(self._gpu)[0] else "ECC is off"
        except self._nvml.NVMLError as error:
            return "this GPU has no ECC" if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED else ""

    def _show_command(self, part: str) -> str:
        return f"nvidia-smi --query --display={part} --id={self._card}"

    def _reading(self, sign: gb.HealthSign, command: str, call: Callable[[], float]) -> gb.HealthReading:
        """Return the result of `call` as a reading of `sign`; if NVML refuses the call, a reading without a value."""
        try:
            return gb.HealthReading(sign, call(), command=command)
        except self._nvml.NVMLError as error:
            raise_if_lost(self._nvml, error)
            return gb.HealthReading(sign, None, str(error), command)

    def _recovery(self) -> gb.HealthReading:
        """Return whether the driver recommends an action: 1 if so, with the action in the note."""
        sign = gb.HealthSign.RECOVERY
        reading = self._reading(sign, "", lambda: float(field(self._nvml, self._gpu, _RECOVERY_ACTION).uiVal))
        if not reading.value:
            return reading
        action = int(reading.value)
        return gb.HealthReading(sign, 1.0, _ACTIONS.get(action, f"action {action}"), self._reset if action == 1 else "")

    def _memory(self) -> list[gb.HealthReading]:
        nvml, show = self._nvml, self._show_command("ROW_REMAPPER")
        signs = {
            gb.HealthSign.ROWS_REMAPPED: (1, show),
            gb.HealthSign.REMAP_PENDING: (2, self._reset),
            gb.HealthSign.REMAP_FAILURE: (3, show),
        }
        try:
            rows = nvml.nvmlDeviceGetRemappedRows(self._gpu)
        except nvml.NVMLError as error:
            raise_if_lost(nvml, error)
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                return self._pages()
            return [gb.HealthReading(sign, None, str(error), command) for sign, (_, command) in signs.items()]
        return [gb.HealthReading(sign, rows[place], command=command) for sign, (place, command) in signs.items()]

    def _is_inforom_wrong(self) -> float:
        """Return 1 if the configuration that the board stores has a wrong checksum, else 0."""
        try:
            self._nvml.nvmlDeviceValidateInforom(self._gpu)
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_CORRUPTED_INFOROM:
                raise
            return 1.0
        return 0.0

    def _pages(self) -> list[gb.HealthReading]:
        nvml, gpu = self._nvml, self._gpu
        cause = nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
        pending = partial(nvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)
        return [
            self._reading(
                gb.HealthSign.PAGES_RETIRED,
                self._show_command("PAGE_RETIREMENT"),
                lambda: len(nvml.nvmlDeviceGetRetiredPages(gpu, cause)),
            ),
            self._reading(gb.HealthSign.PAGES_PENDING, self._reset, pending),
        ]

    def _slowdowns(self) -> Iterator[gb.HealthReading]:
        """Yield whether the GPU is at least 20 % busy, and whether each kind of hardware slowdown is active."""
        nvml, gpu = self._nvml, self._gpu
        share = self._reading(gb.HealthSign.BUSY, "", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        busy = None if share.value is None else float(share.value >= _BUSY_PERCENT)
        yield gb.HealthReading(gb.HealthSign.BUSY, busy, share.note)
        command = self._show_command("PERFORMANCE,TEMPERATURE,POWER")
        reasons = self._reading(gb.HealthSign.HARDWARE_SLOWDOWN, command, partial(event_reasons, nvml, gpu))
        bits = 0 if reasons.value is None else int(reasons.value)
        alone = HW_SLOWDOWN if not bits & (HW_THERMAL | HW_POWER_BRAKE) else 0  # it is also set with the others
        masks = {
            gb.HealthSign.HARDWARE_SLOWDOWN: alone,
            gb.HealthSign.HARDWARE_THERMAL: HW_THERMAL,
            gb.HealthSign.POWER_BRAKE: HW_POWER_BRAKE,
        }
        for sign, mask in masks.items():
            value = None if reasons.value is None else float(bool(bits & mask))
            yield gb.HealthReading(sign, value, reasons.note, command)

    def _processes(self) -> gb.HealthReading:
        numbers: list[int] = []
        command = f"nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv --id={self._card}"

        def count() -> float:
            """Return the number of compute processes, and add their ids to `numbers`."""
            numbers.extend(process_ids(self._nvml, self._gpu, self._is_mig))
            return len(numbers)

        reading = self._reading(gb.HealthSign.PROCESSES, command, count)
        text = _numbers_text("process", numbers) if numbers else reading.note
        return gb.HealthReading(reading.sign, reading.value, text, command)

    def _pcie(self) -> Iterator[gb.HealthReading]:
        names = "pcie.link.width.current,pcie.link.width.max,pcie.link.gen.gpucurrent,pcie.link.gen.max"
        command = f"nvidia-smi --query-gpu={names} --format=csv --id={self._card}"
        calls = {
            gb.HealthSign.PCIE_WIDTH: self._nvml.nvmlDeviceGetCurrPcieLinkWidth,
            gb.HealthSign.PCIE_WIDTH_MOST: self._nvml.nvmlDeviceGetMaxPcieLinkWidth,
            gb.HealthSign.PCIE_GENERATION: self._nvml.nvmlDeviceGetCurrPcieLinkGeneration,
            gb.HealthSign.PCIE_GENERATION_MOST: self._nvml.nvmlDeviceGetMaxPcieLinkGeneration,
            gb.HealthSign.PCIE_REPLAYS: self._nvml.nvmlDeviceGetPcieReplayCounter,
        }
        for sign, call in calls.items():
            yield self._reading(sign, command, partial(call, self._gpu))

    def _links(self) -> Iterator[gb.HealthReading]:
        """Yield the number of NVLinks that are down and their errors; nothing for a GPU without links."""
        states = self._link_states()
        if not states:
            return
        up = [link for link, state in states.items() if state != _LINK_DOWN]
        down = [link for link, state in states.items() if state == _LINK_DOWN]
        text = _numbers_text("link", down) if up and down else "" if up else "none of its links is connected"
        status = f"nvidia-smi nvlink --status --id={self._card}"
        yield gb.HealthReading(gb.HealthSign.LINKS_DOWN, len(down) if up else 0.0, text, status)
        if up:
            yield from (self._link_errors(sign, numbers, up) for sign, numbers in _LINK_FIELDS.items())

    def _link_errors(self, sign: gb.HealthSign, numbers: Sequence[int], links: Sequence[int]) -> gb.HealthReading:
        """Return the errors of the kind `sign`, summed over `links`, as a reading."""
        command = f"nvidia-smi nvlink --errorcounters --id={self._card}"
        reading = gb.HealthReading(sign, None)
        for number in numbers:
            reading = self._reading(sign, command, partial(self._sum_over_links, number, links))
            if reading.value is not None:
                break
        return reading

    def _link_states(self) -> dict[int, int]:
        """Return the state of each NVLink by its number, as nvmlEnableState_t; empty for a GPU without links."""
        nvml = self._nvml
        states: dict[int, int] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                states[link] = int(nvml.nvmlDeviceGetNvLinkState(self._gpu, link))
            except nvml.NVMLError as error:
                raise_if_lost(nvml, error)
                break  # there are no more links
        return states

    def _sum_over_links(self, number: int, links: Sequence[int]) -> float:
        """Return the sum of NVML's field `number` over the links with these numbers."""
        values = self._nvml.nvmlDeviceGetFieldValues(self._gpu, [(number, link) for link in links])
        for value in values:
            if value.nvmlReturn:
                raise self._nvml.NVMLError(value.nvmlReturn)
        return float(sum(getattr(value.value, _MEMBERS.get(value.valueType, "ullVal")) for value in values))


class LostGpuError(Exception):
    """The GPU does not answer any more."""


def raise_if_lost(nvml: Any, error: Any) -> None:
    """Raise LostGpuError if `error`, an NVMLError, means that the GPU does not answer any more.

    `nvml` is the module pynvml."""
    if is_lost(nvml, error):
        raise LostGpuError(str(error)) from error


_EVENTS: Mapping[gb.HealthSign, Callable[[Sequence[int]], list[int]]] = {
    gb.HealthSign.HARDWARE_EVENTS: lambda xids: [xid for xid in xids if xid not in _OF_PROGRAMS],
    gb.HealthSign.PROGRAM_EVENTS: lambda xids: [xid for xid in xids if xid in _OF_PROGRAMS],
}


def _xid_reading(sign: gb.HealthSign, xids: Sequence[int], reason: str) -> gb.HealthReading:
    """Return the number of Xids as a reading; the note lists the last eight, or is `reason` if there are none."""
    return gb.HealthReading(sign, len(xids), f"Xid {_last_numbers_text(xids)}" if xids else reason, _DMESG)


def _numbers_text(noun: str, numbers: Sequence[int]) -> str:
    """Return the numbers as text after their noun: `link 3`, `link numbers 3, 4`."""
    return f"{noun} {'numbers ' if len(numbers) > 1 else ''}{_last_numbers_text(numbers)}"


def _last_numbers_text(numbers: Sequence[int]) -> str:
    listed = ", ".join(str(number) for number in numbers[-_MOST_NUMBERS:])
    return f"…, {listed}" if len(numbers) > _MOST_NUMBERS else listed


def _with_clause(reading: gb.HealthReading, clause: str) -> gb.HealthReading:
    """Return a reading without a value with a further reason, and another reading as it is."""
    is_missing = reading.value is None and clause
    return replace(reading, note=f"{reading.note}; {clause}") if is_missing else reading


def xids_in_log(log: Path, pci: str, instance: int | None = None) -> list[int]:
    """Return the numbers of the Xids in the kernel log `log` for the GPU at the PCI address `pci`, the oldest first.

    With the number of a MIG device's GPU `instance`, an Xid that names another instance is not among them
    (`GPU-I:%02u`: NVIDIA's open kernel modules, kernel_rc.c). Raises OSError if the log is not readable."""
    place = tuple(int(part, 16) for part in re.split("[:.]", pci)[:3]) if pci else ()
    return [
        int(match[5])
        for record in _records(log)
        if (match := _XID.search(record)) and tuple(int(match[part], 16) for part in (1, 2, 3)) == place
        if instance is None or match[4] is None or int(match[4]) == instance
    ]


def _records(log: Path) -> Iterator[bytes]:
    """Yield the records of the kernel log from the oldest on, one line each, without waiting for new ones."""
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        pending = b""
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:  # the end of /dev/kmsg
                break
            except BrokenPipeError:  # older records were overwritten meanwhile
                continue
            if not record:  # the end of an ordinary file
                break
            *lines, pending = (pending + record).split(b"\n")
            yield from lines
        yield pending
    finally:
        os.close(descriptor)
