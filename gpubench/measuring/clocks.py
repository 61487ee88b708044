"""Keep the functions of the module `time` as they are at the start, for the cases that follow one that replaces them.

The devices import the functions that they use, so that no case reaches these."""

import time

_NAMES = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
_KEPT = {name: getattr(time, name) for base in _NAMES for name in (base, f"{base}_ns")} | {"sleep": time.sleep}


def restore() -> None:
    """Give the module `time` its own functions back."""
    for name, function in _KEPT.items():
        setattr(time, name, function)
