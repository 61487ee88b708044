"""nccl-tests and rccl-tests: a table of sizes, each out of place and in place.

Bandwidths are algbw and busbw in GB of 1e9 bytes as their doc/PERFORMANCE.md defines them, times the mean of the
iterations. Which collective it was is printed since version 2.17; before that it may stand in the command line that a
log repeats. Where it stands nowhere the case is called `unnamed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, Series, SuiteInfo, View

from . import _text as text_of

_SUITE = "nccl-tests"
UNNAMED = "unnamed"
_RANK = re.compile(r"#?\s*Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+(?: on\s+(\S+))?\s+device\s+(\d+) \[(\S+)\] (.+)$")
_NAME = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_HEAD = re.compile(r"#?\s*size\s+count\s+type\b.*\bbusbw\b")
_ROW = re.compile(r"\d+\s+\d+\s+[a-z]")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$")
_LIBRARY = re.compile(r"\b([NR]CCL) version (\S+)")
_MEASURED = ("time", "cputime", "algbw", "busbw", "#wrong", "error", "i_min", "i_max", "i_p99", "i_cv%")
_SMALL_BYTES = 65536  # below, two decimals of a bandwidth say nothing and the time speaks for a case


@dataclass(slots=True)
class _Table:
    """What holds for the rows that follow."""

    name: str = UNNAMED
    devices: list[tuple[str, Device]] = field(default_factory=list)  # with the host that each is on
    columns: tuple[str, ...] = ()

    def ids(self) -> tuple[str, ...]:
        """The ids of the ranks' devices: of several hosts with the host's number."""
        hosts = list(dict.fromkeys(host for host, _ in self.devices))
        several = len(hosts) > 1
        return tuple(f"node{hosts.index(host)}/{device.id}" if several else device.id for host, device in self.devices)


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Reads what nccl-tests and rccl-tests printed."""

    summary: str = "nccl-tests, rccl-tests (NVIDIA, AMD): collectives by size; text"

    def accepts(self, text: str) -> bool:
        """The head of its table."""
        return any(_HEAD.match(line) for _, line in text_of.numbered(text))

    def read(self, text: str) -> Imported:
        """Cases by collective, size, type, operation, root, ranks and place."""
        table, fresh = _Table(), False
        devices: dict[str, Device] = {}
        results: list[Result] = []
        versions: dict[str, str] = {}
        for number, line in text_of.numbered(text):
            if found := _RANK.match(line):
                table.devices = [] if fresh else table.devices
                fresh = False
                table.devices.append((found[2] or "", _device(found)))
            elif _HEAD.match(line):
                table.columns, fresh = _columns(f"line {number}", line), True
                devices |= dict(zip(table.ids(), (device for _, device in table.devices), strict=True))
            elif _ROW.match(line) and table.columns:
                results += _results(f"line {number}", line, table)
            else:
                _other(line, table, versions)
        if not results:
            raise BadOutput("the table has no rows")
        known = tuple(_named(name, device) for name, device in devices.items()) or (text_of.UNSTATED,)
        return Imported(_info(results), known, tuple(results), tuple(versions.items()))


def _columns(where: str, line: str) -> tuple[str, ...]:
    found = tuple(line.lstrip("# ").split())
    if not {"size", "count", "type"} <= set(found):
        raise BadOutput(f"{where}: the head is not whole")
    return found


def _device(found: re.Match[str]) -> Device:
    name = found[5].strip()
    backend = "rocm" if name.startswith("AMD") else "cuda"
    pci = found[4] if found[4].count(":") == 2 else ""
    details = (("hostname", found[2]),) if found[2] else ()
    return text_of.device(f"{backend}:{found[3]}", name, pci=pci, details=details)


def _named(name: str, device: Device) -> Device:
    known = {"arch": device.arch, "pci": device.pci, "details": device.details}
    return text_of.device(name, device.name, **known)


def _other(line: str, table: _Table, versions: dict[str, str]) -> None:
    if found := _NAME.search(line):
        table.name = found[1]
    if found := _LIBRARY.search(line):
        versions[found[1].lower()] = found[2]
    if found := re.match(r"#?\s*nccl-tests version (\S+)", line):
        versions["nccl-tests"] = found[1]
    if re.match(r"#\s*\(B\)", line):
        _check_units(line)


def _check_units(line: str) -> None:
    """The line of units under the head; raises BadOutput where they are not those that are known."""
    units = re.findall(r"\(([^)]+)\)", line)
    if not set(units) <= {"B", "elements", "us", "GB/s", "%"}:
        raise BadOutput(f"the units {', '.join(units)}: newer than the versions that are known")


def _results(where: str, line: str, table: _Table) -> Iterator[Result]:
    cells = _TIMESTAMP.sub("", line).split()
    key = [column for column in table.columns if column not in _MEASURED and column != "timestamp"]
    measured = [column for column in table.columns if column in _MEASURED]
    if len(cells) == len(key) + len(measured) - 1 and "redop" in key:
        key.remove("redop")  # older versions leave the place of an operation empty where there is none
    if len(cells) != len(key) + len(measured):
        raise BadOutput(f"{where}: {len(cells)} columns where the head has {len(table.columns)}")
    known = dict(zip(key, cells, strict=False))
    pairs = list(zip(measured, cells[len(key) :], strict=True))
    half = len(pairs) // 2
    if len(pairs) % 2 or measured[:half] != measured[half:]:
        raise BadOutput(f"{where}: the columns are not those of out of place and in place")
    for place, found in (("out", pairs[:half]), ("in", pairs[half:])):
        yield _result(where, known, place, dict(found), table)


def _result(where: str, known: dict[str, str], place: str, cells: dict[str, str], table: _Table) -> Result:
    ids = table.ids() or (text_of.UNSTATED.id,)
    size = text_of.whole(known["size"], where)
    params: list[tuple[str, str | int | float]] = [("size_bytes", size), ("type", known["type"])]
    params += [(name, known[name]) for name in ("redop", "root") if name in known]
    params += [("ranks", len(table.devices))] if table.devices else []
    case = Case(_SUITE, table.name, (*params, ("place", place)), devices=len(ids))
    series = _series(where, size, cells)
    wrong = cells.get("#wrong", "N/A")
    notes = (("validation", "off"),) if wrong == "N/A" else ()
    if wrong != "N/A" and text_of.number(wrong, where) > 0:
        reason = f"{wrong} values are out of bounds"
        return Result(case, ids, "failed", cause="wrong-answer", reason=reason, series=series, notes=notes)
    return Result(case, ids, "ok", series=series, notes=notes)


def _series(where: str, size_bytes: int, cells: dict[str, str]) -> tuple[Series, ...]:
    time = "time" if "time" in cells else "cputime"
    if not {time, "algbw", "busbw"} <= cells.keys():
        raise BadOutput(f"{where}: there is no time, algbw and busbw")
    found = [
        text_of.rate(name, text_of.si(text_of.number(cells[name], where), text_of.GIGA)) for name in ("busbw", "algbw")
    ]
    taken = text_of.seconds(time, text_of.si(text_of.number(cells[time], where), text_of.MICRO))
    bounds = [
        text_of.seconds(name[2:], text_of.si(text_of.number(cells[name], where), text_of.MICRO))
        for name in ("i_min", "i_max", "i_p99")
        if name in cells
    ]
    return (taken, *found, *bounds) if size_bytes < _SMALL_BYTES else (*found, taken, *bounds)


def _info(results: list[Result]) -> SuiteInfo:
    names = tuple(dict.fromkeys(result.case.name for result in results))
    views = (
        View("curve", "Bus bandwidth", names, x="size_bytes", by=("place",), series="busbw", log_x=True),
        View("curve", "Time", names, x="size_bytes", by=("place",), series="time", log_x=True, log_y=True),
    )
    return SuiteInfo(_SUITE, "imported: collectives as nccl-tests measured them", views)


importer: Importer = NcclTests()
