"""AMD's TransferBench: the transfers of a configuration, and the peer-to-peer matrices (`p2p`), as text.

Bandwidths are GB of 1e9 bytes, each byte counted once (payload). With SHOW_ITERATIONS=1 every iteration is printed, and
all of them are read, in the order in which they ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpubench.api.importer import BadOutput, Case, Imported, Importer, Params, Result, Series, SuiteInfo, View

from . import _text as text_of

_SUITE = "transferbench"
_VERSION = re.compile(r"TransferBench v([\d.]+)")
_TEST = re.compile(r"Test (\d+):")
_SEPARATOR = re.compile(r"\s*[|│,]\s*")
_NUMBER = r"([\d.]+)"
_P2P = re.compile(r"(Uni|Bi)directional copy peak bandwidth GB/s\s*(?:\[(.+?)\])?\s*(?:\(GPU-Executor: (\w+)\))?")
_P2P_ROW = re.compile(r"(CPU|GPU) (\d+)\s*(->|<-|<->)\s+(.+)$")
_DEVICE = {"CPU": "cpu", "GPU": "gpu"}
_PAIRS = ("send", "receive", "both")


@dataclass(slots=True)
class _Matrix:
    """The current peer-to-peer table."""

    name: str
    executor: str
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reading:
    """The parts of the output that were read so far."""

    version: str = ""
    test: int = 0
    size_bytes: int = 0
    matrix: _Matrix | None = None
    results: list[Result] = field(default_factory=list)
    iterations: dict[int, tuple[float, float]] = field(default_factory=dict)  # of the last transfer


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
        """Return the cases by test, transfer, path and size, and by pair of devices.

        Raises BadOutput if the output is damaged.
        """
        reading = _Reading()
        for number, line in text_of.numbered(text):
            _read_line(reading, f"line {number}", line)
        _finish_transfer(reading)
        if not reading.results:
            raise BadOutput("there is no transfer and no matrix")
        ids = dict.fromkeys(name for result in reading.results for name in result.devices)
        devices = tuple(text_of.device(name) for name in ids)
        pairs = tuple(dict.fromkeys(r.case.name for r in reading.results if r.case.name.startswith("p2p")))
        views = tuple(View("matrix", name, (name,), x="to", y="from") for name in pairs)
        info = SuiteInfo(_SUITE, "imported: transfers as TransferBench measured them", views)
        versions = (("transferbench", reading.version),) if reading.version else ()
        return Imported(info, devices, tuple(reading.results), versions)


def _read_line(reading: _Reading, where: str, line: str) -> None:
    """Add one line to the reading. Raises BadOutput if it is damaged."""
    cells = _SEPARATOR.split(line)
    if version := _VERSION.search(line):
        reading.version = version[1]
    elif test := _TEST.match(line):
        _finish_transfer(reading)
        reading.test, reading.matrix = int(test[1][:9]), None
    elif size := re.match(r"Bytes Per Direction (\d{1,18})", line):
        reading.size_bytes = int(size[1])
    elif matrix := _P2P.match(line):
        reading.matrix = _Matrix(f"p2p.{matrix[1].lower()}", matrix[3] or "")
    elif reading.matrix:
        _matrix_line(reading, reading.matrix, where, line)
    elif re.match(r"(Transfer \d+|Executor|Aggregate)", cells[0]) and len(cells) > 1:
        _finish_transfer(reading)
        reading.results.append(_transfer(reading, where, cells))
    elif re.match(r"Iter \d+", cells[0]):
        _iteration(reading, where, cells)


def _finish_transfer(reading: _Reading) -> None:
    """Make the iterations that were printed below a transfer its samples."""
    if reading.iterations and reading.results:
        ordered = [reading.iterations[number] for number in sorted(reading.iterations)]
        series = (
            text_of.rate("bandwidth", *(rate for rate, _ in ordered)),
            text_of.seconds("time", *(seconds for _, seconds in ordered)),
        )
        reading.results[-1] = replace(reading.results[-1], series=series)
    reading.iterations = {}


def _figures(where: str, cells: Sequence[str]) -> tuple[float, float]:
    """Return the B/s and the seconds of a line: `33.520 GB/s | 2.002 ms`.

    Raises BadOutput if the line has no such columns.
    """
    rate = re.fullmatch(rf"{_NUMBER}\s*GB/s.*", cells[1]) if len(cells) > 1 else None
    seconds = re.fullmatch(rf"{_NUMBER}\s*ms", cells[2]) if len(cells) > 2 else None
    if not rate or not seconds:
        raise BadOutput(f"{where}: neither GB/s nor ms of {cells[0]}")
    return (
        text_of.si(text_of.number(rate[1], where), text_of.GIGA),
        text_of.si(text_of.number(seconds[1], where), text_of.MILLI),
    )


def _iteration(reading: _Reading, where: str, cells: Sequence[str]) -> None:
    """Add an iteration to the last transfer. Raises BadOutput if there is no transfer."""
    if not reading.results:
        raise BadOutput(f"{where}: an iteration without a transfer")
    reading.iterations[text_of.whole(cells[0].split()[1], where)] = _figures(where, cells)


def _transfer(reading: _Reading, where: str, cells: Sequence[str]) -> Result:
    """Return a transfer as a result. Raises BadOutput if the line is damaged."""
    rate, seconds = _figures(where, cells)
    size = re.fullmatch(r"(\d{1,18}) bytes", cells[3]) if len(cells) > 3 else None
    if not size:
        raise BadOutput(f"{where}: {cells[0]} has no size")
    word = cells[0].split()[0].rstrip(":").lower()
    params: list[tuple[str, str | int | float]] = [("test", reading.test), ("size_bytes", int(size[1]))]
    ids: tuple[str, ...] = ()
    if word == "transfer":
        if len(cells) < 5:
            raise BadOutput(f"{where}: {cells[0]} has no path")
        path = cells[4].replace(" ", "")
        params += [("transfer", text_of.whole(cells[0].split()[1], where)), ("path", path)]
        ids = _ids(path)
    elif word == "executor":
        params += [("executor", cells[0].partition(":")[2].strip())]
    case = Case(_SUITE, word, tuple(params), devices=max(len(ids), 1))
    series: tuple[Series, ...] = (text_of.rate("bandwidth", rate), text_of.seconds("time", seconds))
    return Result(case, ids or (text_of.UNSTATED.id,), "ok", series=series)


def _ids(path: str) -> tuple[str, ...]:
    """Return the devices of a path: `G0->GPU00:004->G1` is from GPU 0 to GPU 1, and `C0` is the memory of a CPU."""
    ends = [end for index, end in enumerate(path.split("->")) if index != 1]
    ids = [
        f"{'cpu' if kind in 'CUBHD' else 'gpu'}:{index}"
        for end in ends
        for kind, index in re.findall(r"([A-Z])(\d+)", end)
    ]
    return tuple(dict.fromkeys(ids))


def _matrix_line(reading: _Reading, matrix: _Matrix, where: str, line: str) -> None:
    """Read the head or a row of a peer-to-peer matrix. Raises BadOutput if it is damaged."""
    if not matrix.columns and "DST" in line:
        matrix.columns = tuple(
            f"{_DEVICE[kind]}:{int(index[:9])}" for kind, index in re.findall(r"(CPU|GPU) (\d+)", line)
        )
    elif (row := _P2P_ROW.match(line)) and matrix.columns:
        cells = row[4].split()
        if len(cells) != len(matrix.columns):
            raise BadOutput(f"{where}: {len(cells)} columns where the head has {len(matrix.columns)}")
        source = f"{_DEVICE[row[1]]}:{int(row[2][:9])}"
        which = _PAIRS[("->", "<-", "<->").index(row[3])]
        for target, cell in zip(matrix.columns, cells, strict=True):
            if cell != "N/A":
                rate = text_of.si(text_of.number(cell, where), text_of.GIGA)
                reading.results.append(_pair(reading, matrix, which, source, target, rate))


def _pair(reading: _Reading, matrix: _Matrix, which: str, source: str, target: str, rate: float) -> Result:
    """Return a cell of a peer-to-peer matrix as a result."""
    name = matrix.name if matrix.name == "p2p.uni" else f"{matrix.name}.{which}"
    params: Params = (("from", source), ("to", target))
    params += (("executor", matrix.executor),) if matrix.executor else ()
    params += (("size_bytes", reading.size_bytes),) if reading.size_bytes else ()
    ids = tuple(dict.fromkeys((source, target)))
    return Result(Case(_SUITE, name, params, devices=len(ids)), ids, "ok", series=(text_of.rate("bandwidth", rate),))


importer: Importer = TransferBench()
