"""Import AMD's TransferBench: the transfers of a configuration, and the peer-to-peer matrices (`p2p`), as text.

Bandwidths are GB of 1e9 bytes, each byte counted once (payload). With SHOW_ITERATIONS=1 every iteration is printed, and
all of them are read, in the order in which they ran."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpubench.api.importer import BadOutput, Case, Imported, Importer, Params, Result, Series, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "transferbench"
_VERSION = re.compile(r"TransferBench v([\d.]+)")
_TEST = re.compile(r"Test (\d+):")
_SEPARATOR = re.compile(r"\s*[|│,]\s*")
_NUMBER = r"([\d.]+)"
_P2P = re.compile(r"(Uni|Bi)directional copy peak bandwidth GB/s\s*(?:\[(.+?)\])?\s*(?:\(GPU-Executor: (\w+)\))?")
_P2P_ROW = re.compile(r"(CPU|GPU) (\d+)\s*(->|<-|<->)\s+(.+)$")
_DEVICE = {"CPU": "cpu", "GPU": "gpu"}
_DIRECTIONS = ("send", "receive", "both")


@dataclass(slots=True)
class _PeerTable:
    """The peer-to-peer table that is being read: name of its case, executor of the copies, devices of the columns.

    The executor is empty if it is not printed, and `columns` are the ids of the devices, empty before the head."""

    name: str
    executor: str
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class _TransferBenchOutput:
    """The content of the output, as far as it has been read.

    `test` is the number of the current test, and `table` the current peer-to-peer table, None outside one."""

    version: str = ""
    test: int = 0
    size_bytes: int = 0
    table: _PeerTable | None = None
    results: list[Result] = field(default_factory=list)
    iterations: dict[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransferBench:
    """Importer of the output of TransferBench."""

    summary: str = "TransferBench (AMD): transfers between CPUs and GPUs; text"

    def accepts(self, text: str) -> bool:
        """Return whether the text has TransferBench's name with a version, or one of its transfers or matrices."""
        return bool(
            re.search(r"\bTransferBench v\d", text)
            or re.search(r"^[ \t]*Transfer \d+[ \t]*[|│][ \t]*[\d.]+ GB/s", text, re.MULTILINE)
            or re.search(r"^[ \t]*(Uni|Bi)directional copy peak bandwidth GB/s \[", text, re.MULTILINE)
        )

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per transfer and per pair of devices in a matrix.

        The axes of a transfer are its test, path and size. Raises BadOutput if the output is damaged."""
        output = _TransferBenchOutput()
        for number, line in parsing.numbered_lines(text):
            _read_line(output, f"line {number}", line)
        _finish_transfer(output)
        if not output.results:
            raise BadOutput("the output has neither a transfer nor a matrix")
        ids = dict.fromkeys(name for result in output.results for name in result.devices)
        devices = tuple(parsing.make_device(name) for name in ids)
        pairs = tuple(dict.fromkeys(r.case.name for r in output.results if r.case.name.startswith("p2p")))
        views = tuple(View("matrix", name, (name,), x="to", y="from") for name in pairs)
        info = SuiteInfo(_SUITE, "imported: transfers as TransferBench measured them", views)
        versions = (("transferbench", output.version),) if output.version else ()
        return Imported(info, devices, tuple(output.results), versions)


def _read_line(output: _TransferBenchOutput, where: str, line: str) -> None:
    """Add the content of one line to `output`; `where` names the line. Raises BadOutput if the line is damaged."""
    cells = _SEPARATOR.split(line)
    if version := _VERSION.search(line):
        output.version = version[1]
    elif test := _TEST.match(line):
        _finish_transfer(output)
        output.test, output.table = int(test[1][:9]), None
    elif size := re.match(r"Bytes Per Direction (\d{1,18})", line):
        output.size_bytes = int(size[1])
    elif table := _P2P.match(line):
        output.table = _PeerTable(f"p2p.{table[1].lower()}", table[3] or "")
    elif output.table:
        _read_table_line(output, output.table, where, line)
    elif re.match(r"(Transfer \d+|Executor|Aggregate)", cells[0]) and len(cells) > 1:
        _finish_transfer(output)
        output.results.append(_transfer_result(output, where, cells))
    elif re.match(r"Iter \d+", cells[0]):
        _add_iteration(output, where, cells)


def _finish_transfer(output: _TransferBenchOutput) -> None:
    """Make the iterations that were printed below the last transfer its samples, and forget them."""
    if output.iterations and output.results:
        ordered = [output.iterations[number] for number in sorted(output.iterations)]
        series = (
            parsing.rate_series("bandwidth", *(rate for rate, _ in ordered)),
            parsing.time_series("time", *(seconds for _, seconds in ordered)),
        )
        output.results[-1] = replace(output.results[-1], series=series)
    output.iterations = {}


def _rate_and_seconds(where: str, cells: Sequence[str]) -> tuple[float, float]:
    """Return the B/s and the seconds in the cells of a line such as `Transfer 1 | 33.520 GB/s | 2.002 ms`."""
    rate = re.fullmatch(rf"{_NUMBER}\s*GB/s.*", cells[1]) if len(cells) > 1 else None
    seconds = re.fullmatch(rf"{_NUMBER}\s*ms", cells[2]) if len(cells) > 2 else None
    if not rate or not seconds:
        raise BadOutput(f"{where}: neither GB/s nor ms of {cells[0]}")
    return (
        parsing.to_si(parsing.number(rate[1], where), parsing.GIGA),
        parsing.to_si(parsing.number(seconds[1], where), parsing.MILLI),
    )


def _add_iteration(output: _TransferBenchOutput, where: str, cells: Sequence[str]) -> None:
    """Add the iteration in the cells of a line to the last transfer; `where` names the line."""
    if not output.results:
        raise BadOutput(f"{where}: the iteration has no transfer")
    output.iterations[parsing.whole_number(cells[0].split()[1], where)] = _rate_and_seconds(where, cells)


def _transfer_result(output: _TransferBenchOutput, where: str, cells: Sequence[str]) -> Result:
    """Return the result of a line: of one transfer, of one executor, or of all transfers together (aggregate)."""
    rate, seconds = _rate_and_seconds(where, cells)
    size = re.fullmatch(r"(\d{1,18}) bytes", cells[3]) if len(cells) > 3 else None
    if not size:
        raise BadOutput(f"{where}: {cells[0]} has no size")
    line_kind = cells[0].split()[0].rstrip(":").lower()
    params: list[tuple[str, str | int | float]] = [("test", output.test), ("size_bytes", int(size[1]))]
    ids: tuple[str, ...] = ()
    if line_kind == "transfer":
        if len(cells) < 5:
            raise BadOutput(f"{where}: {cells[0]} has no path")
        path = cells[4].replace(" ", "")
        params += [("transfer", parsing.whole_number(cells[0].split()[1], where)), ("path", path)]
        ids = _ids(path)
    elif line_kind == "executor":
        params += [("executor", cells[0].partition(":")[2].strip())]
    case = Case(_SUITE, line_kind, tuple(params), devices=max(len(ids), 1))
    series: tuple[Series, ...] = (parsing.rate_series("bandwidth", rate), parsing.time_series("time", seconds))
    return Result(case, ids or (parsing.UNSTATED.id,), "ok", series=series)


def _ids(path: str) -> tuple[str, ...]:
    """Return the device ids of a path: `G0->GPU00:004->G1` is from GPU 0 to GPU 1, and `C0` is the memory of CPU 0."""
    ends = [end for index, end in enumerate(path.split("->")) if index != 1]
    ids = [
        f"{'cpu' if kind in 'CUBHD' else 'gpu'}:{index}"
        for end in ends
        for kind, index in re.findall(r"([A-Z])(\d+)", end)
    ]
    return tuple(dict.fromkeys(ids))


def _read_table_line(output: _TransferBenchOutput, table: _PeerTable, where: str, line: str) -> None:
    """Add the head of a peer-to-peer table to `table`, or a result for each cell of a row to `output`."""
    if not table.columns and "DST" in line:
        table.columns = tuple(
            f"{_DEVICE[kind]}:{int(index[:9])}" for kind, index in re.findall(r"(CPU|GPU) (\d+)", line)
        )
    elif (row := _P2P_ROW.match(line)) and table.columns:
        cells = row[4].split()
        if len(cells) != len(table.columns):
            raise BadOutput(f"{where}: {len(cells)} columns where the head has {len(table.columns)}")
        source = f"{_DEVICE[row[1]]}:{int(row[2][:9])}"
        direction = _DIRECTIONS[("->", "<-", "<->").index(row[3])]
        for target, cell in zip(table.columns, cells, strict=True):
            if cell != "N/A":
                rate = parsing.to_si(parsing.number(cell, where), parsing.GIGA)
                output.results.append(_pair_result(output, table, direction, source, target, rate))


def _pair_result(
    output: _TransferBenchOutput, table: _PeerTable, direction: str, source: str, target: str, rate: float
) -> Result:
    name = table.name if table.name == "p2p.uni" else f"{table.name}.{direction}"
    params: Params = (("from", source), ("to", target))
    params += (("executor", table.executor),) if table.executor else ()
    params += (("size_bytes", output.size_bytes),) if output.size_bytes else ()
    ids = tuple(dict.fromkeys((source, target)))
    return Result(
        Case(_SUITE, name, params, devices=len(ids)), ids, "ok", series=(parsing.rate_series("bandwidth", rate),)
    )


importer: Importer = TransferBench()
