"""Import nccl-tests and rccl-tests: a table of sizes, each measured out of place and in place.

Bandwidths are algbw and busbw in GB of 1e9 bytes as the tools' doc/PERFORMANCE.md defines them, and times are means of
the iterations. The collective is printed since version 2.17. For older versions it is taken from the command line if
the log repeats that; otherwise the case is called `unnamed`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "nccl-tests"
UNNAMED = "unnamed"
_RANK = re.compile(r"#?\s*Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+(?: on\s+(\S+))?\s+device\s+(\d+) \[(\S+)\] (.+)$")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_HEAD = re.compile(r"#?\s*size\s+count\s+type\b.*\bbusbw\b")
_ROW = re.compile(r"\d+\s+\d+\s+[a-z]")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$")
_LIBRARY = re.compile(r"\b([NR]CCL) version (\S+)")
_MEASURED = ("time", "cputime", "algbw", "busbw", "#wrong", "error", "i_min", "i_max", "i_p99", "i_cv%")
_SMALL_BYTES = 65536  # below, a bandwidth with two decimals is too coarse, so the time is the headline


@dataclass(slots=True)
class _CollectiveTable:
    """The facts that hold for the following rows: the collective, the ranks' devices, and the columns."""

    name: str = UNNAMED
    devices: list[tuple[str, Device]] = field(default_factory=list)  # each device with the name of its host
    columns: tuple[str, ...] = ()

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the ranks' devices, by rank; with several hosts they look like `node1/cuda:0`."""
        hosts = list(dict.fromkeys(host for host, _ in self.devices))
        has_several_hosts = len(hosts) > 1
        return tuple(
            f"node{hosts.index(host)}/{device.id}" if has_several_hosts else device.id for host, device in self.devices
        )


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Importer of the outputs of nccl-tests and rccl-tests."""

    summary: str = "nccl-tests, rccl-tests (NVIDIA, AMD): collectives by size; text"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the head of the table."""
        return any(_HEAD.match(line) for _, line in parsing.numbered_lines(text))

    def read(self, text: str) -> Imported:
        """Return the content of the output, with two results per collective and row: out of place and in place.

        The axes are size, type, operation, root, number of ranks and place."""
        table, has_head = _CollectiveTable(), False
        devices: dict[str, Device] = {}
        results: list[Result] = []
        versions: dict[str, str] = {}
        for number, line in parsing.numbered_lines(text):
            if rank := _RANK.match(line):
                table.devices = [] if has_head else table.devices
                has_head = False
                table.devices.append((rank[2] or "", _device(rank)))
            elif _HEAD.match(line):
                table.columns, has_head = _columns(f"line {number}", line), True
                devices |= dict(zip(table.ids(), (device for _, device in table.devices), strict=True))
            elif _ROW.match(line) and table.columns:
                results += _results(f"line {number}", line, table)
            else:
                _read_names(line, table, versions)
        if not results:
            raise BadOutput("the table has no rows")
        named_devices = tuple(_with_id(name, device) for name, device in devices.items()) or (parsing.UNSTATED,)
        return Imported(_suite_info(results), named_devices, tuple(results), tuple(versions.items()))


def _columns(where: str, line: str) -> tuple[str, ...]:
    """Return the names of the columns in the head of a table, the line called `where`."""
    columns = tuple(line.lstrip("# ").split())
    if not {"size", "count", "type"} <= set(columns):
        raise BadOutput(f"{where}: the head of the table is incomplete")
    return columns


def _device(rank: re.Match[str]) -> Device:
    """Return the device in a match of _RANK, with its name, its PCI id and its host name if they are printed."""
    name = rank[5].strip()
    backend = "rocm" if name.startswith("AMD") else "cuda"
    pci = rank[4] if rank[4].count(":") == 2 else ""
    details = (("hostname", rank[2]),) if rank[2] else ()
    return parsing.make_device(f"{backend}:{rank[3]}", name, pci=pci, details=details)


def _with_id(name: str, device: Device) -> Device:
    facts = {"arch": device.arch, "pci": device.pci, "details": device.details}
    return parsing.make_device(name, device.name, **facts)


def _read_names(line: str, table: _CollectiveTable, versions: dict[str, str]) -> None:
    """Read the collective into `table` and versions of software into `versions`, if `line` has any of them."""
    if match := _NAME.search(line):
        table.name = match[1]
    if match := _LIBRARY.search(line):
        versions[match[1].lower()] = match[2]
    if match := re.match(r"#?\s*nccl-tests version (\S+)", line):
        versions["nccl-tests"] = match[1]
    if re.match(r"#\s*\(B\)", line):
        _check_units(line)


def _check_units(line: str) -> None:
    """Raise BadOutput if the line of units below the head has an unknown unit."""
    units = re.findall(r"\(([^)]+)\)", line)
    if not set(units) <= {"B", "elements", "us", "GB/s", "%"}:
        raise BadOutput(f"the units {', '.join(units)}: newer than the known versions")


def _results(where: str, line: str, table: _CollectiveTable) -> Iterator[Result]:
    """Yield the two results of a row, out of place and in place; `where` names the line."""
    cells = _TIMESTAMP.sub("", line).split()
    key = [column for column in table.columns if column not in _MEASURED and column != "timestamp"]
    measured = [column for column in table.columns if column in _MEASURED]
    if len(cells) == len(key) + len(measured) - 1 and "redop" in key:
        key.remove("redop")  # older versions omit the cell if there is no operation
    if len(cells) != len(key) + len(measured):
        raise BadOutput(f"{where}: {len(cells)} columns where the head has {len(table.columns)}")
    shared_cells = dict(zip(key, cells, strict=False))
    pairs = list(zip(measured, cells[len(key) :], strict=True))
    half = len(pairs) // 2
    if len(pairs) % 2 or measured[:half] != measured[half:]:
        raise BadOutput(f"{where}: the columns are not those of out of place and in place")
    for place, place_cells in (("out", pairs[:half]), ("in", pairs[half:])):
        yield _result(where, shared_cells, place, dict(place_cells), table)


def _result(
    where: str, shared_cells: dict[str, str], place: str, cells: dict[str, str], table: _CollectiveTable
) -> Result:
    """Return the result of one place (`out` or `in`) in a row; `where` names the line."""
    ids = table.ids() or (parsing.UNSTATED.id,)
    size = parsing.whole_number(shared_cells["size"], where)
    params: list[tuple[str, str | int | float]] = [("size_bytes", size), ("type", shared_cells["type"])]
    params += [(name, shared_cells[name]) for name in ("redop", "root") if name in shared_cells]
    params += [("ranks", len(table.devices))] if table.devices else []
    case = Case(_SUITE, table.name, (*params, ("place", place)), devices=len(ids))
    series = _series(where, size, cells)
    wrong = cells.get("#wrong", "N/A")
    notes = (("validation", "off"),) if wrong == "N/A" else ()
    if wrong != "N/A" and parsing.number(wrong, where) > 0:
        reason = f"{wrong} values are out of bounds"
        return Result(case, ids, "failed", cause="wrong-answer", reason=reason, series=series, notes=notes)
    return Result(case, ids, "ok", series=series, notes=notes)


def _series(where: str, size_bytes: int, cells: dict[str, str]) -> tuple[Series, ...]:
    """Return the bandwidths in B/s and the times in s of one place in a row, the headline first."""
    time = "time" if "time" in cells else "cputime"
    if not {time, "algbw", "busbw"} <= cells.keys():
        raise BadOutput(f"{where}: time, algbw or busbw is missing")
    bandwidths = [
        parsing.rate_series(name, parsing.to_si(parsing.number(cells[name], where), parsing.GIGA))
        for name in ("busbw", "algbw")
    ]
    times = parsing.time_series(time, parsing.to_si(parsing.number(cells[time], where), parsing.MICRO))
    bounds = [
        parsing.time_series(name[2:], parsing.to_si(parsing.number(cells[name], where), parsing.MICRO))
        for name in ("i_min", "i_max", "i_p99")
        if name in cells
    ]
    return (times, *bandwidths, *bounds) if size_bytes < _SMALL_BYTES else (*bandwidths, times, *bounds)


def _suite_info(results: list[Result]) -> SuiteInfo:
    """Return the suite of these results, with curves of the bus bandwidth and the time over size."""
    names = tuple(dict.fromkeys(result.case.name for result in results))
    views = (
        View("curve", "Bus bandwidth", names, x="size_bytes", by=("place",), series="busbw", log_x=True),
        View("curve", "Time", names, x="size_bytes", by=("place",), series="time", log_x=True, log_y=True),
    )
    return SuiteInfo(_SUITE, "imported: collectives as nccl-tests measured them", views)


importer: Importer = NcclTests()
