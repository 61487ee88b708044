"""Counters that go wrong as GPUBENCH_SICK says; without it this collector reads nothing."""

import os
import signal
import time

from gpubench.api import Counter, Lacking, Missing

HOW = os.environ.get("GPUBENCH_SICK", "")
FAST_S, SLOW_S = 0.01, 0.3


class Source:
    def __init__(self):
        self._readings = 0

    def read(self, device, names):
        if names == ("sick.slow",):
            time.sleep({"slow": 0.25, "stuck": 3600.0}.get(HOW, 0.0))
            return {"sick.slow": 1.0}
        self._readings += 1
        if HOW == "killed" and self._readings == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "lost" and self._readings > 20:
            raise Missing("the device is lost", "look at dmesg")
        if HOW == "silent" and self._readings > 20:
            return {}
        if HOW == "hiccup" and self._readings % 5 == 0:
            return {}
        return {name: float(self._readings) for name in names}

    def lacking(self, device):
        return {"sick.none": "this card has no such sensor"} if HOW == "lacks" else {}

    def told(self, device):
        return ["error 13 of the engine"] if HOW == "event" and self._readings == 5 else []

    def close(self):
        pass


class Sick:
    counters = (
        Counter("sick.fast", "1", "gauge", FAST_S, "sick --fast"),
        Counter("sick.none", "1", "gauge", FAST_S, "sick --none"),
        Counter("sick.slow", "1", "gauge", SLOW_S, "sick --slow"),
    )

    def accepts(self, device):
        return bool(HOW) and device.backend == "host"

    def versions(self):
        return {}

    def describe(self, device):
        return {}

    def watch(self, device):
        raise Lacking("it watches nothing", "")

    def open(self, devices):
        if HOW == "denied":
            raise Missing("no permission to read the counters", "ask for it")
        if HOW == "optional":
            raise Lacking("its library is not installed", "pip install sick")
        return Source()


collector = Sick()
