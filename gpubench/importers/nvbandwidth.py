"""Import NVIDIA's nvbandwidth: matrices of bandwidths and latencies, as text or JSON, from one process or many.

The JSON is that of `-j`. nvbandwidth counts the bytes of a copy once (payload) and prints GB of 1e9 bytes. A cell is
the median of its samples, or with `-m` their mean. The samples themselves are not printed."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Result, SuiteInfo, View

from . import _parsing as parsing

_SUITE = "nvbandwidth"
_RUNNING = re.compile(r"Running (\w+)\.$")
_DEVICE = re.compile(r"Device (\d+): (.+?)(?: \(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\))?$")
_PROCESS = re.compile(r"Process (\d+) \((.+?)\): device (\d+): (.+?)(?: \(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\))?$")
_DESCRIPTION = re.compile(r"(?:memcpy|memory latency)\b.* \((GB/s|ns)\)$")
_PART = re.compile(r" (Read1|Read2|Write1|Write2|Total) bandwidth")
_VERSIONS = {
    "nvbandwidth Version": "nvbandwidth",
    "CUDA Runtime Version": "cuda.runtime",
    "Driver Version": "nvidia.driver",
}


@dataclass(frozen=True, slots=True)
class _PrintedMatrix:
    """One printed matrix: `cells` by row as printed, `N/A` where nothing was measured.

    `name` is the name of the case."""

    name: str
    description: str
    cells: tuple[tuple[str, ...], ...]
    where: str
    total: str = ""

    @property
    def unit(self) -> str:
        """Return the unit of the cells, `GB/s` or `ns`. Raises BadOutput if it is not printed."""
        unit = _DESCRIPTION.search(self.description.strip())
        if not unit:
            raise BadOutput(f"{self.where}: neither GB/s nor ns in {self.description[:80]!r}")
        return unit[1]

    def values(self) -> Iterator[tuple[int, int, float]]:
        """Yield row, column and value, in the printed unit, of each measured cell."""
        numbers = [
            (row, column, parsing.number(cell, self.where))
            for row, cells in enumerate(self.cells)
            for column, cell in enumerate(cells)
            if cell != "N/A"
        ]
        total = parsing.number(self.total, self.where) if self.total else None
        rounding = 0.005 * (len(numbers) + 1)  # every cell and the sum are rounded to two decimals
        if total is not None and abs(sum(value for _, _, value in numbers) - total) > rounding + 1e-5 * abs(total):
            raise BadOutput(f"{self.where}: the cells of {self.name} do not add up to its SUM: edited or damaged")
        yield from numbers


@dataclass(frozen=True, slots=True)
class Nvbandwidth:
    """Importer of the output of nvbandwidth."""

    summary: str = "nvbandwidth (NVIDIA): copies between host and GPUs, and latencies; text or JSON"

    def accepts(self, text: str) -> bool:
        """Return whether the text has nvbandwidth's version, a started test, or the JSON's outer object."""
        return bool(
            re.search(r"^[ \t]*nvbandwidth Version:", text, re.MULTILINE)
            or re.search(r'^[ \t]*"nvbandwidth"[ \t]*:[ \t]*\{?[ \t]*$', text, re.MULTILINE)
            or re.search(r"^[ \t]*Running \w+\.[ \t]*\n[ \t\n]*memcpy ", text, re.MULTILINE)
        )

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per measured cell of each test's matrix.

        The axes are row and column. A test without a matrix gives a failed or skipped result."""
        if re.search(r'^[ \t]*"nvbandwidth"[ \t]*:', text, re.MULTILINE):
            return _parse_json(text)
        return _parse_text(text)


def _imported(
    devices: Sequence[Device],
    matrices: Sequence[_PrintedMatrix],
    unmeasured: Sequence[Result],
    versions: dict[str, str],
) -> Imported:
    """Return the matrices as a suite, with a view for each that has a cell between two devices."""
    devices_by_id = {device.id: device for device in devices}
    results = [result for matrix in matrices for result in _results(matrix, list(devices_by_id))]
    for result in results:
        devices_by_id |= {name: parsing.make_device(name) for name in result.devices if name not in devices_by_id}
    all_results = (*results, *unmeasured)
    if not all_results:
        raise BadOutput("no test has a result")
    names = tuple(dict.fromkeys(result.case.name for result in results))
    square = tuple(name for name in names if any(r.case.name == name and len(r.devices) > 1 for r in results))
    views = tuple(View("matrix", name, (name,), x="column", y="row") for name in square)
    info = SuiteInfo(_SUITE, "imported: copies between host and GPUs as nvbandwidth measured them", views)
    return Imported(info, tuple(devices_by_id.values()), all_results, tuple(versions.items()))


def _results(matrix: _PrintedMatrix, devices: Sequence[str]) -> Iterator[Result]:
    """Yield a result for each measured cell of a matrix: a latency in s or a bandwidth in B/s."""
    is_between_gpus = "GPU(row)" in matrix.description
    for row, column, value in matrix.values():
        places = (row, column) if is_between_gpus and row != column else (column,)
        ids = tuple(devices[place] if place < len(devices) else f"cuda:{place}" for place in places)
        if matrix.unit == "ns":
            series = parsing.time_series("latency", parsing.to_si(value, parsing.NANO))
        else:
            series = parsing.rate_series("bandwidth", parsing.to_si(value, parsing.GIGA))
        case = Case(_SUITE, matrix.name, (("row", row), ("column", column)), devices=len(ids))
        yield Result(case, ids, "ok", series=(series,))


def _parse_text(text: str) -> Imported:
    """Return the content of the text form. Raises BadOutput if it is damaged."""
    reader = _TextReader()
    for number, line in parsing.numbered_lines(text):
        reader.read_line(f"line {number}", line)
    reader.finish()
    return _imported(reader.devices, reader.matrices, reader.failed, reader.versions)


class _TextReader:
    """Reads the text form line by line: a test starts, describes its matrix, prints it, and prints its sum.

    Call `read_line` for each line, then `finish`."""

    def __init__(self) -> None:
        """Make a reader that has read nothing."""
        self.devices: list[Device] = []
        self.matrices: list[_PrintedMatrix] = []
        self.failed: list[Result] = []
        self.versions: dict[str, str] = {}
        self._test, self._where, self._message = "", "", ""
        self._has_matrix = False  # whether the current test has printed a matrix
        self._columns = -1  # columns of the current matrix; -1 outside a matrix, 0 before its head

    def read_line(self, where: str, line: str) -> None:
        """Read one line, which `where` names. Raises BadOutput if the line does not fit the test before it."""
        if running := _RUNNING.match(line):
            self.finish()
            self._test, self._where, self._has_matrix, self._message = running[1], where, False, ""
        elif _DESCRIPTION.match(line) and self._test:
            self._begin_matrix(where, line)
        elif self._columns >= 0 and re.match(r"\d", line):
            self._read_row(where, line)
        elif line.startswith("SUM "):
            self._read_sum(where, line)
        elif line:
            self._read_names(line)

    def _begin_matrix(self, where: str, line: str) -> None:
        """Start the matrix that `line` describes; `where` names the line."""
        part = _PART.search(line)
        name = f"{self._test}_{part[1].lower()}" if part else self._test
        self.matrices.append(_PrintedMatrix(name, line, (), where))
        self._columns, self._has_matrix = 0, True

    def _read_row(self, where: str, line: str) -> None:
        """Read the head or a row of the current matrix; `where` names the line."""
        cells = line.split()
        if self._columns == 0:
            self._columns = len(cells)
            return
        matrix = self.matrices[-1]
        if len(cells) != self._columns + 1 or cells[0] != str(len(matrix.cells)):
            raise BadOutput(f"{where}: a row of {matrix.name} is incomplete")
        self.matrices[-1] = _PrintedMatrix(matrix.name, matrix.description, (*matrix.cells, tuple(cells[1:])), where)

    def _read_sum(self, where: str, line: str) -> None:
        """Read the name and the sum of the current matrix, and end it; `where` names the line."""
        cells = line.split()
        if len(cells) != 3 or not self.matrices or not self.matrices[-1].cells:
            raise BadOutput(f"{where}: a SUM without a matrix")
        matrix = self.matrices[-1]
        self.matrices[-1] = _PrintedMatrix(cells[1], matrix.description, matrix.cells, where, cells[2])
        self._columns = -1

    def _read_names(self, line: str) -> None:
        """Read a device, a process or a version from a line, or keep the first message of a test without a matrix."""
        if match := _DEVICE.match(line):
            pci = match[3] or ""
            self.devices.append(parsing.make_device(f"cuda:{match[1]}", match[2], pci=pci))
        elif match := _PROCESS.match(line):
            details = (("hostname", match[2]), ("device", match[3]))
            name = f"process{match[1]}/cuda:{match[3]}"
            self.devices.append(parsing.make_device(name, match[4], pci=match[5] or "", details=details))
        elif (name := line.partition(":")[0]) in _VERSIONS:
            self.versions[_VERSIONS[name]] = line.partition(":")[2].strip()
        elif self._test and not self._has_matrix and not line.startswith("Waived"):
            self._message = self._message or line

    def finish(self) -> None:
        """End the current test; a test without a matrix has failed, and the line that it printed is the reason."""
        if self._columns == 0 or (self.matrices and not self.matrices[-1].cells):
            raise BadOutput(f"{self.matrices[-1].where}: the output ends before the matrix of {self._test}")
        if self._test and not self._has_matrix:
            if not self._message:
                raise BadOutput(f"{self._where}: the output ends before the matrix of {self._test}")
            case = Case(_SUITE, self._test)
            ids = tuple(device.id for device in self.devices)
            self.failed.append(Result(case, ids, "failed", cause="no-result", reason=self._message))
        self._columns, self._test = -1, ""


def _parse_json(text: str) -> Imported:
    """Return the content of the JSON form. Raises BadOutput if it is damaged."""
    body = parsing.json_value(parsing.json_object(text), "nvbandwidth", dict)
    versions = {_VERSIONS[name]: str(body[name]) for name in ("CUDA Runtime Version", "Driver Version") if name in body}
    if "version" in body:
        versions = {"nvbandwidth": str(body["version"]), **versions}
    devices = [device for item in body.get("GPU Device list", ()) for device in _listed_device(item)]
    matrices: list[_PrintedMatrix] = []
    unmeasured: list[Result] = []
    for test in parsing.json_value(body, "testcases", list):
        name = parsing.json_value(test, "name", str)
        if "bandwidth_matrix" in test:
            matrices.append(_json_matrix(name, test))
        else:
            unmeasured.append(_result_without_matrix(name, test, tuple(device.id for device in devices)))
    return _imported(devices, matrices, unmeasured, versions)


def _listed_device(item: object) -> Iterator[Device]:
    """Yield the device of an item in the JSON's list of devices; yield nothing if the item is no device."""
    match = re.match(r"(\d+): (.+?)(?: \(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\))?:?$", str(item))
    if match:
        yield parsing.make_device(f"cuda:{match[1]}", match[2], pci=match[3] or "")


def _json_matrix(name: str, test: dict[str, object]) -> _PrintedMatrix:
    """Return the matrix of the test `name` in the JSON; `test` is its object. Raises BadOutput if it is damaged."""
    description = parsing.json_value(test, "bandwidth_description", str).strip()
    rows = parsing.json_value(test, "bandwidth_matrix", list)
    if not rows or not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows):
        raise BadOutput(f"the matrix of {name} is incomplete")
    part, total = _PART.search(description), str(test.get("sum", ""))
    if part:  # the JSON has a matrix for each direction before the described one, and the sum belongs to the latter
        rows, name = rows[-len(rows[0]) :], f"{name}_{part[1].lower()}"
    cells = tuple(tuple(str(cell) for cell in row) for row in rows)
    return _PrintedMatrix(name, description, cells, name, total)


def _result_without_matrix(name: str, test: object, ids: tuple[str, ...]) -> Result:
    """Return the result of a test in the JSON that has no matrix."""
    status = parsing.json_value(test, "status", str)
    case = Case(_SUITE, name)
    if status in ("Waived", "Not Found"):
        return Result(case, ids, "skipped", cause=status.lower().replace(" ", "-"), reason=status)
    reason = str(test.get("error", status)) if isinstance(test, dict) else status
    return Result(case, ids, "failed", cause="no-result", reason=reason)


importer: Importer = Nvbandwidth()
