"""Import RRZE's gpu-benches: gpu-stream, -latency, -cache, -l2-cache, -roofline, cuda-memcpy and um-stream, as text.

A kB is 1024 B, an MB of um-stream 2^20 B, and a GB/s 1e9 B/s. The other programs of the collection print columns
without a head, which therefore cannot be recognised."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Params, Result, Series, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "gpu-benches"
_N = r"(-?[\d.]+(?:e[+-]?\d+)?)"
_STREAM_HEAD = re.compile(r"(?:block\s+smBlocks\s+threads\s+occ%|blockSize\s+threads\s+%occ)\s+\|((?:\s+\w+)+)$")
_STREAM = re.compile(rf"(\d+)\s+(\d+)(?:\s+(\d+))?\s+{_N}\s?%\s+\|\s+GB/s:((?:\s+{_N})+)$")
_LATENCY = re.compile(rf"(\d{{5,}})\s+(\d+)\s+{_N}\s+{_N}\s+{_N} {_N} {_N} {_N}$")
_CACHE_HEAD = re.compile(r"data set\s+exec time\s+spread\s+Eff\. bw")
_CACHE = re.compile(rf"{_N} kB\s+(?:{_N} kB\s+)?{_N}ms\s+{_N}%\s+{_N} GB/s(?:\s+[\d.-]+ GB/s){{4}}$")
_ROOFLINE = re.compile(
    rf"(\d+) (\d+) blocks\s+(\d+) its\s+{_N} Fl/B\s+{_N} GB/s\s+{_N} GF/s\s+(\d+) Mhz\s+(\d+) W\s+(\d+)\s*°C"
)
_MEMCPY = re.compile(rf"(?:Device: (\d+)\s+)?(\d+)kB\s+{_N}ms\s+{_N}GB/s\s+{_N}%$")
_UNIFIED_HEAD = re.compile(r"buffer size\s+time\s+spread\s+bandwidth")
_UNIFIED = re.compile(rf"{_N} MB\s+{_N}ms\s+{_N}%\s+{_N}GB/s$")
_CLOCK = re.compile(r"clock:(?: \d+)+$")


@dataclass(frozen=True, slots=True)
class _Row:
    """One result line of `program`: its axes, its series, and the number of its device if that is printed."""

    program: str
    params: Params
    series: tuple[Series, ...]
    device: int | None = None
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuBenches:
    """Importer of the outputs of gpu-benches."""

    summary: str = "gpu-benches (RRZE Erlangen): stream, latency, caches, roofline, copies; text"

    def accepts(self, text: str) -> bool:
        """Return whether the text has a line that only these programs print."""
        patterns = (_STREAM_HEAD, *(pattern for pattern, _, _ in _ROWS))
        return any(pattern.match(line) for _, line in parsing.numbered_lines(text) for pattern in patterns)

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per row; for gpu-stream, per row and kernel.

        The case is the program, and the axes are those of the program's table."""
        results: list[Result] = []
        devices: dict[str, Device] = {}
        kernels: list[str] = []
        is_below_head = False
        for number, line in parsing.numbered_lines(text):
            where = f"line {number}"
            if head := _STREAM_HEAD.match(line):
                kernels = head[1].split()
            elif match := _STREAM.match(line):
                rows: Iterator[_Row] = _stream_rows(where, match, kernels)
                results += [_result(row, devices) for row in rows]
            elif row := _parse_row(line, is_below_head):
                results.append(_result(row, devices))
            elif _CACHE_HEAD.match(line) or _UNIFIED_HEAD.match(line) or _CLOCK.match(line):
                is_below_head = True
            elif line and (is_below_head or kernels) and re.match(r"[\d-]", line):
                raise BadOutput(f"{where}: an incomplete row of the table")
        if not results:
            raise BadOutput("the table has no rows")
        return Imported(_suite_info(results), tuple(devices.values()), tuple(results))


def _result(row: _Row, devices: dict[str, Device]) -> Result:
    """Return the result of a row, and add the row's device to `devices` by its id."""
    name = parsing.UNSTATED.id if row.device is None else f"device:{row.device}"
    devices.setdefault(name, parsing.make_device(name))
    return Result(Case(_SUITE, row.program, row.params), (name,), "ok", series=row.series, notes=row.notes)


def _stream_rows(where: str, match: re.Match[str], kernels: list[str]) -> Iterator[_Row]:
    """Yield a row for each of the `kernels`, from a match of _STREAM that has one rate per kernel."""
    rates = match[5].split()
    block, threads, blocks = (parsing.whole_number(match[index] or "1", where) for index in (1, 2, 3))
    if len(rates) != len(kernels) or block * blocks == 0 or threads % (block * blocks):
        raise BadOutput(f"{where}: an incomplete row of the table")
    params: Params = (("block", block), *((("blocks", blocks),) if match[3] else ()), ("threads", threads))
    for kernel, rate in zip(kernels, rates, strict=True):
        yield _Row(
            f"gpu-stream.{kernel}",
            params,
            (parsing.rate_series("bandwidth", parsing.to_si(parsing.number(rate, where), parsing.GIGA)),),
        )


def _parse_row(line: str, is_below_head: bool) -> _Row | None:
    """Return the row that a line of any program but gpu-stream has, or None if the line is no row."""
    for pattern, parse, needs_head in _ROWS:
        if (is_below_head or not needs_head) and (match := pattern.match(line)):
            return parse(match)
    return None


def _latency_row(match: re.Match[str]) -> _Row:
    """Return the row of gpu-latency in a match of _LATENCY; its axis is the size."""
    iterations, clock, size, _, mean, median, low, high = (
        parsing.number(cell, "gpu-latency") for cell in match.groups()
    )
    cycles = Series("cycles", "cycles", (median,))
    bounds = tuple(Series(name, "cycles", (value,)) for name, value in (("mean", mean), ("p5", low), ("p95", high)))
    latency = (parsing.time_series("latency", median / clock / 1e6),) if clock else ()
    notes = (("clock", f"{clock:.0f} MHz"), ("loads", f"{iterations:.0f}"))
    return _Row("gpu-latency", (("size", f"{size:g}kB"),), (cycles, *latency, *bounds), notes=notes)


def _cache_row(match: re.Match[str]) -> _Row:
    """Return the row in a match of _CACHE: of gpu-cache, or of gpu-l2-cache if the total size is printed."""
    size, total, _, spread, rate = (
        None if cell is None else parsing.number(cell, "gpu-cache") for cell in match.groups()
    )
    params: Params = (("size_bytes", parsing.size_bytes(size or 0.0, 1024)),)
    params += (("total_bytes", parsing.size_bytes(total, 1024)),) if total is not None else ()
    program = "gpu-cache" if total is None else "gpu-l2-cache"
    notes = (("spread", f"{spread} %"),)
    return _Row(
        program, params, (parsing.rate_series("bandwidth", parsing.to_si(rate or 0.0, parsing.GIGA)),), notes=notes
    )


def _roofline_row(match: re.Match[str]) -> _Row:
    """Return the row of gpu-roofline in a match of _ROOFLINE; its axes are the iterations and the blocks."""
    device, blocks, iterations, intensity, rate, flops, clock, power, heat = match.groups()
    series = (
        Series(
            "operations", "FLOP/s", (parsing.to_si(parsing.number(flops, "gpu-roofline"), parsing.GIGA),), better="more"
        ),
        parsing.rate_series("bandwidth", parsing.to_si(parsing.number(rate, "gpu-roofline"), parsing.GIGA)),
    )
    notes = (
        ("operations a byte", intensity),
        ("clock", f"{clock} MHz"),
        ("power", f"{power} W"),
        ("heat", f"{heat} °C"),
    )
    params = (("iterations", int(iterations[:9])), ("blocks", int(blocks[:9])))
    return _Row("gpu-roofline", params, series, int(device[:9]), notes)


def _memcpy_row(match: re.Match[str]) -> _Row:
    """Return the row of cuda-memcpy in a match of _MEMCPY; its axis is the size in bytes."""
    device, size, time, rate, spread = match.groups()
    series = (
        parsing.rate_series("bandwidth", parsing.to_si(parsing.number(rate, "cuda-memcpy"), parsing.GIGA)),
        parsing.time_series("time", parsing.to_si(parsing.number(time, "cuda-memcpy"), parsing.MILLI)),
    )
    params = (("size_bytes", int(size[:15]) * 1024),)
    return _Row("cuda-memcpy", params, series, int(device[:9]) if device else None, (("spread", f"{spread} %"),))


def _um_stream_row(match: re.Match[str]) -> _Row:
    """Return the row of um-stream in a match of _UNIFIED; its axis is the size of the buffer in bytes."""
    size, time, spread, rate = (parsing.number(cell, "um-stream") for cell in match.groups())
    series = (
        parsing.rate_series("bandwidth", parsing.to_si(rate, parsing.GIGA)),
        parsing.time_series("time", parsing.to_si(time, parsing.MILLI)),
    )
    return _Row(
        "um-stream", (("size_bytes", parsing.size_bytes(size, 2**20)),), series, notes=(("spread", f"{spread} %"),)
    )


_ROWS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], _Row], bool], ...] = (
    (_ROOFLINE, _roofline_row, False),
    (_MEMCPY, _memcpy_row, False),
    (_UNIFIED, _um_stream_row, False),
    (_CACHE, _cache_row, True),
    (_LATENCY, _latency_row, True),
)


def _suite_info(results: list[Result]) -> SuiteInfo:
    """Return the suite of these results, with a curve over the size for each program that has a size in bytes."""
    names = tuple(dict.fromkeys(result.case.name for result in results))
    sized = tuple(name for name in names if name in ("gpu-cache", "cuda-memcpy", "um-stream"))
    views = tuple(View("curve", name, (name,), x="size_bytes", series="bandwidth", log_x=True) for name in sized)
    return SuiteInfo(_SUITE, "imported: what the programs of gpu-benches measured", views)


importer: Importer = GpuBenches()
