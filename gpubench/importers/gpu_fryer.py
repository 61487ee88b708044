"""Import gpu-fryer (Hugging Face): the rate of matrix products of each GPU over the whole run; text.

The names come from `src/logging.rs` of version 1.1. Gflops/s are multiples of 10⁹. `dev` is the mean in older versions,
so it is not read. A run of several precisions prints its tables one after another; without the line `Using
precision(s)` a table has no precision."""

import re
from dataclasses import dataclass

from gpubench.api import importer as gb

_RATE = re.compile(
    r"GPU #(?P<gpu>\d{1,4}): +(?P<mean>[\d.]+) Gflops/s \(min: (?P<min>[\d.]+), max: (?P<max>[\d.]+)(, dev: [\d.]+)?\)$"
)
_QUANTITIES = tuple((name, name, "GFLOPS") for name in ("mean", "min", "max"))
_UNHEALTHY = re.compile(r"- GPU (\d{1,4}) - (.+)")


@dataclass(slots=True)
class _Log(gb.Output):
    params: gb.Params = ()

    def take(self, line: str) -> None:
        if rate := _RATE.match(line):
            cells, device = rate.groupdict(), f"cuda:{rate['gpu']}"
            self.add("burn", self.params, gb.quantities(cells, _QUANTITIES), (device,))
        elif precision := re.match(r"Using precision\(s\): (.+)", line):
            self.params = (("precision", "+".join(precision[1].split())),)
        elif detected := re.match(r'Detected GPU #(\d{1,4}): "(.+)" \(', line):
            device = f"cuda:{detected[1]}"
            self.devices[device] = gb.make_device(device, detected[2])
        elif unhealthy := _UNHEALTHY.match(line):
            self.add_unmeasured("health", (), (f"cuda:{unhealthy[1]}",), "unhealthy", unhealthy[2])


def _read(text: str) -> gb.Imported:
    log = _Log("gpu-fryer", "imported: matrix products as gpu-fryer measured them")
    gb.read_lines(text, log.take)
    return log.imported()


_SUMMARY = "gpu-fryer (Hugging Face): the rate of matrix products of each GPU under load; text"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has_line(_RATE), _read)
