"""Counters that go wrong as GPUBENCH_SICK says; without it this collector reads nothing."""

import math
import os
import signal
import sys
import time

from gpubench.api.collector import Counter, OptionalUnavailable, Unavailable

HOW = os.environ.get("GPUBENCH_SICK", "")
FAST_S, SLOW_S = 0.01, 0.3


def rubbish(turn, names):
    """Return an invalid reading, a different one at each turn."""
    values = (math.nan, math.inf, -math.inf, "1", b"1", [], {}, object(), 10**400, 1 + 2j, print, True, 1.5)
    if turn % 5 == 0:
        return ("no mapping", None, 7, [1.0], object)[turn // 5 % 5]
    if turn % 7 == 0:
        raise (KeyError("x"), SystemExit(3), RecursionError(), UnicodeDecodeError("utf-8", b"x", 0, 1, "\x1b[2J\n"))[
            turn // 7 % 4
        ]
    return dict.fromkeys(names, values[turn % len(values)])


class SickSource:
    """A source of counters that misbehaves in the way that GPUBENCH_SICK names."""

    def __init__(self):
        self._readings = 0

    def read(self, device, names):
        """Return the number of the reading until the fault of GPUBENCH_SICK happens."""
        if names == ("sick.slow",):
            time.sleep({"slow": 0.25, "stuck": 3600.0}.get(HOW, 0.0))
            return {"sick.slow": 1.0}
        self._readings += 1
        if HOW == "rubbish":
            return rubbish(self._readings, names)
        if HOW == "killed" and self._readings == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "lost" and self._readings > 20:
            raise Unavailable("the device is lost", "look at dmesg")
        if HOW == "silent" and self._readings > 20:
            return {}
        if HOW == "hiccup" and self._readings % 5 == 0:
            return {}
        return {name: float(self._readings) for name in names}

    def unsupported(self, device):
        if HOW == "rubbish":
            return {"sick.none": 7, 3: "x"}
        return {"sick.none": "this card has no such sensor"} if HOW == "lacks" else {}

    def messages(self, device):
        if HOW == "rubbish":
            return (None, 7, [7, "\x1b[2J\u202e"], "x" * 10**6, ["y" * 10**6] * 200)[self._readings % 5]
        return ["error 13 of the engine"] if HOW == "event" and self._readings == 5 else []

    def close(self):
        if HOW == "rubbish":
            raise SystemExit("a library that leaves")


class Sick:
    """A collector whose counters misbehave in the way that GPUBENCH_SICK names."""

    counters = (
        Counter("sick.fast", "1", "gauge", FAST_S, "sick --fast"),
        Counter("sick.none", "1", "gauge", FAST_S, "sick --none"),
        Counter("sick.slow", "1", "gauge", SLOW_S, "sick --slow"),
    )

    def accepts(self, device):
        return bool(HOW) and device.backend == "host"

    def versions(self):
        return 3 if HOW == "rubbish" else {}

    def describe(self, device):
        if HOW == "rubbish":
            sys.stdout.write("{} what a library prints\n")
            return {"sick.limit": 3.5, 4: None, "long": "z" * 10**6}
        return {}

    def open(self, devices):
        """Open the source, or refuse as GPUBENCH_SICK says."""
        if HOW == "denied":
            raise Unavailable("no permission to read the counters", "ask for it")
        if HOW == "optional":
            raise OptionalUnavailable("its library is not installed", "pip install sick")
        return SickSource()


collector = Sick()
