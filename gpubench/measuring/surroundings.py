"""Read the state of this process that a case can change: if it has, the next case gets a new worker."""

import locale
import os
import resource
import signal
import time
from typing import Any

_CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
_TIME = (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS), "sleep", "tzname")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def state() -> tuple[Any, ...]:
    """Return the working folder, environment, locale, handlers of signals, limits, and the functions of `time`."""
    try:
        folder = os.getcwd()  # noqa: PTH109 - the text is enough
    except FileNotFoundError:  # it was removed
        folder = ""
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    return folder, dict(os.environ), locale.setlocale(locale.LC_ALL), handlers, limits, [vars(time)[n] for n in _TIME]
