"""Import AMD's TransferBench: the transfers of a configuration, and the peer-to-peer matrices (`p2p`), as text.

Bandwidths are GB of 1e9 bytes, each byte counted once (payload). With SHOW_ITERATIONS=1 every iteration is printed, and
all of them are read, in the order in which they ran."""

import re
from dataclasses import dataclass, field, replace

from gpubench.api import importer as gb

_QUANTITIES = (("rate", "bandwidth", "GB/s"), ("time", "time", "ms"))
_CELL = re.compile(r"\s*[|│,]\s*")
_ROW = re.compile(  # of cells that are joined by |
    r"(?P<kind>Transfer|Executor|Aggregate|Iter):?(?P<name>[^|]*)\|(?P<rate>[\d.]+)\s*GB/s[^|]*"
    r"\|(?P<time>[\d.]+)\s*ms(?:\||$)(?:(?P<size>\d{1,18}) bytes(?:\||$))?(?P<path>[^|]*)"
)
_P2P = re.compile(r"(Uni|Bi)directional copy peak bandwidth GB/s\s*(?:\[.+?\])?\s*(?:\(GPU-Executor: (\w+)\))?")
_P2P_ROW = re.compile(r"(CPU|GPU) (\d{1,9})\s*(->|<-|<->)\s+(.+)$")
_DIRECTIONS = {"->": "send", "<-": "receive", "<->": "both"}


@dataclass(slots=True)
class _Output(gb.Output):
    test: int = 0
    size_bytes: int = 0
    matrix: str = ""  # the case of the current peer-to-peer matrix
    executor: str = ""  # of its copies
    columns: tuple[str, ...] = ()  # its devices
    iterations: dict[int, dict[int, list[gb.Series]]] = field(default_factory=dict)  # by the index of the result

    def take(self, line: str) -> None:
        cells = _CELL.split(line)
        if version := re.search(r"TransferBench v([\d.]+)", line):
            self.versions["transferbench"] = version[1]
        elif test := re.match(r"Test (\d{1,9})", line):
            self.test, self.matrix = int(test[1]), ""
        elif size := re.match(r"Bytes Per Direction (\d{1,18})", line):
            self.size_bytes = int(size[1])
        elif matrix := _P2P.match(line):
            self.matrix, self.executor, self.columns = f"p2p.{matrix[1].lower()}", matrix[2] or "", ()
        elif self.matrix:
            self._take_matrix(line)
        elif re.match(r"Iter \d" if len(cells) < 2 else r"(Iter|Transfer) \d|Executor|Aggregate", line):
            self._add_transfer(cells)

    def _add_transfer(self, cells: list[str]) -> None:
        row = _ROW.match("|".join(cells))
        if not row or not (row["size"] or row["kind"] == "Iter") or not (row["path"] or row["kind"] != "Transfer"):
            raise gb.BadOutput(f"{cells[0]}: there is neither GB/s nor ms, or no size or path")
        kind, series = row["kind"].lower(), gb.quantities(row.groupdict(), _QUANTITIES)
        name, path = row["name"].strip(), row["path"].replace(" ", "")
        if kind == "iter":
            if not self.results:
                raise gb.BadOutput("the iteration has no transfer")
            self.iterations.setdefault(len(self.results) - 1, {})[gb.whole_number(name)] = series
            return
        axes: dict[str, str | int] = {"test": self.test, "size_bytes": int(row["size"])}
        axes |= {"transfer": gb.whole_number(name), "path": path} if kind == "transfer" else {}
        axes |= {"executor": name} if kind == "executor" else {}
        ends = re.findall(r"([A-Z])(\d+)", re.sub(r"->.*?(->|$)", "->", path, count=1))  # without the executor
        ids = dict.fromkeys(f"{'cpu' if memory in 'CUBHD' else 'gpu'}:{index}" for memory, index in ends)
        self.add(kind, tuple(axes.items()), series, (kind == "transfer" and ids) or (gb.UNSTATED.id,))

    def _take_matrix(self, line: str) -> None:
        if not self.columns and "DST" in line:
            columns = re.findall(r"(cpu|gpu) (\d{1,9})", line.lower())
            self.columns = tuple(f"{kind}:{int(index)}" for kind, index in columns)
        elif (row := _P2P_ROW.match(line)) and self.columns:
            source = f"{row[1].lower()}:{int(row[2])}"
            name = self.matrix if self.matrix == "p2p.uni" else f"{self.matrix}.{_DIRECTIONS[row[3]]}"
            for target, cell in gb.row(self.columns, row[4].split()).items():
                others = (("executor", self.executor), ("size_bytes", self.size_bytes))
                params: gb.Params = (("from", source), ("to", target), *(other for other in others if other[1]))
                if cell != "N/A":
                    self.add(name, params, [gb.quantity("bandwidth", "GB/s", cell)], dict.fromkeys((source, target)))


def _read(text: str) -> gb.Imported:
    output = _Output("transferbench", "imported: transfers as TransferBench measured them")
    gb.read_lines(text, output.take)
    for index, iterations in output.iterations.items():  # samples in the order in which they ran
        columns = zip(*(iterations[number] for number in sorted(iterations)), strict=True)
        series = tuple(replace(column[0], values=tuple(one.values[0] for one in column)) for column in columns)
        output.results[index] = replace(output.results[index], series=series)
    return output.imported(*(gb.View("matrix", name, (name,), "to", "from") for name in output.cases("p2p")))


_TRANSFER, _MATRIX = r"Transfer \d+[ \t]*[|│][ \t]*[\d.]+ GB/s", r"(?:Uni|Bi)directional copy peak bandwidth GB/s \["
_ACCEPTS = gb.has(rf"\bTransferBench v\d|^[ \t]*(?:{_TRANSFER}|{_MATRIX})")
importer: gb.Importer = gb.Reader("TransferBench (AMD): transfers between CPUs and GPUs; text", _ACCEPTS, _read)
