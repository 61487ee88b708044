"""Ask the collectors for the health of devices, in a child process that may crash or hang without harm.

`Examination` is the parent's side and `main` the child's. The child keeps running between two readings, so that it sees
the errors that the driver reports meanwhile."""

import contextlib
import faulthandler
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from gpubench import plugins
from gpubench.base.errors import Unavailable
from gpubench.measuring import boundary, health
from gpubench.measuring.channel import BadMessage, Child, ToParent, to_parent
from gpubench.measuring.health import Health
from gpubench.model import Device
from gpubench.plugins.collector import ChecksHealth, Collector, HealthReading, HealthSource

PATIENCE_S = 20.0  # seconds for all devices: without persistence mode a driver takes 1 to 2 s to start a GPU
_TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class _HealthAnswer:
    """The readings of one device by one collector, or the reason why there are none."""

    device: str
    readings: tuple[HealthReading, ...]
    reason: str = ""


def examinable(devices: Sequence[Device]) -> list[Device]:
    """Return the devices that a driver can report on, because they have a PCI address or a UUID."""
    return [device for device in devices if device.pci or device.uuid]


def examine(devices: Sequence[Device]) -> tuple[Health, ...]:
    """Return the health of these devices now, read in a child process that then ends.

    Devices without a PCI address and a UUID are left out. It takes at most 20 s and the time to end the child."""
    with Examination(devices) as examination:
        return examination.read()


class Examination(AbstractContextManager["Examination"]):
    """Reads the health of devices as often as `read` is called; leaving the context ends the child process.

    Devices without a PCI address and a UUID are left out. Creating it does not wait for the child process."""

    def __init__(self, devices: Sequence[Device], patience_s: float = PATIENCE_S) -> None:
        self._devices = examinable(devices)
        self._patience_s = patience_s
        self._child: Child[_HealthAnswer | None] | None = None
        self._start_child()

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def read(self) -> tuple[Health, ...]:
        """Return the health of each device now, judged by `health.RULES`; empty without a device.

        It waits for at most `patience_s` seconds for all devices."""
        if not self._devices:
            return ()
        self._start_child()
        answers, problem = self._read_answers()
        return tuple(_merge_health(device.id, answers, problem) for device in self._devices)

    def _start_child(self) -> None:
        """Start the child process unless one is running or there are no devices."""
        if self._devices and self._child is None:
            self._child = Child("gpubench.measuring.examination", (_HealthAnswer, type(None)))
            with contextlib.suppress(OSError):  # the process has ended already, and `read` will report that
                self._child.channel.send(tuple(self._devices))

    def _read_answers(self) -> tuple[list[_HealthAnswer], str]:
        """Return the answers that came in time and the reason why further ones did not come; empty if all came."""
        child = self._child
        assert child is not None
        answers: list[_HealthAnswer] = []
        deadline = time.monotonic() + self._patience_s
        try:
            child.channel.send("read")
            while time.monotonic() < deadline:
                child.drain()
                if child.channel.poll(_TICK_S):
                    answer = child.channel.recv()
                    if answer is None:
                        return answers, ""
                    answers.append(answer)
            problem = f"the driver did not answer within {self._patience_s:g} s"
        except BadMessage as error:
            problem = f"the process that asked the driver sent {error}"
        except (EOFError, OSError):
            problem = f"the process that asked the driver ended: {child.describe_end()}"
        self._end_child()
        return answers, problem

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _merge_health(device: str, answers: Sequence[_HealthAnswer], problem: str) -> Health:
    of_device = [answer for answer in answers if answer.device == device]
    judged = health.judge(device, [reading for answer in of_device for reading in answer.readings])
    reasons = [answer.reason for answer in of_device if answer.reason] + [problem] * bool(problem)
    if judged.findings:
        return judged
    return Health(device, (), "; ".join(reasons) or "no collector reports the health of this device")


class _Sources:
    """The sources of health of all collectors, opened for the devices that they accept, on the child's side."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Open the source of every collector that checks health and accepts any of the devices."""
        self._sources: list[tuple[str, HealthSource, list[Device]]] = []
        self._failures: list[_HealthAnswer] = []
        for name in plugins.names("collectors"):
            accepted: list[Device] = []
            try:
                collector: Collector = plugins.load("collectors", name)
                if isinstance(collector, ChecksHealth):
                    accepts = collector.accepts
                    accepted = [device for device in devices if plugins.call_library(name, partial(accepts, device))]
                    if accepted:
                        self._sources.append(
                            (name, plugins.call_library(name, partial(collector.health, accepted)), accepted)
                        )
            except (Unavailable, plugins.BrokenPlugin) as error:
                reason = boundary.text(str(error))
                self._failures += [_HealthAnswer(device.id, (), reason) for device in accepted]

    def send(self, channel: ToParent) -> None:
        for failure in self._failures:
            channel.send(failure)
        for name, source, devices in self._sources:
            for device in devices:
                channel.send(_read_health(name, source, device))
        channel.send(None)


def _read_health(name: str, source: HealthSource, device: Device) -> _HealthAnswer:
    """Return the readings of one device by the collector `name`, or the reason why they are unavailable."""
    try:
        return _HealthAnswer(device.id, plugins.call_library(name, lambda: health.checked(source.read(device))))
    except Unavailable as error:
        return _HealthAnswer(device.id, (), boundary.text(str(error)))


def main() -> None:
    """Answer the parent's requests for readings until it closes the channel: the program of the child process."""
    faulthandler.enable()
    channel = to_parent(sys.argv[1])
    sources = _Sources(channel.recv())
    try:
        while channel.recv() == "read":
            sources.send(channel)
    except (EOFError, OSError):  # the parent has ended
        return
