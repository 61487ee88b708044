"""Import RRZE's gpu-benches: gpu-stream, -latency, -cache, -l2-cache, -roofline, cuda-memcpy and um-stream, as text.

A kB is 1024 B, an MB of um-stream 2^20 B, and a GB/s 1e9 B/s. The other programs of the collection print columns
without a head, which therefore cannot be recognised."""

import re
from dataclasses import dataclass, field

from gpubench.api import importer as gb

_STREAM_HEAD = re.compile(r"(?:block\s+smBlocks\s+threads\s+occ%|blockSize\s+threads\s+%occ)\s+\|((?:\s+\w+)+)$")
_STREAM = re.compile(r"(\d+)\s+(\d+)(?:\s+(\d+))?\s+-?[\d.]+\s?%\s+\|\s+GB/s:((?:\s+-?[\d.]+(?:e[+-]?\d+)?)+)$")
_HEADS = re.compile(
    r"data set\s+exec time\s+spread\s+Eff\. bw|buffer size\s+time\s+spread\s+bandwidth|clock:(?: \d+)+$"
)
_CACHE = r"{time}ms\s+{spread}%\s+{rate} GB/s(?:\s+[\d.-]+ GB/s){4}$"
_ROOFLINE = (
    r"{#device} {#blocks} blocks\s+{#its} its\s+{intensity} Fl/B\s+{rate} GB/s\s+{flops} GF/s\s+"
    r"{#mhz} Mhz\s+{#power} W\s+{#heat}\s*°C"
)
_MEMCPY = r"(?:Device: {#device}\s+)?{#size}kB\s+{time}ms\s+{rate}GB/s\s+{spread}%$"
_LATENCY = r"(?P<loads>\d{5,})\s+{#clock}\s+{size}\s+{time}\s+{mean} {median} {low} {high}$"
_CYCLES = [("median", "cycles", "cycles"), ("latency", "latency", "s")]
_CYCLES += [("mean", "mean", "cycles"), ("low", "p5", "cycles"), ("high", "p95", "cycles")]
_SIZE, _TOTAL, _SPREAD = ("size", "size_bytes", 2**10), ("total", "total_bytes", 2**10), (("spread", "{spread} %"),)
_RATE, _TIME, _FLOPS = ("rate", "bandwidth", "GB/s"), ("time", "time", "ms"), ("flops", "operations", "GFLOPS")
_STATE = (("operations a byte", "{intensity}"), ("clock", "{mhz} MHz"), ("power", "{power} W"), ("heat", "{heat} °C"))
_ROWS = (  # the first three programs are recognised without a head
    gb.Row("gpu-roofline", _ROOFLINE, (("its", "iterations", 1), ("blocks", "blocks", 1)), (_FLOPS, _RATE), _STATE),
    gb.Row("cuda-memcpy", _MEMCPY, (_SIZE,), (_RATE, _TIME), _SPREAD),
    gb.Row(
        "um-stream",
        r"{size} MB\s+{time}ms\s+{spread}%\s+{rate}GB/s$",
        (("size", "size_bytes", 2**20),),
        (_RATE, _TIME),
        _SPREAD,
    ),
    gb.Row("gpu-cache", r"{size} kB\s+" + _CACHE, (_SIZE,), (_RATE,), _SPREAD),
    gb.Row("gpu-l2-cache", r"{size} kB\s+{total} kB\s+" + _CACHE, (_SIZE, _TOTAL), (_RATE,), _SPREAD),
    gb.Row(
        "gpu-latency", _LATENCY, (("size", "size", "kB"),), _CYCLES, (("clock", "{clock} MHz"), ("loads", "{loads}"))
    ),
)


@dataclass(slots=True)
class _Tables(gb.Output):
    kernels: list[str] = field(default_factory=list)  # the columns of gpu-stream
    has_head: bool = False

    def take(self, line: str) -> None:
        rows = _ROWS if self.has_head else _ROWS[:3]
        row, cells = next(((row, cells) for row in rows if (cells := row.cells(line))), (None, {}))
        if head := _STREAM_HEAD.match(line):
            self.kernels = head[1].split()
        elif stream := _STREAM.match(line):
            self._add_stream(stream)
        elif row:
            if float(cells.get("clock", 0)):
                cells["latency"] = repr(gb.number(cells["median"]) / float(cells["clock"]) / 1e6)
            self.add_row(row, cells)
        elif _HEADS.match(line):
            self.has_head = True
        elif (self.has_head or self.kernels) and re.match(r"[\d-]", line):
            raise gb.BadOutput("an incomplete row of the table")

    def _add_stream(self, match: re.Match[str]) -> None:
        block, threads, blocks = (gb.whole_number(match[index] or "1") for index in (1, 2, 3))
        rates = match[4].split()
        if len(rates) != len(self.kernels) or block * blocks == 0 or threads % (block * blocks):
            raise gb.BadOutput("an incomplete row of the table")
        params = (("block", block), *((("blocks", blocks),) if match[3] else ()), ("threads", threads))
        for kernel, rate in zip(self.kernels, rates, strict=True):
            self.add(f"gpu-stream.{kernel}", params, [gb.quantity("bandwidth", "GB/s", rate)])


def _read(text: str) -> gb.Imported:
    tables = _Tables("gpu-benches", "imported: what the programs of gpu-benches measured")
    gb.read_lines(text, tables.take)
    sized = tables.cases("gpu-cache", "cuda-memcpy", "um-stream")
    views = (gb.View("curve", name, (name,), x="size_bytes", series="bandwidth", log_x=True) for name in sized)
    return tables.imported(*views)


importer: gb.Importer = gb.Reader(
    "gpu-benches (RRZE Erlangen): stream, latency, caches, roofline, copies; text",
    gb.has_line(_STREAM_HEAD, *(row.regex for row in _ROWS)),
    _read,
)
