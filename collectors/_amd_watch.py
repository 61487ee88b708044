"""Watch the state of an AMD GPU between two samples by the driver's files: whether the last sample was disturbed."""

import time

from gpubench.api import collector as gb

from ._amd_events import mask_of
from ._amd_metrics import ThrottleReasons
from ._amd_processes import KfdProcesses
from ._amd_sysfs import Sysfs
from ._strangers import ForeignProcesses

_POWER = mask_of(gb.EventClass.POWER_CAP)
_THERMAL = mask_of(gb.EventClass.THERMAL)
_FORCED = mask_of(gb.EventClass.HARDWARE_SLOWDOWN)
_MOST = 0.02  # the most time spent on reading the firmware's table, as a share; the cost of a reading is not yet known


def condition_of(reasons: int | None, foreign: int | None, baseline: int | None) -> gb.Condition:
    """Return the verdict on a sample from plain numbers; None is an unknown number.

    `reasons` is the mask of throttle reasons; if it is unknown, the sample is labelled `unwatched`."""
    bits = reasons or 0
    discard = (*(("thermal",) if bits & _THERMAL else ()), *(("hw-slowdown",) if bits & _FORCED else ()))
    if foreign is not None and baseline is not None and foreign > baseline:
        discard += ("foreign-process",)
    labels = (*(("power-capped",) if bits & _POWER else ()), *(("unwatched",) if reasons is None else ()))
    return gb.Condition(discard, labels)


class AmdWatch:
    """An AMD GPU between samples: the throttle reasons and the clock from the firmware's table, and the processes.

    The table is read so often that reading takes at most 2 % of the time; its values hold until it is read again."""

    def __init__(self, files: Sysfs, processes: KfdProcesses, device: gb.Device) -> None:
        """Prepare the watch of one GPU; `processes` lists the processes on it."""
        self._files = files
        self._device = device
        self._others = ForeignProcesses(processes.pids)
        self._throttle = ThrottleReasons()
        self._reasons: int | None = None
        self._clock_hz: float | None = None
        self._due = 0.0

    def begin(self) -> None:
        """Count the processes of others on the GPU as the baseline, and begin to collect its throttle reasons.

        Raises DeviceError if the driver's files of the GPU are gone."""
        self._others.begin()
        self._read()

    def look(self) -> gb.Condition:
        """Return the condition of the last sample: slowdowns, the power cap, foreign processes, and the clock.

        The throttle reasons cover the time since the firmware's table was last read."""
        if time.monotonic() >= self._due:
            self._read()
        self._others.look()
        condition = condition_of(self._reasons, self._others.count, self._others.baseline)
        return gb.Condition(condition.discard, condition.labels + self._others.labels, self._clock_hz)

    def _read(self) -> None:
        """Read the throttle reasons and the clock, and note when the next reading is due."""
        start = time.monotonic()
        metrics = self._files.metrics(self._device.pci)
        end = time.monotonic()
        self._due = end + (end - start) / _MOST
        if metrics is None and not self._files.folder(self._device.pci).is_dir():
            raise gb.DeviceError(f"{self._device.id} is gone from the PCI bus; look at dmesg, then restart the machine")
        self._reasons = self._throttle.since(metrics) if metrics else None
        self._clock_hz = metrics.clock_hz if metrics else None
