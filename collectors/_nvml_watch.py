"""Watch the state of a GPU between two samples through NVML: whether the last sample was disturbed, and by what.

Name the reasons that NVML gives for a GPU's clocks: each bit with its name and its class.

nvml.h: nvmlClocksEventReason…, before driver 535 nvmlClocksThrottleReason…; `nvidia-smi -q -d PERFORMANCE` shows
them."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gpubench.api import collector as gb

from ._nvml import instance_of, is_of
from ._strangers import ForeignProcesses

IDLE = 0x1
USER_CLOCKS = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100

BITS = (
    gb.EventBit(IDLE, "idle", gb.EventClass.IDLE),
    gb.EventBit(USER_CLOCKS, "application clocks", gb.EventClass.USER),
    gb.EventBit(SW_POWER_CAP, "power cap", gb.EventClass.POWER_CAP),
    gb.EventBit(HW_SLOWDOWN, "hardware slowdown", gb.EventClass.HARDWARE_SLOWDOWN),
    gb.EventBit(SYNC_BOOST, "sync boost", gb.EventClass.USER),
    gb.EventBit(SW_THERMAL, "thermal, by software", gb.EventClass.THERMAL),
    gb.EventBit(HW_THERMAL, "thermal, by hardware", gb.EventClass.THERMAL),
    gb.EventBit(HW_POWER_BRAKE, "power brake", gb.EventClass.HARDWARE_SLOWDOWN),
    gb.EventBit(DISPLAY_CLOCKS, "display clocks", gb.EventClass.USER),
)


def mask_of(*kinds: gb.EventClass) -> int:
    """Return the mask of all reasons of these classes."""
    return sum(bit.mask for bit in BITS if bit.kind in kinds)


T = TypeVar("T")

_THERMAL = mask_of(gb.EventClass.THERMAL)
_EXPLAINED = IDLE | USER_CLOCKS | SW_POWER_CAP
_LOW_CLOCK = 0.75  # share of the default clock: nvbench's limit for a throttled sample
_NEAR_THE_CAP = 0.9  # share of the limit: an H200 draws it when the cap lowers its clock, 0.2 s before it says so
_MILLI = 1e-3


def condition_of(
    reasons: int | None,
    clock_hz: float | None,
    default_hz: float | None,
    processes: int | None,
    baseline: int | None,
    power_share: float | None = None,
) -> gb.Condition:
    """Return the verdict on a sample from plain numbers; None is an unknown number and counts as undisturbed.

    `reasons` is the mask of clocks event reasons after the sample, `clock_hz` is the SM clock, `default_hz` its
    normal value."""
    bits = reasons or 0
    discard = _slowdowns(bits)
    if unexplained(reasons, clock_hz, default_hz):
        if power_share is not None and power_share >= _NEAR_THE_CAP:
            bits |= SW_POWER_CAP
        elif clock_hz and default_hz and clock_hz < _LOW_CLOCK * default_hz:
            discard += ("low-clock",)
    if processes is not None and baseline is not None and processes > baseline:
        discard += ("foreign-process",)
    return gb.Condition(discard, ("power-capped",) if bits & SW_POWER_CAP else ())


def unexplained(reasons: int | None, clock_hz: float | None, default_hz: float | None) -> bool:
    """Return whether the clock is below its default without any reason, not even that the GPU is idle.

    `reasons` is the mask of clocks event reasons. The result is False if one of the three numbers is unknown."""
    if reasons is None or not clock_hz or not default_hz or clock_hz >= default_hz:
        return False
    return not (_slowdowns(reasons) or reasons & _EXPLAINED)


def _slowdowns(bits: int) -> tuple[str, ...]:
    """Return the slugs for which a sample is discarded: the hardware reasons in `bits` that force the clock down.

    HW_SLOWDOWN is also set with thermal reasons and the power brake, so it counts only if it is set alone."""
    slowdowns: tuple[str, ...] = ()
    if bits & _THERMAL:
        slowdowns += ("thermal",)
    if bits & HW_POWER_BRAKE:
        slowdowns += ("power-brake",)
    return slowdowns or (("hw-slowdown",) if bits & HW_SLOWDOWN else ())


def event_reasons(nvml: Any, gpu: Any) -> int:
    """Return the mask of the clocks event reasons that hold now; before driver 535 NVML has another name for them.

    `nvml` is the module pynvml, and `gpu` its handle. Raises NVMLError if NVML refuses the call."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def sm_clock_hz(nvml: Any, gpu: Any) -> float:
    """Return the SM clock now, in hertz; `nvml` is the module pynvml, and `gpu` its handle.

    Raises NVMLError if NVML refuses the call."""
    return float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)) * 1e6


def field(nvml: Any, gpu: Any, number: int, scope: int = 0) -> Any:
    """Return the value of NVML's field `number`, a union of C types (`uiVal`, `ullVal`, …).

    `nvml` is the module pynvml, `gpu` its handle, and `scope` the number of the link for a field of links."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)])
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return answer.value


def instant_power_w(nvml: Any, gpu: Any) -> float:
    """Return the power now, in watts; nvmlDeviceGetPowerUsage is a mean over a second on Ampere and later.

    `nvml` is the module pynvml, and `gpu` its handle. Raises NVMLError if NVML refuses the call."""
    return float(field(nvml, gpu, nvml.NVML_FI_DEV_POWER_INSTANT).uiVal) * _MILLI


def process_ids(nvml: Any, gpu: Any, is_mig: bool) -> tuple[int, ...]:
    """Return the ids of the compute processes on the GPU; of a MIG instance without its neighbours.

    `nvml` is the module pynvml, and `gpu` its handle. Raises NVMLError if NVML refuses a call."""
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    instance = instance_of(nvml, gpu, is_mig)  # some drivers list every process of the card
    return tuple(process.pid for process in processes if is_of(instance, process))


class NvmlWatch:
    """A GPU between samples: `look` makes two calls of NVML (3 µs) and lists the processes every 50 ms (23 µs).

    The run file keeps the SM clock with each series."""

    def __init__(self, nvml: Any, gpu: Any, device: gb.Device) -> None:
        """Prepare the watch of one GPU; `nvml` is the initialised module pynvml, and `gpu` its handle."""
        self._nvml = nvml
        self._gpu = gpu
        self._id = device.id
        self._default_hz = default_clock_hz(device)
        self._limit_w = power_limit_w(device)
        self._others = ForeignProcesses(lambda: self._read(partial(process_ids, is_mig=device.kind == "mig")))

    def begin(self) -> None:
        """Count the processes of others on the GPU as the baseline.

        The case is labelled `shared-device` if a process certainly belongs to another run or program."""
        self._others.begin()

    def look(self) -> gb.Condition:
        """Return the condition of the last sample: slowdowns, the power cap, foreign processes, and the clock.

        Raises DeviceError if the GPU is lost."""
        clock_hz = self._read(sm_clock_hz)  # read first: if the GPU becomes idle meanwhile, the reasons say so
        reasons = self._read(event_reasons)
        self._others.look()
        power_share = self._power_share() if unexplained(reasons, clock_hz, self._default_hz) else None
        condition = condition_of(
            reasons, clock_hz, self._default_hz, self._others.count, self._others.baseline, power_share
        )
        return gb.Condition(condition.discard, condition.labels + self._others.labels, clock_hz)

    def _power_share(self) -> float | None:
        power_w = self._read(instant_power_w) if self._limit_w else None
        return power_w / self._limit_w if power_w is not None and self._limit_w else None

    def _read(self, call: Callable[[Any, Any], T]) -> T | None:
        """Return the result of `call`, which is given pynvml and the GPU's handle; None if NVML refuses the call."""
        try:
            return call(self._nvml, self._gpu)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise gb.DeviceError(
                    f"{self._id} is lost ({error}); look at dmesg, then restart the machine"
                ) from error
            return None


def default_clock_hz(device: gb.Device) -> float | None:
    """Return the device's SM clock in hertz as CUDA reports it; None if the inventory does not have it."""
    return _detail(device, "clock.sm_hz")


def power_limit_w(device: gb.Device) -> float | None:
    """Return the enforced power limit in watts; None if the inventory does not have it."""
    return _detail(device, "power.limit_w")


def _detail(device: gb.Device, name: str) -> float | None:
    """Return the number `name` in the device's details; None if it is missing, zero or not a number."""
    try:
        return float(dict(device.details).get(name, "")) or None
    except ValueError:
        return None
